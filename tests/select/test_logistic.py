"""Online logistic regression: its steps are AdaGrad's, it finds what is there, and rows lean for themselves."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.select.logistic import FADE, FASTEST, KEEP, KEEP_SLOPES, RATE, SMOOTH, fresh, learn, no_lean, predict

ROWS, SOURCES, DEPTH, WIDTH = 3, 2, 4, 5


def random_rounds(seed, rounds, *, share=0.6):
    """Features, what was said, and what is known."""
    rng = np.random.default_rng(seed)
    shape = (rounds, ROWS, SOURCES, DEPTH)
    x = rng.normal(size=(*shape, WIDTH)).astype(np.float32)
    return x, rng.random(shape).astype(np.float32), rng.random(shape) < share


def reference(weights, x, said, known):
    """AdaGrad in float64, one observation at a time; a round's predictions are of before the round."""
    weights, slopes = np.asarray(weights, np.float64), np.ones((SOURCES, WIDTH))
    bias, steep = np.zeros((ROWS, SOURCES)), np.ones((ROWS, SOURCES))
    signed, size = np.zeros((ROWS, SOURCES)), np.zeros((ROWS, SOURCES))
    for xs, ss, ks in zip(x.astype(np.float64), said, known, strict=True):
        pull, squares = np.zeros_like(weights), np.zeros_like(weights)
        lean, leans = np.zeros_like(bias), np.zeros_like(bias)
        for row, source, depth in zip(*np.nonzero(ks), strict=True):
            at = xs[row, source, depth]
            miss = 1 / (1 + np.exp(-(at @ weights[source] + bias[row, source]))) - ss[row, source, depth]
            pull[source] += miss * at
            squares[source] += (miss * at) ** 2
            lean[row, source] += miss
            leans[row, source] += miss**2
        slopes += squares
        weights -= RATE * pull / np.sqrt(slopes)
        touched = ks.any(-1)
        signed = np.where(touched, SMOOTH * signed + (1 - SMOOTH) * lean, signed)
        size = np.where(touched, SMOOTH * size + (1 - SMOOTH) * np.abs(lean), size)
        rate = RATE + (FASTEST - RATE) * (np.abs(signed) / (size + 0.05)) ** 3
        bias = np.where(touched, KEEP, FADE) * bias - rate * lean / np.sqrt(steep + leans)
        steep = np.where(touched, np.maximum(KEEP_SLOPES * (steep + leans), 1), steep)
    return weights, slopes, bias, steep, signed, size


@jax.jit
def taught(weights, x, said, known):
    def one(carry, seen):
        return learn(*carry, *seen), None

    (model, lean), _ = jax.lax.scan(one, (fresh(weights), no_lean(x.shape[1], x.shape[2])), (x, said, known))
    return model, lean


def test_every_round_is_adagrads():
    x, said, known = random_rounds(0, 30)
    weights = np.random.default_rng(1).normal(size=(SOURCES, WIDTH)).astype(np.float32)
    for rounds in (1, 2, 30):
        model, lean = taught(weights, x[:rounds], said[:rounds], known[:rounds])
        wanted = reference(weights, x[:rounds], said[:rounds], known[:rounds])
        for got, each in zip((*model, *lean), wanted, strict=True):
            np.testing.assert_allclose(got, each, rtol=2e-4, atol=2e-5)
    other = reference(weights, x, said, np.ones_like(known))  # negative control: what is not known would count
    assert np.abs(other[0] - np.asarray(model.weights)).max() > 0.05


def test_the_first_observation_moves_a_weight_by_little():
    x = np.ones((1, ROWS, SOURCES, 1, WIDTH), np.float32)
    known = np.zeros((1, ROWS, SOURCES, 1), bool)
    known[0, 0, 0] = True
    model, _ = taught(np.full((SOURCES, WIDTH), 5.0, np.float32), x, np.zeros((1, ROWS, SOURCES, 1), np.float32), known)
    moved = 5.0 - np.asarray(model.weights)
    assert 0.06 < moved[0].max() <= RATE / np.sqrt(2) + 1e-6
    assert np.all(moved[1] == 0)


def drawn(weights, rounds, seed, *, better=0.0):
    """Rounds of sources of known weights; the last row is better than they say."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rounds, ROWS, SOURCES, DEPTH, WIDTH)).astype(np.float32)
    x[..., 0] = 1
    own = np.asarray([0] * (ROWS - 1) + [better])[:, None, None]
    chance = 1 / (1 + np.exp(-(np.einsum("rbnaf,nf->rbna", x, weights) + own)))
    return x, (rng.random(chance.shape) < chance).astype(np.float32), np.ones(chance.shape, bool)


TRUE = np.asarray([[0.5, 1.0, -1.0, 0.0, 0.3], [-1.0, 0.0, 0.8, -0.5, 0.0]], np.float32)


def test_it_finds_the_weights_that_are_there():
    model, lean = taught(np.zeros_like(TRUE), *drawn(TRUE, 3000, 2))
    np.testing.assert_allclose(model.weights[:, 1:], TRUE[:, 1:], atol=0.12)
    np.testing.assert_allclose(model.weights[:, 0] + jnp.mean(lean.bias, 0), TRUE[:, 0], atol=0.2)
    early, _ = taught(np.zeros_like(TRUE), *drawn(TRUE, 5, 2))  # negative control: it takes some
    assert np.abs(early.weights - TRUE).max() > 0.3


def test_a_row_that_is_better_leans_and_the_others_do_not():
    _, lean = taught(TRUE, *drawn(TRUE, 400, 3, better=2.0))
    bias = np.asarray(lean.bias)
    assert np.all(bias[-1] > bias[:-1].max(0) + 0.5)
    _, none = taught(TRUE, *drawn(TRUE, 400, 3))
    assert np.abs(none.bias).max() < 0.5


def test_what_is_said_of_one_row_moves_its_own_lean_alone():
    x, said, known = random_rounds(4, 20)
    known[:, 1:] = False
    _, lean = taught(TRUE, x, said, known)
    assert np.all(np.asarray(lean.bias)[0] != 0)
    assert np.all(np.asarray(lean.bias)[1:] == 0)
    assert np.all(np.asarray(lean.slopes)[1:] == 1)


def test_what_is_not_known_changes_nothing():
    x, said, known = random_rounds(5, 20)
    model, lean = taught(TRUE, x, said, known)
    again, leant = taught(TRUE, np.where(known[..., None], x, 7), np.where(known, said, 1 - said), known)
    for mine, other in zip((*model, *lean), (*again, *leant), strict=True):
        np.testing.assert_array_equal(mine, other)
    nothing, straight = taught(TRUE, x, said, np.zeros_like(known))
    np.testing.assert_array_equal(nothing.weights, TRUE)
    np.testing.assert_array_equal(nothing.slopes, 1)
    np.testing.assert_array_equal(straight.bias, 0)
    assert np.any(np.asarray(model.weights) != TRUE)


def test_a_chance_is_the_logistic_of_weights_and_lean():
    x, _, _ = random_rounds(6, 1)
    bias = np.random.default_rng(0).normal(size=(ROWS, SOURCES)).astype(np.float32)
    lean = no_lean(ROWS, SOURCES)._replace(bias=jnp.asarray(bias))
    got = predict(fresh(jnp.asarray(TRUE)), lean, jnp.asarray(x[0]))
    wanted = 1 / (1 + np.exp(-(np.einsum("bnaf,nf->bna", x[0], TRUE) + np.asarray(lean.bias)[..., None])))
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_a_lean_turns_at_once_where_all_rounds_say_the_same_and_fades_where_none_says_anything():
    x = np.zeros((60, ROWS, SOURCES, 1, WIDTH), np.float32)
    known = np.ones((60, ROWS, SOURCES, 1), bool)
    never = np.zeros((60, ROWS, SOURCES, 1), np.float32)
    by_turns = (np.arange(60) % 2).astype(np.float32)[:, None, None, None] + never
    _, turned = taught(np.zeros_like(TRUE), x, never, known)
    _, still = taught(np.zeros_like(TRUE), x, by_turns, known)
    assert np.all(np.asarray(turned.bias) < -2)
    assert np.abs(still.bias).max() < 0.5, "what comes by turns is no change"
    step = jax.jit(
        lambda lean, known: learn(fresh(jnp.asarray(TRUE)), lean, *map(jnp.asarray, (x[0], never[0])), known)[1]
    )
    lean = turned
    for _ in range(100):
        lean = step(lean, np.zeros_like(known[0]))
    np.testing.assert_allclose(lean.bias, np.asarray(turned.bias) * FADE**100, rtol=1e-3)
    for name in ("slopes", "miss", "size"):
        np.testing.assert_array_equal(getattr(lean, name), getattr(turned, name))
