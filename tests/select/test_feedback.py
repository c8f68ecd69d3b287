"""What the emitted tokens tell of every proposal is told, and nothing else is."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.contracts import Choice, Proposal, Verdict
from jaxspec.select.feedback import at_hand, censor, full_information
from tests.decode.automata import automaton

DEPTH = 4


def told(drafts, emitted, length, count=DEPTH):
    """Of one proposal: what is known, and what is right, as lists of 0 and 1."""
    arrays = [jnp.asarray(each, jnp.int32)[None] for each in (drafts, emitted)]
    known, right = censor(arrays[0][None], jnp.asarray([[count]]), arrays[1][None], jnp.asarray([length]))
    return np.asarray(known)[0, 0].astype(int).tolist(), np.asarray(right)[0, 0].astype(int).tolist()


@pytest.mark.parametrize(
    ("drafts", "known", "right"),
    [
        ([5, 8, 2, 7], [1, 1, 1, 0], [1, 1, 1, 0]),  # agrees with all that was emitted: the rest is not known
        ([5, 9, 2, 7], [1, 1, 0, 0], [1, 0, 0, 0]),  # after its first miss it is about another text
        ([5, 8, 9, 4], [1, 1, 1, 0], [1, 1, 0, 0]),
        ([4, 8, 2, 7], [1, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_examples(drafts, known, right):
    assert told(drafts, [5, 8, 2, 7], 3) == (known, right)


def test_drafts_beyond_the_count_and_finished_rows_tell_nothing():
    assert told([5, 8, 2, 7], [5, 8, 2, 7], 4, count=2) == ([1, 1, 0, 0], [1, 1, 0, 0])
    assert told([5, 8, 2, 7], [5, 8, 2, 7], 0) == ([0] * 4, [0] * 4)
    assert told([5, 8, 2, 7], [5, 8, 2, 7], 4) == ([1] * 4, [1] * 4)


def by_hand(drafts, count, emitted, length):
    """One proposal, draft by draft."""
    known, right = np.zeros(len(drafts), bool), np.zeros(len(drafts), bool)
    for depth, draft in enumerate(drafts):
        if depth >= count or depth >= length:
            break
        known[depth], right[depth] = True, draft == emitted[depth]
        if not right[depth]:
            break
    return known, right


def test_it_is_the_walk_along_each_proposal():
    rng = np.random.default_rng(0)
    shape = (200, 5, DEPTH)
    emitted = rng.integers(0, 3, (shape[0], 1, DEPTH))
    drafts = np.where(rng.random(shape) < 0.7, emitted, rng.integers(0, 3, shape))
    count, length = rng.integers(0, DEPTH + 1, shape[:2]), rng.integers(0, DEPTH + 2, shape[0])
    known, right = censor(
        *(jnp.asarray(each, jnp.int32) for each in (drafts, count, np.broadcast_to(emitted, shape), length))
    )
    for row, source in np.ndindex(shape[:2]):
        wanted = by_hand(drafts[row, source], count[row, source], emitted[row, 0], length[row])
        np.testing.assert_array_equal(known[row, source], wanted[0])
        np.testing.assert_array_equal(right[row, source], wanted[1])
    assert (np.asarray(known).sum(2) == DEPTH).any()
    assert (~np.asarray(known)).all(2).any()


def test_the_share_of_known_drafts_that_are_right_is_the_acceptance_and_other_shares_are_not():
    """Rounds end where another source's chain ends, so that a good source is often cut short."""
    rng, rounds, chance = np.random.default_rng(1), 20_000, 0.8
    emitted = np.zeros((rounds, 1, DEPTH), np.int32)
    drafts = (rng.random((rounds, 1, DEPTH)) >= chance).astype(np.int32)
    length = 1 + (rng.random((rounds, DEPTH - 1)) < 0.4).cumprod(1).sum(1)
    count = np.full((rounds, 1), DEPTH)
    known, right = (
        np.asarray(each) for each in censor(*(jnp.asarray(a, jnp.int32) for a in (drafts, count, emitted, length)))
    )
    for depth in range(DEPTH):
        n = known[:, 0, depth].sum()
        assert abs(right[:, 0, depth].sum() / n - chance) < 4 * np.sqrt(chance * (1 - chance) / n)
    run = (drafts[:, 0] == 0).cumprod(1)
    reached = np.concatenate([np.ones((rounds, 1), bool), run[:, :-1] > 0], 1)
    naive = right[:, 0, 1].sum() / reached[:, 1].sum()  # what was not emitted counted as wrong
    assert naive < chance - 0.3


@functools.cache
def setup():
    model = automaton(8)
    return decode.make_setup(model, drafts=("lookup", ("lm:a", model), ("lm:b", model)), lookahead=DEPTH)


def scored(source):
    """Feedback of three rows in which lookup has drafted 5 8 9 4, and the chosen model 5 8 2."""
    rows = len(source)
    flat = np.zeros(rows, np.int32)

    def proposal(tokens, count, sure):
        tokens = jnp.broadcast_to(jnp.asarray(tokens, jnp.int32), (rows, DEPTH))
        masses = jnp.zeros(rows, bool)
        return Proposal(tokens, jnp.full(rows, count), None, masses, jnp.asarray(flat), jnp.full((rows, DEPTH), sure))

    free = {0: proposal([0] * 4, 0, 1.0), 1: proposal([5, 8, 9, 4], 4, 0.25)}
    choice = Choice(jnp.asarray(source, jnp.int32), jnp.full(rows, 3, jnp.int32))
    emitted = jnp.broadcast_to(jnp.asarray([5, 8, 2, 1, 0], jnp.int32), (rows, DEPTH + 1))
    verdict = Verdict(jnp.full(rows, 3), emitted, jnp.asarray([4] * (rows - 1) + [0], jnp.int32), None)
    head = proposal([5, 8, 2, 0], 3, 0.5)
    hand = at_hand(setup(), free, head, choice)
    return full_information(setup(), hand, head, choice, verdict, jnp.full(hand.tokens.shape, 0.5), jnp.zeros(rows))


def test_free_sources_are_scored_in_every_row_and_models_where_they_ran():
    told = scored([1, 2, 3, 3])
    assert told.known[:3, 1].tolist() == [[True, True, True, False]] * 3, "chosen or not"
    assert told.chance[:3, 1].tolist() == [[1, 1, 0, 0]] * 3
    assert told.known[:, 2].any(1).tolist() == [False, True, False, False]
    assert told.known[:, 3].any(1).tolist() == [False, False, True, False], "the last row has ended"
    assert told.chance[1, 2].tolist() == [1, 1, 1, 0]
    assert told.drawn.tolist() == [[0, 4, 0, 0], [0, 4, 3, 0], [0, 4, 0, 3], [0, 0, 0, 0]]
    assert told.confidence[1, 1, 0] == 0.25
    assert told.confidence[1, 2, 0] == 0.5
    assert told.emitted.tolist() == [4, 4, 4, 0]
