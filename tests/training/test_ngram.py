"""The n-gram table holds what a corpus says, within its budget, and is read back only where it belongs."""

import json
from collections import Counter, defaultdict

import numpy as np
import pytest

from jaxspec.drafts.ngram import ARRAYS, LEAVES, RECORD, keys, load_ngram, vocabulary_digest
from jaxspec.text import from_folder
from jaxspec.training import ngram
from jaxspec.training.ngram import SLOTS, build_ngram, count_sequences, fill, slot_bytes
from jaxspec.training.ngram_corpus import read_corpus
from tests.training.test_ngram_corpus import TINY, shard


@pytest.fixture(scope="module")
def tokenizer():
    return from_folder(TINY)


def documents(seed, count=30, vocab=6):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, n).astype(np.int32) for n in rng.integers(1, 50, count)]


def joined(texts):
    return np.concatenate([part for text in texts for part in (text, np.int32([-1]))])


def counted(texts, order, min_count):
    """By a dictionary: {context: (token, count of the context, of the token after it)}."""
    following = defaultdict(Counter)
    for text in texts:
        for start in range(len(text) - order + 1):
            following[tuple(text[start : start + order - 1].tolist())][int(text[start + order - 1])] += 1
    best = {context: max(sorted(seen.items()), key=lambda item: item[1]) for context, seen in following.items()}
    return {c: (token, following[c].total(), n) for c, (token, n) in best.items() if n >= min_count}


def as_dictionary(entries):
    rows = zip(
        entries.context.tolist(), entries.token.tolist(), entries.count.tolist(), entries.hits.tolist(), strict=True
    )
    return {tuple(context): (token, count, hits) for context, token, count, hits in rows}


@pytest.mark.parametrize("min_count", [1, 2, 4])
@pytest.mark.parametrize("orders", [(2, 5), (3, 4), (4, 4)])
def test_counts_are_those_of_a_dictionary(orders, min_count):
    texts = documents(0)
    found = count_sequences(joined(texts), orders, min_count=min_count)
    assert [entries.context.shape[1] + 1 for entries in found] == list(range(orders[0], orders[1] + 1))
    for entries in found:
        order = entries.context.shape[1] + 1
        assert as_dictionary(entries) == counted(texts, order, min_count)
        assert len(entries.token) == len(as_dictionary(entries)), "each context once"


def test_what_follows_too_seldom_is_left_out():
    texts = documents(0)
    (found,) = count_sequences(joined(texts), (3, 3), min_count=2, min_probability=0.4)
    wanted = {c: seen for c, seen in counted(texts, 3, 2).items() if seen[2] >= 0.4 * seen[1]}
    assert as_dictionary(found) == wanted
    assert 0 < len(wanted) < len(counted(texts, 3, 2))


def test_no_sequence_crosses_documents():
    texts = documents(1)
    (found,) = count_sequences(joined(texts), (3, 3), min_count=2)
    assert as_dictionary(found) != counted([np.concatenate(texts)], 3, 2), "crossing would be noticed"


def test_a_corpus_too_short_for_an_order_has_none_of_it():
    found = count_sequences(np.int32([1, 2, 1, 2]), (2, 5), min_count=2)
    assert [as_dictionary(entries) for entries in found if len(entries.token)] == [{(1,): (2, 2, 2)}]


def kept(found, table):
    """Which entries the table has, and every entry's bucket, order by order; what it has of them is right."""
    out = []
    for entries in found:
        place, check = (each[:, -1] for each in keys(entries.context.astype(np.uint32)))
        bucket = place % np.uint32(len(table["check"]))
        hit = table["check"][bucket] == check[:, None]
        assert (hit.sum(1) <= 1).all()
        there, slot = hit.any(1), hit.argmax(1)
        for name, wanted in (("next", entries.token), ("count", entries.count), ("hits", entries.hits)):
            np.testing.assert_array_equal(table[name][bucket, slot][there], wanted[there])
        out.append((there, bucket))
    return out


def test_a_budget_is_filled_with_the_most_useful_and_never_exceeded():
    found = count_sequences(joined(documents(2, count=300, vocab=20)), (2, 5), min_count=1)
    budget = 30_000
    table = fill(found, budget=budget, vocab_size=20)
    size = sum(leaf.nbytes for leaf in table.values())
    assert 0.95 * budget < size <= budget
    parts = kept(found, table)
    there = np.concatenate([there for there, _ in parts])
    bucket = np.concatenate([bucket for _, bucket in parts])
    worth = np.concatenate([entries.hits for entries in found])
    assert 0 < there.sum() < len(there)
    assert there.sum() == table["entries"].sum() == (table["check"] > 0).sum()
    for one in np.unique(bucket):
        inside = bucket == one
        if (~there[inside]).any():
            assert there[inside].sum() == SLOTS, "nothing is left out where there is room"
            assert worth[inside & there].min() >= worth[inside & ~there].max()
    best = np.sort(worth)[::-1][: there.sum()].sum()
    assert worth[there].sum() > 0.95 * best, "as good as the best of all, but for full buckets"


def test_where_there_is_room_nearly_everything_is_kept_and_no_byte_is_wasted():
    found = count_sequences(joined(documents(3)), (2, 5), min_count=1)
    table = fill(found, budget=10**7, vocab_size=6)
    total = sum(len(entries.token) for entries in found)
    assert 0.95 * total < table["entries"].sum() <= total
    assert table["check"].size < 2 * total + SLOTS
    assert table["entries"].tolist() == [there.sum() for there, _ in kept(found, table)]


def test_large_counts_are_scaled_and_keep_their_ratio():
    text = np.resize(np.int32([1, 2, 1, 2, 1, 3]), 600_000)
    (found,) = count_sequences(text, (2, 2), min_count=2)
    table = fill([found], budget=10**6, vocab_size=1 << 17)
    place, check = keys(np.uint32([[1]]))
    slot = table["check"][place[0, 0] % len(table["check"])] == check[0]
    count, hits = (int(table[name][place[0, 0] % len(table["check"])][slot][0]) for name in ("count", "hits"))
    assert count == 65535
    assert hits / count == pytest.approx(2 / 3, abs=1e-4)
    assert table["next"].dtype == np.uint32, "ids may be beyond 16 bits"


def test_nothing_that_occurs_often_enough_is_an_error():
    with pytest.raises(ValueError, match="no sequence of the corpus occurs often enough"):
        fill(count_sequences(np.int32([1, 2, 3]), (2, 5), min_count=2), budget=10**6, vocab_size=6)


TEXT = "The quick brown fox jumps over the lazy dog.\n\nThe quick brown fox sleeps.\n" * 20


def test_what_is_built_is_read_back(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "shards").mkdir()
    shard(tmp_path / "shards" / "shard-0.npz", [np.arange(40)] * 3, [5] * 3)
    told = []
    files = [tmp_path / "a.txt", tmp_path / "shards"]
    record = build_ngram(files, tokenizer, tmp_path / "out", told=lambda *now: told.append(now))
    assert told == [(n + 1, 6, told[n][2]) for n in range(6)]
    assert json.loads((tmp_path / "out" / RECORD).read_text()) == record
    assert [each["name"] for each in record["corpus"]] == ["a.txt", "shard-0.npz"]
    assert record["tokens"] == told[-1][2] == len(tokenizer.encode(TEXT, special=False)) + 120
    table = load_ngram(tmp_path / "out", tokenizer)
    assert set(table) == set(LEAVES)
    texts = [read_corpus(file, tokenizer).tokens for file in (files[0], files[1] / "shard-0.npz")]
    wanted = fill(
        count_sequences(joined(texts), (2, 5), min_count=2, min_probability=0.25), budget=8 * 10**6, vocab_size=512
    )
    for name in LEAVES:
        np.testing.assert_array_equal(table[name], wanted[name])
    assert sum(record["entries"].values()) == table["entries"].sum()


@pytest.fixture(scope="module")
def built(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    (folder / "a.txt").write_text(TEXT)
    build_ngram([folder / "a.txt"], tokenizer, folder / "out")
    return folder / "out"


def damaged(built, tmp_path, change):
    """A copy of the artifact with its files changed."""
    files = {name: (built / name).read_bytes() for name in (RECORD, ARRAYS)}
    for name, content in change(files).items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


DAMAGE = {
    "truncated": (lambda f: f | {ARRAYS: f[ARRAYS][:-9]}, "truncated or was changed"),
    "one bit": (lambda f: f | {ARRAYS: f[ARRAYS][:-1] + bytes([f[ARRAYS][-1] ^ 1])}, "truncated or was changed"),
    "empty": (lambda f: f | {ARRAYS: b""}, "truncated or was changed"),
    "no arrays": (lambda f: {RECORD: f[RECORD]}, "truncated or was changed"),
    "no record": (lambda f: {ARRAYS: f[ARRAYS]}, r"holds no n-gram table; make one with scripts/build_ngram\.py"),
    "half a record": (lambda f: f | {RECORD: f[RECORD][:50]}, "cannot be read"),
    "another kind": (
        lambda f: f | {RECORD: b'{"format": 1, "config": {"kind": "medusa"}}'},
        "is not the record of an n-gram",
    ),
    "a list": (lambda f: f | {RECORD: b"[]"}, "is not the record of an n-gram"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_artifact_is_refused(tokenizer, built, tmp_path, name):
    change, message = DAMAGE[name]
    assert load_ngram(damaged(built, tmp_path, lambda files: files), tokenizer), "the control"
    for file in (RECORD, ARRAYS):
        (tmp_path / file).unlink()
    with pytest.raises(ValueError, match=message):
        load_ngram(damaged(built, tmp_path, change), tokenizer)


def test_a_table_of_another_vocabulary_is_refused(tokenizer, built):
    tokens = tokenizer.vocabulary()
    assert load_ngram(built, [*tokens, "[PAD512]", ""]), "filler at the end is no difference"
    tokens[7], tokens[8] = tokens[8], tokens[7]
    with pytest.raises(ValueError, match="was built with another vocabulary than the target's"):
        load_ngram(built, tokens)
    assert vocabulary_digest(tokens) != vocabulary_digest(tokenizer)


def refused(tokenizer, tmp_path, message, content=b"some text, some text", name="a.txt", **options):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        build_ngram([tmp_path / name], tokenizer, tmp_path / "out", **options)
    assert "\n" not in str(raised.value)
    assert [file.name for file in tmp_path.iterdir()] == [name], "nothing is left"


BAD = {
    "latin-1": {"content": "caf\xe9".encode("latin-1"), "message": r"a\.txt is not UTF-8"},
    "empty": {"content": b"", "message": r"a\.txt holds no text"},
    "an empty .jsonl": {"content": b"\n\n", "name": "a.jsonl", "message": r"a\.jsonl holds no text"},
    "no JSON": {"content": b'{"text": "a"}\n{"text"', "name": "a.jsonl", "message": r"a\.jsonl, line 2 is not JSON"},
    "no field": {
        "content": b'{"id": 1}',
        "name": "a.jsonl",
        "message": r"line 1 has no text; write one of text, prompt",
    },
    "no shard": {"content": b"PK", "name": "a.npz", "message": "is no whole shard"},
    "a tiny budget": {"budget_mb": 0.001, "message": r"a budget of 0\.001 MB is too small; a table takes 0\.010 MB"},
    "no budget": {"budget_mb": float("nan"), "message": "too small"},
    "orders": {"orders": (5, 2), "message": "orders are 5 to 2"},
    "an order of one": {"orders": (1, 3), "message": "orders are 1 to 3"},
    "min_count": {"min_count": 0, "message": "min_count is 0"},
    "too short": {"content": b"x", "message": "occurs often enough"},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_a_sentence_and_leaves_nothing(tokenizer, tmp_path, name):
    refused(tokenizer, tmp_path, **BAD[name])


def test_a_failure_leaves_the_old_table_and_nothing_else(tokenizer, built, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(TEXT * 2)
    out = tmp_path / "out"
    build_ngram([tmp_path / "a.txt"], tokenizer, out)
    before = load_ngram(out, tokenizer)
    with pytest.raises(ValueError, match="already exists"):
        build_ngram([tmp_path / "a.txt"], tokenizer, out)
    (tmp_path / "a.txt").write_text(TEXT[:400])
    with monkeypatch.context() as patched:
        patched.setattr(ngram, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(ValueError, match="cannot be written"):
            build_ngram([tmp_path / "a.txt"], tokenizer, out, overwrite=True)
    after = load_ngram(out, tokenizer)
    assert all(np.array_equal(before[name], after[name]) for name in LEAVES)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt", "out"]
    build_ngram([tmp_path / "a.txt"], tokenizer, out, overwrite=True)
    assert not np.array_equal(load_ngram(out, tokenizer)["count"], before["count"]), (
        "the control: asked to, it is replaced"
    )


def test_a_slot_takes_what_its_arrays_take():
    table = fill(count_sequences(joined(documents(0)), (2, 3), min_count=1), budget=10**5, vocab_size=6)
    assert sum(table[name].nbytes for name in LEAVES[:4]) == table["check"].size * slot_bytes(6)
