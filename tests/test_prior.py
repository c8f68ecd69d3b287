"""A prior that was made for a target is what goodput begins with on it, unasked; and nothing else is."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.bench import contenders as who
from jaxspec.checkpoint import fingerprint
from jaxspec.pipeline import Pipeline, load, load_model
from jaxspec.select import kinds_of, no_prior
from jaxspec.select.features import BIAS, VERSION, WIDTH
from jaxspec.select.trained import RECORD, Target, write_trained
from tests.test_sources import OTHER, TINY


@pytest.fixture(scope="module")
def weights():
    target = load_model(TINY)
    config = target.model.config
    return Target(fingerprint(config, target.params), config.hidden_size, config.vocab_size)


@pytest.fixture
def publish(tmp_path, monkeypatch, weights):
    """publish(target, sources) -> a prior unlike any other, on the shelf."""
    monkeypatch.setenv("JAXSPEC_ARTIFACTS", str(tmp_path))

    def publish(target=weights, drafts=("lookup", "suffix"), folder="prior"):
        setup = load(TINY, drafts=drafts).setup(sampled=False, logprobs=False)
        kinds = kinds_of(setup.sources, setup.windows)
        rng = np.random.default_rng(0)
        prior = jax.tree.map(lambda leaf: jnp.asarray(rng.random(leaf.shape), jnp.float32), no_prior(kinds))
        (tmp_path / "x" / folder).mkdir(parents=True)
        write_trained(tmp_path / "x" / folder, prior, kinds, {}, target)
        return prior

    return publish


def begun(select="goodput", drafts=("lookup", "suffix"), target=TINY):
    return load(target, drafts=drafts, select=select).prior


def test_it_is_what_goodput_begins_with(publish):
    assert begun() is None
    prior = publish()
    for mine, published in zip(jax.tree.leaves(begun()), jax.tree.leaves(prior), strict=True):
        np.testing.assert_array_equal(mine, published)


def test_other_targets_and_selectors_do_not_begin_with_it(publish):
    publish()
    assert begun(target=OTHER) is None
    assert begun("rule") is None
    assert not isinstance(begun("thompson"), type(begun()))
    assert begun(drafts=("jacobi",)) is None, "it knows none of these sources"


def test_sources_that_it_does_not_know_begin_naive(publish):
    prior = publish(drafts=("lookup",))
    found = begun()
    np.testing.assert_array_equal(found.takes.weights[:2], prior.takes.weights)
    assert not np.allclose(found.takes.weights[2], prior.takes.weights[1])


def test_sources_that_it_does_not_know_begin_at_what_their_cards_say(publish, monkeypatch):
    prior = publish(drafts=("lookup",))
    monkeypatch.setattr(Pipeline, "_expects", property(lambda self: {"suffix": 0.2, "lookup": 0.2}))
    found = begun()
    np.testing.assert_allclose(found.takes.weights[2, BIAS], np.log(0.25), rtol=1e-6)
    np.testing.assert_array_equal(found.takes.weights[1], prior.takes.weights[1])


@pytest.mark.parametrize(
    "changed", [{"features": [VERSION + 1, WIDTH]}, {"kind": "mlp"}, {"target": "0" * 64}, {"sizes": [64, 64]}]
)
def test_what_is_no_prior_of_the_target_is_passed_over(publish, tmp_path, changed):
    publish()
    file = tmp_path / "x" / "prior" / RECORD
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    assert begun() is None


def test_one_that_is_damaged_is_named(publish, tmp_path):
    publish()
    (tmp_path / "x" / "prior" / "router.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"x/prior/router.safetensors is truncated or was changed"):
        begun()


def test_one_that_is_asked_for_goes_before_it(publish, tmp_path):
    publish()
    other = publish(folder="other", drafts=("lookup",))
    found = begun(f"goodput:{tmp_path / 'x' / 'other'}")
    np.testing.assert_array_equal(found.takes.weights[1], other.takes.weights[1])
    assert not np.allclose(found.takes.weights[2], begun().takes.weights[2])


def test_the_benchmark_begins_with_it_as_a_pipeline_does(publish):
    prior = publish()
    pipeline = load(TINY, drafts=("lookup", "suffix"), costs="guess")
    made = who.setups(pipeline, ["goodput", "thompson"], sampled=False)
    for name in ("goodput", "thompson"):
        engine = who.Engine(pipeline, name, made[name], who.Ask((), 0.0, 0), rows=1, capacity=64)
        leaves = jax.tree.leaves(engine.params.selector.prior)
        same = [a.shape == b.shape and bool(np.all(a == b)) for a, b in zip(leaves, jax.tree.leaves(prior))]  # noqa: B905
        assert all(same) == (name == "goodput")
