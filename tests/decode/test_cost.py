"""The loop donates its state, copies no cache and needs less temporary memory than one cache."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.decode.state import init_state
from jaxspec.models import ModelConfig, language_model, parameter_shapes
from tests.decode.engines import began, tiny_engine
from tests.decode.test_greedy import PROMPTS

ROWS, SLOTS = 2, 4096
CONFIG = ModelConfig(
    family="llama",
    vocab_size=64,
    hidden_size=64,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=32,
    max_positions=SLOTS,
)


@pytest.fixture(autouse=True, scope="module")
def compile_quickly():
    """In place of the folder's: what is compiled here is what users run."""
    return


@functools.cache
def compiled_loop():
    """The whole loop of every kind of source, from shapes alone, with its abstract state."""
    model = language_model(CONFIG)
    setup = decode.make_setup(model, drafts=("lookup", "exit:1", ("lm:d", model)), lookahead=3, windows=(1, 4))
    prompts = [[1, 2, 3]] * ROWS
    request = decode.make_request(setup, prompts, max_new_tokens=8)
    state = jax.eval_shape(
        lambda tokens: init_state(setup, tokens, request, headroom=256), jax.ShapeDtypeStruct((ROWS, SLOTS), jnp.int32)
    )
    params = decode.EngineParams(parameter_shapes(CONFIG), {"lm:d": parameter_shapes(CONFIG)}, ())
    halt = jax.ShapeDtypeStruct((ROWS,), bool)
    return decode.loop.lower(setup, params, state, 8, halt).compile(), state


def size(tree):
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def test_temporary_memory_stays_below_one_cache():
    compiled, state = compiled_loop()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < size(state.cache.layers)


def test_the_state_is_updated_where_it_lies():
    compiled, state = compiled_loop()
    caches = size(state.cache) + size(state.sources)
    assert compiled.memory_analysis().alias_size_in_bytes > caches, "caches in and out are the same memory"


def copies_of(text, shapes):
    """Instructions of an optimised program that copy an array of one of the shapes."""
    wanted = {f"f32[{','.join(map(str, shape))}]" for shape in shapes}
    found = re.findall(r"= (f32\[[\d,]+\])\S* (?:copy|copy-start|transpose)\(", text)
    return [shape for shape in found if shape in wanted]


def test_no_cache_is_copied_by_the_compiled_loop():
    compiled, state = compiled_loop()
    shapes = {leaf.shape for leaf in jax.tree.leaves((state.cache, state.sources)) if leaf.ndim == 4}
    assert len(shapes) == 2, "the target's and the draft's"
    assert copies_of(compiled.as_text(), shapes) == []

    def keeps_the_old(cache):
        return jax.lax.dynamic_update_slice(cache, jnp.ones((1, 4, 8, 32)), (0, 0, 5, 0)), jnp.sum(cache)

    shape = next(iter(shapes))
    abstract = jax.ShapeDtypeStruct(shape, jnp.float32)
    assert copies_of(jax.jit(keeps_the_old).lower(abstract).compile().as_text(), {shape}), "such a copy is found"


def test_the_state_is_donated_and_the_parameters_are_not():
    engine = tiny_engine("greedy")
    params, state = began(engine, PROMPTS, max_new_tokens=2)
    decode.loop(engine.setup, params, state, 1, np.zeros(4, bool))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_a_request_survives_the_state_made_from_it():
    engine = tiny_engine("greedy")
    request = decode.make_request(engine.setup, PROMPTS, max_new_tokens=2)
    params, _ = began(engine, PROMPTS, max_new_tokens=2)
    for _ in range(2):
        state = decode.start(engine.setup, engine.params, PROMPTS, request, capacity=engine.capacity)
        decode.loop(engine.setup, params, state, 8, np.zeros(4, bool))
