"""What every source did on every kind of text: a table, a dict, JSON lines, Prometheus text. On the host.

looks at the counters ──► Tally.take, a kind of text a row ──► Tally.by_domain ──► ByDomain
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.table import Table

from jaxspec.telemetry.counters import Counters
from jaxspec.telemetry.exposition import exposition
from jaxspec.telemetry.report import Chunk, by_source, time_shares

ALL = "all"
"""Kind of text of rows about which nothing is known."""

COUNTED = ("rounds", "emitted", "proposed", "accepted", "catch_up")
"""Fields of `Counters` that are counted by row and source."""

FITTED = "timings of rounds"
"""Where seconds by source come from without a table of costs."""


class Price(NamedTuple):
    """What rounds cost, as far as it is known before they are timed."""

    name: str  # where it comes from, for people
    of: Callable[[Counters], np.ndarray]  # [B, N], what each row's rounds cost by source, a plain round being 1


class Done(NamedTuple):
    """What sources did on one kind of text; numpy, N sources, A drafts a round at the most. Two of them add up."""

    rounds: np.ndarray  # [N]
    emitted: np.ndarray  # [N] tokens
    proposed: np.ndarray  # [N, A] drafts
    accepted: np.ndarray  # [N, A] drafts
    catch_up: np.ndarray  # [N] tokens
    seconds: np.ndarray  # [N]
    plain_tokens: np.ndarray  # [N], what plain decoding gives in these seconds; nan where its speed is not known


@dataclasses.dataclass(frozen=True)
class ByDomain:
    """Telemetry by kind of text and source."""

    names: tuple[str, ...]  # of the sources, N
    domains: Mapping[str, Done]
    seconds_from: str  # what seconds were shared out by

    def as_dict(self) -> dict[str, Any]:
        """{"seconds_from", "domains": {domain: {totals, "sources": {source: numbers}}}}.

        Of a source: rounds, drafts proposed and accepted (in all and by depth), tokens, `mean_accepted_tokens` (tokens
        a round, the corrected or bonus token included), seconds, `share_of_time` of its domain in 0 to 1, and
        `tokens_won`: tokens less those that plain decoding gives in the same seconds; None where its speed is unknown.
        Drafts of a tail are its own source's, its round and tokens the head's. Ratios of nothing are 0.
        """
        domains = {domain: self._domain(done) for domain, done in self.domains.items()}
        return {"seconds_from": self.seconds_from, "domains": domains}

    def _domain(self, done: Done) -> dict[str, Any]:
        whole = float(done.seconds.sum())
        sources = by_source(self.names, *done[:5], shares=done.seconds / whole if whole > 0 else done.seconds)
        for name, seconds, won in zip(self.names, done.seconds, done.emitted - done.plain_tokens, strict=True):
            sources[name] |= {"seconds": float(seconds), "tokens_won": _known(won)}
        rounds, tokens = int(done.rounds.sum()), int(done.emitted.sum())
        return {
            "rounds": rounds,
            "tokens": tokens,
            "seconds": whole,
            "mean_accepted_tokens": tokens / rounds if rounds else 0.0,
            "tokens_won": _known(tokens - done.plain_tokens.sum()),
            "sources": sources,
        }

    def shares(self) -> np.ndarray:
        """Share of time of each source [N], all kinds of text together; zeros where nothing ran."""
        seconds = np.sum([np.zeros(len(self.names)), *(done.seconds for done in self.domains.values())], 0)
        return seconds / max(float(seconds.sum()), 1e-30)

    def as_table(self, title: str = "") -> Table:
        """The sources that did something, as a rich table."""
        caption = f"seconds by {self.seconds_from}; won: tokens beyond those of plain decoding in the same seconds"
        out = Table(title=title or None, caption=caption, caption_justify="left")
        out.add_column("domain", overflow="fold")
        out.add_column("source", overflow="fold")
        for name in ("rounds", "accepted by depth", "tok/round", "seconds", "time", "won"):
            out.add_column(name, justify="right", overflow="fold")
        for domain, about in self.as_dict()["domains"].items():
            rows = busy(about["sources"])
            for place, (name, row) in enumerate(rows.items()):
                first, last = domain if place == 0 else "", place == len(rows) - 1
                out.add_row(first, name, *cells(row), end_section=last)
        return out

    def json_lines(self) -> str:
        """One JSON line a domain and source."""
        domains = self.as_dict()["domains"]
        rows = [(domain, name, row) for domain, about in domains.items() for name, row in about["sources"].items()]
        return "\n".join(json.dumps({"domain": domain, "source": name, **row}) for domain, name, row in rows)

    def prometheus(self) -> str:
        """Text of Prometheus' exposition format, version 0.0.4; counts are of this telemetry, from 0."""
        return exposition(self.as_dict())

    def written(self, name: str) -> str:
        """The text for a file, by its ending (`FORMS`)."""
        return FORMS[check_form(name)](self) + "\n"


FORMS: Mapping[str, Callable[[ByDomain], str]] = {
    ".json": lambda given: json.dumps(given.as_dict(), indent=2),
    ".jsonl": lambda given: given.json_lines(),
    ".prom": lambda given: given.prometheus().removesuffix("\n"),
}
"""What a file of telemetry holds, by its ending."""


def check_form(name: str) -> str:
    """The ending that says what a file of telemetry holds.

    Raises:
        ValueError: another ending, in one sentence.
    """
    ending = Path(name).suffix
    if ending not in FORMS:
        raise ValueError(
            f"{name!r} ends in none of {', '.join(FORMS)}, which say what the file holds; give one of them"
        )
    return ending


def busy(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The sources that had a round or a draft."""
    return {name: row for name, row in sources.items() if row["rounds"] or row["proposed"]}


def cells(row: Mapping[str, Any]) -> list[str]:
    """Numbers of a source as people read them: rounds, accepted by depth, tokens a round, seconds, share, won."""
    return [
        str(row["rounds"]),
        depths(row) or "-",
        f"{row['mean_accepted_tokens']:.2f}" if row["rounds"] else "-",
        f"{row['seconds']:.2f}",
        f"{row['share_of_time']:.0%}",
        "-" if row["tokens_won"] is None else f"{row['tokens_won']:+.1f}",
    ]


def depths(row: Mapping[str, Any]) -> str:
    """Drafts accepted of those proposed at every depth.

    proposed 9 4, accepted 6   ->   6/9 0/4
    """
    accepted = [*row["accepted_by_depth"], *[0] * len(row["proposed_by_depth"])]
    return " ".join(f"{a}/{p}" for a, p in zip(accepted, row["proposed_by_depth"], strict=False))


def since(before: Counters, after: Counters) -> Counters:
    """What was counted between two looks."""
    return jax.tree.map(lambda old, new: np.asarray(new) - np.asarray(old), before, after)


class Tally:
    """Counters of one engine, put by kind of text as they are looked at."""

    def __init__(self, names: Sequence[str]):
        """Nothing counted yet; `names` are the setup's sources, in order."""
        self.names = tuple(names)
        self._looks: list[tuple[Counters, float, tuple[str, ...]]] = []

    def take(self, counters: Counters, seconds: float, domains: Sequence[str]) -> None:
        """Count some rounds.

        Args:
            counters: of these rounds alone (`since`), B rows.
            seconds: they took, all rows together.
            domains: each row's kind of text, B.
        """
        self._looks.append((counters, seconds, tuple(domains)))

    def by_domain(self, *, price: Price | None = None, plain: Mapping[str, float] | None = None) -> ByDomain:
        """What was counted.

        A clock reads what all rows and sources of a look took together. It is shared out by rounds times their price:
        calibrated costs where there is a table, else each source's seconds a round as fitted to all looks
        (`jaxspec.telemetry.time_shares`). Seconds of all domains and sources add up to those that were measured.

        Args:
            price: what rounds cost.
            plain: tokens a second of plain decoding by domain, where they were measured; else it is a plain round's
                price that tells what plain decoding would have given, and without a price nothing does.
        """
        rates = None if price else self._rates()
        found: dict[str, Done] = {}
        for counters, seconds, domains in self._looks:
            prices = price.of(counters) if price else np.asarray(counters.rounds, float) * rates
            spent = seconds * prices / max(float(prices.sum()), 1e-30)
            for domain in dict.fromkeys(domains):
                mine = np.asarray([each == domain for each in domains])
                own = spent[mine].sum(0)
                speed = (plain or {}).get(domain)
                priced = prices[mine].sum(0) if price else np.full(len(self.names), np.nan)
                counts = {name: np.asarray(getattr(counters, name))[mine].sum(0) for name in COUNTED}
                done = Done(**counts, seconds=own, plain_tokens=priced if speed is None else own * speed)
                before = found.get(domain)
                found[domain] = done if before is None else Done(*(a + b for a, b in zip(before, done, strict=True)))
        return ByDomain(self.names, found, price.name if price else FITTED)

    def _rates(self) -> np.ndarray:
        """Each source's seconds a round [N], in some unit; 1 where nothing was timed."""
        chunks = [Chunk(seconds, tuple(np.asarray(c.rounds, float).sum(0))) for c, seconds, _ in self._looks]
        shares = time_shares(chunks, len(self.names))
        if shares is None or not shares.any():
            return np.ones(len(self.names))
        rates = shares / np.maximum(np.sum([chunk.rounds for chunk in chunks], 0), 1.0)
        return np.maximum(rates, 1e-6 * rates.max())  # a fit may say 0 of a source whose looks took time all the same


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
