"""Where rows sample, a selector is told how likely the target takes a draft, not only what was drawn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.decode.step import step
from jaxspec.sampling import warpers
from tests.decode import automata
from tests.decode.automata import automaton, law_after
from tests.decode.engines import Engine, began, plain_setup
from tests.decode.priced import priced

VOCAB, ROWS, MOST, ROUNDS = 6, 256, 4, 6
PROMPT = [2, 0, 3, 2, 1, 4, 2, 3, 5, 2, 4, 0, 2, 5, 1, 2]  # whatever follows 2 has been there
TABLE = automata.random_table(VOCAB, 3, padded=2, scale=1.0)
DRAFT = automata.related_table(TABLE, VOCAB, 4, padded=3, noise=0.8)
LOOKUP, LM = 1, 2


@functools.cache
def engine(verify: str) -> Engine:
    model = automaton(VOCAB + 2)
    drafts = ("lookup", ("lm:d", automaton(VOCAB + 3)))
    options = {"lookahead": MOST, "windows": (1, 3, 1 + MOST), "vocab_size": VOCAB}
    setup = decode.make_setup(model, drafts=drafts, select="goodput", verify=verify, **options)
    drafted = {"lm:d": {"table": jnp.asarray(DRAFT)}}
    return Engine(setup, plain_setup(model, VOCAB), decode.EngineParams({"table": jnp.asarray(TABLE)}, drafted, ()), 64)


@functools.cache
def rounds_of(verify: str, source: str | None, **settings: float):
    """Of every round: the texts before it, what was chosen and proposed, and the feedback; numpy."""
    warp = warpers(ROWS, **{"temperature": 1.0, **settings})
    known = priced(engine(verify).setup, width=0.02, draft=0.12)
    asked = {"warp": warp, "seed": 0, "max_new_tokens": 40, "source": source}
    params, state = began(engine(verify), [PROMPT] * ROWS, known, **asked)
    taken = jax.jit(functools.partial(step, engine(verify).setup))
    found = []
    for _ in range(ROUNDS):
        tokens, length = np.asarray(state.tokens), np.asarray(state.length)
        state, info = taken(params, state)
        texts = [row[:n].tolist() for row, n in zip(tokens, length, strict=True)]
        after = [row[:n].tolist() for row, n in zip(*map(np.asarray, (state.tokens, state.length)), strict=True)]
        found.append((texts, after, jax.device_get(info)))
    return found


def places(verify, source, *, pinned=None, **settings):
    """(text before the draft, the draft, whether it was drawn, feedback's right and chance) of all that is known.

    Where a proposal is known its drafts before are what was emitted, so the text tells them; a draft that is right is
    what follows there.
    """
    for texts, after, info in rounds_of(verify, pinned, **settings):
        told = info.feedback
        for row, source_, depth in zip(*np.nonzero(told.known), strict=True):
            if source_ != source:
                continue
            before = after[row][: len(texts[row]) + depth]
            ran = info.choice.source[row] == source
            draft = int(info.proposal.tokens[row, depth]) if ran and depth < info.proposal.count[row] else None
            yield before, draft, ran, bool(told.right[row, source, depth]), float(told.chance[row, source, depth])


@pytest.mark.parametrize("verify", ["rejection", "coupled"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 3}, {"top_p": 0.8}], ids=str)
def test_a_point_mass_is_taken_with_the_targets_probability_of_it(verify, settings):
    checked, between = 0, 0
    for before, draft, _, right, chance in places(verify, LOOKUP, pinned="lookup", **settings):
        assert draft is not None
        law = law_after(TABLE, PROMPT, before[len(PROMPT) :], VOCAB, **settings)
        assert chance == pytest.approx(law[draft], abs=1e-5)
        assert chance > 0 or not right
        checked += 1
        between += 0.01 < chance < 0.99
    assert checked > 200
    assert between > 100, "more than what was drawn"


def gap(verify, source, *, others=None):
    """Standard deviations between how often drafts are right and how often the chances say so."""
    told = [
        (right, chance if others is None else others(before, draft))
        for before, draft, ran, right, chance in places(verify, source)
        if source == LOOKUP or ran
    ]
    right, chance = np.asarray(told, float).T
    assert len(told) > 300
    return abs(right.sum() - chance.sum()) / np.sqrt(max(np.sum(right * (1 - right.mean())), 1.0)), right, chance


@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_drafts_are_right_as_often_as_their_chances_say(verify):
    for source in (LOOKUP, LM):
        far, right, chance = gap(verify, source)
        assert far < 4
        if verify == "coupled" and source == LM:
            np.testing.assert_array_equal(right, chance)  # noise is shared: all that is known is what came of it


def test_drafts_that_are_drawn_are_not_taken_with_the_targets_probability_of_them():
    """The negative control: p alone is not min(1, p / q), nor what shared noise gives."""

    def alone(before, draft):
        return law_after(TABLE, PROMPT, before[len(PROMPT) :], VOCAB)[draft]

    for verify in ("rejection", "coupled"):
        assert gap(verify, LM, others=alone)[0] > 6


def test_a_greedy_row_leaves_nothing_to_chance():
    for verify in ("rejection", "coupled", "greedy"):
        told = [(right, chance) for *_, right, chance in places(verify, LOOKUP, temperature=0.0)]
        assert len(told) > 100
        assert all(right == chance for right, chance in told)
