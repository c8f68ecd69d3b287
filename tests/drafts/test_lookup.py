import functools

import jax
import numpy as np
import pytest

from jaxspec.drafts import lookup
from jaxspec.drafts.lookup import continuation, longest_match
from tests.decode.engines import plain, run, tiny_engine
from tests.decode.schedule import always
from tests.decode.test_greedy import LIMITS, PROMPTS
from tests.drafts.oracle import proposals

SLOTS, AHEAD = 24, 7


def reference(text, most, *, recent=True):
    """Last index and length of the longest earlier match of the end, by trying all; the most recent of equals."""
    ends = range(len(text) - 1)
    lengths = [
        max((m for m in range(1, min(most, end + 1) + 1) if text[end + 1 - m : end + 1] == text[-m:]), default=0)
        for end in ends
    ]
    longest = max(lengths, default=0)
    found = [end for end in ends if lengths[end] == longest]
    return (found[-1] if recent else found[0], longest) if longest else (None, 0)


def votes(known, most, wanted):
    """How many of the longest matches went on as the one at `wanted` did, and how many there are."""
    longest = reference(known, most)[1]
    ends = [
        e
        for e in range(len(known) - 1)
        if longest
        == next(
            (n for n in range(most, 0, -1) if n <= e + 1 and known[e + 1 - n : e + 1] == known[len(known) - n :]), 0
        )
    ]
    return sum(known[e + 1] == known[wanted + 1] for e in ends), len(ends)


def looped(text, end, count):
    """What follows `end`, and when the text is over, what follows it as if it went on so."""
    text = list(text)
    period = len(text) - 1 - end
    for _ in range(count):
        text.append(text[-period])
    return text[-count:]


@functools.partial(jax.jit, static_argnums=2)
def match_and_continue(texts, lengths, most):
    end, match, share = jax.vmap(lambda t, n: longest_match(t, n, most))(texts, lengths)
    return end, match, jax.vmap(lambda t, n, e: continuation(t, n, e, AHEAD))(texts, lengths, end), share


@pytest.mark.parametrize("most", [1, 2, 4])
def test_matches_and_continuations_are_those_found_by_trying_all(most):
    rng = np.random.default_rng(most)
    texts = rng.integers(0, rng.integers(2, 5, (800, 1)), (800, SLOTS)).astype(np.int32)
    lengths = rng.integers(1, SLOTS + 1, 800).astype(np.int32)
    ends, matches, drafts, shares = map(np.asarray, match_and_continue(texts, lengths, most))
    older = 0
    split = 0
    for text, length, end, match, draft, share in zip(texts, lengths, ends, matches, drafts, shares, strict=True):
        known = text[:length].tolist()  # what lies beyond must not matter
        wanted, longest = reference(known, most)
        assert match == longest
        if longest:
            assert end == wanted, "the most recent of the longest"
            assert draft.tolist() == looped(known, end, AHEAD)
            older += reference(known, most, recent=False)[0] != wanted
            agree, of = votes(known, most, wanted)
            assert share == np.float32(agree / (of + 1))
            split += agree < of
    assert (matches == 0).any()
    assert older > 100, "an older match would be noticed"
    assert split > 100, "matches that went on otherwise would be noticed"


def test_a_text_that_loops_is_drafted_on_and_on():
    text = np.zeros((1, SLOTS), np.int32)
    text[0, :8] = [9, 1, 2, 3, 1, 2, 3, 1]
    end, match, drafts, _ = match_and_continue(text, np.array([8], np.int32), 4)
    assert (int(end[0]), int(match[0])) == (4, 4)
    assert drafts[0].tolist() == [2, 3, 1, 2, 3, 1, 2]


def test_in_a_run_every_proposal_is_that_of_the_text_so_far():
    engine = tiny_engine("greedy")
    source = engine.source("lookup")
    got = run(engine, PROMPTS, always(4, source, 4), **LIMITS)
    assert got.tokens == plain(engine, PROMPTS, **LIMITS).tokens
    drafted = proposals(got, source)
    assert len(drafted) > 20
    for row, at, prefix, drafts in drafted:
        end, match = reference(prefix, 4)
        assert match == got.log.match[at, row, source] >= 2
        assert drafts == looped(prefix, end, len(drafts))
    lengths = got.state.request.prompt_length[None, :] + np.cumsum(got.log.emitted, 0) - got.log.emitted
    might = (got.log.emitted > 0) & (got.log.offered.max(2) > 0) & (got.log.count == 0)
    assert might.any()
    for at, row in zip(*np.nonzero(might), strict=True):
        prefix = got.state.tokens[row, : lengths[at, row]].tolist()
        assert reference(prefix, 4)[1] < 2, "only without a match of two tokens there is no draft"


def test_the_same_settings_are_the_same_source_so_nothing_compiles_twice():
    assert lookup(lookahead=3) is lookup(lookahead=3)
    assert lookup(lookahead=3) != lookup(lookahead=3, max_match=5)
