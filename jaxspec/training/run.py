"""A training run that can be killed at any moment: the same command goes on and reaches the same weights."""

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxspec.checkpoint.staging import reason
from jaxspec.training.claim import claim, replace
from jaxspec.training.fit import Recipe
from jaxspec.typing import Params, PyTree

METRICS = "metrics.jsonl"
SETTINGS = "run.json"
CHECKPOINTS = "checkpoints"
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
    free: Sequence[str] = (),
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
        free: settings that a run may go on with other values of: what changes no weight, and the rate.
        mesh: devices; rows are split over its first axis, parameters are on every one.
        told: after every look (steps done, steps in all, metrics).
        validate: (step, params) -> metrics, every `validate_every` steps and at the end.

    Raises:
        TrainingError: a loss or weights that are no numbers (the last good checkpoint is named), a disk that is full,
            or a folder of another run.
    """
    folder = Path(folder)
    claim(folder / SETTINGS, settings or {}, what="a run", free=free, error=TrainingError)
    optimizer = schedule.optimizer()
    update = jax.jit(functools.partial(_update, loss, optimizer, dtype), donate_argnums=(0, 1))
    params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
    place, steps = _placer(mesh), schedule.recipe.steps * schedule.accumulate
    with _saving(folder, schedule) as saver:
        state, begun = _restored(saver, folder, {"params": params, "memory": optimizer.init(params)})
        state, context = (jax.tree.map(jnp.asarray, tree) for tree in (state, context))
        if mesh is not None:
            state, context = jax.device_put((state, context), NamedSharding(mesh, PartitionSpec()))
        log = _Log(folder, saver, schedule, begun)
        for step in range(begun, steps):
            params, memory, value, seen = update(state["params"], state["memory"], place(batch_at(step)), context)
            state = {"params": params, "memory": memory}
            log.pending.append((step + 1, value, seen))
            done, last = step + 1, step + 1 == steps
            save, check = done % schedule.save_every == 0 or last, _due(done, schedule.validate_every) or last
            if done % LOOK == 0 or save or check:
                line = log.read(params if save or check else None)
                if check and validate is not None:
                    line["validation"] = validate(done, params)
                log.write(line)
                told(done, steps, line)
            if save:
                log.save(done, state)
        log.do(saver.wait_until_finished)
    return state["params"]


def _update(
    loss: Any, optimizer: optax.GradientTransformation, dtype: Any, params: Any, memory: Any, batch: Any, context: Any
) -> tuple[Any, Any, jax.Array, Any]:
    def cast(tree: Any) -> Any:
        """Floats in the dtype; single numbers stay, as nothing is gained with them."""
        return jax.tree.map(lambda x: x.astype(dtype) if x.ndim and jnp.issubdtype(x.dtype, jnp.floating) else x, tree)

    def mixed(params: Any) -> tuple[jax.Array, Any]:
        return _as_float32(loss(cast(params), batch, cast(context)))

    (value, seen), slope = jax.value_and_grad(mixed, has_aux=True)(params)
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
        change, memory = optimizer.update(slope, memory, params)
    return optax.apply_updates(params, change), memory, value, seen


def _as_float32(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def _placer(mesh: Mesh | None) -> Callable[[Any], Any]:
    if mesh is None:
        return lambda batch: jax.tree.map(jnp.asarray, batch)
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    return lambda batch: jax.device_put(batch, rows)


def _restored(saver: ocp.CheckpointManager, folder: Path, state: PyTree) -> tuple[PyTree, int]:
    """The last checkpoint and its step; the state as it is and 0 where there is none."""
    begun = saver.latest_step() or 0
    if not begun:
        return state, 0
    try:
        return saver.restore(begun, args=ocp.args.StandardRestore(state)), begun
    except Exception as error:
        raise TrainingError(
            f"{folder / CHECKPOINTS / str(begun)} cannot be read ({reason(error)}); delete it to go on from the one "
            "before it"
        ) from error


class _Log:
    """What a run writes: metrics and checkpoints. Whatever goes wrong is one sentence that names the last good one."""

    def __init__(self, folder: Path, saver: ocp.CheckpointManager, schedule: Schedule, begun: int):
        self.folder, self.saver, self.rate = folder, saver, schedule.recipe.rate
        self.file = folder / METRICS
        self.pending: list[tuple[int, Any, Any]] = []
        self.clock = time.perf_counter()
        self.do(lambda: self._cut(begun))

    def _cut(self, begun: int) -> None:
        """Drop what a killed run had written past its last checkpoint."""
        kept = []
        for line in self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []:
            with contextlib.suppress(ValueError):  # the last line of a killed run may be half a line
                if json.loads(line)["step"] <= begun:
                    kept.append(line)
        replace(self.file, "".join(line + "\n" for line in kept))

    def read(self, params: Params | None) -> dict[str, Any]:
        """Means over the steps since the last look, once they, and `params`, are known to be numbers."""
        seen, self.pending = jax.device_get(self.pending), []
        losses = np.asarray([value for _, value, _ in seen])
        step = seen[-1][0]
        if not np.isfinite(losses).all():
            raise self._diverged(f"the loss is no number at step {seen[int(np.argmin(np.isfinite(losses)))][0]}")
        # a finite loss can have a slope that is none
        if params is not None and not all(jax.device_get([jnp.isfinite(x).all() for x in jax.tree.leaves(params)])):
            raise self._diverged(f"weights are no numbers after step {step}")
        fields = getattr(seen[-1][2], "_fields", ())
        means = {name: np.mean([getattr(each, name) for _, _, each in seen], axis=0) for name in fields}
        clock, self.clock = self.clock, time.perf_counter()
        line = {"step": step, "loss": round(float(losses.mean()), 5), "time": round(time.time(), 1)}
        line["seconds"] = round(self.clock - clock, 3)
        return line | {name: mean.round(4).tolist() for name, mean in means.items()}

    def write(self, line: dict[str, Any]) -> None:
        """Add a line to the metrics; the clock leaves out what was done since `read`."""

        def add() -> None:
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

        self.do(add)
        self.clock = time.perf_counter()

    def save(self, step: int, state: PyTree) -> None:
        """Begin a checkpoint; what went wrong with the one before is said here."""
        self.do(lambda: self.saver.save(step, args=ocp.args.StandardSave(state)))

    def do(self, write: Callable[[], object]) -> None:
        """Call it."""
        try:
            write()
        except Exception as error:
            raise TrainingError(
                f"{self.folder} cannot be written ({reason(error)}); {self._good()}; free space and run it again"
            ) from error

    def _diverged(self, what: str) -> TrainingError:
        return TrainingError(f"{what}; {self._good()}; lower the rate, which is {self.rate}, and run it again")

    def _good(self) -> str:
        """The last checkpoint that is whole, in words."""
        with contextlib.suppress(Exception):  # one that is under way; those before it stay whatever becomes of it
            self.saver.wait_until_finished()
        where = self.folder / CHECKPOINTS
        steps = ocp.utils.checkpoint_steps(where.resolve())
        return f"the last good checkpoint is {where / str(max(steps))}" if steps else "no checkpoint had been saved"


@contextlib.contextmanager
def _saving(folder: Path, schedule: Schedule) -> Iterator[ocp.CheckpointManager]:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=schedule.keep, enable_async_checkpointing=True, cleanup_tmp_directories=True
    )
    try:
        saver = ocp.CheckpointManager(folder.resolve() / CHECKPOINTS, options=options)
    except OSError as error:
        raise TrainingError(f"{folder} cannot be written ({reason(error)}); free space or choose another") from error
    try:
        yield saver
    finally:
        with contextlib.suppress(Exception):  # what went wrong with a save was said when it was waited for
            saver.close()
