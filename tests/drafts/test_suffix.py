"""Suffix drafts what most of the longest matches went on with, from match lengths that ragged commits keep exact."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.contracts import Verdict, View
from jaxspec.drafts.suffix import SuffixState, matches, suffix, suffix_pool

SLOTS, AHEAD, MOST, VOTERS, POOL = 40, 5, 4, 3, 24
SETTINGS = {"max_match": MOST, "min_match": 2, "growth": 2, "voters": VOTERS}


def common(text, other, most):
    """Tokens that two texts have in common at their ends."""
    count = 0
    while count < min(most, len(text), len(other)) and text[-1 - count] == other[-1 - count]:
        count += 1
    return count


def looped(text, place, count):
    """What follows a place of the text, and past its end what would if it went on so."""
    text, period = list(text), len(text) - 1 - place
    for _ in range(count):
        text.append(text[-period])
    return text[-count:]


def cut(pool, place, count):
    """What follows a place of the pool, up to the end of its text."""
    following = list(pool[place + 1 : place + 1 + count])
    return following[: following.index(-1)] if -1 in following else following


def reference(text, *, pool=(), min_match=2, growth=2, ahead=AHEAD, voters=VOTERS, loudest=True):
    """Match, drafts and shares of the votes, by trying all places; without `loudest` the first voter alone decides."""
    pool, found = list(pool), []
    for place in range(len(pool) - 1):
        if pool[place] >= 0 and pool[place + 1] >= 0:
            begin = max((i for i in range(place) if pool[i] < 0), default=-1)
            found.append((common(pool[begin + 1 : place + 1], text, MOST), cut(pool, place, ahead)))
    found += [(common(text[: i + 1], text, MOST), looped(text, i, ahead)) for i in range(len(text) - 1)]
    longest = max((match for match, _ in found), default=0)
    if longest < min_match:
        return 0, [], []
    agreed = [said for match, said in reversed(found) if match == longest][:voters]
    drafts, shares = [], []
    for depth in range(min(ahead, growth**longest - 1)):
        words = [said[depth] for said in agreed if len(said) > depth]
        if not words:
            break
        votes = Counter(words)
        best = max(words, key=lambda word: votes[word]) if loudest else words[0]
        drafts.append(best)
        shares.append(votes[best] / len(agreed))
        agreed = [said for said in agreed if len(said) > depth and said[depth] == best]
    return longest, drafts, shares


def view_of(tokens, length):
    rows = len(length)
    fine = jnp.zeros(rows, jnp.int32)
    return View(jnp.asarray(tokens), jnp.asarray(length), fine, fine == 0, None, ())


@functools.cache
def functions(pool=0, lookahead=AHEAD, **options):
    """The source's init, propose and observe on rows of tokens, compiled."""
    source = suffix(lookahead=lookahead, pool=pool, **SETTINGS | options)

    @jax.jit
    def propose(tokens, length, state, ahead, given):
        params = decode.EngineParams({}, {} if given is None else {"suffix": given}, ())
        return source.propose(params, view_of(tokens, length), state, ahead)[0]

    @jax.jit
    def observe(state, tokens, length, emitted, count):
        verdict = Verdict(jnp.maximum(count - 1, 0), emitted, count, None)
        return source.observe(state, (), view_of(tokens, length), count > 0, verdict)

    return source.init, propose, observe


def proposed(tokens, length, state=None, *, pool=None, given=None, ahead=AHEAD, **options):
    """Match, drafts and shares of each row."""
    init, propose, _ = functions(0 if pool is None else len(pool), **options)
    state = init(len(length), tokens.shape[1], jnp.float32) if state is None else state
    pool = given if pool is None else pool
    given = None if pool is None else jnp.asarray(pool)
    got = propose(tokens, length, state, jnp.full(len(length), ahead, jnp.int32), given)
    assert got.q_log is None
    assert not got.sampled.any()
    counts = np.asarray(got.count)
    return [
        (int(match), row[:n].tolist(), shares[:n].tolist())
        for match, row, n, shares in zip(
            got.match, np.asarray(got.tokens), counts, np.asarray(got.confidence), strict=True
        )
    ]


def texts(seed, rows=600):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, rng.integers(2, 6, (rows, 1)), (rows, SLOTS)).astype(np.int32)
    return tokens, rng.integers(1, SLOTS + 1, rows).astype(np.int32)


def differing(got, tokens, length, **options):
    """Rows whose proposal is not the oracle's."""
    return sum(
        (match, drafts) != (wanted := reference(row[:n].tolist(), **options))[:2]
        or not np.allclose(shares, wanted[2], atol=1e-6)
        for (match, drafts, shares), row, n in zip(got, tokens, length, strict=True)
    )


def test_proposals_are_those_found_by_trying_all():
    tokens, length = texts(0)
    got = proposed(tokens, length)
    assert differing(got, tokens, length) == 0
    assert {len(drafts) for _, drafts, _ in got} == {0, 3, 5}, "2 ** match - 1"
    assert any(0 < share < 1 for _, _, shares in got for share in shares)
    assert differing(got, tokens, length, loudest=False) > 10, "the most recent match alone would be noticed"


@pytest.mark.parametrize("options", [{"min_match": 1}, {"growth": 3}, {"voters": 1}])
def test_every_option_does_what_it_says(options):
    tokens, length = texts(1)
    got = proposed(tokens, length, **options)
    assert differing(got, tokens, length, **options) == 0
    assert differing(got, tokens, length) > 20, "the default would be noticed"


def test_a_row_never_drafts_more_than_it_may():
    tokens, length = texts(2, rows=200)
    for ahead in (0, 1, 3):
        got = proposed(tokens, length, ahead=ahead)
        assert max(len(drafts) for _, drafts, _ in got) == ahead


def history(seed, observe, rows=64):
    """A run of ragged commits: texts, and the state and lengths before each round."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 3, (rows, SLOTS)).astype(np.int32)
    length = rng.integers(1, 9, rows).astype(np.int32)
    state = functions()[0](rows, SLOTS, jnp.float32)
    rounds = [(state, length)]
    for _ in range(14):
        count = np.minimum(rng.integers(0, AHEAD + 2, rows), SLOTS - length).astype(np.int32)
        emitted = np.stack(
            [np.resize(row[n : n + AHEAD + 1], AHEAD + 1) for row, n in zip(tokens, length, strict=True)]
        )
        garbage = np.where(np.arange(SLOTS) < length[:, None], tokens, 1)
        state = observe(state, garbage, length, emitted, count)
        length = length + count
        rounds.append((state, length))
    return tokens, rounds


def exact(observe):
    """Whether after every history of commits the state is that of trying all, and drafts as a fresh one does."""
    tokens, rounds = history(3, observe)
    for state, length in rounds[1:]:
        assert (np.asarray(state.seen) == length).all()
        for row, n, match in zip(tokens, length, np.asarray(state.match), strict=True):
            text = row[:n].tolist()
            if match[: n - 1].tolist() != [common(text[: i + 1], text, MOST) for i in range(n - 1)]:
                return False
        if proposed(tokens, length, state) != proposed(tokens, length):
            return False
    return True


def test_after_any_ragged_commits_the_state_is_exact_and_drafts_as_a_fresh_one():
    observe = functions()[2]
    assert exact(observe)

    def forgetful(state, tokens, length, emitted, count):
        fine = observe(state, tokens, length, emitted, count)
        stale = (count == AHEAD + 1)[:, None] & (np.asarray(state.seen) == length).all()
        return SuffixState(jnp.where(stale, state.match, fine.match), fine.seen)

    assert not exact(forgetful), "a full round that is not taken in would be noticed"


def test_a_state_that_is_behind_in_some_rows_is_brought_up_to_date():
    tokens, rounds = history(5, functions()[2])
    state, length = rounds[4]
    behind = np.arange(len(length)) % 3 == 0
    mixed = SuffixState(
        jnp.where(behind[:, None], rounds[2][0].match, state.match), jnp.where(behind, rounds[2][0].seen, state.seen)
    )
    assert proposed(tokens, length, mixed) == proposed(tokens, length)
    nothing = np.zeros_like(length)
    after = functions()[2](mixed, tokens, length, np.zeros((len(length), AHEAD + 1), np.int32), nothing)
    assert (np.asarray(after.seen) == length).all()
    assert proposed(tokens, length, after) == proposed(tokens, length)


def test_match_lengths_stop_at_the_most():
    text = jnp.asarray(np.tile(np.int32([[1, 2]]), (1, 20)))
    found = np.asarray(jax.jit(matches, static_argnums=3)(text, text, jnp.asarray([40], jnp.int32), 7))
    assert found[0, :12].tolist() == [0, 2, 0, 4, 0, 6, 0, 7, 0, 7, 0, 7]


def test_a_row_drafts_as_it_does_alone():
    tokens, length = texts(6, rows=64)
    together = proposed(tokens, length)
    assert [proposed(tokens[i : i + 1], length[i : i + 1])[0] for i in range(64)] == together
    assert proposed(np.roll(tokens, 1, 0), np.roll(length, 1)) == together[-1:] + together[:-1]


def pool_of(seed):
    rng = np.random.default_rng(seed)
    return suffix_pool([rng.integers(0, 4, n) for n in rng.integers(1, 12, 5)], POOL)


def test_a_pool_of_earlier_texts_is_searched_too():
    tokens, length = texts(7)
    got = proposed(tokens, length, pool=pool_of(0))
    assert differing(got, tokens, length, pool=pool_of(0).tolist()) == 0
    assert differing(got, tokens, length) > 50, "it is used"
    assert differing(got, tokens, length, pool=pool_of(1).tolist()) > 50, "it is the one given"
    assert got == proposed(tokens, length, pool=np.asarray(pool_of(0))), "and nothing else decides"


def test_without_being_asked_no_other_text_is_seen():
    tokens, length = texts(8, rows=200)
    assert proposed(tokens, length, given=pool_of(0)) == proposed(tokens, length)
    assert proposed(tokens, length, pool=pool_of(0)) != proposed(tokens, length), "the control: asked for, it is"


def test_a_pool_keeps_the_last_texts_apart():
    assert suffix_pool([[1, 2, 3], [4, 5, 6]], 8).tolist() == [-1, 1, 2, 3, -1, 4, 5, 6]
    assert suffix_pool([[1, 2, 3], [4, 5, 6]], 6).tolist() == [2, 3, -1, 4, 5, 6]
    assert suffix_pool([[1]], 4).tolist() == [-1, -1, -1, 1]
    assert suffix_pool([], 3).tolist() == [-1, -1, -1]
    assert suffix_pool([[1]], 0).shape == (0,)


@pytest.mark.parametrize("given", [None, np.zeros(POOL + 1, np.int32)])
def test_a_pool_of_another_size_than_asked_for_is_refused(given):
    source = suffix(lookahead=AHEAD, pool=POOL)
    params = decode.EngineParams({}, {} if given is None else {"suffix": given}, ())
    tokens, length = texts(0, rows=2)
    state = source.init(2, SLOTS, jnp.float32)
    with pytest.raises(ValueError, match=f"a pool of {POOL} tokens and found"):
        jax.eval_shape(source.propose, params, view_of(tokens, length), state, jnp.ones(2, jnp.int32))


@pytest.mark.parametrize(
    "options", [{"min_match": 0}, {"min_match": 5, "max_match": 4}, {"growth": 1}, {"voters": 0}, {"pool": -1}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="suffix got"):
        suffix(lookahead=3, **options)


def test_the_same_settings_are_the_same_source_so_nothing_compiles_twice():
    assert suffix(lookahead=3) is suffix(lookahead=3)
    assert suffix(lookahead=3) != suffix(lookahead=3, growth=5)
