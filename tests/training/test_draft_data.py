"""Batches depend on seed and step alone, hold what belongs together, and never what is held out."""

import dataclasses

import numpy as np
import pytest

from jaxspec.training.draft_data import Sampler, coverage, frequent_tokens, split_parts
from jaxspec.training.teacher import Law, Part


def part_of(lengths: list[int], first: int = 0, *, top: int = 2) -> Part:
    """Tokens that count on from `first`, each law naming the next two, each feature the token itself."""
    tokens = np.arange(first, first + sum(lengths), dtype=np.int32)
    ids = (tokens[:, None] + 1 + np.arange(top)[None]).astype(np.int32)
    log_p = np.log(np.broadcast_to([0.6, 0.3][:top], ids.shape)).astype(np.float16)
    features = {3: np.repeat(tokens[:, None], 4, 1).astype(np.float32)}
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Part(tokens, starts, np.asarray([2] * len(lengths)), Law(ids, log_p), features)


PARTS = (part_of([9, 30, 12]), part_of([7, 16], first=100))
SIZES = {"rows": 5, "width": 10, "taps": (3,)}


def test_entries_belong_together_and_are_of_one_document():
    for step in range(6):
        batch = Sampler(PARTS, seed=1, **SIZES).batch(step)
        for row in range(5):
            n = int(np.flatnonzero(batch.valid[row])[-1]) + 1
            assert n in (7, 9, 10)  # a whole short document, or a stretch
            tokens = batch.tokens[row, :n]
            assert np.all(np.diff(tokens) == 1)
            assert np.array_equal(batch.ids[row, :n, 0], tokens + 1)
            assert np.array_equal(np.asarray(batch.features[3][row, :n, 0], np.float32), tokens)
            begin = max(start for start in (0, 9, 39, 100, 107) if start <= tokens[0])
            assert np.array_equal(batch.positions[row], np.arange(10) + tokens[0] - begin)


def test_what_counts_is_the_answer_from_the_law_of_the_prompt_s_last_token_on():
    """Every document's first 2 tokens are its prompt: of those the second's law, the answer's first token, counts."""
    bare = tuple(dataclasses.replace(part, prompts=np.zeros_like(part.prompts)) for part in PARTS)
    for parts, first in ((PARTS, 1), (bare, 0)):
        batch = Sampler(parts, seed=1, **SIZES).batch(0)
        inside = np.asarray(batch.positions) >= first
        inside &= np.arange(10)[None] < np.asarray([(row > 0).sum() + (row[0] == 0) for row in batch.tokens])[:, None]
        assert np.array_equal(batch.valid, inside)
        assert batch.positions.min() == 0  # a stretch with a prompt in it is among them
    cut = dataclasses.replace(part_of([9]), prompts=np.asarray([9]))
    assert Sampler((cut,), seed=1, **SIZES).batch(0).valid[0].sum() == 1  # no answer: the last token's law


def test_a_step_is_the_same_whenever_it_is_asked_for():
    first, other = Sampler(PARTS, seed=1, **SIZES), Sampler(PARTS, seed=1, **SIZES)
    for _ in range(3):
        first.batch(0)
    assert np.array_equal(first.batch(4).tokens, other.batch(4).tokens)
    assert not np.array_equal(first.batch(4).tokens, first.batch(5).tokens)  # the controls
    assert not np.array_equal(first.batch(4).tokens, Sampler(PARTS, seed=2, **SIZES).batch(4).tokens)


def test_an_epoch_has_every_document_once():
    sampler = Sampler(PARTS, seed=1, **SIZES)  # five documents, five rows
    for step in range(3):
        begins = {max(s for s in (0, 9, 39, 100, 107) if s <= t) for t in sampler.batch(step).tokens[:, 0]}
        assert begins == {0, 9, 39, 100, 107}


@pytest.mark.parametrize("held", [1, 2, 3, 4])
def test_no_document_is_in_both(held):
    kept, last = split_parts(PARTS, held)
    count = lambda parts: sum(len(part.starts) - 1 for part in parts)  # noqa: E731
    assert (count(kept), count(last)) == (5 - held, held)
    told = [np.concatenate([part.tokens for part in parts]) for parts in (kept, last)]
    assert np.array_equal(np.concatenate(told), np.concatenate([part.tokens for part in PARTS]))
    for part in (*kept, *last):
        assert part.starts[0] == 0
        assert part.starts[-1] == len(part.tokens) == len(part.law.ids) == len(part.features[3])


@pytest.mark.parametrize("held", [0, 5, 9])
def test_holding_out_none_or_all_is_refused(held):
    with pytest.raises(ValueError, match=f"{held} documents cannot be held out of 5"):
        split_parts(PARTS, held)


def test_frequent_tokens_are_those_of_the_most_mass():
    part = part_of([3])
    # after token t: t + 1 with .6, t + 2 with .3   ->   mass of 1 2 3 4: .6 .9 .9 .3
    assert frequent_tokens((part,), 2).tolist() == [2, 3]
    assert frequent_tokens((part,), 3).tolist() == [1, 2, 3]
    assert frequent_tokens((part,), 2, always=(9,)).tolist()[1] == 9
    assert frequent_tokens((part,), 50).tolist() == [1, 2, 3, 4]  # what was never likely is left out
    bare = part_of([3], first=5, top=0)
    assert frequent_tokens((bare,), 50).tolist() == [5, 6, 7]  # without laws, the text's own
    assert coverage((part,), np.asarray([2, 3])) == pytest.approx(2 / 3)
