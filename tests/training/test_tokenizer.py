"""A trained vocabulary has the size asked for, loses no byte, and ends a chat's turns."""

import pytest

from jaxspec.text import from_folder
from jaxspec.training import train_tokenizer

TEXT = "the quick brown fox and the lazy dog, then another quick dog and the fox again\n" * 20


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT, TEXT.upper()], size=300)


def test_it_has_exactly_the_size(tokenizer):
    assert tokenizer.vocab_size == 300
    assert all(tokenizer.vocabulary())


@pytest.mark.parametrize("text", ["the fox", " two  blanks ", "ünïcödé 😀\n\tмир", "", "<|im_start|>user"])
def test_every_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_merges_were_learnt(tokenizer):
    assert len(tokenizer.encode("the quick fox")) < len("the quick fox") / 2


def test_a_chat_opens_the_assistants_turn(tokenizer):
    ids = tokenizer.chat([{"role": "user", "content": "the fox"}])
    assert ids[0] == tokenizer.backend.token_to_id("<|im_start|>")
    assert tokenizer.eos_id in ids
    assert tokenizer.decode(ids).endswith("assistant\n")
    assert not set(tokenizer.eos_ids) & set(tokenizer.encode("the fox"))


def test_it_is_stored_whole(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = from_folder(tmp_path)
    assert again.vocabulary() == tokenizer.vocabulary()
    assert again.eos_ids == tokenizer.eos_ids
    assert again.chat([{"role": "user", "content": "a dog"}]) == tokenizer.chat([{"role": "user", "content": "a dog"}])


@pytest.mark.parametrize(("size", "sentence"), [(100, "alone take 259"), (5000, "give more text")])
def test_a_size_that_cannot_be_is_refused(size, sentence):
    with pytest.raises(ValueError, match=sentence):
        train_tokenizer([TEXT], size=size)
