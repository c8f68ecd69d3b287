"""Ids equal to those of transformers, which reads tokenizers of GGUF files where torch is installed."""

import os
from pathlib import Path

import gguf
import pytest
from transformers import AutoTokenizer

from jaxspec.text import compare_vocabularies, from_folder, from_gguf

QWEN = ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct")


def read_fields(path: Path) -> dict[str, object]:
    wanted = ("general.architecture", "tokenizer.")
    fields = gguf.GGUFReader(path).fields.items()
    return {name: field.contents() for name, field in fields if name.startswith(wanted)}


def check_equal(ours, theirs, sample):
    """Text, text with special tokens in it, both turns of a chat, and the vocabulary."""
    for text in [sample, *sample.split("\n"), "  ".join(sample.split()), sample + "<|im_end|>x <|endoftext|>"]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)
    assert ours.vocabulary() == theirs.convert_ids_to_tokens(list(range(ours.vocab_size)))
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)


def check_chats(ours, theirs, sample):
    user = {"role": "user", "content": sample}
    for chat in [[user], [{"role": "system", "content": "Be brief."}, user, {"role": "assistant", "content": "Yes."}]]:
        for generate in (True, False):
            expected = theirs.apply_chat_template(chat, add_generation_prompt=generate, return_dict=False)
            assert ours.chat(chat, generate=generate) == expected


@pytest.mark.parity
@pytest.mark.model
def test_smollm2(smollm2, sample):
    if smollm2.is_dir():
        ours, theirs = from_folder(smollm2), AutoTokenizer.from_pretrained(smollm2)
    else:
        ours = from_gguf(read_fields(smollm2))
        theirs = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    check_equal(ours, theirs, sample)
    check_chats(ours, theirs, sample)
    assert ours.decode(ours.encode(sample)) == sample
    assert ours.render([{"role": "user", "content": "Hi"}]).startswith("<|im_start|>system\nYou are a helpful AI")
    assert [ours.vocabulary()[i] for i in ours.eos_ids] == ["<|im_end|>", "<|endoftext|>"]


@pytest.mark.parity
@pytest.mark.qwen
def test_qwen(sample):
    folder = Path(os.environ.get("JAXSPEC_TEST_QWEN_DIR", ""))
    built = []
    for name in QWEN:
        files = sorted(folder.glob(f"{name}*.gguf"))
        assert files, f"JAXSPEC_TEST_QWEN_DIR is {str(folder)!r}; set it to a folder with {name}*.gguf"
        ours = from_gguf(read_fields(files[0]))
        theirs = AutoTokenizer.from_pretrained(folder, gguf_file=files[0].name)
        check_equal(ours, theirs, sample)
        check_chats(ours, theirs, sample)
        assert ours.decode(ours.encode(sample)) == sample
        built.append(ours)
    assert compare_vocabularies(*built) == 151_665, "the filler after the last token does not count"


@pytest.mark.parity
@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_tiny_byte_level_files(pre, byte_level_pair, sample, tmp_path):
    fields = {**byte_level_pair(pre).fields, "general.architecture": "qwen2" if pre == "qwen2" else "llama"}
    theirs = write_and_load(fields, tmp_path)
    check_equal(from_gguf(read_fields(tmp_path / "tiny.gguf")), theirs, sample)


@pytest.mark.parity
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3"])
def test_tiny_sentencepiece_files(architecture, spm_fields, sample, tmp_path):
    fields = spm_fields(architecture)
    theirs = write_and_load(fields, tmp_path)
    ours = from_gguf(read_fields(tmp_path / "tiny.gguf"))
    for text in [sample, " one", "  two", "", "a<|turn|>b <note> c", "x   y"]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def write_and_load(fields, folder):
    """Write a GGUF file with metadata alone, and let transformers read its tokenizer."""
    architecture = fields["general.architecture"]
    writer = gguf.GGUFWriter(folder / "tiny.gguf", architecture)
    for name in ("context_length", "embedding_length", "feed_forward_length", "block_count"):
        writer.add_uint32(f"{architecture}.{name}", 8)
    for name in ("attention.head_count", "attention.head_count_kv"):
        writer.add_uint32(f"{architecture}.{name}", 2)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-6)
    for name, value in fields.items():
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case list():
                writer.add_array(name, value)
            case str() if name != "general.architecture":
                writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return AutoTokenizer.from_pretrained(folder, gguf_file="tiny.gguf")
