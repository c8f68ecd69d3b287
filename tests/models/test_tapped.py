"""A pass in parts gives, bit for bit on CPUs, what one pass gives, and the residual streams between."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.cache import layers_of_window
from jaxspec.models import LanguageModel, language_model
from jaxspec.models.tapped import layers_of, tapped
from tests.models.tiny import chain_mask, empty_cache, random_params, random_tokens, tiny, window_pass

ROWS, FIRST, SECOND = 2, 3, 5


@functools.cache
def case(name: str, layers: int):
    """A model of several layers, its parameters, and a cache of a few tokens, as many in each row as it likes."""
    windows = tiny(name).windows
    config = dataclasses.replace(tiny(name), num_layers=layers, windows=(windows * layers)[:layers])
    model, params = language_model(config), random_params(config)
    tokens = random_tokens(config)
    _, cache = window_pass(model, params, jnp.asarray(tokens[:, :8]), empty_cache(model, ROWS), jnp.asarray([8, 5]))
    return model, params, jnp.asarray(tokens[:, 8 : 8 + FIRST + SECOND]), cache


@functools.partial(jax.jit, static_argnames=("model", "taps", "start", "stop", "logits"))
def run(model: LanguageModel, params, tokens, cache, carried=None, hidden=None, **options):
    """One window after the cache and the carried one; every option is `tapped`'s, None of them is one whole pass."""
    before = 0 if carried is None else carried.positions.shape[1]
    positions = cache.length[:, None] + before + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    mask = chain_mask(ROWS, tokens.shape[1], before)
    if not options:
        return model.forward(params, tokens, positions, mask, cache, carried), {}
    return tapped(model, params, tokens, positions, mask, cache, carried, hidden=hidden, **options)


def same(mine, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(other), strict=True))


@pytest.mark.parametrize(("name", "taps"), [("smollm2", (1, 3)), ("smollm2", (2, 4)), ("gemma2", (1, 2, 3))])
def test_taps_change_no_bit(name, taps):
    model, params, tokens, cache = case(name, 4)
    whole, none = run(model, params, tokens[:, :FIRST], cache)
    parts, found = run(model, params, tokens[:, :FIRST], cache, taps=taps)
    assert none == {}
    assert same(parts, whole)
    assert tuple(found) == taps
    later, _ = run(model, params, tokens[:, FIRST:], cache, whole.window)
    again, more = run(model, params, tokens[:, FIRST:], cache, parts.window, taps=taps)
    assert same(again, later)
    assert not np.array_equal(again.logits[:, :FIRST], parts.logits)
    for tap in taps:
        assert found[tap].shape == (ROWS, FIRST, model.config.hidden_size)
        assert more[tap].shape == (ROWS, SECOND, model.config.hidden_size)
        stop, _ = run(model, params, tokens[:, :FIRST], cache, stop=tap, logits=False)
        assert same(found[tap], stop.hidden)
    if 4 in taps:
        assert same(found[4], whole.hidden)  # before the final norm


def test_a_pass_may_begin_where_another_ended():
    model, params, tokens, cache = case("smollm2", 4)
    before, _ = run(model, params, tokens[:, :FIRST], cache)
    whole, streams = run(model, params, tokens[:, FIRST:], cache, before.window, taps=(1, 2, 3))
    low, under = run(
        model,
        params,
        tokens[:, FIRST:],
        cache,
        layers_of_window(before.window, 0, 2),
        taps=(1, 2, 3),
        stop=2,
        logits=False,
    )
    high, over = run(
        model,
        params,
        tokens[:, FIRST:],
        cache,
        layers_of_window(before.window, 2, 4),
        low.hidden,
        taps=(1, 2, 3),
        start=2,
    )
    assert low.logits is None
    assert (tuple(under), tuple(over)) == ((1, 2), (3,))
    assert same(under | over, streams)
    assert same((high.logits, high.hidden), (whole.logits, whole.hidden))
    assert same((low.window.k + high.window.k, low.window.v + high.window.v), (whole.window.k, whole.window.v))
    other, _ = run(model, params, tokens[:, FIRST:], cache, before.window, taps=(1,), stop=2, logits=False)
    assert same(other.hidden, low.hidden)  # what is carried of layers that do not run is left alone


def test_a_model_that_has_no_parts_says_so():
    model, params, tokens, cache = case("smollm2", 4)
    foreign = model._replace(config=(("vocab_size", 61),))
    run(foreign, params, tokens[:, :FIRST], cache)
    assert layers_of(model) == 4
    with pytest.raises(ValueError, match=r"needs a target of jaxspec\.models.* is a tuple, so choose another"):
        run(foreign, params, tokens[:, :FIRST], cache, taps=(1,))
