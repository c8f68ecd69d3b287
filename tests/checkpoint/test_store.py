"""Our checkpoints come back bit for bit, on any mesh, and a broken one is refused."""

import json
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import CheckpointError, load, load_params, open_checkpoint, save


def mesh(data: int, model: int) -> jax.sharding.Mesh:
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def rows_over_model(on: jax.sharding.Mesh):
    """Matrices by rows where they divide, the rest on every device."""

    def rule(name: str, shape: tuple[int, ...]) -> NamedSharding:
        split = len(shape) == 2 and shape[0] % on.shape["model"] == 0
        return NamedSharding(on, P("model", None) if split else P())

    return rule


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "tiny"
    save(path, tiny.hf_config("smollm2"), tiny.params("smollm2"))
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_comes_back_bit_for_bit(dtype, tmp_path):
    params = tiny.params("qwen3", dtype)
    save(tmp_path / "c", tiny.hf_config("qwen3"), params)
    config, loaded = load(tmp_path / "c")
    assert config == tiny.hf_config("qwen3")
    assert sorted(loaded) == sorted(params)
    for name, array in params.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(np.asarray(loaded[name]).view(np.uint8), array.view(np.uint8))


def test_lazy_tensors_are_the_same(stored):
    opened = open_checkpoint(stored)
    assert opened.kind == "orbax"
    for name in ("embed_tokens.weight", "layers.1.mlp.down_proj.weight", "norm.weight"):
        np.testing.assert_array_equal(opened.tensors[name].read(), tiny.params("smollm2")[name])
    half = opened.tensors["norm.weight"].cast_to(np.float16)
    np.testing.assert_array_equal(half, tiny.params("smollm2")["norm.weight"].astype(np.float16))


def test_no_file_tells_where_it_was_written(stored):
    for path in stored.rglob("*"):
        assert path.is_dir() or str(stored.parent).encode() not in path.read_bytes(), path


def test_a_relative_path_will_do(stored, monkeypatch):
    monkeypatch.chdir(stored.parent)
    _, loaded = load(stored.name)
    assert sorted(loaded) == sorted(tiny.params("smollm2"))
    np.testing.assert_array_equal(
        open_checkpoint(stored.name).tensors["norm.weight"].read(), tiny.params("smollm2")["norm.weight"]
    )


@pytest.mark.parametrize("to", [(2, 4), (8, 1), (1, 8)])
def test_written_on_one_mesh_loads_on_another(to, tmp_path):
    params = tiny.params("smollm2")
    written = rows_over_model(mesh(1, 8))
    save(
        tmp_path / "c",
        tiny.hf_config("smollm2"),
        {name: jax.device_put(array, written(name, array.shape)) for name, array in params.items()},
    )
    rule = rows_over_model(mesh(*to))
    config, loaded = load(tmp_path / "c", shardings=rule)
    assert config["model_type"] == "llama"
    for name, array in params.items():
        assert loaded[name].sharding == rule(name, array.shape), name
        np.testing.assert_array_equal(loaded[name], array)
    shard = loaded["layers.0.mlp.gate_proj.weight"].addressable_shards[0].data.shape
    assert shard == (48 // to[1], 32)


@pytest.mark.parametrize("kind", ["orbax", "safetensors", "gguf"])
def test_every_kind_loads_onto_a_sharding_and_a_dtype(kind, stored, tmp_path):
    source = {
        "orbax": lambda: stored,
        "safetensors": lambda: tiny.write_hf(tmp_path, tiny.hf_config("smollm2"), tiny.hf_tensors("smollm2")),
        "gguf": lambda: tiny.write_gguf(tmp_path / "m.gguf", "smollm2"),
    }[kind]()
    rule, calls = rows_over_model(mesh(2, 4)), []
    opened = open_checkpoint(source)
    loaded = load_params(
        opened, dtype=jnp.bfloat16, shardings=rule, progress=lambda done, total: calls.append((done, total))
    )
    for name, array in tiny.params("smollm2").items():
        assert loaded[name].sharding == rule(name, array.shape)
        np.testing.assert_array_equal(loaded[name], array.astype(ml_dtypes.bfloat16))
    assert calls[-1][0] == calls[-1][1] == sum(t.nbytes for t in opened.tensors.values())
    by_name = {name: rule(name, tensor.shape) for name, tensor in opened.tensors.items()}
    assert load_params(opened, shardings=by_name)["norm.weight"].sharding == by_name["norm.weight"]
    everywhere = NamedSharding(mesh(2, 4), P())
    assert load_params(opened, shardings=everywhere)["norm.weight"].sharding == everywhere


def test_all_problems_are_in_one_error(tmp_path):
    params = tiny.params("smollm2")
    del params["norm.weight"]
    params["layers.0.mlp.up_proj.weight"] = np.zeros((48, 31), np.float32)
    params["stray"] = np.zeros(3, np.float32)
    save(tmp_path / "c", tiny.hf_config("smollm2"), params)
    with pytest.raises(CheckpointError, match="3 tensors do not match") as error:
        load(tmp_path / "c")
    assert [line.strip() for line in str(error.value).splitlines()[1:]] == [
        "missing: norm.weight [32]",
        "unexpected: stray [3]",
        "misshapen: layers.0.mlp.up_proj.weight is [48, 31], the config asks for [48, 32]",
    ]


def test_destination_in_use_is_kept_unless_asked(tmp_path):
    params, config = tiny.params("smollm2"), tiny.hf_config("smollm2")
    (tmp_path / "c").mkdir()  # an empty folder is not in use
    save(tmp_path / "c", config, params)
    with pytest.raises(CheckpointError, match="already exists"):
        save(tmp_path / "c", config, {})
    changed = {name: array + 1 for name, array in params.items()}
    save(tmp_path / "c", config, changed, overwrite=True)
    np.testing.assert_array_equal(load(tmp_path / "c")[1]["norm.weight"], changed["norm.weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


DAMAGED = """
    import shutil, sys
    from pathlib import Path
    from jaxspec.checkpoint import load
    for case in sys.argv[2:]:
        shutil.rmtree(copy := Path(sys.argv[1] + "-copy"), ignore_errors=True)
        shutil.copytree(sys.argv[1], copy)
        if case == "truncated":
            files = [path for path in (copy / "params").rglob("*") if path.is_file()]
            largest = max(files, key=lambda path: path.stat().st_size)
            largest.write_bytes(largest.read_bytes()[:100])
        for path in [copy / case, *(copy / "params").rglob(case)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        try:
            load(copy)
            print("loaded")
        except ValueError as error:
            print(str(error).splitlines()[0].partition("-copy")[2])
"""


def test_damaged_checkpoint_is_refused(stored, tmp_path):
    """In a process of its own: Orbax leaves the reads beside one that failed to whatever runs next."""
    copy = shutil.copytree(stored, tmp_path / "c")
    cases = ("nothing", "config.json", "params", "_METADATA", "manifest.ocdbt", "d", "truncated")
    done = tiny.run(DAMAGED, copy, *cases)
    assert done.returncode == 0, done.stderr
    told = dict(zip(cases, done.stdout.splitlines(), strict=True))
    assert told.pop("nothing") == "loaded"  # the control
    assert told["config.json"].startswith(": no config.json; give a model's folder")
    assert told["truncated"].startswith("/params: not a readable Orbax checkpoint (OUT_OF_RANGE")
    assert all("not a readable" in line or "do not match" in line or "no " in line for line in told.values()), told


def test_format_of_a_later_release_is_refused(stored, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(stored, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"jaxspec_format": 99}))
    with pytest.raises(CheckpointError, match="jaxspec_format is 99, this release reads 1"):
        open_checkpoint(copy)
