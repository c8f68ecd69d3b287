"""A run small enough to be killed many times; also a script: `python -m tests.training.toy FOLDER`."""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.training.fit import Recipe
from jaxspec.training.run import Schedule, train

SETTINGS = {"kind": "toy", "rate": 0.05}


class Seen(NamedTuple):
    error: jax.Array


def loss(params, batch, context):
    """Squared error of a line, less the context."""
    x, y = batch
    error = x @ params["w"] + params["b"][None] - y - context["shift"][None].astype(params["w"].dtype)
    value = jnp.mean(jnp.square(error))
    return value, Seen(value[None])


def start() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {"w": jnp.asarray(rng.standard_normal((4, 3)), jnp.float32), "b": jnp.zeros(3, jnp.float32)}


CONTEXT = {"shift": jnp.ones(3, jnp.float32)}


def batch_at(step: int, rows: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng((7, step))
    return rng.standard_normal((rows, 4)).astype(np.float32), rng.standard_normal((rows, 3)).astype(np.float32)


def schedule(steps: int = 60, **options) -> Schedule:
    return Schedule(Recipe(steps, rate=0.05), **({"save_every": 5} | options))


def run(folder: str | Path, plan: Schedule | None = None, *, batches=batch_at, loss=loss, **options):
    options = {"context": CONTEXT, "settings": SETTINGS} | options
    return train(loss, start(), batches, plan or schedule(), folder, **options)


def slowly(step: int) -> tuple[np.ndarray, np.ndarray]:
    time.sleep(0.01)
    return batch_at(step)


if __name__ == "__main__":
    params = run(sys.argv[1], batches=slowly)
    np.savez(Path(sys.argv[1]) / "trained.npz", **{name: np.asarray(leaf) for name, leaf in params.items()})
