"""What a round costs on this device: the user's own compiled loop, timed with sources pinned and windows widened.

    verify[z]     a round of "none", its window at least windows[z] wide
    draft[m, k]   a round of m with k drafts in the widest window, less that window's
    ride          a round of the source whose branch rides, in the widest window, less that window's
    lag[m]        the first round of m after a prompt of P tokens, less an ordinary one, over the tokens it missed

Nothing else is compiled than that loop and the prefill of a short prompt.
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxspec.contracts import FREE, EngineParams, Setup
from jaxspec.decode.generate import start
from jaxspec.decode.loop import Progress, loop
from jaxspec.decode.request import make_request
from jaxspec.decode.state import State
from jaxspec.select.cost import CostTable, check_costs

PROMPT = 64
"""Tokens of a row's prompt at the most; what a source that lags has to catch up."""

PREFILL, LEAST = 256, 8
"""Tokens of all rows' prompts together at the most, and of a row's at the least: of many rows the rounds count."""

LIMIT = 40.0
"""Seconds that measuring takes at the most, beyond one measurement of everything; compilation apart."""

BESIDE = 3
"""Rounds' time that a measurement takes besides its rounds: the prefill, and the first round."""

VERIFY, DRAFT, RIDE = "verify", "draft", "ride"

Told = Callable[[int, int], None]


class NoRoom(ValueError):
    """Rows are too short to time rounds in them."""


class Entry(NamedTuple):
    """One kind of round that is timed."""

    what: str  # VERIFY | DRAFT | RIDE
    source: int  # pinned
    drafts: int
    width: int  # of the window at the least, in tokens


@dataclasses.dataclass
class Seconds:
    """Of one entry, an item a measurement."""

    first: list[float] = dataclasses.field(default_factory=list)  # round after the prefill
    each: list[float] = dataclasses.field(default_factory=list)  # round after that


@dataclasses.dataclass(frozen=True)
class Bench:
    """What every measurement has in common."""

    setup: Setup
    params: EngineParams
    prompts: list[list[int]]
    capacity: int
    dtype: DTypeLike
    rounds: int

    @property
    def missed(self) -> int:
        """Tokens that a draft has not seen when it is chosen for the first time."""
        return max(len(self.prompts[0]) - 1, 1)


def calibrate(
    setup: Setup,
    params: EngineParams,
    *,
    rows: int,
    capacity: int,
    dtype: DTypeLike,
    prompt_ids: Sequence[int],
    rounds: int = 4,
    repeats: int = 6,
    limit: float = LIMIT,
    told: Told | None = None,
    note: Callable[[str], None] | None = None,
) -> CostTable:
    """Seconds of every kind of round, medians of interleaved measurements.

    Args:
        params: with the selector's parameters as they will be used, whatever their values, so that one program serves.
        capacity: tokens a row's buffers hold.
        dtype: of the caches.
        prompt_ids: any text; as much of it as `PROMPT` and the capacity allow is every row's prompt.
        rounds: of one measurement; fewer where they do not fit the capacity, or would take too long.
        repeats: measurements of each kind of round.
        limit: seconds after which no measurement is begun, once everything was measured.
        told: (measurements done, in all).
        note: told in a sentence where it stopped early.

    Raises:
        NoRoom: a capacity without room for a few of the longest rounds.
    """
    bench, kinds = _bench(setup, params, rows, capacity, dtype, prompt_ids, rounds), entries(setup)
    once = dataclasses.replace(bench, rounds=1)
    _measure(once, kinds[-1])  # compiles
    pace = _measure(once, kinds[-1])[1]
    fit = int(limit / (len(kinds) * repeats * max(pace, 1e-9))) - BESIDE
    bench = dataclasses.replace(bench, rounds=min(bench.rounds, max(fit, 1)))
    found, total = {entry: Seconds() for entry in kinds}, len(kinds) * repeats
    began = time.perf_counter()
    for done, entry in enumerate(turns(kinds, repeats)):
        if done >= len(kinds) and time.perf_counter() - began > limit:
            if note is not None:
                note(f"calibration stopped after {limit:.0f} s, with {done} of {total} measurements; costs are rougher")
            break
        first, each = _measure(bench, entry)
        found[entry].first.append(first)
        found[entry].each.append(each)
        if told is not None:
            told(done + 1, total)
    return check_costs(setup, table_of(setup, found, bench.missed))


def entries(setup: Setup) -> list[Entry]:
    """Everything that is timed: windows, sources that cost a pass at three lookaheads, and the branch."""
    widest = setup.windows[-1]
    found = [Entry(VERIFY, 0, 0, width) for width in setup.windows]
    for index, source in enumerate(setup.sources):
        most = setup.lookahead if source.most is None else min(source.most, setup.lookahead)
        if source.cost != FREE:
            found += [Entry(DRAFT, index, k, widest) for k in sorted({1, (1 + most) // 2, most})]
    if setup.carrier is not None and setup.lookahead:
        found.append(Entry(RIDE, setup.carrier, setup.lookahead, widest))
    return found


def prompt_length(rows: int, room: int) -> int:
    """Tokens of every row's prompt, of `room` that a row has.

    rows                 1     4    16    64
    tokens of a prompt  64    64    16     8
    """
    return max(min(PROMPT, max(PREFILL // rows, LEAST), room // 3), 1)


def turns(kinds: Sequence[Entry], repeats: int) -> list[Entry]:
    """Every entry once a repeat, the order turning, so that a slow minute of the machine hits them all.

    3 entries, 2 repeats:   0 1 2 1 2 0
    """
    return [kinds[(repeat + turn) % len(kinds)] for repeat in range(repeats) for turn in range(len(kinds))]


def table_of(setup: Setup, found: dict[Entry, Seconds], missed: int) -> CostTable:
    """The cost table of what was timed; differences below 0 are 0, and more drafts cost no less than fewer.

    Args:
        missed: tokens that a source that lags had to catch up in its first round.
    """
    each = {entry: statistics.median(seconds.each) for entry, seconds in found.items()}
    verify = np.maximum.accumulate([each[Entry(VERIFY, 0, 0, width)] for width in setup.windows])
    draft, lag, ride = np.zeros((len(setup.sources), setup.lookahead + 1)), np.zeros(len(setup.sources)), 0.0
    for index, source in enumerate(setup.sources):
        mine = sorted(entry for entry in found if entry[:2] == (DRAFT, index))
        if mine:
            known = np.maximum.accumulate([0.0, *(each[entry] - verify[-1] for entry in mine)])
            draft[index] = np.interp(np.arange(setup.lookahead + 1), [0, *(entry.drafts for entry in mine)], known)
        if mine and source.lag is not None:
            timings = itertools.chain(*(zip(found[entry].first, found[entry].each, strict=True) for entry in mine))
            lag[index] = max(statistics.median(first - again for first, again in timings), 0.0) / missed
    for entry in found:
        if entry.what == RIDE:
            ride = max(each[entry] - verify[-1], 0.0)
    return CostTable(*(jnp.asarray(np.asarray(leaf, np.float32)) for leaf in (verify, draft, lag, ride)))


def _bench(
    setup: Setup,
    params: EngineParams,
    rows: int,
    capacity: int,
    dtype: DTypeLike,
    prompt_ids: Sequence[int],
    rounds: int,
) -> Bench:
    """With a prompt and a number of rounds that fit, every round with room for all its drafts."""
    room = min(capacity - setup.windows[-1], setup.target.config.max_positions)
    longest = prompt_length(rows, room)
    prompt = list(itertools.islice(itertools.cycle(prompt_ids), longest))
    fit = (room - longest) // setup.windows[-1] - 2
    if fit < 1 or not prompt:
        raise NoRoom(
            f"a capacity of {capacity} tokens, of which the target takes {setup.target.config.max_positions}, "
            f"leaves no room to time rounds of {setup.windows[-1]}; give more, or a smaller lookahead"
        )
    return Bench(setup, params, [prompt] * rows, capacity, dtype, min(rounds, fit))


def _measure(bench: Bench, entry: Entry) -> tuple[float, float]:
    """Seconds of the first round of an entry after a prefill, and of each of those that follow."""
    setup = bench.setup
    request = make_request(
        setup,
        bench.prompts,
        max_new_tokens=(bench.rounds + 2) * setup.windows[-1],
        seed=0,
        source=setup.names[entry.source],
        max_lookahead=entry.drafts,
        least_width=entry.width,
    )
    state = start(setup, bench.params, bench.prompts, request, capacity=bench.capacity, dtype=bench.dtype)
    state, seen, first = timed(setup, bench.params, jax.block_until_ready(state), 1)
    begun = int(seen.rounds)
    _, seen, rest = timed(setup, bench.params, state, bench.rounds)
    return first, rest / max(int(seen.rounds) - begun, 1)


def timed(setup: Setup, params: EngineParams, state: State, rounds: int) -> tuple[State, Progress, float]:
    """Some rounds through the loop, and the seconds they took; `state` is donated."""
    nobody = np.zeros(len(state.length), bool)
    began = time.perf_counter()
    state, seen = jax.block_until_ready(loop(setup, params, state, rounds, nobody))
    return state, seen, time.perf_counter() - began


__all__ = ["Entry", "NoRoom", "calibrate", "entries", "prompt_length", "table_of", "timed", "turns"]
