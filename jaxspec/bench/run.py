"""One benchmark from its options to its report."""

import dataclasses
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxspec.bench import contenders as who
from jaxspec.bench import summary
from jaxspec.bench.measure import Timing, Told, measure
from jaxspec.bench.micro import READ_BYTES, step_costs
from jaxspec.bench.provenance import load as machine_load
from jaxspec.bench.provenance import provenance
from jaxspec.bench.rows import by_rows, room
from jaxspec.contracts import Setup
from jaxspec.decode import DEFAULT_LOOKAHEAD
from jaxspec.files import check_place
from jaxspec.machine import cores
from jaxspec.pipeline import Pipeline, load
from jaxspec.sources import PREFERRED, check_draft, chosen
from jaxspec.text import Case, read_cases

PEERS = ("transformers",)

TIMING = {
    "tokens_per_second": "the whole call on both sides: prompt ids in, output ids out, prefill included",
    "decode_tokens_per_second": (
        "after the prefill; ours makes every token then, the peer's prefill pass makes its first ones, "
        "which are left out of its count"
    ),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """What a run compares, and on what."""

    prompts: str
    target: str = "smollm2-135m-instruct"
    drafts: tuple[str, ...] | None = None  # as in `jaxspec.load`
    modes: tuple[str, ...] = ("rule", "fixed:none")
    per_category: int | None = None  # prompts of each category; all where None
    max_new_tokens: int = 96
    repeats: int = 1
    rows: tuple[int, ...] = ()  # then every mode also runs with so many rows side by side
    peer: str | None = None  # one of PEERS
    lookahead: int = DEFAULT_LOOKAHEAD
    dtype: str = "float32"
    temperature: float = 0.0
    seed: int = 0
    json: str | None = None  # file to write, checked before the run
    plot: str | None = None  # .png to write, checked before the run
    report: str | None = None  # .html to write, checked before the run
    read_bytes: int = READ_BYTES


def bench(options: Options, *, told: Told | None = None) -> dict[str, Any]:
    """Run it and return the report, a JSON object.

    Raises:
        ValueError: bad input, before anything is compiled.
    """
    cases = check(options)
    load_before = machine_load()
    named = chosen(options.modes, PREFERRED)
    pipeline = load(
        options.target,
        drafts=("lookup", *named) if options.drafts is None and named else options.drafts,
        lookahead=options.lookahead,
        dtype=options.dtype,
        progress=None if told is None else lambda name, done, total: told(f"loading {name}", done, total),
    )
    options = dataclasses.replace(options, drafts=pipeline.drafts)
    prompts = [pipeline.encode(case.prompt, chat=True) for case in cases]
    made = who.setups(pipeline, options.modes, sampled=options.temperature > 0)
    capacity = who.shared_capacity(made, prompts, options.max_new_tokens)
    if options.rows:
        room(made, prompts)  # refuses what will not fit before anything is timed
    everyone = contenders(options, pipeline, made, capacity)
    timings = measure(everyone, prompts, max_new_tokens=options.max_new_tokens, repeats=options.repeats, told=told)
    costs = step_costs(
        made[who.PLAIN],
        pipeline.params,
        prompts[0],
        widths=sorted({width for setup in made.values() for width in setup.windows}),
        capacity=capacity,
        dtype=pipeline.dtype,
        read_bytes=options.read_bytes,
        told=told,
    )
    report = assemble(options, cases, prompts, everyone, timings, costs)
    if options.rows:
        side_by_side = {"temperature": options.temperature, "seed": options.seed, "repeats": options.repeats}
        report["rows"] = by_rows(pipeline, made, prompts, options.rows, told=told, **side_by_side)
    return report | {"capacity": capacity, "load_before": load_before, "provenance": provenance()}


def contenders(options: Options, pipeline: Pipeline, made: dict[str, Setup], capacity: int) -> list[who.Contender]:
    """The plain loop, each mode, and the peer's ways where there is one."""
    ask = who.Ask(tuple(pipeline.target.tokenizer.eos_ids), options.temperature, options.seed)
    everyone = [who.ours(pipeline, name, setup, ask, capacity=capacity) for name, setup in made.items()]
    if options.peer is not None:
        from jaxspec.bench import peer  # brings torch, which nothing else needs

        everyone += peer.contenders(pipeline, ask, threads=cores())
    return everyone


def check(options: Options) -> list[Case]:
    """Refuse whatever can be refused before a weight is loaded; the run's prompts."""
    for draft in options.drafts or ():
        check_draft(draft)
    who.check_modes(options.modes, ("lookup", *PREFERRED) if options.drafts is None else options.drafts)
    if options.repeats < 1:
        raise ValueError(f"repeats is {options.repeats}; it must be 1 or more")
    if any(count < 1 for count in options.rows):
        raise ValueError(f"rows are {', '.join(map(str, options.rows))}; each must be 1 or more")
    if options.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {options.max_new_tokens}; it must be 1 or more")
    if options.peer is not None and options.peer not in PEERS:
        raise ValueError(f"peer {options.peer!r} is unknown; choose {', '.join(PEERS)}, or leave it out")
    if options.peer is not None and find_spec("torch") is None:
        raise ValueError("the peer needs torch, which is missing; pip install -e '.[parity]', or leave --peer out")
    if options.plot is not None and find_spec("matplotlib") is None:
        raise ValueError("the plot needs matplotlib, which is missing; pip install -e '.[bench]', or leave --plot out")
    for path in (options.json, options.plot):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise ValueError(f"cannot write {path}: its folder does not exist; make it first")
        if path is not None and Path(path).is_dir():
            raise ValueError(f"cannot write {path}: it is a folder; give a file's name")
        if path is not None and not os.access(path if Path(path).exists() else Path(path).absolute().parent, os.W_OK):
            raise ValueError(f"cannot write {path}: there is no permission to; give another place")
    if options.report is not None:
        check_place(options.report)
    return read_cases(options.prompts, per_category=options.per_category)


def assemble(
    options: Options,
    cases: list[Case],
    prompts: list[list[int]],
    everyone: list[who.Contender],
    timings: list[Timing],
    costs: dict[str, Any],
) -> dict[str, Any]:
    """The report but for where it was made."""
    names = [contender.name for contender in everyone]
    categories = [case.category for case in cases]
    results = summary.summarise(timings, everyone, categories)
    comparable = [c.name for c in everyone if c.kind == who.MODE or (c.kind == who.PEER and options.temperature == 0)]
    plain = results["overall"][who.PLAIN]
    plain_step = plain["decode_seconds"] / max(plain["decode_tokens"], 1)
    runs = summary.raw(timings, names)
    return {
        "options": dataclasses.asdict(options),
        "timing": TIMING,
        "contenders": {c.name: {"kind": c.kind, "sources": c.sources, "windows": c.windows} for c in everyone},
        "results": results,
        "telemetry": summary.by_domain(timings, everyone, categories),
        "equality": summary.equality(timings, comparable, [case.name for case in cases]),
        "steps": costs | {"loop_step_seconds": plain_step, "loop_step_to_floor": plain_step / costs["floor_seconds"]},
        "switch_overhead": summary.switch_overhead(results["overall"]),
        "compilations_after_warmup": sum(timing.compilations for timing in timings),
        "prompts": [
            {"id": case.name, "category": case.category, "prompt_tokens": len(prompt), "runs": run}
            for case, prompt, run in zip(cases, prompts, runs, strict=True)
        ],
    }
