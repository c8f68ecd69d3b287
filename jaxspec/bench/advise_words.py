"""A report as a plain recommendation: use it or not, how, from where it loses, and what would change that."""

from collections.abc import Mapping
from typing import Any

from jaxspec.bench.advise_models import FREE

MARGIN = 1.02
"""Speed-up below which a draft is not worth its trouble."""

SMALL = 0.01
"""Plain steps below which nothing is said of a draft's cost."""

EXAMPLE = 0.7
"""Acceptance that a draft of unknown acceptance is imagined with."""

BASIS = {
    "roofline": "Times are the least that the device's memory and arithmetic allow, not measured; rounds of many small "
    "passes come off worse than that.",
    "timed": "The target's passes were timed on this machine; a draft of which no rounds were has its least times "
    "scaled alike, and comes off worse than that.",
    "timed rounds": "The target's passes were timed on this machine, and so were rounds of a draft that has any cost.",
    "calibrated": "Times were calibrated on this machine.",
}


def recommendation(report: Mapping[str, Any]) -> str:
    """A paragraph a draft, best first, and what the numbers rest on."""
    small = report["memory"]["fits"] is False
    drafts = sorted(report["drafts"], key=_rank)
    best = next((each["name"] for each in drafts if usable(each) and pays(each)), None)
    said = [_crowded(report["target"]["name"], report["memory"])] if small else []
    if len(drafts) > 1 and best is None:
        said.append("None of these is known to pay.")
    said += [" ".join(about(each, small=small, first=each["name"] == best)) for each in drafts]
    return "\n".join([*said, *(BASIS[basis] for basis in dict.fromkeys(each["basis"] for each in drafts))])


def pays(draft: Mapping[str, Any]) -> bool:
    """Whether it is worth using at its own acceptance."""
    return draft["best"] is not None and draft["best"]["speedup"] >= MARGIN


def usable(draft: Mapping[str, Any]) -> bool:
    """Whether it can run at all."""
    return draft["vocabulary"]["verdict"] != "other" and draft["memory"]["fits"] is not False


def _rank(draft: Mapping[str, Any]) -> tuple[bool, bool, float]:
    """Best first."""
    speed = draft["best"]["speedup"] if draft["best"] else 0.0
    return not usable(draft), draft["best"] is None, -speed


def about(draft: Mapping[str, Any], *, small: bool = False, first: bool = True) -> list[str]:
    """Sentences on one draft.

    Args:
        small: the devices do not hold the target alone, which is said elsewhere.
        first: no other is better.
    """
    name, least = draft["name"], draft["break_even"]
    if draft["vocabulary"]["verdict"] == "other":
        return [f"Do not use {name}: {draft['vocabulary']['text']}."]
    full = draft["memory"]["fits"] is False and not small
    crowded = [_crowded(f"the target with {name}", draft["memory"])] if full else []
    if least is None:
        longest = draft["choices"][-1]
        return [
            *crowded,
            f"Do not use {name}: it cannot pay, since even if every draft were accepted a round of "
            f"{longest['lookahead']} gives {longest['lookahead'] + 1} tokens for {longest['cost']:.2f} plain steps.",
            *_split(draft),
        ]
    if draft["best"] is None:
        return [*crowded, *_unknown(draft)]
    free = ["That is of rounds in which it has a draft; the others are plain steps."] if draft["kind"] in FREE else []
    return [*crowded, *(_use(draft, first=first) if pays(draft) else _leave(draft)), *free]


def _use(draft: Mapping[str, Any], *, first: bool) -> list[str]:
    best, least = draft["best"], draft["break_even"]
    own = draft["choices"][best["lookahead"] - 1]["break_even"]
    verb = "Where it fits, use" if not usable(draft) else "Use" if first else "Or use"
    out = [
        f"{verb} {draft['name']} with lookahead {best['lookahead']}: at an acceptance of {_rates(draft)} a round gives "
        f"{best['tokens']:.2f} tokens for {best['cost']:.2f} plain steps, {best['speedup']:.2f} times plain decoding.",
        f"With that lookahead it loses below an acceptance of {own or 0:.2f}"
        + ("." if own == least["acceptance"] else f", with {least['lookahead']} below {least['acceptance']:.2f}."),
    ]
    afford = draft["affordable_draft"]
    if draft["draft_step"] >= SMALL and draft["kind"] != "medusa":  # whose drafts come all at once
        out.append(
            f"A draft costs {draft['draft_step']:.2f} plain steps and may cost {afford:.2f} before it no longer pays."
        )
    if draft["rows_limit"] is not None:
        out.append(f"With {draft['rows_limit']} rows and more side by side it no longer pays.")
    return [*out, *_split(draft)]


def _leave(draft: Mapping[str, Any]) -> list[str]:
    least, best = draft["break_even"], max(draft["choices"], key=lambda row: row["speedup"])
    out = [
        f"Do not use {draft['name']}: at an acceptance of {_rates(draft)} its best is {best['speedup']:.2f} times "
        f"plain decoding; it pays from an acceptance of {least['acceptance']:.2f} at every depth, with lookahead "
        f"{least['lookahead']}."
    ]
    if draft["affordable_draft"] >= SMALL and draft["draft_step"] >= SMALL:
        out.append(
            f"Or with drafts that cost less than {draft['affordable_draft']:.2f} plain steps each; these cost "
            f"{draft['draft_step']:.2f}."
        )
    return [*out, *_split(draft)]


def _split(draft: Mapping[str, Any]) -> list[str]:
    """What splitting the draft over the devices would change."""
    if draft["sharded"] is None:
        return []
    best = draft["sharded"]["best"]
    gain = (
        "" if best is None else f", and its best is {best['speedup']:.2f} times plain (lookahead {best['lookahead']})"
    )
    return [
        f"Split as the target is (--shard-drafts) a draft costs {draft['sharded']['draft_step']:.2f} plain steps{gain}."
    ]


def _unknown(draft: Mapping[str, Any]) -> list[str]:
    least = draft["break_even"]
    at = next(each for each in draft["at"] if each["acceptance"] == EXAMPLE)
    gain = (
        f"at {EXAMPLE} it is {at['speedup']:.2f} times plain decoding with lookahead {at['lookahead']}"
        if at["lookahead"]
        else f"at {EXAMPLE} it does not"
    )
    mode = f"fixed:{draft['source']}:{draft['choices'][-1]['lookahead']}"
    measure = f"measure it with scripts/bench.py --modes {mode} --json FILE and give that as --telemetry, or "
    sized = draft["memory"]["draft_caches"] is None  # there is nothing to run
    return [
        f"{draft['name']} pays from an acceptance of {least['acceptance']:.2f} (lookahead {least['lookahead']}); "
        f"{gain}.",
        f"Its own is not known: {'' if sized else measure}guess it with --acceptance.",
        *_split(draft),
    ]


def _crowded(what: str, memory: Mapping[str, Any]) -> str:
    ways = "; ".join(memory["remedies"])
    advice = f"it would with {ways}" if ways else "take a smaller model, or devices with more memory"
    short = -memory["spare"] / 1e9
    return f"{what[0].upper()}{what[1:]} does not fit, by {short:.2f} GB on each device: {advice}."


def _rates(draft: Mapping[str, Any]) -> str:
    rates = draft["acceptance"]["rates"]
    return ", ".join(f"{rate:.2f}" for rate in rates) + (" by depth" if len(rates) > 1 else "")
