"""A conversion needs at most 1.3 times the larger of its source and its target, measured from outside."""

import numpy as np
import pytest

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint.names import expected_shapes
from jaxspec.models import config_from_hf

BOUND = 1.3

MEASURED = """
    import resource, sys
    import jax, numpy as np
    from jaxspec.checkpoint import convert, open_checkpoint
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
    rng = np.random.default_rng(0)
    shapes = expected_shapes(config_from_hf(LARGE))
    tensors = {f"model.{name}": rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    return tiny.write_hf(tmp_path_factory.mktemp("large"), LARGE, tensors)


def peak(large, tmp_path, to: str, how: str) -> float:
    """Peak memory of a conversion over the larger of source and target."""
    done = tiny.run(MEASURED, large, tmp_path / "out", to, how)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / (large / "model.safetensors").stat().st_size


@pytest.mark.parametrize("to", ["orbax", "hf"])
def test_memory_is_bounded(to, large, tmp_path):
    assert peak(large, tmp_path, to, "streamed") <= BOUND


def test_memory_bound_is_one(large, tmp_path):
    """The control: holding source and target breaks the same bound."""
    assert peak(large, tmp_path, "hf", "whole") > BOUND
