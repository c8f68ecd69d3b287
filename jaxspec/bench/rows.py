"""Modes against plain decoding with many rows side by side: how much is drafted, and whether it still pays.

rows                      1       4       16      64
tokens/s over plain's     1.5     1.3     1.0     1.0     never below what plain decoding gives
drafts a row and round    3.9     2.1     0.4     0.0     fall: a window's tokens are no longer free
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspec.bench.contenders import PLAIN, Ask, Decoded, Engine, shared_capacity
from jaxspec.bench.measure import Told
from jaxspec.contracts import Setup
from jaxspec.pipeline import Pipeline

ROUNDS = 32


def room(made: Mapping[str, Setup], prompts: Sequence[Sequence[int]], rounds: int = ROUNDS) -> tuple[int, int]:
    """Most tokens that a row can make in so many rounds, and one more so that none ends; and the capacity it takes.

    Raises:
        ValueError: more than the target's positions.
    """
    most = rounds * max(setup.windows[-1] for setup in made.values()) + 1
    return most, shared_capacity(made, prompts, most)


def by_rows(
    pipeline: Pipeline,
    made: Mapping[str, Setup],
    prompts: Sequence[Sequence[int]],
    rows: Sequence[int],
    *,
    rounds: int = ROUNDS,
    repeats: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    told: Told | None = None,
) -> list[dict[str, Any]]:
    """For each number of rows: tokens a second of plain decoding and of every mode, and what was drafted.

    Each batch runs `rounds` rounds of every side, in which no row ends: what a server's full batch gives, and not how
    long the slowest row keeps the others' places empty. The prompts are dealt to the rows in turn; all sides run one
    after the other, `repeats` times after one that warms up and in which a learning selector learns; figures are
    medians.

    Args:
        made: setups by mode, as of `jaxspec.bench.contenders.setups`.

    Raises:
        ValueError: no rows, or fewer than 1; no rounds; more tokens than the target's positions.
    """
    if not rows or min(rows) < 1:
        raise ValueError(f"rows are {list(rows)}; give one number of rows or more, each 1 or more")
    if rounds < 1 or repeats < 1:
        raise ValueError(f"rounds are {rounds} and repeats {repeats}; both must be 1 or more")
    most, capacity = room(made, prompts, rounds)
    found = []
    for done, count in enumerate(rows):
        batch, sides = dealt(prompts, count), []
        for name, setup in made.items():
            if told is not None:
                told(f"{count} rows: {name}", done, len(rows))
            side = Engine(pipeline, name, setup, Ask((), temperature, seed), rows=count, capacity=capacity)
            side.answer(batch, most, rounds=rounds)
            sides.append(side)
        answers: dict[str, list[Decoded]] = {side.name: [] for side in sides}
        for repeat in range(repeats):
            for turn in range(len(sides)):
                side = sides[(repeat + turn) % len(sides)]
                answers[side.name].append(side.answer(batch, most, rounds=rounds))
        found.append({"rows": count, "contenders": _summary(answers)})
    return found


def dealt(prompts: Sequence[Sequence[int]], rows: int) -> list[list[int]]:
    """One prompt a row, as far apart in the list as they can be, so that few rows have many categories too.

    5 prompts:   3 rows   0 1 3        7 rows   0 1 2 3 4 0 1
    """
    if rows >= len(prompts):
        return [list(prompts[row % len(prompts)]) for row in range(rows)]
    return [list(prompts[row * len(prompts) // rows]) for row in range(rows)]


def _summary(answers: dict[str, list[Decoded]]) -> dict[str, dict[str, float]]:
    """By contender: tokens a second, over plain's of the same repeat, drafts and tokens a row and round."""
    speeds = {name: [sum(map(len, one.tokens)) / one.decode_seconds for one in each] for name, each in answers.items()}
    found = {}
    for name, each in answers.items():
        rounds, proposed, accepted = (
            0 if name == PLAIN else sum(int(getattr(one.counters, field).sum()) for one in each)
            for field in ("rounds", "proposed", "accepted")
        )
        tokens = sum(len(row) for one in each for row in one.tokens)
        found[name] = {
            "decode_tokens_per_second": statistics.median(speeds[name]),
            "ratio_to_plain": statistics.median(a / b for a, b in zip(speeds[name], speeds[PLAIN], strict=True)),
            "drafts_a_round": proposed / max(rounds, 1),
            "tokens_a_round": tokens / rounds if rounds else 1.0,
            "acceptance": accepted / max(proposed, 1),
        }
    return found


__all__ = ["ROUNDS", "by_rows", "dealt", "room"]
