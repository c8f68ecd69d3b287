"""A training run that can be killed at any moment: the same command goes on and reaches the same weights."""

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxspec.training.fit import Recipe
from jaxspec.typing import Params, PyTree

METRICS = "metrics.jsonl"
SETTINGS = "run.json"
LOOK = 20
"""Steps between two looks of the host at the loss."""


class TrainingError(ValueError):
    """A run that cannot go on, in one sentence; what was saved before stays."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long, and how often what is done.

    Raises:
        ValueError: a number out of range.
    """

    recipe: Recipe
    accumulate: int = 1  # batches whose gradients are averaged into one step of the optimiser
    save_every: int = 200  # steps
    keep: int = 2  # checkpoints
    validate_every: int = 0  # steps; 0: at the end alone

    def __post_init__(self) -> None:
        for name in ("accumulate", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 1 or more")

    def optimizer(self) -> optax.GradientTransformation:
        """Of the recipe, over accumulated gradients."""
        plain = self.recipe.optimizer()
        return plain if self.accumulate == 1 else optax.MultiSteps(plain, self.accumulate).gradient_transformation()


def train(
    loss: Callable[[Params, Any, PyTree], tuple[jax.Array, Any]],
    params: Params,
    batch_at: Callable[[int], Any],
    schedule: Schedule,
    folder: str | Path,
    *,
    context: PyTree = (),
    settings: dict[str, Any] | None = None,
    dtype: Any = jnp.float32,
    mesh: Mesh | None = None,
    told: Callable[[int, int, dict[str, Any]], None] = lambda step, steps, line: None,
    validate: Callable[[int, Params], dict[str, Any]] | None = None,
) -> Params:
    """Trained parameters; checkpoints, `run.json` and `metrics.jsonl` are in `folder`.

    Steps count batches. A step depends on its number and on the state alone, so a run that was killed goes on from its
    last checkpoint to the weights that an uninterrupted one would have reached.

    Args:
        loss: (params, batch, context) -> (loss, NamedTuple of arrays for the metrics).
        params: float32, where training starts; not donated.
        batch_at: the batch of a step, a pytree of arrays with rows first.
        context: what the loss reads and training leaves alone.
        settings: written to `run.json`; a folder that was begun with others is refused.
        dtype: that the loss computes in; parameters and optimiser stay float32.
        mesh: devices; rows are split over its first axis, parameters are on every one.
        told: after every look (steps done, steps in all, metrics).
        validate: (step, params) -> metrics, every `validate_every` steps and at the end.

    Raises:
        TrainingError: a loss that is no number (the last good checkpoint is named), a disk that is full, or a folder
            of another run.
    """
    folder = Path(folder)
    _claim(folder, settings or {})
    optimizer = schedule.optimizer()
    update = jax.jit(functools.partial(_update, loss, optimizer, dtype), donate_argnums=(0, 1))
    params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
    state = {"params": params, "memory": optimizer.init(params)}
    place = _placer(mesh)
    with _saving(folder, schedule) as saver:
        begun = saver.latest_step() or 0
        if begun:
            state = saver.restore(begun, args=ocp.args.StandardRestore(state))
        state, context = (jax.tree.map(jnp.asarray, tree) for tree in (state, context))
        if mesh is not None:
            state, context = jax.device_put((state, context), NamedSharding(mesh, PartitionSpec()))
        lines = _Metrics(folder / METRICS, begun)
        steps = schedule.recipe.steps * schedule.accumulate
        pending: list[tuple[int, Any, Any]] = []
        for step in range(begun, steps):
            params, memory, value, seen = update(state["params"], state["memory"], place(batch_at(step)), context)
            state = {"params": params, "memory": memory}
            pending.append((step + 1, value, seen))
            done, last = step + 1, step + 1 == steps
            save, check = done % schedule.save_every == 0 or last, _due(done, schedule.validate_every) or last
            if done % LOOK == 0 or save or check:
                line = _read(pending, saver, schedule)
                if check and validate is not None:
                    line |= {"validation": validate(done, state["params"])}
                lines.add(line)
                told(done, steps, line)
                pending = []
            if save:
                _save(saver, done, state, folder)
        _wait(saver, folder)
    return state["params"]


def _update(
    loss: Any, optimizer: optax.GradientTransformation, dtype: Any, params: Any, memory: Any, batch: Any, context: Any
) -> tuple[Any, Any, jax.Array, Any]:
    def cast(tree: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)

    def mixed(params: Any) -> tuple[jax.Array, Any]:
        value, seen = loss(cast(params), batch, cast(context))
        return value.astype(jnp.float32), seen

    (value, seen), slope = jax.value_and_grad(mixed, has_aux=True)(params)
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
        change, memory = optimizer.update(slope, memory, params)
    return optax.apply_updates(params, change), memory, value, seen


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def _placer(mesh: Mesh | None) -> Callable[[Any], Any]:
    if mesh is None:
        return lambda batch: jax.tree.map(jnp.asarray, batch)
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    return lambda batch: jax.device_put(batch, rows)


def _read(pending: list[tuple[int, Any, Any]], saver: ocp.CheckpointManager, schedule: Schedule) -> dict[str, Any]:
    """Means over the steps since the last look, once they are known to be numbers."""
    seen = jax.device_get(pending)
    losses = np.asarray([value for _, value, _ in seen])
    if not np.isfinite(losses).all():
        bad = seen[int(np.argmin(np.isfinite(losses)))][0]
        good = saver.latest_step()
        left = f"the last good checkpoint is step {good}" if good else "no checkpoint had been saved"
        raise TrainingError(
            f"the loss is no number at step {bad}; {left}; lower the rate, which is {schedule.recipe.rate}, and go on"
        )
    shown = seen[-1][2]._fields if seen and hasattr(seen[-1][2], "_fields") else ()
    means = {name: np.mean([getattr(each, name) for _, _, each in seen], axis=0).round(4).tolist() for name in shown}
    return {"step": seen[-1][0], "loss": round(float(losses.mean()), 5), "time": round(time.time(), 1)} | means


class _Metrics:
    """A file of JSON lines; what a killed run had written past its last checkpoint is dropped."""

    def __init__(self, file: Path, begun: int):
        self.file = file
        kept = []
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # the last line of a killed run may be half a line
                    if json.loads(line)["step"] <= begun:
                        kept.append(line)
        file.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    def add(self, line: dict[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


@contextlib.contextmanager
def _saving(folder: Path, schedule: Schedule) -> Iterator[ocp.CheckpointManager]:
    options = ocp.CheckpointManagerOptions(max_to_keep=schedule.keep, enable_async_checkpointing=True)
    saver = ocp.CheckpointManager(folder.resolve() / "checkpoints", options=options)
    try:
        yield saver
    finally:
        with contextlib.suppress(Exception):  # what went wrong with a save was said when it was waited for
            saver.close()


def _save(saver: ocp.CheckpointManager, step: int, state: PyTree, folder: Path) -> None:
    try:
        saver.save(step, args=ocp.args.StandardSave(state))
    except Exception as error:
        raise _unwritten(folder, error, saver) from error


def _wait(saver: ocp.CheckpointManager, folder: Path) -> None:
    try:
        saver.wait_until_finished()
    except Exception as error:
        raise _unwritten(folder, error, saver) from error


def _unwritten(folder: Path, error: Exception, saver: ocp.CheckpointManager) -> TrainingError:
    good = max(saver.all_steps(read=True), default=None)
    left = f"the last good checkpoint is step {good}" if good else "no checkpoint had been saved"
    return TrainingError(
        f"{folder} cannot be written ({str(error).splitlines()[0][:200]}); {left}; free space and run it again"
    )


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / SETTINGS
    settings = json.loads(json.dumps(settings))
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        for name in sorted({*before, *settings}):
            if before.get(name) != settings.get(name):
                raise TrainingError(
                    f"{folder} holds a run with {name} {before.get(name)!r}, asked for is {settings.get(name)!r}; "
                    "give the same settings to go on with it, or another folder"
                )
        return
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    beside.replace(file)
