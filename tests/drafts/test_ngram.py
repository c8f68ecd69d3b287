"""N-gram drafts what the longest context that the table has was followed by, and so on from there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.contracts import View
from jaxspec.drafts.ngram import find, keys, ngram
from jaxspec.drafts.suffix import suffix
from jaxspec.training.ngram import count_sequences, fill
from tests.decode import automata
from tests.decode.automata import chi_square
from tests.decode.engines import TABLE_ROWS, TABLE_VOCAB, Engine, plain, plain_setup, run, scripted, small_engine
from tests.decode.schedule import always, scheduled, script, shuffled
from tests.decode.test_greedy import table_prompts, wrong
from tests.decode.test_law import PROMPT, ROWS, TABLE, VOCAB, law, outputs
from tests.drafts.oracle import proposals
from tests.verify.law import FAILS, HOLDS

AHEAD, WIDTH = 5, 4
THRESHOLD = 0.45


def joined(texts):
    return np.concatenate([np.asarray([*text, -1], np.int32) for text in texts])


def table_of(texts, vocab, *, orders=(2, WIDTH + 1), min_count=1, budget=10**6):
    """A table, and the contexts that it kept with what follows them: {context: (token, probability)}."""
    found = count_sequences(joined(texts), orders, min_count=min_count)
    table = fill(found, budget=budget, vocab_size=vocab)
    known = {}
    for entries in found:
        place, check = (each[:, -1] for each in keys(entries.context.astype(np.uint32)))
        kept = (table["check"][place % np.uint32(len(table["check"]))] == check[:, None]).any(1)
        for context, token, count, hits in zip(
            *(part[kept] for part in (entries.context, *columns(entries))), strict=True
        ):
            known[tuple(context.tolist())] = (int(token), float(np.float32(hits) / np.float32(count)))
    assert len(known) == table["entries"].sum()
    return {name: jnp.asarray(leaf) for name, leaf in table.items()}, known


def columns(entries):
    return entries.token, entries.count, entries.hits


def reference(known, text, *, threshold=THRESHOLD, ahead=AHEAD, longest_first=True):
    """Match, drafts and probabilities by the dictionary; the last probability is of the token that ended them."""
    text, drafts, shares, match = list(text), [], [], 0
    while len(drafts) < ahead:
        lengths = range(min(WIDTH, len(text)), 0, -1) if longest_first else range(1, min(WIDTH, len(text)) + 1)
        used = next((n for n in lengths if tuple(text[-n:]) in known), 0)
        token, share = known[tuple(text[-used:])] if used else (0, 0.0)
        shares.append(share)
        if not used or share < threshold:
            break
        match = match or used
        drafts.append(token)
        text.append(token)
    return match, drafts, shares


@functools.cache
def corpus(seed=0):
    rng = np.random.default_rng(seed)
    return [[int(t) for t in np.minimum(rng.geometric(0.35, n) - 1, 7)] for n in rng.integers(1, 60, 40)]


@functools.cache
def propose(threshold=THRESHOLD):
    source = ngram(threshold=threshold, lookahead=AHEAD)

    @jax.jit
    def propose(table, tokens, length, ahead):
        fine = jnp.zeros_like(length)
        view = View(tokens, length, fine, fine == 0, None, ())
        return source.propose(decode.EngineParams({}, {"ngram": table}, ()), view, (), ahead)[0]

    return propose


def proposed(table, texts, ahead=AHEAD, threshold=THRESHOLD):
    """Match, drafts and probabilities of each row."""
    tokens = np.full((len(texts), 24), 7, np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    length = np.asarray([len(text) for text in texts], np.int32)
    got = propose(threshold)(table, tokens, length, np.full(len(texts), ahead, np.int32))
    assert got.q_log is None
    assert not got.sampled.any()
    counts = np.asarray(got.count)
    assert np.all(np.asarray(got.confidence)[np.arange(AHEAD) > counts[:, None]] == 1)
    return [
        (int(match), row[:n].tolist(), shares[: min(n + 1, ahead)].tolist())
        for match, row, n, shares in zip(
            got.match, np.asarray(got.tokens), counts, np.asarray(got.confidence), strict=True
        )
    ]


def ends(seed, rows=400):
    rng = np.random.default_rng(seed)
    return [np.minimum(rng.geometric(0.35, n) - 1, 7).tolist() for n in rng.integers(1, 24, rows)]


def differing(got, known, texts, **options):
    """Rows whose proposal is not the dictionary's."""
    wanted = [reference(known, text, **options) for text in texts]
    same = [a[:2] == b[:2] and np.allclose(a[2], b[2], atol=1e-6) for a, b in zip(got, wanted, strict=True)]
    return same.count(False)


@pytest.mark.parametrize("orders", [(2, 5), (3, 5), (2, 2)])
def test_proposals_are_those_of_a_dictionary(orders):
    table, known = table_of(corpus(), 8, orders=orders)
    got = proposed(table, ends(1), threshold=0.25)
    assert differing(got, known, ends(1), threshold=0.25) == 0
    assert {len(context) + 1 for context in known} == set(range(orders[0], orders[1] + 1))
    assert max(match for match, *_ in got) == orders[1] - 1
    assert len({len(drafts) for _, drafts, _ in got}) > 2 or orders == (2, 2)


def test_the_longest_context_decides():
    table, known = table_of(corpus(), 8)
    assert differing(proposed(table, ends(2)), known, ends(2), longest_first=False) > 20


def test_the_threshold_decides_where_drafts_end():
    table, known = table_of(corpus(), 8)
    for threshold in (0.0, 0.9):
        got = proposed(table, ends(3), threshold=threshold)
        assert differing(got, known, ends(3), threshold=threshold) == 0
        assert differing(got, known, ends(3)) > 20


def test_a_row_drafts_as_it_does_alone_and_never_more_than_it_may():
    table, _ = table_of(corpus(), 8)
    texts = ends(4, rows=32)
    together = proposed(table, texts)
    assert [proposed(table, [text])[0] for text in texts] == together
    for ahead in (0, 1, 3):
        assert max(len(drafts) for _, drafts, _ in proposed(table, texts, ahead=ahead)) == ahead
        cut = [(match, drafts[:ahead]) for match, drafts, _ in together]
        assert [drafts for _, drafts, _ in proposed(table, texts, ahead=ahead)] == [drafts for _, drafts in cut]


def test_an_unknown_context_and_one_longer_than_the_text_are_not_found():
    table, _ = table_of([[1, 2, 3, 4, 5]] * 2, 8)
    found = find(
        table,
        jnp.asarray([[1, 2, 3, 4], [1, 2, 3, 4], [0, 0, 0, 7], [6, 6, 2, 3]], jnp.int32),
        jnp.asarray([9, 2, 9, 9]),
    )
    assert found.used.tolist() == [4, 2, 0, 2]
    assert found.token.tolist()[:2] == [5, 5]
    assert found.probability.tolist() == [1, 1, 0, 1]


def test_numpy_and_jax_hash_alike():
    context = np.random.default_rng(0).integers(0, 1 << 18, (500, 5)).astype(np.uint32)
    for ours, theirs in zip(keys(context), keys(jnp.asarray(context)), strict=True):
        assert ours.dtype == np.uint32
        np.testing.assert_array_equal(ours, theirs)
    place, check = keys(np.unique(context[:, :2], axis=0))
    assert len(np.unique(place[:, 1].astype(np.uint64) << np.uint64(32) | check[:, 1])) == len(place)


def test_hashes_fill_buckets_evenly():
    """As evenly as chance does: counts of consecutive ids and pairs in 256 buckets, chi-square."""
    import scipy.stats

    single = np.arange(1 << 16, dtype=np.uint32)[:, None]
    pairs = np.stack(np.meshgrid(np.arange(256), np.arange(256)), -1).reshape(-1, 2).astype(np.uint32)
    for context in (single, pairs):
        for part in keys(context):
            counts = np.bincount(part[:, -1] % 256, minlength=256)
            assert scipy.stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("name", ["ngram", "ngram:here"])
def test_without_its_table_it_is_refused_with_the_command_that_makes_one(name):
    source = ngram(name=name, lookahead=3)
    assert source.name == name
    view = View(
        jnp.ones((1, 8), jnp.int32), jnp.ones(1, jnp.int32), jnp.zeros(1, jnp.int32), jnp.ones(1, bool), None, ()
    )
    with pytest.raises(ValueError, match=rf"{name} has no table; make one with scripts/build_ngram\.py"):
        source.propose(decode.EngineParams({}, {}, ()), view, (), jnp.ones(1, jnp.int32))


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_out_of_range_is_refused(threshold):
    with pytest.raises(ValueError, match="ngram got threshold"):
        ngram(lookahead=3, threshold=threshold)


def test_the_same_settings_are_the_same_source_so_nothing_compiles_twice():
    assert ngram(lookahead=3) is ngram(lookahead=3)
    assert ngram(lookahead=3) != ngram(lookahead=3, threshold=0.5)


@functools.cache
def engine():
    """A table for a model, and a table of what it says for a draft; ragged rows."""
    model = automata.automaton(TABLE_VOCAB + 2)
    setup = decode.make_setup(
        model,
        drafts=(ngram(threshold=THRESHOLD, lookahead=AHEAD), script(AHEAD)),
        select=scheduled(AHEAD),
        lookahead=AHEAD,
        windows=(1, 1 + AHEAD),
        vocab_size=TABLE_VOCAB,
        logprobs=True,
    )
    target = {"table": jnp.asarray(automata.random_table(TABLE_VOCAB, 0, padded=2))}
    own = Engine(setup, plain_setup(model, TABLE_VOCAB), decode.EngineParams(target, {}, ()), 256)
    said = plain(own, table_prompts(9), max_new_tokens=30).tokens
    table, known = table_of(said, TABLE_VOCAB, min_count=2)
    own.params.drafts["ngram"] = table
    return own, known


@pytest.mark.parametrize("plan", [*range(1, AHEAD + 1), "switching"])
def test_in_a_run_it_gives_the_plain_tokens_and_drafts_from_the_text_so_far(plan):
    (own, known), prompts = engine(), table_prompts(0)
    limits = {"max_new_tokens": np.random.default_rng(0).integers(10, 70, TABLE_ROWS).tolist()}
    wanted = plain(own, prompts, **limits).tokens
    drafts = scripted(own, prompts, wrong(wanted, TABLE_VOCAB, share=0.2))
    turns = (
        shuffled(TABLE_ROWS, [0, 1, 1, 2], AHEAD, 0, stride=1) if plan == "switching" else always(TABLE_ROWS, 1, plan)
    )
    got = run(own, prompts, turns, drafts, **limits)
    assert got.tokens == wanted
    drafted = proposals(got, 1)
    assert len(drafted) > 50
    for row, at, prefix, said in drafted:
        match, words, shares = reference(known, prefix)
        assert (got.log.match[at, row, 1], said) == (match, words[: len(said)])
        np.testing.assert_allclose(got.log.confidence[at, row, : len(said)], shares[: len(said)], atol=1e-6)
    accepted, given = (int(getattr(got.state.counters, name)[:, 1].sum()) for name in ("accepted", "proposed"))
    assert 0 < accepted < given


@functools.cache
def sampled_engine():
    """Both free sources, over the table of the law tests."""
    rng, text = np.random.default_rng(0), list(PROMPT)
    for _ in range(4000):
        p = np.exp(automata.logits_after(TABLE, text)[:VOCAB])
        text.append(int(rng.choice(VOCAB, p=p / p.sum())))
    table, _ = table_of([text], VOCAB, min_count=2)
    drafts = (ngram(threshold=0.2, lookahead=3), suffix(min_match=1, lookahead=3))
    return small_engine("rejection", drafts, {"ngram": table}, table=TABLE, vocab=VOCAB, rounds=1)


@pytest.mark.parametrize("sources", [[1], [2], [0, 1, 2]])
def test_drafts_leave_the_law_of_the_model(sources):
    plan = always(ROWS, sources[0], 3) if len(sources) == 1 else shuffled(ROWS, sources, 3, 0, stride=1)
    got = outputs(plan, own=sampled_engine())
    assert chi_square(got, law(), VOCAB) > HOLDS
    assert chi_square(got, law(temperature=1.2), VOCAB) < FAILS
