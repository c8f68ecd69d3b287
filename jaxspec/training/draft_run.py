"""From a corpus in the target's voice to a trained draft on disk: what `scripts/train_draft.py` does."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint import open_draft, save_draft
from jaxspec.checkpoint.artifact import IDS
from jaxspec.pipeline import DTYPES
from jaxspec.sharding import make_mesh
from jaxspec.training.calibrate import Fit, fit_temperature
from jaxspec.training.card import data_of, peak_memory, write_card
from jaxspec.training.checked import check_options, schedule_of
from jaxspec.training.draft_data import Batch, Sampler, coverage
from jaxspec.training.draft_loss import DraftLoss, draft_loss
from jaxspec.training.draft_task import Task, prepare
from jaxspec.training.live import seen_by
from jaxspec.training.options import FREE, Options, settings_of
from jaxspec.training.plot import plot_run, read_metrics
from jaxspec.training.progress import Told, bar
from jaxspec.training.run import METRICS, train
from jaxspec.training.validate import Validator, read_held
from jaxspec.typing import Params

PLOT = "training.png"


def train_draft(options: Options, *, command: str | None = None) -> None:
    """Corpus to teacher, teacher to draft, draft to `options.out`.

    Args:
        command: that does it, for the card.

    Raises:
        ValueError: bad input, before anything is compiled; a `TrainingError` where training cannot go on.
    """
    check_options(options)
    mesh = None if options.mesh is None else make_mesh(options.mesh)
    task = prepare(options)
    work = Path(options.work or f"{options.out}-run")
    sampler = Sampler(task.parts, rows=options.rows, width=options.width, taps=task.kept, seed=options.seed)
    loss = seen_by(
        task.see,
        draft_loss(
            task.draft,
            divergence=options.loss,
            temperature=options.loss_temperature,
            tokens_share=options.tokens_share,
            depths=options.depths,
        ),
    )
    settings = settings_of(options) | {"target_weights": task.weights, "documents": len(sampler.documents)}
    with bar(options.kind) as told:
        trained = train(
            loss,
            {name: jnp.asarray(leaf, jnp.float32) for name, leaf in task.first.items() if name != IDS},
            sampler.batch,
            schedule_of(options),
            work,
            context=task.context,
            settings=settings,
            dtype=DTYPES[options.dtype],
            mesh=mesh,
            free=FREE,
            told=_Teller(told, options.rows * options.width, work),
            validate=_Checker(options, task, loss),
        )
    _finish(options, task, {name: np.asarray(leaf) for name, leaf in trained.items()}, work, command)


class _Teller:
    """Shows every look: a bar, and a plot where there was a validation."""

    def __init__(self, told: Told, a_step: int, work: Path):
        self.told, self.a_step, self.work = told, a_step, work
        self.first: int | None = None

    def __call__(self, step: int, steps: int, line: dict[str, Any]) -> None:
        # what an earlier process had done is no part of this one's speed
        self.first = step if self.first is None else self.first
        agreed = " ".join(f"{value:.3f}" for value in line.get("agreement", []))
        self.told(step, steps, (step - self.first) * self.a_step, f"loss {line['loss']:.3f} agreement {agreed}")
        if "validation" in line:
            plot_run(self.work / METRICS, self.work / PLOT)


def held_batches(options: Options, task: Task) -> list[Batch]:
    """The held-out documents, once."""
    sampler = Sampler(task.held, rows=options.rows, width=options.width, taps=task.kept, seed=1)
    return [sampler.batch(step) for step in range(max(1, len(sampler.documents) // options.rows))]


class _Checker:
    """Metrics on what training does not see: held-out documents; and the engine on held-out prompts, if given."""

    def __init__(self, options: Options, task: Task, loss: DraftLoss):
        self.task, self.dtype = task, DTYPES[options.dtype]
        self.batches, self.measure = held_batches(options, task), jax.jit(loss)
        self.engine: Validator | None = None
        if options.validate is not None:
            sizes = {"max_new_tokens": options.validate_tokens}
            prompts = read_held(options.validate, task.target, per_category=options.per_category, **sizes)
            heat = {"lookahead": options.lookahead, "temperature": options.validate_temperature}
            self.engine = Validator(task.target, task.draft, prompts, **sizes, **heat)

    def __call__(self, step: int, params: Params) -> dict[str, Any]:
        del step
        # from every device to one
        params = {name: jnp.asarray(jax.device_get(leaf)).astype(self.dtype) for name, leaf in params.items()}
        each = [self.measure(params, jax.tree.map(jnp.asarray, batch), self.task.context) for batch in self.batches]
        seen = jax.device_get(each)
        found = {
            name: np.mean([getattr(m, name) for _, m in seen], axis=0).round(4).tolist() for name in seen[0][1]._fields
        }
        found["loss"] = round(float(np.mean([value for value, _ in seen])), 4)
        if self.engine is not None:
            ids = {IDS: self.task.first[IDS]}
            found["engine"] = self.engine(self.task.context | params | ids)
        return found


def _finish(options: Options, task: Task, trained: dict[str, np.ndarray], work: Path, command: str | None) -> None:
    """Fit the temperature of what will be stored, store it, and say what it is."""
    stored = {name: leaf.astype(jnp.bfloat16) for name, leaf in trained.items()}
    fit = _fit(options, task, {name: jnp.asarray(leaf) for name, leaf in stored.items()})
    card = _card(options, task, work) | {"command": command, "calibration": fit._asdict()}
    ids = {IDS: np.asarray(task.first[IDS])}
    about = {"target": task.weights, "temperature": fit.temperature, "card": card}
    save_draft(options.out, task.draft, stored | ids, **about, overwrite=options.overwrite)
    write_card(options.out)


def _fit(options: Options, task: Task, params: Params) -> Fit:
    batches = held_batches(options, task)
    params = {name: jnp.asarray(leaf, DTYPES[options.dtype]) for name, leaf in params.items()}
    return fit_temperature(task.draft, params, batches, task.context, see=task.see, depths=options.depths)


def _card(options: Options, task: Task, work: Path) -> dict[str, Any]:
    lines = read_metrics(work / METRICS)
    seconds = sum(line.get("seconds", 0.0) for line in lines)
    tokens = options.steps * options.accumulate * options.rows * options.width
    return {
        "target": options.target,
        "data": data_of(task.corpus, options.data_note),
        "init_from": options.init_from,
        "steps": options.steps,
        "tokens": tokens,
        "corpus_tokens": task.tokens,
        "minutes": round(seconds / 60, 1),
        "tokens_per_second": round(tokens / seconds) if seconds else None,
        "peak_memory_mb": peak_memory(),
        "coverage": round(coverage(task.held, np.asarray(task.first[IDS])), 4),
        "validation": next((line["validation"] for line in reversed(lines) if "validation" in line), {}),
    }


def calibrate_draft(options: Options) -> Fit:
    """Fit the temperature of the draft in `options.calibrate` on the corpus's held-out documents, and store it there.

    Raises:
        ValueError: bad input, or a draft of another target.
    """
    assert options.calibrate is not None
    artifact = open_draft(options.calibrate)
    options = dataclasses.replace(options, kind=artifact.config.kind, init_from=options.calibrate)
    check_options(options)
    task = prepare(options)
    fit = _fit(options, task, {name: leaf for name, leaf in task.first.items() if name != IDS})
    card = artifact.card | {"calibration": fit._asdict()}
    about = {"target": artifact.target, "temperature": fit.temperature, "card": card}
    save_draft(artifact.path, artifact.config, artifact.tensors, **about, overwrite=True)
    write_card(artifact.path)
    return fit
