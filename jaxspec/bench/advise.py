"""Would a draft pay, with which lookahead, and does it fit? From shapes, a device's speed and an acceptance."""

import dataclasses
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxspec import decode, sharding
from jaxspec.bench import advise_acceptance, advise_costs, advise_fit, advise_words, chips
from jaxspec.bench.advise_acceptance import Known
from jaxspec.bench.advise_costs import Clock, Timed
from jaxspec.bench.advise_memory import Layout
from jaxspec.bench.advise_models import FREE, Candidate, Model, find_draft, find_model, vocabulary
from jaxspec.bench.provenance import memory_bytes
from jaxspec.pipeline import DTYPES
from jaxspec.select import expected
from jaxspec.select.expected import Costs

CONTEXT = 4096
"""Tokens of a row where nothing is asked, or the target's most."""

GRID = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Acceptances that are shown, whatever a draft's own is."""

CPU = "cpu"
BATCHES = 4096
"""Times the rows, up to which a paying draft is followed."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What is asked, as the command line says it."""

    target: str = "smollm2-135m-instruct"
    drafts: tuple[str, ...] = ("lookup",)
    acceptance: tuple[str, ...] = ()  # "0.7" or "0.7,0.6": of all drafts, or one a draft
    telemetry: tuple[str, ...] = ()  # files of generate.py --json, bench.py --json
    rows: int = 1
    context: int | None = None
    chip: str | None = None  # None: this machine, or what the next three say
    bandwidth: float | None = None  # GB/s
    flops: float | None = None  # TFLOP/s
    memory: float | None = None  # GB
    overhead: float = 0.0  # microseconds of every pass besides
    mesh: str | None = None  # all devices of the chip's topology in model
    shard_drafts: bool = False
    dtype: str | None = None  # bfloat16; float32 on this machine
    lookahead: int = decode.DEFAULT_LOOKAHEAD
    plot: str | None = None
    json: str | None = None


@dataclasses.dataclass(frozen=True)
class Question:
    """Options as the parts take them."""

    target: Model
    layout: Layout
    chip: chips.Chip  # one device; its memory is 0 and its peak infinite where they are not known
    clock: Clock
    timed: Timed | None
    here: bool  # whether it is about this machine as it is
    notes: tuple[str, ...] = ()


def advise(options: Options) -> dict[str, Any]:
    """The report, a JSON object; `recommendation` is a paragraph for people.

    Raises:
        ValueError: bad input, before anything is measured.
    """
    check(options)
    target = find_model(options.target)
    files = [advise_acceptance.read(path) for path in options.telemetry]
    drafts = [find_draft(name, target) for name in options.drafts]
    known = advise_acceptance.match(options.acceptance, drafts, files)
    question = ask(options, target, [timed for file in files if (timed := advise_costs.timed_of(file))])
    found = [_draft(question, draft, rates) for draft, rates in zip(drafts, known, strict=True)]
    memory = [advise_fit.verdict(target, draft, question.layout, question.chip) for draft in (None, *drafts)]
    report: dict[str, Any] = {
        "target": {"name": target.name, "parameters": target.count, "plain_seconds": _plain(question)},
        "device": _device(question),
        "layout": dataclasses.asdict(question.layout) | {"devices": question.layout.devices},
        "drafts": [each | {"memory": held} for each, held in zip(found, memory[1:], strict=True)],
        "memory": memory[0],
        "notes": [*advise_fit.notes(target, drafts, question.layout, question.chip), *question.notes],
    }
    return report | {"recommendation": advise_words.recommendation(report)}


def check(options: Options) -> None:
    """Refuse what can be refused before anything is looked for."""
    decode.windows_for(options.lookahead)
    least = {"rows": 1, "context": 1, "lookahead": 1}
    for name, low in least.items():
        value = getattr(options, name)
        if value is not None and value < low:
            raise ValueError(f"{name} is {value}; it must be {low} or more")
    for name in ("bandwidth", "flops", "memory", "overhead"):
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and (value > 0 or (name == "overhead" and value == 0))):
            raise ValueError(f"{name} is {value}; it must be a number above 0")
    if options.dtype is not None and options.dtype not in DTYPES:
        raise ValueError(f"dtype {options.dtype!r} is unknown; choose {', '.join(DTYPES)}")
    if len(set(options.drafts)) != len(options.drafts):
        raise ValueError(f"drafts {', '.join(options.drafts)} have a name twice; give each once")
    if options.plot is not None and find_spec("matplotlib") is None:
        raise ValueError("the plot needs matplotlib, which is missing; pip install -e '.[bench]', or leave --plot out")
    for path in (options.plot, options.json):
        if path not in (None, "-") and (not Path(path).absolute().parent.is_dir() or Path(path).is_dir()):
            raise ValueError(f"cannot write {path}: give a file in a folder that exists")


def ask(options: Options, target: Model, timed: Sequence[Timed]) -> Question:
    """Layout and device of the options; this machine is measured where it is meant and nothing else says it.

    Raises:
        ValueError: an unknown chip, a mesh that is not the topology's, a context that the target does not have.
    """
    here = options.chip == CPU or (options.chip is None and options.bandwidth is None)
    chip, count = (None, None) if options.chip in (None, CPU) else chips.named(str(options.chip))
    sizes = sharding.mesh_sizes(options.mesh or f"model={count or 1}")
    devices = math.prod(sizes.values())
    if count is not None and devices != count:
        raise ValueError(
            f"mesh {options.mesh!r} takes {devices} devices and {options.chip} has {count}; make them agree"
        )
    most = None if target.config is None else target.config.max_positions
    context = options.context or min(CONTEXT, most or CONTEXT)
    if most is not None and context > most:
        raise ValueError(f"context is {context}; the target has {most} positions, so give at most that")
    dtype = options.dtype or ("float32" if here else "bfloat16")
    layout = Layout(
        rows=options.rows,
        context=context,
        dtype=dtype,
        **sizes,
        shard_drafts=options.shard_drafts,
        lookahead=options.lookahead,
    )
    one = _overridden(options, chip, dtype, devices, here=here)
    here = here and options.bandwidth is None and options.flops is None
    alone = here and layout.rows == 1 and devices == 1
    notes = (
        [] if alone or not timed else ["the telemetry's timings are of one row on the machine that made them: not used"]
    )
    clock = Clock(one, layout.rows_on_device, options.overhead * 1e-6)
    return Question(target, layout, one, clock, next(iter(timed), None) if alone else None, here, tuple(notes))


def _overridden(options: Options, chip: chips.Chip | None, dtype: str, devices: int, *, here: bool) -> chips.Chip:
    """One device: what is given, else the chip's, else this machine's, which its devices share."""
    told = {"bandwidth": options.bandwidth and options.bandwidth * 1e9, "flops": options.flops and options.flops * 1e12}
    told = {name: value for name, value in told.items() if value is not None}
    if options.memory is not None:
        told["memory"] = int(options.memory * chips.GB)
    if chip is None and not here:
        chip = chips.Chip("a device of these sizes", 0, 0.0, math.inf)
    elif chip is None and {"bandwidth", "flops"} <= told.keys():
        chip = chips.Chip("this machine", (memory_bytes() or 0) // devices, 0.0, 0.0)
    elif chip is None:
        whole = chips.host(jnp.dtype(dtype))
        chip = chips.Chip(whole.name, whole.memory // devices, whole.bandwidth / devices, whole.flops / devices)
    return dataclasses.replace(chip, **told)


def _plain(question: Question) -> float:
    if question.timed is not None:
        return question.timed.at(1)
    return question.clock.seconds(advise_costs.target_work(question.target, question.layout), 1)


def _device(question: Question) -> dict[str, Any]:
    chip = question.chip
    return {
        "name": chip.name,
        "memory": chip.memory or None,
        "bandwidth": chip.bandwidth,
        "flops": chip.flops if math.isfinite(chip.flops) else None,
        "overhead_seconds": question.clock.overhead,
    }


def _draft(question: Question, draft: Candidate, known: Known | None) -> dict[str, Any]:
    """Everything about one draft but its memory."""
    basis, costs = _costs(question, draft)
    rates = None if known is None else known.rates
    least = expected.least_break_even(costs)
    report: dict[str, Any] = {
        "name": draft.name,
        "source": draft.source,
        "kind": draft.kind,
        "note": draft.note,
        "vocabulary": vocabulary(question.target, draft),
        "acceptance": None if known is None else {"rates": list(known.rates), "origin": known.origin},
        "basis": basis,
        "break_even": None if least is None else {"acceptance": least[0], "lookahead": least[1]},
        "choices": [_choice(k, costs, rates) for k in range(1, costs.most + 1)],
        "at": [{"acceptance": a} | _best(a, costs) for a in GRID],
        "best": None if rates is None else _best(rates, costs),
        "affordable_draft": None if rates is None else expected.affordable_draft(rates, costs),
        "draft_step": _step(costs),
    }
    pays = report["best"] is not None and report["best"]["lookahead"] > 0
    limit = _rows_limit(question, draft, rates) if pays and basis == ROOFLINE else None
    return report | {"rows_limit": limit, "sharded": _sharded(question, draft, rates)}


def _step(costs: Costs) -> float:
    """Plain steps that one draft more takes; all of them at once where that is what a source does."""
    last = min(2, costs.most)
    return (costs.draft[last] - costs.draft[last - 1] or costs.draft[1]) / costs.verify[0]


def _sharded(question: Question, draft: Candidate, rates: Sequence[float] | None) -> dict[str, Any] | None:
    """A model draft that lies whole on every device, if it were split as the target is; None for any other."""
    layout = question.layout
    if draft.model is None or layout.model == 1 or layout.shard_drafts:
        return None
    split = dataclasses.replace(layout, shard_drafts=True)
    costs = advise_costs.costs(question.target, draft, split, question.clock)
    return {"draft_step": _step(costs), "best": None if rates is None else _best(rates, costs)}


ROOFLINE, TIMED, ROUNDS, CALIBRATED = "roofline", "timed", "timed rounds", "calibrated"


def _costs(question: Question, draft: Candidate) -> tuple[str, Costs]:
    """Where costs come from, and the costs."""
    if question.here:
        stored = advise_costs.measured(question.target, draft, question.layout, question.layout.lookahead)
        if stored is not None:
            return CALIBRATED, stored
    timed = question.timed
    found = advise_costs.costs(question.target, draft, question.layout, question.clock, timed)
    if timed is None:
        return ROOFLINE, found
    return (TIMED if advise_costs.rounds_of(draft, timed) is None and draft.kind not in FREE else ROUNDS), found


def _choice(k: int, costs: Costs, rates: Sequence[float] | None) -> dict[str, Any]:
    cost = expected.round_cost(k, costs)
    return {
        "lookahead": k,
        "draft_seconds": costs.catch_up + costs.draft[k],
        "verify_seconds": costs.verify[k],
        "cost": cost,
        "break_even": expected.break_even(k, costs),
        "tokens": None if rates is None else expected.expected_tokens(rates, k),
        "speedup": None if rates is None else expected.speedup(rates, k, costs),
        "at": {str(a): expected.speedup(a, k, costs) for a in GRID},
    }


def _best(rates: expected.Acceptance, costs: Costs) -> dict[str, Any]:
    k = expected.best_lookahead(rates, costs)
    tokens, speed = expected.expected_tokens(rates, k), expected.speedup(rates, k, costs)
    return {"lookahead": k, "tokens": tokens, "cost": expected.round_cost(k, costs), "speedup": speed}


def _rows_limit(question: Question, draft: Candidate, rates: Sequence[float] | None) -> int | None:
    """Rows, in doublings, from which a draft that pays no longer does; None where it does up to `BATCHES` times."""
    assert rates is not None
    rows = question.layout.rows
    while rows < question.layout.rows * BATCHES:
        rows *= 2
        layout = dataclasses.replace(question.layout, rows=rows)
        clock = dataclasses.replace(question.clock, rows=layout.rows_on_device)
        if expected.best_lookahead(rates, advise_costs.costs(question.target, draft, layout, clock)) == 0:
            return rows
    return None
