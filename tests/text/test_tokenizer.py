"""The tokenizer itself: edges of encode and decode, and folders that keep everything."""

import pytest
from transformers import AutoTokenizer

from jaxspec.text import Tokenizer, from_folder, from_gguf

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.fixture
def chatty(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer(tokenizer.backend, tokenizer.special_tokens, chat_template=TEMPLATE)


def test_a_saved_folder_loads_equal(chatty, sample, tmp_path):
    chatty.save(tmp_path / "made" / "here")
    again = from_folder(tmp_path / "made" / "here")
    text = sample + "<|im_end|>"
    assert again.encode(text) == chatty.encode(text)
    assert again.encode(text, special=False) == chatty.encode(text, special=False)
    assert again.decode(chatty.encode(text)) == chatty.decode(chatty.encode(text))
    messages = [{"role": "user", "content": sample}]
    assert again.chat(messages) == chatty.chat(messages)
    assert again.vocabulary() == chatty.vocabulary()
    for name in ("bos_id", "eos_id", "pad_id", "eos_ids", "vocab_size", "special_ids"):
        assert getattr(again, name) == getattr(chatty, name), name


@pytest.mark.parametrize("model_type", [None, "llama"])
def test_transformers_loads_a_saved_folder(model_type, chatty, sample, tmp_path):
    chatty.save(tmp_path)
    if model_type is not None:
        (tmp_path / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ids = chatty.encode(sample)
    assert theirs.encode(sample) == ids
    assert theirs.decode(ids, skip_special_tokens=True) == chatty.decode(ids)
    messages = [{"role": "user", "content": "hello"}]
    assert theirs.apply_chat_template(messages, return_dict=False) == chatty.chat(messages, generate=False)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (chatty.bos_id, chatty.eos_id)
    assert theirs.convert_ids_to_tokens(list(range(chatty.vocab_size))) == chatty.vocabulary()


def test_saving_keeps_a_generation_config_that_is_there(byte_level, tmp_path):
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')
    byte_level.save(tmp_path)
    assert (tmp_path / "generation_config.json").read_text() == '{"eos_token_id": 7}'
    assert 7 in from_folder(tmp_path).eos_ids


def test_special_adds_bos_and_decode_hides_it(spm):
    with_bos, without = spm.encode("hello"), spm.encode("hello", special=False)
    assert with_bos == [spm.bos_id, *without]
    assert spm.decode(with_bos) == "hello"
    assert spm.decode(with_bos, skip_special=False) == "<s> hello"


def test_edges_of_text_and_ids(tokenizer):
    assert tokenizer.encode("", special=False) == []
    assert tokenizer.decode([]) == ""
    ids = tokenizer.encode("abc")
    assert tokenizer.decode([*ids, tokenizer.vocab_size, 10**9]) == "abc"
    with pytest.raises(ValueError, match="lone surrogates"):
        tokenizer.encode("half of a pair: \ud83d")
    with pytest.raises(ValueError, match="-3"):
        tokenizer.decode([1, -3])


def test_vocabulary_is_indexed_by_id(tokenizer):
    names = tokenizer.vocabulary()
    assert len(names) == tokenizer.vocab_size
    assert all(tokenizer.backend.token_to_id(name) == i for i, name in enumerate(names))


def test_a_hole_in_the_ids_has_no_name(byte_level_pair):
    fields = byte_level_pair("qwen2").fields
    tokens = list(fields["tokenizer.ggml.tokens"])
    tokens[300] = tokens[301]
    fields = {**fields, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["a b"]}
    tokens.append("ab")
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], 1]
    names = from_gguf(fields).vocabulary()
    assert names[300] == ""
    assert names[301] == tokens[301]
