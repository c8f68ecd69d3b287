"""Divergences of coarse laws against numpy on whole laws, and what coarsening and missing tokens may do to them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from jaxspec.training.divergences import DIVERGENCES, coarse_laws, cross_entropy, divergence_named, total_variation

VOCAB, PLACES = 12, 40


def naive(name: str, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Straight from the definitions, in float64."""
    kl = lambda a, b: np.sum(a * (np.log(a) - np.log(b)), -1)  # noqa: E731
    return {
        "kl": lambda: kl(p, q),
        "reverse-kl": lambda: kl(q, p),
        "js": lambda: kl(p, (p + q) / 2) / 2 + kl(q, (p + q) / 2) / 2,
        "tv": lambda: np.abs(p - q).sum(-1) / 2,
    }[name]()


def laws(seed: int = 0, wild: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of target and draft."""
    rng = np.random.default_rng(seed)
    return wild * rng.standard_normal((PLACES, VOCAB)), wild * rng.standard_normal((PLACES, VOCAB))


def top(logits: np.ndarray, k: int) -> tuple[jax.Array, jax.Array]:
    ids = np.argsort(-logits, -1)[:, :k].astype(np.int32)
    return jnp.asarray(ids), jnp.asarray(np.take_along_axis(log_softmax(logits, -1), ids, -1), jnp.float32)


EVERY = jnp.arange(VOCAB, dtype=jnp.int32)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_with_every_token_known_they_are_those_of_the_whole_laws(name, temperature):
    target, draft = laws()
    got = DIVERGENCES[name](
        *coarse_laws(*top(target, VOCAB), jnp.asarray(draft, jnp.float32), EVERY, temperature=temperature)
    )
    heated = [softmax(each / temperature, -1) for each in (target, draft)]
    np.testing.assert_allclose(got, naive(name, *heated), rtol=2e-3, atol=1e-4)
    assert not np.allclose(got, naive(name, heated[1], softmax(target / 1.3, -1)), rtol=2e-2)  # the control


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_tail_can_only_bring_laws_nearer(name):
    target, draft = laws(1)
    whole = naive(name, softmax(target, -1), softmax(draft, -1))
    logits = jnp.asarray(draft, jnp.float32)
    seen = [np.asarray(DIVERGENCES[name](*coarse_laws(*top(target, k), logits, EVERY))) for k in (1, 4, VOCAB - 1)]
    for fewer, more in zip(seen, [*seen[1:], whole], strict=True):
        assert np.all(fewer <= 1.001 * more + 1e-4)
    assert np.any(seen[0] < 0.5 * whole)  # the control: it is the tail that does it


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_a_draft_that_is_the_target_is_at_distance_nought(name, temperature):
    target, _ = laws(2)
    logits = jnp.asarray(target, jnp.float32)
    ids, log_p = top(target, 3)
    got = DIVERGENCES[name](*coarse_laws(ids, log_p, logits, EVERY, temperature=temperature))
    np.testing.assert_allclose(got, 0, atol=1e-3)
    other = DIVERGENCES[name](*coarse_laws(ids, log_p, 1.5 * logits, EVERY, temperature=temperature))
    assert float(other.max()) > 0.01  # the control


def test_what_the_draft_cannot_say_counts_for_neither_or_is_missed():
    target, draft = laws(3)
    ids = np.asarray([0, 2, 3, 5, 7, 8, 11])
    inverse = np.full(VOCAB, len(ids), np.int32)
    inverse[ids] = np.arange(len(ids))
    inputs = (*top(target, VOCAB), jnp.asarray(draft[:, ids], jnp.float32), jnp.asarray(inverse))
    p, q = softmax(target, -1), np.zeros((PLACES, VOCAB))
    q[:, ids] = softmax(draft[:, ids], -1)
    given = np.where(q > 0, p, 0) / p[:, ids].sum(-1, keepdims=True)
    np.testing.assert_allclose(total_variation(*coarse_laws(*inputs)), naive("tv", given, q), atol=1e-4)
    missed = total_variation(*coarse_laws(*inputs, sayable=False))
    np.testing.assert_allclose(missed, 1 - np.minimum(p, q).sum(-1), atol=1e-4)
    assert np.all(missed > naive("tv", given, q) - 1)  # and they are apart
    assert np.abs(missed - naive("tv", given, q)).max() > 0.05


def test_a_hopeless_token_still_has_a_slope():
    """A draft 30 nats off is drawn back to the target's token."""
    ids, log_p = jnp.zeros((1, 1), jnp.int32), jnp.full((1, 1), -0.01)
    logits = jnp.zeros((1, VOCAB)).at[0, 0].set(-30.0)
    slope = jax.grad(lambda x: DIVERGENCES["kl"](*coarse_laws(ids, log_p, x, EVERY)).sum())(logits)
    assert float(slope[0, 0]) < -0.9


def test_cross_entropy_is_of_the_tokens_that_came():
    _, draft = laws(4)
    tokens = np.arange(PLACES) % VOCAB
    inverse = np.where(np.arange(VOCAB) < 9, np.arange(VOCAB), 9).astype(np.int32)
    got = cross_entropy(jnp.asarray(tokens, jnp.int32), jnp.asarray(draft[:, :9], jnp.float32), jnp.asarray(inverse))
    said = log_softmax(draft[:, :9], -1)
    expected = [-said[i, t] if t < 9 else 0.0 for i, t in enumerate(tokens)]
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_an_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="'hinge' is unknown; choose kl, reverse-kl, js, tv"):
        divergence_named("hinge")
