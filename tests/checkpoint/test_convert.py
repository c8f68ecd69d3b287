"""Conversions are bit-exact, need little memory, and leave nothing that is not whole."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap

import ml_dtypes
import numpy as np
import pytest

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import CheckpointError, convert, open_checkpoint

TARGETS = ("orbax", "hf")


def run(code: str, *arguments: object) -> subprocess.CompletedProcess:
    """A fresh process: one that is killed, limited or measured."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_hf_orbax_hf_is_bit_exact(family, dtype, tmp_path):
    tensors, config = tiny.hf_tensors(family, dtype), tiny.hf_config(family)
    source = tiny.write_hf(tmp_path / "source", config, tensors, shards=2)
    (source / "generation_config.json").write_text('{"eos_token_id": 2}')
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="hf")
    back = tiny.read_hf(tmp_path / "back")
    assert sorted(back) == sorted(tensors)
    for name, array in tensors.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name].view(np.uint8), array.view(np.uint8), err_msg=name)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == config
    assert (tmp_path / "back" / "generation_config.json").read_text() == '{"eos_token_id": 2}'


def test_mixed_dtypes_are_kept(tmp_path):
    tensors = tiny.hf_tensors("smollm2", ml_dtypes.bfloat16)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)
    convert(tiny.write_hf(tmp_path / "source", tiny.hf_config("smollm2"), tensors), tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="hf")
    assert {name: array.dtype for name, array in tiny.read_hf(tmp_path / "back").items()} == {
        name: array.dtype for name, array in tensors.items()
    }


@pytest.mark.parametrize("to", TARGETS)
def test_cast(to, tmp_path):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("smollm2"), tiny.hf_tensors("smollm2"))
    opened = open_checkpoint(convert(source, tmp_path / "cast", to=to, dtype="bfloat16"))
    assert opened.config["torch_dtype"] == "bfloat16"
    for name, array in tiny.params("smollm2").items():
        np.testing.assert_array_equal(opened.tensors[name].read(), array.astype(ml_dtypes.bfloat16))


def test_shards_are_as_large_as_asked(tmp_path):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))
    convert(source, tmp_path / "shards", to="hf", max_shard_bytes=20_000)
    files = list((tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 3
    assert all(path.stat().st_size < 24_000 for path in files)
    back = tiny.read_hf(tmp_path / "shards")
    for name, array in tiny.hf_tensors("llama").items():
        np.testing.assert_array_equal(back[name], array)


def test_bad_options_are_refused(tmp_path):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))
    with pytest.raises(CheckpointError, match="'onnx'; formats are orbax, hf"):
        convert(source, tmp_path / "out", to="onnx")
    with pytest.raises(CheckpointError, match="shard of 0 bytes"):
        convert(source, tmp_path / "out", to="hf", max_shard_bytes=0)
    assert not (tmp_path / "out").exists()


KILLED = """
    import os, signal, sys
    from jaxspec.checkpoint import convert
    source, destination, to, share = sys.argv[1:]
    def progress(done, total):
        if done >= float(share) * total:
            os.kill(os.getpid(), signal.SIGKILL)
    convert(source, destination, to=to, progress=progress)
"""


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_killed_conversion_leaves_nothing_that_loads(to, share, tmp_path):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("smollm2"), tiny.hf_tensors("smollm2"))
    folder = tmp_path / "out"
    folder.mkdir()
    done = run(KILLED, source, folder / "model", to, share)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (folder / "model").exists()
    left = list(folder.iterdir())
    assert left  # it was killed midway: the control of this test
    for path in left:
        with pytest.raises(CheckpointError):
            open_checkpoint(path)
    convert(source, folder / "model", to=to)
    assert [path.name for path in folder.iterdir()] == ["model"]  # and what was left is gone
    open_checkpoint(folder / "model")


FULL_DISK = """
    import resource, sys
    from jaxspec.checkpoint import convert
    source, destination, to, limit = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    try:
        convert(source, destination, to=to)
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("limit", [100, 20_000, 10**9])
def test_disk_that_fills_is_one_error_and_nothing_is_left(to, limit, tmp_path):
    """A limit on file sizes stands for the full disk; the largest one is the control."""
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))
    (tmp_path / "out").mkdir()
    done = run(FULL_DISK, source, tmp_path / "out" / "model", to, limit)
    assert done.returncode == 0, done.stderr
    if limit == 10**9:
        assert done.stdout == ""
        return
    assert "cannot be written" in done.stdout
    assert "free space or choose another place" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_too_little_space_is_told_before_writing(tmp_path, monkeypatch):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: os.statvfs_result and type("Usage", (), {"free": 1000})())
    with pytest.raises(CheckpointError, match=r"bytes are needed and 1,000 are free"):
        convert(source, tmp_path / "model", to="hf")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("to", TARGETS)
def test_read_only_disk_is_one_error(to, tmp_path, monkeypatch):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))

    def refuse(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        with pytest.raises(CheckpointError, match=r"cannot be written \(Read-only file system\)"):
            convert(source, tmp_path / "model", to=to)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written"):
        convert(source, tmp_path / "file" / "model", to=to)


MEASURED = """
    import gc, resource, sys, threading
    import numpy as np
    import jax
    from jaxspec.checkpoint import convert, open_checkpoint, tensors
    source, destination, to, whole = sys.argv[1:]
    jax.devices()
    opened = open_checkpoint(source)
    before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
    if whole == "whole":  # what a conversion would do that holds the source and the target
        held = {name: np.array(t.read()) for name, t in opened.tensors.items()}
        copy = {name: array.copy() for name, array in held.items()}
    else:
        convert(source, destination, to=to)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)
"""
LARGE = {
    **tiny.CONFIGS["smollm2"],
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """150 MB in 74 tensors."""
    from jaxspec.checkpoint.names import expected_shapes
    from jaxspec.models import config_from_hf

    rng = np.random.default_rng(0)
    shapes = expected_shapes(config_from_hf(LARGE))
    tensors = {f"model.{name}": rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    return tiny.write_hf(tmp_path_factory.mktemp("large"), LARGE, tensors)


def peak(large, tmp_path, to: str, how: str) -> float:
    """Peak memory of a conversion over the larger of source and target."""
    done = run(MEASURED, large, tmp_path / "out", to, how)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / (large / "model.safetensors").stat().st_size


@pytest.mark.parametrize("to", TARGETS)
def test_memory_is_bounded(to, large, tmp_path):
    assert peak(large, tmp_path, to, "streamed") <= 1.3


def test_memory_bound_is_one(large, tmp_path):
    """The control: holding source and target breaks the same bound."""
    assert peak(large, tmp_path, "hf", "whole") > 1.3


@pytest.mark.parity
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_transformers_loads_what_comes_back(family, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**tiny.hf_config(family))
    original = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    original.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="hf", max_shard_bytes=20_000)
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    theirs = loaded.state_dict()
    for name, tensor in original.state_dict().items():
        assert theirs[name].dtype == torch.bfloat16
        assert torch.equal(theirs[name], tensor), name
    tokens = torch.arange(20)[None]
    assert torch.equal(original.eval()(tokens).logits, loaded.eval()(tokens).logits)


@pytest.mark.parity
@pytest.mark.parametrize("family", ["smollm2", "llama3", "qwen2", "gemma2", "gemma3", "phi3"])
def test_transformers_loads_a_converted_gguf(family, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    path = tiny.write_gguf(tmp_path / "m.gguf", family, tokenizer=True)
    convert(path, tmp_path / "hf", to="hf")
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    source = {name: torch.from_numpy(array) for name, array in tiny.hf_tensors(family).items()}
    for name, tensor in loaded.state_dict().items():
        if name in source:
            torch.testing.assert_close(tensor, source[name], atol=1e-6, rtol=0)
