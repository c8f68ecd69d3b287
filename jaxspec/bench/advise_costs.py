"""What a step, a draft and a verification cost: measured where they were, else the least that the device allows.

A pass takes max(bytes read / bandwidth, operations / peak) and what it costs whatever it does (launches, exchanges),
on one device. Bytes are the weights that lie there, less an embedding of which only rows are read, and every slot of
the caches; operations are 2 a weight and token, and the products with the caches.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspec import decode
from jaxspec.bench.advise_memory import Layout, Parts, draft_parts, numbers, target_parts, trained_shapes
from jaxspec.bench.advise_models import FREE, Candidate, Model
from jaxspec.bench.chips import Chip
from jaxspec.costs import every, make_key
from jaxspec.drafts.jacobi import jacobi
from jaxspec.models import ModelConfig
from jaxspec.models.heads import DraftConfig
from jaxspec.select.cost import CostTable, widths_of
from jaxspec.select.expected import Costs

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"

NEARLY = 0.9
"""Share of a mode's rounds that a source must have for them to be timed as its own."""

NEAR = 0.02
"""By how much the weights that a report timed may differ from those asked about."""


class Work(NamedTuple):
    """What a pass does on one device; works add up."""

    read: float = 0.0  # bytes, whatever the number of tokens
    weights: float = 0.0  # numbers that every token is multiplied by
    attention: float = 0.0  # operations a token besides

    def plus(self, other: "Work") -> "Work":
        """Both, one after the other."""
        return Work(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclasses.dataclass(frozen=True)
class Clock:
    """How long work takes on one device."""

    chip: Chip
    rows: int  # of this device
    overhead: float = 0.0  # seconds of every pass besides

    def seconds(self, work: Work, tokens: int) -> float:
        """Of a pass over `tokens` tokens a row."""
        operations = tokens * self.rows * (2 * work.weights + work.attention)
        return max(work.read / self.chip.bandwidth, operations / self.chip.flops) + self.overhead


@dataclasses.dataclass(frozen=True)
class Timed:
    """What `scripts/bench.py --json` timed on this machine, of one row."""

    seconds: Mapping[int, float]  # of a target's pass by window width
    weights: float  # bytes that a pass reads
    drafting: Mapping[str, tuple[int, float]] = dataclasses.field(default_factory=dict)
    """Lookahead, and seconds of a round besides the target's pass, of sources that had nearly all rounds of a mode."""

    def at(self, width: int) -> float:
        """Seconds of a pass of a width, on a straight line between those timed, and on beyond them."""
        known = sorted(self.seconds)
        if width in self.seconds or len(known) == 1:
            return self.seconds.get(width, self.seconds[known[0]])
        right = next((i for i, each in enumerate(known) if each > width), len(known) - 1)
        low, high = known[max(right, 1) - 1], known[max(right, 1)]
        slope = (self.seconds[high] - self.seconds[low]) / (high - low)
        return max(self.seconds[low] + slope * (width - low), self.seconds[known[0]])


def measured(target: Model, draft: Candidate, layout: Layout, most: int) -> Costs | None:
    """Costs by lookahead 0 to `most` that a calibration of this machine has stored; None where there is none.

    Of the tables for this target, layout and lookahead that have the draft among their sources, the one for rows
    nearest in length.
    """
    if target.config is None or layout.shard_drafts:
        return None
    windows = decode.windows_for(most)
    names = ("none", draft.source)
    sizes: dict[str, Any] = {"dtype": layout.dtype, "rows": layout.rows, "windows": windows, "capacity": layout.context}
    asked = make_key(target.config, sources=names, mesh=_mesh(layout), **sizes)
    apart = {"sources": None, "capacity": None}
    fit = [each for each in every() if each.key | apart == asked.lasting | apart]
    fit = [each for each in fit if draft.source in each.key["sources"]]
    if not fit:
        return None
    best = min(fit, key=lambda each: abs(each.key["capacity"] - asked.capacity))
    return of_table(best.table, best.key["sources"].index(draft.source), windows)


def _mesh(layout: Layout) -> str:
    return "" if layout.devices == 1 else f"data={layout.data},model={layout.model}"


def of_table(table: CostTable, source: int, windows: tuple[int, ...]) -> Costs:
    """Costs of one source of a table, nothing to catch up.

    Args:
        source: its index in the setup that the table is of.
        windows: the setup's.
    """
    draft = np.asarray(table.draft, float)[source]
    verify = np.asarray(table.verify, float)[widths_of(windows, len(draft) - 1)]
    return Costs(tuple(verify.tolist()), tuple(draft.tolist()))


def costs(target: Model, draft: Candidate, layout: Layout, clock: Clock, timed: Timed | None = None) -> Costs:
    """Seconds by lookahead, from 0 to the most that source and layout allow; windows are padded as the engine does."""
    most = min(layout.lookahead, draft.most or layout.lookahead)
    windows = decode.windows_for(layout.lookahead)
    widths = [1, *(next(w for w in windows if w > k) for k in range(1, most + 1))]
    whole = target_work(target, layout)
    scale = 1.0 if timed is None else timed.at(1) / clock.seconds(whole, 1)
    spent = functools.partial(_scaled, clock, scale)
    if timed is not None:
        check_timed(timed, whole, layout)
    verified = [timed.at(width) if timed is not None else clock.seconds(whole, width) for width in widths]
    if draft.kind == "exit":
        return _exit(target, draft, layout, spent, widths, verified)
    if draft.kind == "jacobi":
        extra = _branch(draft)
        beside = [spent(whole, width + extra) if timed is None else timed.at(width + extra) for width in widths[1:]]
        return Costs((verified[0], *beside), (0.0,) * (most + 1))
    rounds = rounds_of(draft, timed)
    if draft.kind == "medusa":
        guessed = spent(_medusa_work(target, draft, layout), 1) if rounds is None else rounds[1]
        return Costs(tuple(verified), (0.0, *(guessed,) * most))
    step = 0.0 if draft.model is None and draft.trained is None else spent(_draft_work(target, draft, layout), 1)
    if rounds is not None:
        step = rounds[1] / rounds[0]
    return Costs(tuple(verified), tuple(step * k for k in range(most + 1)))


def rounds_of(draft: Candidate, timed: Timed | None) -> tuple[int, float] | None:
    """Lookahead of the draft's rounds that were timed, and what drafting took in them; None where none were."""
    if timed is None or draft.kind in ("exit", *FREE):  # whose drafting is no sum of equal passes
        return None
    return timed.drafting.get(draft.source)


def check_timed(timed: Timed, whole: Work, layout: Layout) -> None:
    """Refuse timings of another model or dtype."""
    own = whole.weights * layout.itemsize
    if abs(timed.weights - own) > NEAR * own:
        raise ValueError(
            f"the telemetry timed a target that reads {timed.weights / 1e6:.0f} MB of weights a step, this one reads "
            f"{own / 1e6:.0f} MB in {layout.dtype}; give the target and --dtype that it was made with"
        )


def _scaled(clock: Clock, scale: float, work: Work, tokens: int) -> float:
    return scale * clock.seconds(work, tokens)


def target_work(target: Model, layout: Layout) -> Work:
    """Of the whole target."""
    if target.config is None:
        count = target.count / layout.model
        return Work(count * layout.itemsize, count)
    return _model(target.config, target_parts(target.config, layout), layout)


def _model(config: ModelConfig, parts: Parts, layout: Layout) -> Work:
    """Of a whole model."""
    return _layers(parts, layout, range(config.num_layers)).plus(_output(config, parts.weights, layout))


def _layers(parts: Parts, layout: Layout, which: Sequence[int]) -> Work:
    """Of some layers with their caches."""
    prefixes = tuple(f"layers.{layer}." for layer in which)
    weights = numbers({name: shape for name, shape in parts.weights.items() if name.startswith(prefixes)})
    kept = [parts.keys[layer] for layer in which]
    cached = 2 * sum(map(math.prod, kept))
    query = next(shape for name, shape in parts.weights.items() if name.endswith("q_proj.weight"))
    # queries with keys, and their weights with values, at 2 operations each
    attention = 4 * query[0] * sum(shape[2] for shape in kept)
    return Work((weights + cached) * layout.itemsize, weights, attention)


def _output(config: ModelConfig, weights: Mapping[str, tuple[int, ...]], layout: Layout) -> Work:
    """Of the matrix that makes logits."""
    shape = weights[EMBEDDING if config.tie_embeddings else HEAD]
    return Work(math.prod(shape) * layout.itemsize, math.prod(shape))


def _draft_work(target: Model, draft: Candidate, layout: Layout) -> Work:
    """Of one draft of a model, of a distilled model or of a feature layer."""
    if draft.model is not None:
        config = draft.model.config
        if config is None:
            count = draft.model.count / (layout.model if layout.shard_drafts else 1)
            return Work(count * layout.itemsize, count)
        return _model(config, draft_parts(config, layout), layout)
    assert draft.trained is not None
    body = draft.trained.body
    layers = body.num_layers if draft.kind == "lm" else 1
    own = _trained_work(target, draft.trained, layout)
    slots = layout.rows_on_device * body.num_kv_heads * layout.context * body.head_dim
    attention = 4 * body.num_heads * body.head_dim * layout.context * layers
    return own.plus(Work(2 * slots * layers * layout.itemsize, 0, attention))


def _trained_work(target: Model, config: DraftConfig, layout: Layout) -> Work:
    """Of a trained draft's matrices, each once; the embedding is only looked up."""
    shapes = trained_shapes(target, config, layout)
    read = {name: leaf.shape for name, leaf in shapes.items() if len(leaf.shape) == 2 and name != EMBEDDING}
    return Work(numbers(read) * layout.itemsize, numbers(read))


def _medusa_work(target: Model, draft: Candidate, layout: Layout) -> Work:
    """Of all heads at once: a shared output matrix is read once and multiplied for every head."""
    assert draft.trained is not None
    work, config = _trained_work(target, draft.trained, layout), draft.trained
    shared = 0 if config.own_output else (config.heads - 1) * config.vocab * config.body.hidden_size
    return work._replace(weights=work.weights + shared)


def _exit(
    target: Model,
    draft: Candidate,
    layout: Layout,
    spent: Callable[[Work, int], float],
    widths: Sequence[int],
    verified: Sequence[float],
) -> Costs:
    """The first layers run while drafting, the last draft too; verification goes on from there.

    lookahead 2:    lower, output | lower, output | lower | upper and output over 3 tokens
    """
    config = target.config
    assert config is not None
    parts = target_parts(config, layout)
    lower = _layers(parts, layout, range(draft.layers))
    rest = target_work(target, layout)
    upper = Work(*(whole - part for whole, part in zip(rest, lower, strict=True)))
    output = _output(config, parts.weights, layout)
    said = output if draft.trained is None else _trained_work(target, draft.trained, layout)
    step, last = spent(lower.plus(said), 1), spent(lower, 1)
    # what was timed is a whole pass: its upper part is that share of it
    shares = [spent(upper, width) / spent(rest, width) for width in widths]
    above = [time * share for time, share in zip(verified, shares, strict=True)]
    drafted = (0.0, *(k * step + last for k in range(1, len(widths))))
    return Costs((verified[0], *above[1:]), drafted)


def _branch(draft: Candidate) -> int:
    """Nodes that ride in the target's window for jacobi."""
    sizes = [int(each) for each in draft.name.split(":")[1:]]
    source = jacobi(*sizes, lookahead=1)
    assert source.branch is not None
    return len(source.branch.parents) - 1  # the pending token is there anyway


def timed_of(report: Mapping[str, Any]) -> Timed | None:
    """What a report of `scripts/bench.py` timed; None where it is none.

    Raises:
        ValueError: timings that are broken.
    """
    steps = report.get("steps")
    if not isinstance(steps, Mapping):
        return None
    try:
        seconds = {int(width): float(row["seconds"]) for width, row in steps["windows"].items()}
        weights = float(steps["weight_bytes"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the telemetry's timings are broken ({error!r}); run scripts/bench.py --json again") from None
    if 1 not in seconds or min(seconds.values()) <= 0:
        raise ValueError("the telemetry has no time of a pass of width 1; run scripts/bench.py --json again")
    return Timed(seconds, weights, _drafting(report, Timed(seconds, weights)))


def _drafting(report: Mapping[str, Any], passes: Timed) -> dict[str, tuple[int, float]]:
    """From modes that fix a source and its lookahead: a round's seconds less those of the target's pass in it.

    In the same run plain steps took `loop_step_seconds`, by which rounds are brought to the pace of the passes.
    """
    pace = passes.at(1) / report["steps"].get("loop_step_seconds", passes.at(1))
    found: dict[str, tuple[int, float]] = {}
    overall = report.get("results", {}).get("overall", {})
    for mode, row in overall.items():
        source, _, count = mode.removeprefix("fixed:").rpartition(":")
        own = row.get("sources", {}).get(source, {}).get("rounds", 0)
        if mode.startswith("fixed:") and count.isdecimal() and int(count) > 0 and own > NEARLY * row["rounds"]:
            k = int(count)
            width = next(width for width in decode.windows_for(k) if width > k)
            found[source] = k, max(0.0, pace * row["decode_seconds"] / row["rounds"] - passes.at(width))
    return found
