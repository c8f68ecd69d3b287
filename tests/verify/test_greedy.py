import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sampling import warpers
from jaxspec.verify import VERIFIERS, verifier

ROWS, WIDTH, VOCAB = 64, 5, 3


def batch():
    """Small integer logits (so ties are common), and drafts of which about half continue to match."""
    keys = jax.random.split(jax.random.key(0), 3)
    logits = jax.random.randint(keys[0], (ROWS, WIDTH, VOCAB), 0, 4).astype(jnp.float32)
    best = jnp.argmax(logits, -1).astype(jnp.int32)[:, :-1]
    miss = jax.random.bernoulli(keys[1], 0.3, best.shape)
    drafts = jnp.where(miss, (best + 1) % VOCAB, best)
    return logits, drafts, jax.random.randint(keys[2], (ROWS,), 0, WIDTH)


RUN = {mode: jax.jit(verify) for mode, verify in VERIFIERS.items()}


def judge(mode, logits, drafts, count, q_log=None, sampled=False, temperature=0.0):
    rows, width = logits.shape[:2]
    return RUN[mode](
        logits,
        drafts,
        count,
        q_log,
        jnp.full(rows, sampled),
        warpers(rows, temperature=temperature, top_k=2),
        jnp.arange(rows, dtype=jnp.uint32),
        jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width)),
    )


def plain(logits, drafts, count):
    """One row, one token after the other, by numpy's argmax."""
    accepted = 0
    while accepted < count and drafts[accepted] == np.argmax(logits[accepted]):
        accepted += 1
    return accepted, np.argmax(logits[accepted])


@pytest.mark.parametrize("mode", VERIFIERS)
def test_every_mode_at_temperature_zero_is_the_argmax_rule(mode):
    logits, drafts, count = batch()
    found = judge(mode, logits, drafts, count)
    wanted = [plain(*row) for row in zip(*map(np.asarray, (logits, drafts, count)), strict=True)]
    np.testing.assert_array_equal(np.stack(found, 1), wanted)
    assert set(np.asarray(found[0])) == set(range(WIDTH))
    assert all(part.dtype == jnp.int32 for part in found)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_greedy_rows_beside_sampled_ones_keep_the_argmax_rule(mode, sampled):
    logits, drafts, count = batch()
    q_log = jax.nn.log_softmax(jax.random.normal(jax.random.key(3), (ROWS, WIDTH - 1, VOCAB)))
    temperature = np.where(np.arange(ROWS) % 2, 1.0, 0.0)
    found = np.stack(judge(mode, logits, drafts, count, q_log, sampled, temperature), 1)
    wanted = np.stack(judge("greedy", logits, drafts, count), 1)
    np.testing.assert_array_equal(found[::2], wanted[::2])
    assert (found[1::2] != wanted[1::2]).any()


@pytest.mark.parametrize("mode", VERIFIERS)
def test_the_first_draft_is_judged_too(mode):
    logits = jnp.zeros((3, 2, VOCAB)).at[:, 0, 1].set(5.0).at[:, 1, 2].set(5.0)
    accepted, token = judge(mode, logits, jnp.array([[0], [1], [1]], jnp.int32), jnp.array([1, 1, 0], jnp.int32))
    np.testing.assert_array_equal(accepted, [0, 1, 0])
    np.testing.assert_array_equal(token, [1, 2, 1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode", VERIFIERS)
def test_drafts_that_are_no_token_are_refused_and_a_window_without_drafts_works(mode, temperature):
    likely = jnp.array([0, 0, VOCAB - 1, VOCAB - 1], jnp.int32)  # what a wrapped or clipped id would be taken for
    logits = 60 * jnp.broadcast_to(jax.nn.one_hot(likely, VOCAB)[:, None], (4, 2, VOCAB))
    drafts = jnp.array([[-1], [VOCAB], [-1], [VOCAB]], jnp.int32)
    accepted, token = judge(mode, logits, drafts, jnp.ones(4, jnp.int32), temperature=temperature)
    np.testing.assert_array_equal(accepted, jnp.zeros(4))
    np.testing.assert_array_equal(token, likely)
    alone = judge(mode, logits[:, :1], drafts[:, :0], jnp.zeros(4, jnp.int32), temperature=temperature)
    np.testing.assert_array_equal(alone, [accepted, likely])


def test_an_unknown_mode_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="verify mode 'beam' is unknown; choose one of greedy, rejection, coupled"):
        verifier("beam")
    assert verifier("coupled") is VERIFIERS["coupled"]
