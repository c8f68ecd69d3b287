"""Tokenizers from folders of files: which file outweighs which, and what is said when one is missing or broken."""

import json

import pytest
from transformers import GPT2TokenizerFast

from jaxspec.text import from_folder


@pytest.fixture
def folder(byte_level_pair, tmp_path):
    """A folder with nothing but tokenizer.json, and a function that writes further JSON files into it."""
    byte_level_pair("gpt-2").original.save(str(tmp_path / "tokenizer.json"))

    def write(name, **content):
        (tmp_path / name).write_text(json.dumps(content))

    return tmp_path, write


def test_tokenizer_json_alone_is_enough(folder, byte_level_pair, sample):
    ours = from_folder(folder[0])
    assert ours.encode(sample) == byte_level_pair("gpt-2").original.encode(sample).ids
    assert (ours.bos_id, ours.eos_id, ours.pad_id, ours.chat_template) == (None, None, None, None)


def test_names_come_from_either_file_as_text_or_mapping(folder):
    path, write = folder
    write("special_tokens_map.json", bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    write("tokenizer_config.json", eos_token={"content": "<|im_end|>", "lstrip": False}, pad_token=None)
    ours = from_folder(path)
    assert ours.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}


def test_tokens_that_only_the_settings_name_are_added(folder, byte_level_pair):
    path, write = folder
    size = byte_level_pair("gpt-2").original.get_vocab_size()
    decoder = {
        str(size + 1): {"content": "<think>", "special": False},
        str(size): {"content": "<mask>", "special": True},
    }
    write("tokenizer_config.json", added_tokens_decoder=decoder, eos_token="<end>")
    ours = from_folder(path)
    assert ours.encode("<mask><think><end>") == [size, size + 1, size + 2]
    assert ours.decode([size, size + 1, size + 2]) == "<think>"
    assert ours.eos_ids[0] == size + 2


def test_stated_flags_outweigh_the_processor(folder):
    path, write = folder
    write("tokenizer_config.json", bos_token="<|im_start|>", eos_token="<|im_end|>", add_bos_token=True)
    ours = from_folder(path)
    assert ours.encode("a") == [ours.bos_id, *ours.encode("a", special=False)]
    write("tokenizer_config.json", bos_token="<|im_start|>", eos_token="<|im_end|>", add_eos_token=True)
    ours = from_folder(path)
    assert ours.encode("a") == [*ours.encode("a", special=False), ours.eos_id]


def test_template_file_outweighs_settings_and_default_is_taken_of_several(folder):
    path, write = folder
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    write("tokenizer_config.json", chat_template=templates)
    assert from_folder(path).chat_template == "plain"
    write("tokenizer_config.json", chat_template="settings")
    assert from_folder(path).chat_template == "settings"
    (path / "chat_template.jinja").write_text("file")
    assert from_folder(path).chat_template == "file"


def test_ends_come_from_generation_config_then_config(folder):
    path, write = folder
    write("config.json", eos_token_id=[5, 6])
    assert set(from_folder(path).eos_ids) >= {5, 6}
    write("generation_config.json", eos_token_id=9)
    ends = from_folder(path).eos_ids
    assert 9 in ends
    assert 5 not in ends


def test_truncation_and_padding_in_the_file_are_switched_off(folder, byte_level_pair, sample):
    path, _ = folder
    content = json.loads((path / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (path / "tokenizer.json").write_text(json.dumps(content))
    assert from_folder(path).encode(sample) == byte_level_pair("gpt-2").original.encode(sample).ids


def test_vocabulary_and_merges_files_load_through_transformers(byte_level_pair, sample, tmp_path):
    pair = byte_level_pair("gpt-2")
    pair.original.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = from_folder(tmp_path), GPT2TokenizerFast.from_pretrained(tmp_path)
    assert ours.encode(sample) == theirs.encode(sample)
    assert ours.decode(ours.encode(sample)) == sample
    assert ours.eos_id == theirs.eos_token_id


def test_a_sentencepiece_model_that_cannot_be_converted_says_what_to_do(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"no sentencepiece model")
    with pytest.raises(ValueError, match=r"tokenizer\.model but no tokenizer\.json.*save a tokenizer\.json"):
        from_folder(tmp_path)


def test_a_token_to_add_that_is_none_is_named(folder):
    path, write = folder
    write("tokenizer_config.json", add_bos_token=True, bos_token="")
    with pytest.raises(ValueError, match="told to add '', which is not in its vocabulary"):
        from_folder(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer_config.json", b"[" * 100_000, "is not valid JSON"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {"content": "y"}}}', "its keys are token ids"),
        ("chat_template.jinja", b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_hostile_settings_are_one_sentence(name, content, said, folder):
    (folder[0] / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        from_folder(folder[0])


def test_a_folder_without_tokenizer_says_what_was_looked_for(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer\.json, tokenizer\.model, and vocab\.json with merges\.txt"):
        from_folder(tmp_path)
    with pytest.raises(ValueError, match="not a folder"):
        from_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ['{"truncated": ', "[1, 2]"])
def test_a_broken_file_is_named(name, content, folder):
    (folder[0] / name).write_text(content)
    with pytest.raises(ValueError, match=name):
        from_folder(folder[0])
