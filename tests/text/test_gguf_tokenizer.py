"""Tokenizers from GGUF fields: the ids of the vocabulary that the fields were taken from, or one clear sentence."""

import pytest
from transformers import LlamaTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from jaxspec.text import from_gguf
from jaxspec.text.byte_level import SPLITTINGS


@pytest.mark.parametrize("pre", SPLITTINGS)
def test_byte_level_ids_equal_the_original_and_decode_back(pre, byte_level_pair, sample):
    pair = byte_level_pair(pre)
    ours = from_gguf({**pair.fields, "tokenizer.ggml.add_bos_token": False})
    ids = ours.encode(sample)
    assert ids == pair.original.encode(sample).ids
    assert max(ids) > 256, "merges must take part"
    assert ours.decode(ids) == sample


@pytest.mark.parametrize(
    ("pre", "cuts"),
    [
        ("gpt-2", ["I", "'ll", "Ġpay", "Ġ12345", "!!", "ĊĊ", "Ġx"]),
        ("smollm", ["I", "'ll", "Ġpay", "Ġ12345", "!!", "ĊĊ", "Ġx"]),
        ("qwen2", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4", "5", "!!ĊĊ", "Ġx"]),
        ("llama-bpe", ["I", "'ll", "Ġpay", "Ġ", "123", "45", "!!ĊĊ", "Ġx"]),
    ],
)
def test_text_is_cut_as_the_family_cuts_it(pre, cuts, byte_level_pair):
    cutter = from_gguf(byte_level_pair(pre).fields).backend.pre_tokenizer
    assert [cut for cut, _ in cutter.pre_tokenize_str("I'll pay 12345!!\n\n x")] == cuts


def test_ways_of_cutting_differ_on_the_sample(byte_level_pair, sample):
    """Negative control: a wrong pattern would show."""
    fields = byte_level_pair("llama-bpe").fields
    right, *wrong = ({**fields, "tokenizer.ggml.pre": pre} for pre in ("llama-bpe", "gpt-2", "qwen2"))
    for other in wrong:
        assert from_gguf(other).encode(sample, special=False) != from_gguf(right).encode(sample, special=False)


def test_llama3_looks_whole_words_up_before_merging(byte_level_pair):
    fields = byte_level_pair("llama-bpe").fields
    unreachable = "Ġunmergeable"
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    more = {"tokenizer.ggml.tokens": [*tokens, unreachable], "tokenizer.ggml.token_type": [*types, 1]}
    assert from_gguf({**fields, **more}).encode(" unmergeable") == [len(tokens)]
    gpt2 = from_gguf({**fields, **more, "tokenizer.ggml.pre": "gpt-2"})
    assert len(gpt2.encode(" unmergeable")) > 1


def test_sentencepiece_ids_equal_transformers(spm, spm_fields, sample):
    fields = spm_fields()
    tokens = fields["tokenizer.ggml.tokens"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = generate_merges(vocab, dict(zip(tokens, fields["tokenizer.ggml.scores"], strict=True)))
    theirs = LlamaTokenizerFast(vocab=vocab, merges=merges, add_bos_token=True)
    for text in [sample, " one blank", "  two blanks", "a", "", "\n", "12 ไทย 😀"]:
        ids = spm.encode(text)
        assert ids == theirs.encode(text), text
        assert spm.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert spm.decode(spm.encode(sample)) == sample


def test_sentencepiece_spells_unknown_characters_as_bytes_and_blanks_as_marks(spm):
    names = spm.vocabulary()
    assert [names[i] for i in spm.encode("7", special=False)] == ["▁", "<0x37>"]
    assert spm.decode(spm.encode("7 😀 7")) == "7 😀 7"


def test_sentencepiece_without_the_prefix_blank(spm_fields):
    ours = from_gguf({**spm_fields(), "tokenizer.ggml.add_space_prefix": False})
    assert ours.vocabulary()[ours.encode("7", special=False)[0]] == "<0x37>"
    assert ours.decode(ours.encode(" 7")) == " 7"


def test_gemma_spells_runs_of_blanks_as_one_token(spm_fields):
    fields = spm_fields("gemma2")
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], "  ", "   "]
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], 4, 4]
    fields["tokenizer.ggml.scores"] = [*fields["tokenizer.ggml.scores"], -1000.0, -1000.0]
    ours = from_gguf(fields)
    three = len(fields["tokenizer.ggml.tokens"]) - 1
    assert ours.vocabulary()[three] == "▁▁▁"
    assert three in ours.encode("(   (")
    assert ours.decode(ours.encode("   (  x ")) == "   (  x "


@pytest.mark.parametrize("kind", ["byte_level", "spm"])
def test_control_and_user_defined_tokens_are_single_ids_anywhere(kind, request):
    ours = request.getfixturevalue(kind)
    control, user = ("<|im_end|>", "<tool>") if kind == "byte_level" else ("<|turn|>", "<note>")
    ids = ours.encode(f"abc{control}x{user}y", special=False)
    assert ours.backend.token_to_id(control) in ids
    assert ours.backend.token_to_id(user) in ids
    assert ours.decode(ids) == f"abcx{user}y"
    assert ours.decode(ids, skip_special=False) == f"abc{control}x{user}y"


def test_named_ids_and_every_end(byte_level, byte_level_pair, spm):
    names = byte_level.vocabulary()
    assert names[byte_level.eos_id] == "<|im_end|>"
    assert [names[i] for i in byte_level.eos_ids] == ["<|im_end|>", "<|endoftext|>"]
    assert names[byte_level.bos_id] == names[byte_level.pad_id] == "<|endoftext|>"
    assert (spm.bos_id, spm.eos_ids, spm.pad_id) == (1, (2,), None)
    turn = names.index("<tool>")
    assert turn in from_gguf({**byte_level_pair("qwen2").fields, "tokenizer.ggml.eot_token_id": turn}).eos_ids


def test_bos_is_added_where_the_file_or_its_kind_says_so(byte_level_pair, spm_fields):
    def begins(fields, **stated):
        stated = {f"tokenizer.ggml.{name}": value for name, value in stated.items()}
        left = {name: value for name, value in fields.items() if name != "tokenizer.ggml.add_bos_token"}
        ours = from_gguf({**left, **stated})
        return ours.encode("a")[0] == ours.bos_id

    qwen2, llama3, spm = byte_level_pair("qwen2").fields, byte_level_pair("llama-bpe").fields, spm_fields()
    assert not begins(qwen2)
    assert begins(qwen2, add_bos_token=True)
    assert begins(llama3)
    assert begins(spm)
    assert not begins(spm, add_bos_token=False)
    ours = from_gguf({**spm, "tokenizer.ggml.add_eos_token": True})
    assert ours.encode("a")[-1] == ours.eos_id


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": None}, "no tokenizer"),
        ({"tokens": None}, "no tokenizer"),
        ({"model": "rwkv"}, "'rwkv'.*gpt2, llama"),
        ({"pre": "falcon"}, "'falcon'.*gpt-2.*smollm.*qwen2.*llama-bpe"),
        ({"tokens": []}, "tokens.*empty"),
        ({"tokens": ["a", 5]}, "tokens.*texts only, got 5"),
        ({"tokens": "abc"}, "tokens.*must be a list"),
        ({"tokens": ["a", "b" * 5000]}, "5000 characters"),
        ({"token_type": [1, 1]}, "token_type.*2 entries"),
        ({"token_type": ["x"]}, "token_type.*finite numbers only"),
        ({"token_type": [float("nan")]}, "token_type.*finite numbers only"),
        ({"eos_token_id": 100_000}, "eos_token_id.*100000"),
        ({"bos_token_id": -1}, "bos_token_id.*-1"),
        ({"pad": 0, "padding_token_id": "zero"}, "padding_token_id.*'zero'"),
        ({"merges": None}, "no merges"),
        ({"merges": ["ab"]}, "merges.*'ab'"),
        ({"merges": ["never seen"]}, "do not fit together"),
    ],
)
def test_a_broken_vocabulary_is_one_clear_sentence(change, says, byte_level_pair):
    fields = {**byte_level_pair("qwen2").fields, **{f"tokenizer.ggml.{name}": v for name, v in change.items()}}
    with pytest.raises(ValueError, match=says):
        from_gguf({name: value for name, value in fields.items() if value is not None})


def test_sentencepiece_without_scores_is_refused(spm_fields):
    fields = spm_fields()
    del fields["tokenizer.ggml.scores"]
    with pytest.raises(ValueError, match="no scores"):
        from_gguf(fields)
