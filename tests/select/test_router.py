"""A router begins as the naive weights, adds its network, and what was trained fits setups by names of sources."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.contracts import Seen
from jaxspec.sampling.confidence import ODDS
from jaxspec.select import SelectorParams, goodput, learned, no_prior, prior_of
from jaxspec.select.features import VERSION, WIDTH, features, naive_weights
from jaxspec.select.goodput import Prior
from jaxspec.select.logistic import Model
from jaxspec.select.router import HIDDEN, Net, log_odds, naive_net, router
from jaxspec.select.trained import ARRAYS, RECORD, read_trained, write_trained
from tests.select.made import KINDS, costs_of, signals_of

N = len(KINDS.names)


def random_net(seed=0, sources=N) -> Net:
    rng = np.random.default_rng(seed)
    shapes = {
        "linear": (WIDTH, 2),
        "first": (WIDTH, HIDDEN),
        "first_bias": (HIDDEN,),
        "second": (HIDDEN, HIDDEN),
        "second_bias": (HIDDEN,),
        "last": (HIDDEN, 2),
        "trust": (2,),
    }
    return Net(**{name: jnp.asarray(rng.normal(size=(sources, *s)), jnp.float32) for name, s in shapes.items()})


def random_prior(seed=0, sources=N) -> Prior:
    rng = np.random.default_rng(seed)
    sizes = (WIDTH, WIDTH, 2)
    models = (Model(*(jnp.asarray(rng.normal(size=(sources, s)), jnp.float32) for _ in range(2))) for s in sizes)
    return Prior(*models, jnp.asarray(rng.random(sources), jnp.float32))


def seen(rows):
    top = jnp.linspace(0.2, 0.9, rows).astype(jnp.float32)
    return Seen(top, top / 2, 1 - top, jnp.full(rows, -1, jnp.int32))


def some_signals(rows=3, **more):
    offered = np.random.default_rng(1).integers(0, 8, (rows, N)) * (np.arange(N) > 0)
    return signals_of(offered, match=(offered % 5), seen=seen(rows), **more)


def test_before_training_it_says_what_the_naive_weights_say():
    x = features(some_signals(), 7, KINDS.free)
    naive = jnp.einsum("bnaf,nf->bna", x, jnp.asarray(naive_weights(KINDS.free)))
    got = log_odds(naive_net(KINDS.free), x)
    for head in range(2):
        np.testing.assert_allclose(got[..., head], naive, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(naive_net(KINDS.free).trust, [[0, ODDS]] * N)


def test_a_network_is_two_hidden_layers_beside_a_linear_part():
    net, x = random_net(), np.asarray(features(some_signals(), 7, KINDS.free))
    got = np.asarray(log_odds(net, jnp.asarray(x)))
    for n in range(N):
        w = [np.asarray(leaf[n], np.float64) for leaf in net]
        one = np.maximum(x[:, n] @ w[1] + w[2], 0)
        two = np.maximum(one @ w[3] + w[4], 0)
        np.testing.assert_allclose(got[:, n], x[:, n] @ w[0] + two @ w[5], rtol=1e-3, atol=1e-3)


def test_untrained_it_chooses_as_goodput_does_that_has_seen_nothing():
    params, signals = SelectorParams(costs_of(), no_prior(KINDS)), some_signals(4)
    net = params._replace(prior=naive_net(KINDS.free))
    still, one = goodput(KINDS, optimism=0.0), router(KINDS)
    expected = still.choose(params, still.init(4, N), signals)
    got = one.choose(net, one.init(4, N), signals)
    for name in ("source", "lookahead"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    for mine, other in zip(got.stop, expected.stop, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5)
    certain = one.choose((), one.init(4, N), signals)
    assert np.all(np.asarray(certain.lookahead) >= 0)  # without parameters it guesses


def test_a_trained_one_chooses_another_way():
    """Of lookup it was told that nothing is ever taken, of the model that everything is."""
    net = naive_net(KINDS.free)
    linear = np.asarray(net.linear).copy()
    linear[1, :, :], linear[4, 0, :] = -20.0, 20.0
    params = SelectorParams(costs_of(), net._replace(linear=jnp.asarray(linear)))
    signals = signals_of([[0, 7, 0, 0, 7]], match=[[0, 7, 0, 0, 0]], seen=seen(1))
    one = router(KINDS)
    assert int(one.choose(params, one.init(1, N), signals).source[0]) == 4
    naive = params._replace(prior=net)
    assert int(one.choose(naive, one.init(1, N), signals).source[0]) == 1  # negative control


def test_it_learns_nothing_and_tells_what_it_expected():
    one, signals = router(KINDS), some_signals(2)
    state = one.init(2, N)
    choice = one.choose((), state, signals)
    after = one.update((), state, signals, choice, None, None, None)
    assert after.told.keys() == state.told.keys()
    np.testing.assert_array_equal(after.told["lookahead"], choice.lookahead)
    again = one.choose((), after, signals)
    np.testing.assert_array_equal(again.source, choice.source)


@pytest.mark.parametrize(("name", "made"), [("router", random_net), ("goodput", random_prior)])
def test_what_was_written_is_read(tmp_path, name, made):
    weights = made()
    write_trained(tmp_path, weights, KINDS, {"note": "made up"})
    got = read_trained(tmp_path, name, KINDS)
    assert jax.tree.structure(got) == jax.tree.structure(weights)
    for mine, other in zip(jax.tree.leaves(got), jax.tree.leaves(weights), strict=True):
        np.testing.assert_array_equal(mine, other)
    through = prior_of(f"{name}:{tmp_path}", KINDS)
    np.testing.assert_array_equal(jax.tree.leaves(through)[0], jax.tree.leaves(weights)[0])
    assert learned(f"{name}:{tmp_path}", KINDS).name == name
    assert json.loads((tmp_path / RECORD).read_text())["card"] == {"note": "made up"}


@pytest.mark.parametrize(("name", "made"), [("router", random_net), ("goodput", random_prior)])
def test_sources_are_matched_by_name_and_others_stay_naive(tmp_path, name, made):
    there = dataclasses.replace(KINDS, names=("none", "lm", "medusa", "lookup"), passes=(False, True, True, False))
    there = dataclasses.replace(there, carrier=0)
    weights = made(sources=4)
    write_trained(tmp_path, weights, there, {})
    got = read_trained(tmp_path, name, KINDS)
    naive = naive_net(KINDS.free) if name == "router" else no_prior(KINDS)
    for mine, theirs, fresh in zip(*map(jax.tree.leaves, (got, weights, naive)), strict=True):
        for own, place in ((0, 0), (1, 3), (4, 1)):
            np.testing.assert_array_equal(mine[own], theirs[place])
        for own in (2, 3):
            np.testing.assert_array_equal(mine[own], fresh[own])


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path):
    folder = tmp_path / "net"
    folder.mkdir()
    with pytest.raises(ValueError, match=f"has no {RECORD}; give the folder of a trained router"):
        read_trained(folder, "router", KINDS)
    write_trained(folder, random_net(), KINDS, {})
    with pytest.raises(ValueError, match="holds a mlp, which router takes; give it as router:"):
        read_trained(folder, "goodput", KINDS)
    other = dataclasses.replace(KINDS, names=("none", "a", "b", "c", "d"))
    with pytest.raises(ValueError, match="was trained for lookup, jacobi, exit, lm; this setup has a, b, c, d"):
        read_trained(folder, "router", other)
    with pytest.raises(ValueError, match="another kind of source 'lookup'"):
        read_trained(folder, "router", dataclasses.replace(KINDS, passes=(False, True, False, True, True)))
    record = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps(record | {"features": [VERSION + 1, WIDTH]}))
    with pytest.raises(ValueError, match=rf"trained on features {VERSION + 1} .*this version has {VERSION} "):
        read_trained(folder, "router", KINDS)
    for broken in (record | {"format": 99}, {"format": 1}, [], record | {"kind": "forest"}):
        (folder / RECORD).write_text(json.dumps(broken))
        with pytest.raises(ValueError, match="cannot be read"):
            read_trained(folder, "router", KINDS)
    (folder / RECORD).write_text(json.dumps(record))
    (folder / ARRAYS).write_bytes((folder / ARRAYS).read_bytes()[:-9])
    with pytest.raises(ValueError, match="truncated or was changed"):
        read_trained(folder, "router", KINDS)
