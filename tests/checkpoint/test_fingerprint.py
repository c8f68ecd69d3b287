"""A fingerprint says which weights they are, whatever file, dtype, form or devices hold them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import fingerprint, load_params, open_checkpoint, save
from jaxspec.checkpoint.fingerprint import SAMPLES
from jaxspec.models import ModelConfig, fuse


def on_device(family: str, dtype: object = np.float32) -> dict[str, jax.Array]:
    return {name: jnp.asarray(array) for name, array in tiny.params(family, dtype).items()}


@pytest.mark.parametrize("family", ["llama-bias", "smollm2", "phi3"])
def test_it_is_the_same_in_every_dtype_and_form(family):
    config = tiny.model_config(family)
    expected = fingerprint(config, tiny.params(family))
    assert len(expected) == 64
    assert fingerprint(config, on_device(family)) == expected
    assert fingerprint(config, on_device(family, jnp.bfloat16)) == expected
    assert fingerprint(*fuse(config, on_device(family))) == expected
    assert fingerprint(*fuse(config, on_device(family, jnp.bfloat16))) == expected
    backwards = dict(reversed(tiny.params(family).items()))
    assert fingerprint(config, backwards) == expected


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_it_is_the_same_from_every_file(family, tmp_path):
    config = tiny.model_config(family)
    expected = fingerprint(config, tiny.params(family))
    folder = tiny.write_hf(tmp_path / "hf", tiny.hf_config(family), tiny.hf_tensors(family), shards=2)
    model = tiny.write_gguf(tmp_path / "model.gguf", family)
    save(tmp_path / "orbax", tiny.hf_config(family), tiny.params(family))
    for place in (folder, model, tmp_path / "orbax"):
        opened = open_checkpoint(place)
        read = ModelConfig.from_hf(opened.config)
        assert fingerprint(read, load_params(opened)) == expected
        assert fingerprint(read, load_params(opened, dtype=jnp.bfloat16)) == expected
        assert fingerprint(read, opened.tensors) == expected  # one tensor at a time


def test_it_is_the_same_on_split_weights():
    mesh = Mesh(np.asarray(jax.devices()), ("model",))
    config, whole = tiny.model_config("llama"), on_device("llama")
    split = {
        name: jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*(None, "model")[-leaf.ndim :])))
        for name, leaf in whole.items()
    }
    assert len(split["embed_tokens.weight"].sharding.device_set) == 8
    assert fingerprint(config, split) == fingerprint(config, whole)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "layers.1.mlp.down_proj.weight", "norm.weight"])
def test_it_differs_where_a_sampled_value_does(name):
    config, params = tiny.model_config("llama"), tiny.params("llama")
    size = params[name].size
    sampled = np.arange(0, size, max(1, size // SAMPLES))[:SAMPLES]
    expected = fingerprint(config, params)
    for place in sampled[:: max(1, len(sampled) // 4)]:
        changed = params[name].copy()
        changed.flat[place] *= 1.02  # more than a step of bfloat16
        assert fingerprint(config, params | {name: changed}) != expected
        changed.flat[place] = params[name].flat[place] * (1 + 1e-7)  # less than bfloat16 can tell
        assert fingerprint(config, params | {name: changed}) == expected


def test_small_parameters_are_read_whole():
    config, params = tiny.model_config("llama"), tiny.params("llama")
    size = params["norm.weight"].size
    assert size <= SAMPLES
    found = set()
    for place in range(size):
        changed = params["norm.weight"].copy()
        changed[place] += 1
        found.add(fingerprint(config, params | {"norm.weight": changed}))
    assert len(found) == size


def test_names_and_shapes_count():
    config, params = tiny.model_config("llama"), tiny.params("llama")
    found = {fingerprint(config, params)}
    name = "layers.0.mlp.up_proj.weight"
    found.add(fingerprint(config, {n: p for n, p in params.items() if n != name}))
    found.add(fingerprint(config, params | {name: params[name].T}))
    one, two = "layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight"
    found.add(fingerprint(config, params | {one: params[two], two: params[one]}))
    assert len(found) == 4
