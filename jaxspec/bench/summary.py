"""From timings to numbers: medians over the repeats, totals and ratios by category, and whether the tokens agree."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.bench.contenders import MODE, PEER, PLAIN, Contender
from jaxspec.bench.measure import Timing
from jaxspec.telemetry import Tally, stats

WHOLE, DECODE = "tokens_per_second", "decode_tokens_per_second"


def summarise(
    timings: Sequence[Timing], contenders: Sequence[Contender], categories: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """{"overall": {contender: totals and ratios}, "categories": {category: the same}}.

    Args:
        categories: of each prompt, in the order of the run.

    A group's tokens/s is its tokens over the sum of each prompt's median seconds, so that long answers weigh more and
    a slow repeat does not. Ratios are of tokens/s: to our plain loop, and to the fastest peer of the group.
    """
    groups: dict[str, list[int]] = {}
    for index, category in enumerate(categories):
        groups.setdefault(category, []).append(index)
    return {
        "overall": _group(timings, contenders, list(range(len(categories)))),
        "categories": {name: _group(timings, contenders, prompts) for name, prompts in groups.items()},
    }


def _group(timings: Sequence[Timing], contenders: Sequence[Contender], prompts: list[int]) -> dict[str, dict[str, Any]]:
    rows = {contender.name: totals(timings, contender, prompts) for contender in contenders}
    kinds = {contender.name: contender.kind for contender in contenders}
    for row in rows.values():
        for key in (WHOLE, DECODE):
            plain = [rows[name][key] for name, kind in kinds.items() if kind == PLAIN]
            peers = [rows[name][key] for name, kind in kinds.items() if kind == PEER]
            row[f"{key}_to_plain"] = _ratio(row[key], max(plain, default=0.0))
            row[f"{key}_to_peer_best"] = _ratio(row[key], max(peers, default=0.0))
    return rows


def totals(timings: Sequence[Timing], contender: Contender, prompts: Sequence[int]) -> dict[str, Any]:
    """What a contender did on some prompts: tokens, seconds, and what its sources did where it has counters."""
    each = [[t.run for t in timings if t.contender == contender.name and t.prompt == prompt] for prompt in prompts]
    firsts = [runs[0] for runs in each]
    seconds = sum(statistics.median(run.seconds for run in runs) for runs in each)
    decode_seconds = sum(statistics.median(run.decode_seconds for run in runs) for runs in each)
    tokens, rounds = sum(len(run.tokens) for run in firsts), sum(run.rounds for run in firsts)
    decode_tokens = sum(run.decode_tokens for run in firsts)
    row: dict[str, Any] = {"prompts": len(prompts), "tokens": tokens, "rounds": rounds}
    row |= {"mean_accepted_tokens": _ratio(tokens, rounds), "acceptance_rate": None, "sources": {}}
    counted = [run.counters for run in firsts if run.counters is not None]
    if counted:
        summed = jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *counted)
        row |= stats(summed, contender.sources, rounds=rounds, seconds=decode_seconds, windows=contender.windows)
    return row | {
        "seconds": seconds,
        WHOLE: _ratio(tokens, seconds) or 0.0,
        "decode_tokens": decode_tokens,
        "decode_seconds": decode_seconds,
        DECODE: _ratio(decode_tokens, decode_seconds) or 0.0,
    }


def by_domain(
    timings: Sequence[Timing], contenders: Sequence[Contender], categories: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Telemetry of each mode by category and source, as `jaxspec.telemetry.ByDomain.as_dict` has it.

    Decoding seconds, each prompt's median, are shared out by the costs that a mode of the run was given, else by a fit
    to the prompts. Tokens won are over the plain loop's speed in the category.
    """
    price = next((contender.price for contender in contenders if contender.price is not None), None)
    plain = [contender for contender in contenders if contender.kind == PLAIN]
    prompts = {name: [i for i, each in enumerate(categories) if each == name] for name in dict.fromkeys(categories)}
    speeds = {name: totals(timings, each, mine)[DECODE] for name, mine in prompts.items() for each in plain}
    found: dict[str, dict[str, Any]] = {}
    for contender in contenders:
        if contender.kind != MODE:
            continue
        tally = Tally(contender.sources)
        for prompt, category in enumerate(categories):
            runs = [t.run for t in timings if t.contender == contender.name and t.prompt == prompt]
            if runs[0].counters is not None:
                seconds = statistics.median(run.decode_seconds for run in runs)
                tally.take(runs[0].counters, seconds, [category])
        found[contender.name] = tally.by_domain(price=price, plain=speeds).as_dict()
    return found


def raw(timings: Sequence[Timing], names: Sequence[str]) -> list[dict[str, Any]]:
    """Every prompt's every timing, by contender, in the order of the repeats."""
    prompts = 1 + max(t.prompt for t in timings)
    found: list[dict[str, Any]] = []
    for prompt in range(prompts):
        runs = {name: [t.run for t in timings if t.contender == name and t.prompt == prompt] for name in names}
        found.append(
            {
                name: {
                    "tokens": len(each[0].tokens),
                    "rounds": each[0].rounds,
                    "seconds": [run.seconds for run in each],
                    "decode_seconds": [run.decode_seconds for run in each],
                }
                for name, each in runs.items()
            }
        )
    return found


def equality(timings: Sequence[Timing], names: Sequence[str], prompt_names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each contender: answers compared with the plain loop's, how many are equal, and where the others part."""
    reference = {(t.prompt, t.repeat): t.run.tokens for t in timings if t.contender == PLAIN}
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        mine = [t for t in timings if t.contender == name]
        pairs = [(t, reference[t.prompt, t.repeat]) for t in mine]
        apart = [_parting(t, plain) | {"prompt": prompt_names[t.prompt]} for t, plain in pairs if t.run.tokens != plain]
        found[name] = {"compared": len(pairs), "equal": len(pairs) - len(apart), "mismatches": apart}
    return found


def _parting(timing: Timing, plain: list[int]) -> dict[str, Any]:
    """Where two different answers part; None is the token of an answer that has ended there."""
    tokens = timing.run.tokens
    shared = min(len(tokens), len(plain))
    at = next((i for i in range(shared) if tokens[i] != plain[i]), shared)
    here, there = ((row[at] if at < len(row) else None) for row in (tokens, plain))
    return {"repeat": timing.repeat, "position": at, "token": here, "plain_token": there}


def switch_overhead(overall: Mapping[str, Mapping[str, Any]]) -> dict[str, float] | None:
    """What selector and switch cost where nothing is drafted: fixed:none against the plain loop, decoding alone."""
    if "fixed:none" not in overall:
        return None
    plain, none = (_seconds_a_token(overall[name]) for name in (PLAIN, "fixed:none"))
    return {"plain_seconds_per_token": plain, "seconds_per_token": none, "ratio": none / plain if plain else 0.0}


def _seconds_a_token(row: Mapping[str, Any]) -> float:
    return row["decode_seconds"] / max(row["decode_tokens"], 1)


def _ratio(part: float | int, whole: float | int) -> float | None:
    return part / whole if whole else None
