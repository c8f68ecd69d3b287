"""The first two tokens of a chain, through as many rounds as they take, have the target's joint law."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sampling import History, Purpose, gumbel, penalise, pick, warpers
from jaxspec.tree import ancestors, chain
from jaxspec.verify import VERIFIERS
from tests.verify.law import FAILS, HOLDS, ROWS, SEEDS, p_value, rows_of

VOCAB = 5
P, Q = np.random.default_rng(0).dirichlet(np.ones(VOCAB), (2, VOCAB)).astype(np.float32)  # next-token laws by token
JOINT = P[0][:, None] * P  # of the two tokens after token 0
RUN = {mode: jax.jit(VERIFIERS[mode]) for mode in ("rejection", "coupled")}


@functools.cache
def settings():
    return warpers(ROWS, temperature=1.0)


def after(table, tokens):
    return jnp.log(jnp.asarray(table))[tokens]


@functools.partial(jax.jit, static_argnames="purpose")
def draft(known, at, purpose):
    """Two drafts of every row after `known`, at absolute positions `at` and on, and the laws they came from."""
    positions = at[:, None] + jnp.arange(2, dtype=jnp.int32)[None, :]
    noise = gumbel(SEEDS, positions, VOCAB, purpose=purpose, start=at)
    one = pick(after(Q, known), noise[:, 0])
    two = pick(after(Q, one), noise[:, 1])
    return jnp.stack([one, two], 1), jnp.stack([after(Q, known), after(Q, one)], 1)


@jax.jit
def draft_with_the_noise_of_the_target(known, at):
    positions = at[:, None] + jnp.arange(2, dtype=jnp.int32)[None, :]
    noise = gumbel(SEEDS, positions, VOCAB)
    one = pick(after(Q, known), noise[:, 0])
    return jnp.stack([one, pick(after(Q, one), noise[:, 1])], 1)


def draft_the_likeliest(known, at):
    one = jnp.argmax(after(Q, known), -1).astype(jnp.int32)
    return jnp.stack([one, jnp.argmax(after(Q, one), -1).astype(jnp.int32)], 1)


def round_after(mode, how, known, at, shift):
    """One round: the first two tokens it would emit, and how many drafts it accepted."""
    q_log = jnp.zeros((ROWS, 2, VOCAB))
    if how == "sampled":
        drafts, q_log = draft(known, at, Purpose.DRAFT)
    elif how == "coupled":
        drafts = draft_with_the_noise_of_the_target(known, at)
    else:
        drafts = draft_the_likeliest(known, at)
    logits = jnp.roll(after(P, jnp.concatenate([known[:, None], drafts], 1)), shift, 1)
    positions = at[:, None] + jnp.arange(3, dtype=jnp.int32)[None, :]
    count, sampled = jnp.full(ROWS, 2, jnp.int32), jnp.full(ROWS, how == "sampled")
    accepted, follows = RUN[mode](logits, drafts, count, q_log, sampled, settings(), SEEDS, positions)
    return jnp.where(jnp.arange(2)[None, :] < accepted[:, None], drafts, follows[:, None]), accepted


def two_tokens(mode, how, shift=0):
    at = jnp.full(ROWS, 3, jnp.int32)
    tokens, accepted = round_after(mode, how, jnp.zeros(ROWS, jnp.int32), at, shift)
    later, _ = round_after(mode, how, tokens[:, 0], at + 1, shift)
    return tokens[:, 0] * VOCAB + jnp.where(accepted > 0, tokens[:, 1], later[:, 0])


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("rejection", "sampled"),
        ("rejection", "likeliest"),
        ("coupled", "sampled"),
        ("coupled", "coupled"),
        ("coupled", "likeliest"),
    ],
)
def test_two_tokens_have_the_joint_law_of_the_target(mode, how):
    assert p_value(two_tokens(mode, how), JOINT.ravel()) > HOLDS
    control = two_tokens(mode, how, shift=1)  # each node judged by its neighbour's logits
    assert p_value(control, JOINT.ravel()) < FAILS


def test_drafts_need_noise_that_their_replacement_does_not_use():
    known, at = jnp.zeros(ROWS, jnp.int32), jnp.full(ROWS, 3, jnp.int32)
    logits = rows_of(np.log(P[[0, 0, 0]]))
    positions = at[:, None] + jnp.arange(3, dtype=jnp.int32)[None, :]
    count, sampled = jnp.ones(ROWS, jnp.int32), jnp.ones(ROWS, bool)

    def emit(drafts):
        q_log = jnp.stack([after(Q, known)] * 2, 1)
        accepted, follows = RUN["rejection"](logits, drafts, count, q_log, sampled, settings(), SEEDS, positions)
        return jnp.where(accepted > 0, drafts[:, 0], follows)

    assert p_value(emit(draft(known, at, Purpose.DRAFT)[0]), P[0]) > HOLDS
    residual = gumbel(SEEDS, positions[:, :1], VOCAB, purpose=Purpose.RESIDUAL)[:, 0]
    control = pick(after(Q, known), residual)
    assert p_value(emit(jnp.stack([control] * 2, 1)), P[0]) < FAILS


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_penalties_see_the_drafts_before_each_node(mode):
    """A frequency penalty makes the second token depend on the first, and so on a draft.

    Drafts cover all pairs evenly, so the pairs accepted in one round have the joint law.
    """
    second = P[0] * np.exp(-2 * np.eye(VOCAB))
    joint = P[0][:, None] * second / second.sum(1, keepdims=True)
    penalised = warpers(ROWS, temperature=1.0, frequency_penalty=2.0)
    pairs = jnp.stack([SEEDS // VOCAB % VOCAB, SEEDS % VOCAB], 1).astype(jnp.int32)
    history = History(jnp.full((ROWS, 4), -1, jnp.int32), jnp.ones(ROWS, jnp.int32), jnp.ones(ROWS, jnp.int32))
    window = jnp.concatenate([jnp.full((ROWS, 1), -1, jnp.int32), pairs], 1)
    positions = jnp.broadcast_to(jnp.arange(3, dtype=jnp.int32), (ROWS, 3))
    count, sampled = jnp.full(ROWS, 2, jnp.int32), jnp.zeros(ROWS, bool)
    judge_logits = jax.jit(penalise, static_argnames="vocab_size")

    def accepted_pairs(within):
        stops = jnp.full((ROWS, 1), -1, jnp.int32)
        logits = rows_of(np.log(P[[0, 0, 0]]))
        judged = judge_logits(logits, penalised, history, window, within, stops, vocab_size=VOCAB)
        q_log = jnp.zeros((ROWS, 2, VOCAB))
        accepted, _ = RUN[mode](judged, pairs, count, q_log, sampled, penalised, SEEDS, positions)
        return np.asarray(pairs[:, 0] * VOCAB + pairs[:, 1])[np.asarray(accepted) == 2]

    assert p_value(accepted_pairs(ancestors(chain(3))), joint.ravel()) > HOLDS
    roots_only = np.broadcast_to(np.arange(3) == 0, (3, 3))  # the drafts do not count
    assert p_value(accepted_pairs(roots_only), joint.ravel()) < FAILS
