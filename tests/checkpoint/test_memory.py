"""A conversion needs at most 1.3 times the larger of its source and its target, measured from outside."""

from pathlib import Path

import numpy as np
import pytest

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint.names import expected_shapes
from jaxspec.models import config_from_hf

BOUND = 1.3

MEASURED = """
    import resource, sys
    import jax, numpy as np
    from jaxspec.checkpoint import convert, open_checkpoint, save
    source, destination, to, whole = sys.argv[1:]
    jax.devices()
    opened = open_checkpoint(source)
    before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
    if whole == "whole":  # what a conversion would do that holds the source and the target
        held = {name: np.array(t.read()) for name, t in opened.tensors.items()}
        copy = {name: array.copy() for name, array in held.items()}
    else:
        convert(source, destination, to=to)
    (peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
    print(int(peak) * 1024 - before)
"""
EVEN = {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
ONE_LARGE = {"vocab_size": 150_000, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}


def write_model(folder: Path, sizes: dict) -> Path:
    config = {**tiny.CONFIGS["smollm2"], **sizes}
    rng = np.random.default_rng(0)
    shapes = expected_shapes(config_from_hf(config))
    tensors = {f"model.{name}": rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    return tiny.write_hf(folder, config, tensors)


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    """150 MB in 74 tensors, the largest a ninth of it."""
    return write_model(tmp_path_factory.mktemp("even"), EVEN)


@pytest.fixture(scope="module")
def one_large(tmp_path_factory):
    """150 MB, nearly all of it in the embedding."""
    return write_model(tmp_path_factory.mktemp("one_large"), ONE_LARGE)


def peak(source: Path, destination: Path, to: str, how: str) -> float:
    """Peak memory of a conversion over the size of source and target, which are alike."""
    done = tiny.run(MEASURED, source, destination, to, how)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / (source / "model.safetensors").stat().st_size


@pytest.mark.parametrize("to", ["orbax", "hf"])
def test_memory_is_bounded(to, even, tmp_path):
    assert peak(even, tmp_path / "out", to, "streamed") <= BOUND


def test_memory_is_bounded_when_one_tensor_is_nearly_all(one_large, tmp_path):
    assert peak(one_large, tmp_path / "out", "orbax", "streamed") <= BOUND


def test_memory_bound_is_one(even, tmp_path):
    """The control: holding source and target breaks the same bound."""
    assert peak(even, tmp_path / "out", "hf", "whole") > BOUND
