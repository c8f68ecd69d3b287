"""GGUF files: every block type is decoded as the gguf package decodes it, and no header, however broken, does harm."""

import json
import struct
import tracemalloc

import gguf as reference
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType as Value

from jaxspec.checkpoint import CheckpointError, gguf

WRITABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # the package quantises to these
K_QUANTS = ("Q4_K", "Q5_K", "Q6_K")
ALLOWED = 4 << 20  # bytes that reading a broken header of a few hundred bytes may allocate


def write(path, tensors: dict[str, tuple[np.ndarray, Kind]], fields: dict[str, object] | None = None):
    writer = reference.GGUFWriter(path, "llama")
    for name, value in (fields or {}).items():
        writer.add_key_value(name, value, Value.get_type(value))
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(kind: Kind, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Any bytes are valid blocks but for the scales, which are made finite float16s."""
    block, width = reference.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // block, width), dtype=np.uint8)
    scales = rng.standard_normal((len(blocks), 2)).astype(np.float16).view(np.uint8)
    if kind is Kind.Q6_K:
        blocks[:, -2:] = scales[:, :2]  # d is the last field
    else:
        blocks[:, :4] = scales  # d and dmin are the first
    return blocks.reshape(rows, -1)


def q4_k_by_hand(block: bytes) -> list[float]:
    """One block of 144 bytes -> 256 numbers: d * scale * q - dmin * min, 8 groups of 32 (ggml-quants.c)."""
    d, dmin = np.frombuffer(block[:4], np.float16).astype(np.float64)
    packed, nibbles, out = block[4:16], block[16:], []
    for group in range(8):
        if group < 4:
            scale, low = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4)
            low = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4)
        for byte in nibbles[group // 2 * 32 : group // 2 * 32 + 32]:
            out.append(d * scale * (byte >> 4 if group % 2 else byte & 15) - dmin * low)
    return out


def q6_k_by_hand(block: bytes) -> list[float]:
    """One block of 210 bytes -> 256 numbers: d * scale * (q - 32), 16 groups of 16."""
    low, high, scales = block[:128], block[128:192], np.frombuffer(block[192:208], np.int8)
    d = float(np.frombuffer(block[208:], np.float16)[0])
    out = [0.0] * 256
    for i in range(256):
        half, within = divmod(i, 128)
        part, column = divmod(within, 32)  # which 32 of the half
        nibble = low[half * 64 + (part % 2) * 32 + column] >> (4 * (part // 2)) & 15
        q = nibble | (high[half * 32 + column] >> (2 * part) & 3) << 4
        out[i] = d * int(scales[i // 16]) * (q - 32)
    return out


@pytest.mark.parametrize("name", WRITABLE)
def test_block_type_is_decoded_across_chunks(name, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf, "CHUNK", 256)  # 6 * 96 numbers: two whole chunks and a part
    kind, array = Kind[name], np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    encoded = reference.quants.quantize(array, kind)
    file = gguf.read(write(tmp_path / "m.gguf", {"w": (encoded, kind)}))
    tensor = gguf.lazy(file, file.tensors["w"])
    assert tensor.shape == (6, 96)
    expected = reference.quants.dequantize(encoded, kind)
    np.testing.assert_array_equal(tensor.read().astype(np.float32), expected)
    np.testing.assert_array_equal(tensor.cast_to(np.float16), expected.astype(np.float16))
    assert np.abs(expected - array).max() < 0.5  # the reference itself decodes what was encoded


@pytest.mark.parametrize("name", K_QUANTS)
def test_k_quants_are_decoded_across_chunks(name, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf, "CHUNK", 512)
    kind = Kind[name]
    blocks = random_blocks(kind, 5, 256, np.random.default_rng(1))
    file = gguf.read(write(tmp_path / "m.gguf", {"w": (blocks, kind)}))
    got = gguf.lazy(file, file.tensors["w"]).read()
    np.testing.assert_array_equal(got, reference.quants.dequantize(blocks, kind))
    by_hand = {"Q4_K": q4_k_by_hand, "Q6_K": q6_k_by_hand}.get(name)
    if by_hand:
        np.testing.assert_allclose(got[3], by_hand(blocks[3].tobytes()), rtol=1e-5, atol=1e-4)


def test_stored_float_types_are_kept(tmp_path):
    array = np.arange(64, dtype=np.float32).reshape(2, 32)
    tensors = {n: (reference.quants.quantize(array, Kind[n]), Kind[n]) for n in ("F32", "F16", "BF16", "Q8_0")}
    file = gguf.read(write(tmp_path / "m.gguf", tensors))
    stored = {name: gguf.lazy(file, info).dtype for name, info in file.tensors.items()}
    assert stored == {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "Q8_0": np.float32}


def test_rows_of_a_quantised_matrix(tmp_path):
    array = np.random.default_rng(0).standard_normal((7, 64)).astype(np.float32)
    file = gguf.read(write(tmp_path / "m.gguf", {"w": (reference.quants.quantize(array, Kind.Q4_1), Kind.Q4_1)}))
    whole = gguf.lazy(file, file.tensors["w"]).read()
    np.testing.assert_array_equal(gguf.lazy(file, gguf.rows(file.tensors["w"], 2, 5)).read(), whole[2:5])


def test_metadata_are_plain_values(tmp_path):
    fields = {
        "a.int": 3,
        "a.float": 0.5,
        "a.bool": True,
        "a.text": "héllo",
        "a.numbers": [1, 2, 3],
        "a.texts": ["x", "", "…"],
        "a.flags": [True, False],
    }
    read = gguf.read(write(tmp_path / "m.gguf", {"w": (np.zeros((1, 4), np.float32), Kind.F32)}, fields)).fields
    assert {name: read[name] for name in fields} == fields
    assert {type(read[name]) for name in fields} == {int, float, bool, str, list}
    json.dumps(read)  # nothing of numpy is left inside


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def header(tensors: int = 0, fields: int = 0, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, fields)


def tensor(name: str = "w", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def array_of(kind: Value, count: int, body: bytes = b"") -> bytes:
    return struct.pack("<IIQ", Value.ARRAY, kind, count) + body


PAD = bytes(256)
HUGE = 2**62
HOSTILE = {
    "empty": b"",
    "only the magic": b"GGUF",
    "another magic": header(magic=b"GGML") + PAD,
    "version 1": header(version=1) + PAD,
    "version 4": header(version=4) + PAD,
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + PAD,
    "tensor count": header(tensors=HUGE) + PAD,
    "tensor count that fits the bound": header(tensors=100_000) + PAD,
    "field count": header(fields=HUGE) + PAD,
    "key length": header(fields=1) + struct.pack("<Q", HUGE) + PAD,
    "key is not UTF-8": header(fields=1) + text(b"\xff\xfe") + PAD,
    "key twice": header(fields=2) + 2 * (text("k") + struct.pack("<IB", Value.UINT8, 1)) + PAD,
    "value type": header(fields=1) + text("k") + struct.pack("<I", 99) + PAD,
    "text length": header(fields=1) + text("k") + struct.pack("<IQ", Value.STRING, HUGE) + PAD,
    "array of numbers": header(fields=1) + text("k") + array_of(Value.UINT64, HUGE) + PAD,
    "array within the bound, past the end": header(fields=1) + text("k") + array_of(Value.UINT64, 1 << 21) + PAD,
    "array of texts": header(fields=1) + text("k") + array_of(Value.STRING, 1 << 22) + PAD,
    "array of an unknown type": header(fields=1) + text("k") + array_of(99, 3) + PAD,  # type: ignore[arg-type]
    "nested arrays": header(fields=1)
    + text("k")
    + struct.pack("<I", Value.ARRAY)
    + 40 * struct.pack("<IQ", 9, 1)
    + PAD,
    "wide nested arrays": header(fields=1) + text("k") + array_of(Value.ARRAY, 1 << 22) + PAD,
    "no dimension": header(tensors=1) + tensor(shape=()) + PAD,
    "many dimensions": header(tensors=1) + text("w") + struct.pack("<I", 2**31) + PAD,
    "empty dimension": header(tensors=1) + tensor(shape=(4, 0)) + PAD,
    "huge tensor": header(tensors=1) + tensor(shape=(HUGE, HUGE)) + PAD,
    "size wraps around 64 bits": header(tensors=1) + tensor(shape=(2**32, 2**32)) + PAD,
    "tensor type": header(tensors=1) + tensor(kind=12345) + PAD,
    "tensor type that is not supported": header(tensors=1) + tensor(shape=(256,), kind=Kind.IQ2_XS) + PAD,
    "row of half a block": header(tensors=1) + tensor(shape=(48,), kind=Kind.Q4_0) + PAD,
    "offset outside": header(tensors=1) + tensor(offset=1 << 40) + PAD,
    "offset off the grid": header(tensors=1) + tensor(offset=8) + PAD,
    "tensor twice": header(tensors=2) + tensor("w") + tensor("w", offset=32) + PAD,
    "overlap": header(tensors=2) + tensor("a", (32,)) + tensor("b", (32,), offset=32) + PAD,
    "alignment": header(fields=1) + text("general.alignment") + struct.pack("<II", Value.UINT32, 0) + PAD,
    "alignment of a text": header(fields=1)
    + text("general.alignment")
    + struct.pack("<I", Value.STRING)
    + text("x")
    + PAD,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_one_error(case, tmp_path):
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE[case])
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"hostile\.gguf.*\w") as error:
            gguf.read(path)
        assert tracemalloc.get_traced_memory()[1] < ALLOWED
    finally:
        tracemalloc.stop()
    assert len(str(error.value).splitlines()) == 1


def test_the_smallest_valid_file_passes(tmp_path):
    """The control of the hostile cases: the same builders make a file that is read."""
    path = tmp_path / "fine.gguf"
    fields = text("k") + array_of(Value.UINT8, 3, b"\x01\x02\x03")
    path.write_bytes(header(tensors=2, fields=1) + fields + tensor("a") + tensor("b", offset=32) + PAD)
    file = gguf.read(path)
    assert file.fields == {"k": [1, 2, 3]}
    assert [info.shape for info in file.tensors.values()] == [(4,), (4,)]


def test_every_truncation_and_random_damage_is_read_or_refused(tmp_path):
    fields = {"a.list": ["x", "y"], "a.number": 7, "a.numbers": [1.5, 2.5]}
    whole = write(tmp_path / "m.gguf", {"w": (np.ones((2, 32), np.float32), Kind.F32)}, fields).read_bytes()
    path = tmp_path / "damaged.gguf"
    rng = np.random.default_rng(0)
    cases = [whole[:end] for end in range(len(whole))]
    for _ in range(500):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole) - 256, rng.integers(1, 6)):
            damaged[at] = rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))])
        cases.append(bytes(damaged))
    refused = 0
    tracemalloc.start()
    for case in cases:
        path.write_bytes(case)
        try:
            file = gguf.read(path)
            for info in file.tensors.values():
                gguf.lazy(file, info).read()
        except CheckpointError:
            refused += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < ALLOWED
    assert refused >= len(whole)  # all truncations, at least


def test_file_that_shrinks_after_its_header_was_read(tmp_path):
    path = write(tmp_path / "m.gguf", {"w": (np.ones((64, 64), np.float32), Kind.F32)})
    file = gguf.read(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="'w' cannot be read"):
        gguf.lazy(file, file.tensors["w"]).read()


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        gguf.read(tmp_path / "absent.gguf")
