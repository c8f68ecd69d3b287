"""A corpus is the target's own answers, the same whether or not its making was interrupted; or anyone's own text."""

import dataclasses
import json

import numpy as np
import pytest

from jaxspec import decode
from jaxspec.contracts import EngineParams
from jaxspec.pipeline import load_model
from jaxspec.training import Answering, generate_corpus, read_shard
from jaxspec.training.text_corpus import LONGEST, text_corpus
from tests.decode import tiny
from tests.test_tiny import TARGET
from tests.training import small

HOW = Answering("weights", max_new_tokens=6, rows=2, shard=4, seed=3)
PROMPTS = [[1 + i, 2, 3 + i % 5] + [4] * (i % 3) for i in range(10)]


class Stop(Exception):
    """Stands for a kill."""


def make(folder, how=HOW, prompts=PROMPTS, **options):
    model, params = small.target()
    ends = {"vocab_size": tiny.VOCAB, "stop_ids": (0,)}
    return generate_corpus(model, EngineParams(params, {}, ()), prompts, folder, how, **ends, **options)


def content(files) -> list[tuple]:
    shards = [read_shard(file) for file in files]
    return [tuple(each.tobytes() for each in (s.tokens, s.lengths, s.prompts, s.index)) for s in shards]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make(tmp_path_factory.mktemp("corpus") / "whole")


def test_prompts_lie_as_they_were_shuffled_not_by_length(tmp_path):
    """Or the last documents, which training holds out, would be a shard's longest."""
    files = make(tmp_path / "corpus", dataclasses.replace(HOW, seed=5))
    order = np.concatenate([read_shard(file).index for file in files])
    assert order.tolist() == np.random.default_rng(5).permutation(len(PROMPTS)).tolist()
    lengths = [[len(PROMPTS[i]) for i in read_shard(file).index] for file in files]
    assert lengths != [sorted(each) for each in lengths]  # the control: here the two orders differ


def test_every_prompt_is_answered_as_the_engine_answers_it(whole):
    shards = [read_shard(file) for file in whole]
    assert sorted(np.concatenate([shard.index for shard in shards]).tolist()) == list(range(10))
    model, params = small.target()
    setup = decode.make_setup(model, drafts=(), lookahead=0, verify="greedy", vocab_size=tiny.VOCAB)
    shard = shards[0]
    rows = list(shard.rows())
    asked = [PROMPTS[i] for i in shard.index]
    assert [row[:prompt].tolist() for row, prompt in rows] == asked
    again = decode.generate(setup, EngineParams(params, {}, ()), asked[:2], max_new_tokens=6, stop_ids=(0,))
    assert [row[prompt:].tolist() for row, prompt in rows[:2]] == again.tokens


@pytest.mark.parametrize("after", [2, 6])
def test_interrupted_it_goes_on_to_the_same_shards(after, tmp_path, whole):
    def stop(done, total, tokens):
        if done >= after:
            raise Stop

    with pytest.raises(Stop):
        make(tmp_path, told=stop)
    kept = sorted(tmp_path.glob("shard-*.npz"))
    assert len(kept) == (after - 2) // 4
    before = {file: file.stat().st_mtime_ns for file in kept}
    (tmp_path / "shard-00002.part").write_bytes(b"half")  # of a write that was killed
    assert content(make(tmp_path)) == content(whole)
    assert {file: file.stat().st_mtime_ns for file in kept} == before  # not made again


def test_another_seed_orders_them_otherwise(tmp_path, whole):
    """The control: the comparison tells shards apart."""
    other = make(tmp_path, Answering("weights", max_new_tokens=6, rows=2, shard=4, seed=4))
    assert content(other) != content(whole)


def test_other_settings_are_refused(tmp_path, whole):
    with pytest.raises(ValueError, match="holds a corpus with seed 3, asked for is 4; give the same settings"):
        make(whole[0].parent, Answering("weights", max_new_tokens=6, rows=2, shard=4, seed=4))
    with pytest.raises(ValueError, match="holds a corpus with target 'weights', asked for is 'other'"):
        make(whole[0].parent, Answering("other", max_new_tokens=6, rows=2, shard=4, seed=3))
    with pytest.raises(ValueError, match="holds a corpus with prompts"):
        make(whole[0].parent, prompts=PROMPTS[1:])
    with pytest.raises(ValueError, match="rows is 0; give 1 or more"):
        Answering("weights", rows=0)


@pytest.mark.parametrize("cut", [0, 100, -10])
def test_a_truncated_shard_is_refused(cut, tmp_path, whole):
    file = tmp_path / "shard-00000.npz"
    file.write_bytes(whole[0].read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"shard-00000.npz is no whole shard of a corpus .*; delete it"):
        read_shard(file)


@pytest.fixture(scope="module")
def tokenizer():
    return load_model(TARGET).tokenizer


def test_text_becomes_documents_of_its_tokens(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("The old man took his hat. " * 200)
    records = [
        {"text": "It was a fine morning."},
        {"prompt": "Who?", "answer": "The king."},
        {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "He."}]},
    ]
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    files = text_corpus([tmp_path / "a.txt", tmp_path / "b.jsonl"], tokenizer, tmp_path / "out", target="weights")
    rows = [(row.tolist(), prompt) for file in files for row, prompt in read_shard(file).rows()]
    ids = tokenizer.encode((tmp_path / "a.txt").read_text(), special=False)
    expected = [(ids[at : at + LONGEST], 0) for at in range(0, len(ids), LONGEST)]
    asked = tokenizer.chat([{"role": "user", "content": "Who?"}])
    expected += [
        (tokenizer.encode("It was a fine morning.", special=False), 0),
        ([*asked, *tokenizer.encode("The king.", special=False), tokenizer.eos_ids[0]], len(asked)),
        (tokenizer.chat(records[2]["messages"], generate=False), 0),
    ]
    assert sorted(rows) == sorted(expected)
    again = text_corpus([tmp_path / "a.txt", tmp_path / "b.jsonl"], tokenizer, tmp_path / "out", target="weights")
    assert again == files
    (tmp_path / "a.txt").write_text("Other words.")
    with pytest.raises(ValueError, match="holds a corpus with sha256"):
        text_corpus([tmp_path / "a.txt", tmp_path / "b.jsonl"], tokenizer, tmp_path / "out", target="weights")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", b"", "holds no text; give at least a sentence"),
        ("a.txt", b"caf\xe9", "is not UTF-8: byte 3 is 0xe9"),
        ("a.jsonl", b"{", "line 1 is not JSON"),
        ("a.jsonl", b'{"title": "x"}', "line 1 has no text; write"),
        ("a.jsonl", b"[1]", "line 1 has no text; write"),
    ],
)
def test_bad_text_is_one_sentence(name, text, said, tmp_path, tokenizer):
    (tmp_path / name).write_bytes(text)
    with pytest.raises(ValueError, match=said):
        text_corpus([tmp_path / name], tokenizer, tmp_path / "out", target="weights")
    with pytest.raises(ValueError, match="cannot read"):
        text_corpus([tmp_path / "missing.txt"], tokenizer, tmp_path / "out", target="weights")
