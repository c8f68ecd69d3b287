"""Whether an engine fits its devices, what to do where it does not, and what of its layout a user should know."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from jaxspec.bench.advise_memory import Held, Layout, held
from jaxspec.bench.advise_models import Candidate, Model
from jaxspec.bench.chips import Chip

MORE = 64
"""Times the devices, up to which a fit is looked for."""

REMEDIES = 3
"""Ways out that are named."""


def verdict(target: Model, draft: Candidate | None, layout: Layout, chip: Chip) -> dict[str, Any]:
    """Bytes on each device by what they hold, whether they fit, and what to do where they do not.

    `fits` is None where the chip's memory is not known. Temporaries and the program come on top.
    """
    found = held(target, draft, layout)
    fits = None if not chip.memory else found.total <= chip.memory
    report: dict[str, Any] = {**found._asdict()}
    report |= {"total": found.total, "memory": chip.memory or None, "fits": fits}
    spare = chip.memory - found.total if chip.memory else None
    remedies = [] if fits is not False else remedied(target, draft, layout, chip, found)
    return report | {"spare": spare, "remedies": remedies}


def remedied(target: Model, draft: Candidate | None, layout: Layout, chip: Chip, found: Held) -> list[str]:
    """What would make it fit, at most `REMEDIES` ways, each tried."""

    def fits(other: Layout) -> bool:
        return held(target, draft, other).total <= chip.memory

    ways = [say for say, other in _alternatives(draft, layout) if fits(other)]
    rows = _rows(layout, chip, found)
    ways = [*([f"{rows} row{'s' * (rows > 1)} of {layout.context} tokens"] if rows else []), *ways]
    if len(ways) < REMEDIES:
        ways += _more(target, draft, layout, chip)
    return ways[:REMEDIES]


def _alternatives(draft: Candidate | None, layout: Layout) -> Iterator[tuple[str, Layout]]:
    if layout.dtype == "float32":
        yield "--dtype bfloat16", dataclasses.replace(layout, dtype="bfloat16")
    if draft is not None and draft.model is not None and layout.model > 1 and not layout.shard_drafts:
        yield "--shard-drafts (the draft split as the target is)", dataclasses.replace(layout, shard_drafts=True)
    for data in _shares(layout.devices, layout):
        model = layout.devices // data
        if data != layout.data:
            yield f"--mesh data={data},model={model}", dataclasses.replace(layout, data=data, model=model)


def _rows(layout: Layout, chip: Chip, found: Held) -> int:
    """The most rows that fit; 0 where none do."""
    fixed = found.target + found.drafts
    each = (found.total - fixed) / layout.rows_on_device
    return math.floor((chip.memory - fixed) / each) * layout.data if each and fixed < chip.memory else 0


def _more(target: Model, draft: Candidate | None, layout: Layout, chip: Chip) -> list[str]:
    """The fewest devices that hold it, by doublings, and the mesh that leaves most room."""
    devices = layout.devices
    while devices < layout.devices * MORE:
        devices *= 2
        meshes = [dataclasses.replace(layout, data=data, model=devices // data) for data in _shares(devices, layout)]
        best = min(meshes, key=lambda other: held(target, draft, other).total)
        if held(target, draft, best).total <= chip.memory:
            return [f"{devices} devices, --mesh data={best.data},model={best.model}"]
    return []


def _shares(devices: int, layout: Layout) -> list[int]:
    """Sizes of the data axis that divide the devices and the rows."""
    return [data for data in range(1, devices + 1) if devices % data == 0 and layout.rows % data == 0]


def notes(target: Model, drafts: Sequence[Candidate], layout: Layout, chip: Chip) -> list[str]:
    """What a reader of the numbers should know, in sentences."""
    out = [draft.note for draft in drafts if draft.note]
    config = target.config
    if config is None:
        out.append(f"of {target.name} only the size is known, so its caches are not counted")
    elif config.num_kv_heads % layout.model:
        out.append(
            f"{config.num_kv_heads} key-value heads do not divide model={layout.model}, so each device of it holds "
            "all of them, and the whole of its rows' caches"
        )
    sized = [draft.name for draft in drafts if draft.model is not None and draft.model.config is None]
    if sized:
        out.append(f"of {', '.join(sized)} only the size is known, so its caches are not counted")
    if layout.shard_drafts:
        out.append(
            "scripts/generate.py keeps drafts whole on every device; to split one, place `EngineParams.drafts` by "
            "jaxspec.sharding.param_shardings"
        )
    if layout.rows % layout.data:
        out.append(f"{layout.rows} rows do not divide data={layout.data}, so every device has all of them")
    if not math.isfinite(chip.flops):
        out.append("no --flops was given, so passes over more tokens or rows are taken to cost nothing more")
    return out
