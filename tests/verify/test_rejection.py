import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sampling import Purpose, gumbel, pick, warp, warpers
from jaxspec.verify import rejection
from tests.verify.law import FAILS, HOLDS, ROWS, SEEDS, p_value, rows_of

VOCAB = 5
P = np.array([0.5, 0.3, 0.15, 0.05, 0.0])
Q = np.array([0.2, 0.1, 0.4, 0.2, 0.1])
AT = jnp.broadcast_to(jnp.array([8, 9], jnp.int32), (ROWS, 2))
ALL, NONE = jnp.ones(ROWS, jnp.int32), jnp.zeros(ROWS, jnp.int32)
run_verify = jax.jit(rejection.verify)


@functools.cache
def plain_settings():
    return warpers(ROWS, temperature=1.0)


@jax.jit
def draw(law, start):
    noise = gumbel(SEEDS, AT[:, :1], VOCAB, purpose=Purpose.DRAFT, start=start)
    return pick(rows_of([law]), noise)


def drafted(q, start=0):
    """One draft of every row, sampled from q."""
    return draw(log(q), jnp.full(ROWS, start, jnp.int32))


def log(law):
    """Log-probabilities over the vocabulary that all tests share, so that they share what is compiled."""
    with np.errstate(divide="ignore"):
        return np.log(np.append(law, np.zeros(VOCAB - len(law)))).astype(np.float32)


def judge(p, drafts, q=Q, sampled=False, count=ALL, settings=None, bonus=None):
    logits = rows_of([log(p), log(p if bonus is None else bonus)])
    sampled = jnp.broadcast_to(sampled, ROWS)
    settings = settings or plain_settings()
    return run_verify(logits, drafts, count, rows_of([log(q)]), sampled, settings, SEEDS, AT)


def first(verdict, drafts):
    accepted, follows = verdict
    return jnp.where(accepted > 0, drafts[:, 0], follows)


def always(token):
    return jnp.full((ROWS, 1), token, jnp.int32)


@pytest.mark.parametrize("q", [Q, Q[::-1], np.array([0.2, 0.2, 0.2, 0.2, 0.2]), np.array([0, 0, 0, 0, 1.0]), P])
def test_sampled_drafts_leave_the_law_of_the_target(q):
    drafts = drafted(q)
    verdict = judge(P, drafts, q, sampled=True)
    assert p_value(first(verdict, drafts), P) > HOLDS
    assert np.mean(verdict[0]) == pytest.approx(np.minimum(P, q).sum(), abs=0.01)


@pytest.mark.parametrize("token", range(5))
def test_point_mass_drafts_leave_the_law_of_the_target(token):
    verdict = judge(P, always(token))
    assert p_value(first(verdict, always(token)), P) > HOLDS
    assert np.mean(verdict[0]) == pytest.approx(P[token], abs=0.01)


def test_point_mass_drafts_need_no_law():
    logits = rows_of([log(P), log(P)])
    with_none = run_verify(logits, always(1), ALL, None, NONE > 0, plain_settings(), SEEDS, AT)
    np.testing.assert_array_equal(with_none, judge(P, always(1)))


def test_the_law_of_an_argmax_draft_is_a_point_mass_not_its_softmax():
    p, q = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    assert p_value(first(judge(p, always(0), q, sampled=False), always(0)), p) > HOLDS
    control = first(judge(p, always(0), q, sampled=True), always(0))
    assert p_value(control, p) < FAILS
    assert p_value(control, [5 / 6, 1 / 6]) > HOLDS


def test_a_rejected_token_is_never_its_own_replacement():
    accepted, follows = judge(P, always(0))
    replaced = np.asarray(follows)[np.asarray(accepted) == 0]
    assert p_value(replaced, [0, *P[1:]]) > HOLDS
    control = np.where(accepted > 0, 0, judge(P, always(0), count=NONE)[1])
    assert p_value(control, P) < FAILS


def test_dropping_a_sampled_draft_for_its_own_probability_is_what_the_test_rejects():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])
    drafts = drafted(q)
    assert p_value(first(judge(p, drafts, q, sampled=True), drafts), p) > HOLDS
    control = first(judge(p, drafts, q, sampled=True, count=(drafts[:, 0] != 2).astype(jnp.int32)), drafts)
    assert p_value(control, p) < FAILS
    assert p_value(control, [0.55, 0.33, 0.12]) > HOLDS


def test_the_noise_of_a_rejected_round_must_not_come_back():
    """The next lookahead may depend on a draft that nobody judged; its noise is then no longer fresh."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])

    def emit(start):
        unjudged = drafted(q, start=6)  # at this position in the round before, behind a rejected draft
        drafts = drafted(q, start)
        count = (unjudged[:, 0] != 2).astype(jnp.int32)
        return first(judge(p, drafts, q, sampled=True, count=count), drafts)

    assert p_value(emit(start=7), p) > HOLDS
    assert p_value(emit(start=6), p) < FAILS


def test_a_bonus_has_the_law_of_the_node_after_the_last_draft():
    bonus = P[::-1]
    accepted, follows = judge(P, always(0), bonus=bonus)
    free = np.asarray(follows)[np.asarray(accepted) == 1]
    assert p_value(free, bonus) > HOLDS
    assert p_value(free, P) < FAILS


def test_acceptance_is_strict(monkeypatch):
    cases = [  # u, draft, its law (None: a point mass), accepted
        (0.0, 4, None, 0),  # p = 0
        (0.0, 4, Q, 0),
        (0.0, 3, None, 1),  # the least p above 0
        (0.0, 3, Q, 1),
        (1 - 2**-24, 3, P, 1),  # p = q accepts always
    ]
    u, drafts, laws, wanted = zip(*cases, strict=True)
    monkeypatch.setattr(rejection, "uniform", lambda *_: jnp.asarray(u, jnp.float32)[:, None])
    q_log = jnp.stack([log(P if law is None else law) for law in laws])[:, None]
    sampled = jnp.array([law is not None for law in laws])
    drafts, count = jnp.array(drafts, jnp.int32)[:, None], jnp.ones(5, jnp.int32)
    settings, logits = warpers(5, temperature=1.0), rows_of([log(P), log(P)], 5)

    @jax.jit  # a trace of its own, since the noise is another
    def accepted(q_log):
        return rejection.verify(logits, drafts, count, q_log, sampled, settings, SEEDS[:5], AT[:5])[0]

    np.testing.assert_array_equal(accepted(q_log), wanted)


def test_a_token_that_cannot_be_drawn_is_never_emitted():
    drafts = drafted(Q)
    settings = warpers(ROWS, temperature=1.0, top_k=2)
    accepted, follows = judge(P, drafts, Q, sampled=True, settings=settings)
    cut = np.array([0.5, 0.3, 0, 0, 0]) / 0.8
    assert p_value(first((accepted, follows), drafts), cut) > HOLDS
    assert set(np.asarray(follows)) == {0, 1}
    assert p_value(first(judge(P, drafts, Q, sampled=True), drafts), cut) == 0  # without the warper


def test_a_residual_of_no_mass_falls_back_to_the_target():
    """A q above p everywhere leaves nothing of p - q, yet rejects half of the drafts."""
    drafts = drafted(P)
    accepted, follows = judge(P, drafts, 2 * P, sampled=True)
    replaced = np.asarray(follows)[np.asarray(accepted) == 0]
    assert replaced.size > ROWS / 3
    assert p_value(replaced, P) > HOLDS
    point = np.array([0, 1.0, 0, 0, 0])
    np.testing.assert_array_equal(judge(point, always(1)), [ALL, ALL])


def test_sampled_and_point_mass_drafts_may_share_a_batch():
    even = SEEDS % 2 == 0
    drafts = jnp.where(even[:, None], drafted(Q), 2)
    tokens = first(judge(P, drafts, Q, sampled=even), drafts)
    assert p_value(tokens[::2], P) > HOLDS
    assert p_value(tokens[1::2], P) > HOLDS
    control = first(judge(P, drafts, Q, sampled=True), drafts)
    assert p_value(control[1::2], P) < FAILS


def test_every_warper_acts_on_drafts_residual_and_bonus_alike():
    settings = warpers(ROWS, temperature=1.6, top_k=4, top_p=0.9, min_p=0.1)
    law = np.exp(warp(rows_of([log(P)]), settings))[0, 0]
    drafts = drafted(Q)
    accepted, follows = judge(P, drafts, Q, sampled=True, settings=settings)
    tokens = first((accepted, follows), drafts)
    assert p_value(tokens, law) > HOLDS
    assert p_value(tokens, P) < FAILS
    assert p_value(np.asarray(follows)[np.asarray(accepted) == 1], law) > HOLDS
