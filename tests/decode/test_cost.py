"""Compiled programs update their state where it lies, copy no cache and need less temporary memory than one cache.

The optimised HLO and the memory are the same however much effort goes into machine code.
"""

import dataclasses
import functools
import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.decode.state import init_state
from jaxspec.models import ModelConfig, language_model, parameter_shapes

prefill = importlib.import_module("jaxspec.decode.prefill")  # the module; the package has the function of this name

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


DRAFT = dataclasses.replace(CONFIG, num_heads=1, num_kv_heads=1)


@functools.cache
def parts(drafting):
    """Setup, parameters and state as shapes alone, with every kind of source or with none."""
    drafts = ("lookup", "exit:1", ("lm:d", language_model(DRAFT))) if drafting else ()
    options = {"drafts": drafts, "lookahead": 3 if drafting else 0, "windows": (1, 4)}
    setup = decode.make_setup(language_model(CONFIG), **options)
    params = decode.EngineParams(parameter_shapes(CONFIG), {"lm:d": parameter_shapes(DRAFT)} if drafting else {}, ())
    return setup, params, abstract_state(setup)


def abstract_state(setup):
    request = decode.make_request(setup, [[1, 2, 3]] * ROWS, max_new_tokens=8)
    tokens = jax.ShapeDtypeStruct((ROWS, SLOTS), jnp.int32)
    return jax.eval_shape(lambda tokens: init_state(setup, tokens, request, headroom=256), tokens)


@functools.cache
def program(name):
    """One of the compiled programs that write caches, and its abstract state."""
    setup, params, state = parts(name == "loop")
    if name in ("loop", "loop without drafts"):
        lowered = decode.loop.lower(setup, params, state, 8, jax.ShapeDtypeStruct((ROWS,), bool))
    elif name == "plain loop":
        lowered = decode.plain_loop.lower(setup, params, state, 8)
    else:
        lowered = prefill._chunk.lower(setup, params, state, jnp.int32(0), 16, name == "first chunk")
    return lowered.compile(), state


PROGRAMS = ["loop", "loop without drafts", "plain loop", "first chunk", "later chunk"]


def size(tree):
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", PROGRAMS)
def test_temporary_memory_stays_below_one_cache_and_the_state_is_updated_where_it_lies(name):
    compiled, state = program(name)
    memory, caches = compiled.memory_analysis(), size(state.cache) + size(state.sources)
    assert memory.temp_size_in_bytes < 0.5 * size(state.cache.layers)
    assert memory.alias_size_in_bytes > caches, "caches in and out are the same memory"


def copies_of(text, shapes):
    """Instructions of an optimised program that copy an array of one of the shapes."""
    wanted = {f"f32[{','.join(map(str, shape))}]" for shape in shapes}
    found = re.findall(r"= (f32\[[\d,]+\])\S* (?:copy|copy-start|transpose)\(", text)
    return [shape for shape in found if shape in wanted]


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_cache_is_copied(name):
    compiled, state = program(name)
    shapes = {leaf.shape for leaf in jax.tree.leaves((state.cache, state.sources)) if leaf.ndim == 4}
    assert len(shapes) == (2 if name == "loop" else 1), "the target's, and the draft's"
    assert copies_of(compiled.as_text(), shapes) == []


def test_a_copy_would_be_found():
    """A write that nothing orders after a read of the same cache."""

    def read_and_write(cache):
        return jax.lax.dynamic_update_slice(cache, jnp.ones((1, 4, 8, 32)), (0, 0, 5, 0)), jnp.sum(cache)

    shape = (ROWS, 4, SLOTS, 32)
    compiled = jax.jit(read_and_write).lower(jax.ShapeDtypeStruct(shape, jnp.float32)).compile()
    assert copies_of(compiled.as_text(), {shape})
    assert compiled.memory_analysis().alias_size_in_bytes == 0
