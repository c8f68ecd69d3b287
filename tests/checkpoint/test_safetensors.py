"""Safetensors files: ours and the library's read each other, and no file, however broken, does harm."""

import json
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import CheckpointError
from jaxspec.checkpoint import safetensors as ours
from jaxspec.checkpoint.tensors import in_memory

ALLOWED = 4 << 20
ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

HOSTILE = {
    "empty": b"",
    "a length alone": b"\x10\0\0\0\0\0\0\0",
    "header longer than the file": tiny.safetensors_bytes({}, length=10**6),
    "header of exabytes": tiny.safetensors_bytes({}, length=2**63),
    "header too short for JSON": tiny.safetensors_bytes(b"{", length=1),
    "not JSON": tiny.safetensors_bytes(b"not json"),
    "not UTF-8": tiny.safetensors_bytes(b'{"\xff": 1}'),
    "a list": tiny.safetensors_bytes([1, 2]),
    "JSON too deep": tiny.safetensors_bytes(b"[" * 100_000),
    "a name twice": tiny.safetensors_bytes(b'{"w": 1, "w": 2}'),
    "entry is no object": tiny.safetensors_bytes({"w": 7}),
    "no offsets": tiny.safetensors_bytes({"w": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "unknown dtype": tiny.safetensors_bytes({"w": ONE | {"dtype": "F33"}}, bytes(8)),
    "dtype is a list": tiny.safetensors_bytes({"w": ONE | {"dtype": ["F32"]}}, bytes(8)),
    "negative size": tiny.safetensors_bytes({"w": ONE | {"shape": [-2]}}, bytes(8)),
    "size is a float": tiny.safetensors_bytes({"w": ONE | {"shape": [2.0]}}, bytes(8)),
    "size is true": tiny.safetensors_bytes({"w": ONE | {"shape": [True, 2]}}, bytes(8)),
    "shape is huge": tiny.safetensors_bytes({"w": ONE | {"shape": [2**62, 2**62]}}, bytes(8)),
    "many dimensions": tiny.safetensors_bytes({"w": ONE | {"shape": [1] * 100 + [2]}}, bytes(8)),
    "shape and bytes disagree": tiny.safetensors_bytes({"w": ONE | {"shape": [3]}}, bytes(8)),
    "offsets backwards": tiny.safetensors_bytes({"w": ONE | {"data_offsets": [8, 0]}}, bytes(8)),
    "offsets outside": tiny.safetensors_bytes({"w": ONE | {"data_offsets": [2**60, 2**60 + 8]}}, bytes(8)),
    "three offsets": tiny.safetensors_bytes({"w": ONE | {"data_offsets": [0, 8, 9]}}, bytes(8)),
    "overlap": tiny.safetensors_bytes({"a": ONE, "b": ONE | {"data_offsets": [4, 12]}}, bytes(12)),
    "the same place": tiny.safetensors_bytes({"a": ONE, "b": ONE}, bytes(8)),
    "a hole": tiny.safetensors_bytes({"a": ONE, "b": ONE | {"data_offsets": [16, 24]}}, bytes(24)),
    "truncated data": tiny.safetensors_bytes({"w": ONE}, bytes(7)),
    "data beyond the last tensor": tiny.safetensors_bytes({"w": ONE}, bytes(9)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_one_error(case, tmp_path):
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(HOSTILE[case])
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"hostile\.safetensors.*\w") as error:
            ours.read_header(path)
        assert tracemalloc.get_traced_memory()[1] < ALLOWED
    finally:
        tracemalloc.stop()
    assert len(str(error.value).splitlines()) == 1


def test_the_smallest_valid_file_passes(tmp_path):
    """The control of the hostile cases."""
    path = tmp_path / "fine.safetensors"
    header = {"__metadata__": {"format": "pt"}, "a": ONE, "b": ONE | {"data_offsets": [8, 16]}}
    path.write_bytes(tiny.safetensors_bytes(header, bytes(16)))
    assert {name: info.shape for name, info in ours.read_header(path).items()} == {"a": (2,), "b": (2,)}


def test_every_truncation_and_random_damage_is_read_or_refused(tmp_path):
    path = tmp_path / "damaged.safetensors"
    safetensors.numpy.save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.float16)}, path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    cases = [whole[:end] for end in range(len(whole))]
    for _ in range(500):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole) - 34, rng.integers(1, 5)):
            damaged[at] = int(rng.integers(256))
        cases.append(bytes(damaged))
    refused = 0
    for case in cases:
        path.write_bytes(case)
        try:
            for info in ours.read_header(path).values():
                ours.lazy(info).read()
        except CheckpointError:
            refused += 1
    assert refused >= len(whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.bool_])
def test_the_library_and_we_read_each_other(dtype, tmp_path):
    arrays = {
        "a": np.arange(6).reshape(2, 3).astype(dtype),
        "empty": np.zeros((0, 3), dtype),
        "scalar": np.ones((), dtype),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "theirs.safetensors")
    read = {name: ours.lazy(info).read() for name, info in ours.read_header(tmp_path / "theirs.safetensors").items()}
    ours.write_folder(tmp_path, {name: in_memory(array) for name, array in arrays.items()}, max_shard_bytes=10**9)
    for found in (read, safetensors.numpy.load_file(tmp_path / "model.safetensors")):
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


def test_shards_hold_what_fits_and_the_index_names_them(tmp_path):
    arrays = {f"w{i}": np.full(size, i, np.float32) for i, size in enumerate([10, 10, 30, 5, 5, 5])}
    ours.write_folder(tmp_path, {name: in_memory(array) for name, array in arrays.items()}, max_shard_bytes=80)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]  # [w0 w1], [w2] alone, [w3 w4 w5]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 65 * 4
    assert index["weight_map"]["w2"] == files[1]
    found = ours.read_folder(tmp_path)
    for name, array in arrays.items():
        np.testing.assert_array_equal(ours.lazy(found[name]).read(), array)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "absent.safetensors"}, "names 'absent.safetensors', which is not there"),
        ({"a": "../model.safetensors"}, "not the name of a .safetensors file in the same folder"),
        ({"a": "/etc/passwd"}, "not the name of a .safetensors file"),
        ({"a": 3}, "3 is not the name"),
        ({"a": "one.safetensors", "ghost": "one.safetensors"}, "names tensors that its files lack: ghost"),
        ({"a": "one.safetensors", "b": "two.safetensors"}, "tensor 'a' is in one.safetensors and in two.safetensors"),
        ({}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_broken_index_is_one_error(weight_map, message, tmp_path):
    for name in ("one", "two"):
        safetensors.numpy.save_file({"a": np.ones(2, np.float32)}, tmp_path / f"{name}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        ours.read_folder(tmp_path)


def test_folders_without_readable_weights(tmp_path):
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        ours.read_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04K*.")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: pickled weights can run code.*save_pretrained"):
        ours.read_folder(tmp_path)
    for name in ("one", "two"):
        safetensors.numpy.save_file({"a": np.ones(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match=r"2 \.safetensors files and no"):
        ours.read_folder(tmp_path)
