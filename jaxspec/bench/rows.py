"""Modes against plain decoding with many rows side by side: how much is drafted, and whether it still pays.

rows                      1       4       16      64
tokens/s over plain's     1.5     1.3     1.0     1.0     never below what plain decoding gives
drafts a row and round    3.9     2.1     0.4     0.0     fall: a window's tokens are no longer free
"""

import itertools
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
    long the slowest row keeps the others' places empty. Few rows answer the prompts that many answer, batch after
    batch, so that figures differ by the rows alone. All sides run one after the other, `repeats` times after a batch
    that warms up and in which a learning selector learns; figures are medians.

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
    found, chosen = [], spread(prompts, max(rows))
    for done, count in enumerate(rows):
        batches, sides = dealt(chosen, count), []
        for name, setup in made.items():
            if told is not None:
                told(f"{count} rows: {name}", done, len(rows))
            side = Engine(pipeline, name, setup, Ask((), temperature, seed), rows=count, capacity=capacity)
            side.answer(batches[0], most, rounds=rounds)
            sides.append(side)
        answers: dict[str, list[list[Decoded]]] = {side.name: [[] for _ in range(repeats)] for side in sides}
        for repeat, (number, batch) in itertools.product(range(repeats), enumerate(batches)):
            for turn in range(len(sides)):
                side = sides[(repeat + number + turn) % len(sides)]
                answers[side.name][repeat].append(side.answer(batch, most, rounds=rounds))
        found.append({"rows": count, "contenders": _summary(answers)})
    return found


def spread(prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """So many of the prompts, as far apart in the list as they can be, so that few have many categories too.

    3 of 5:   0 1 3
    """
    count = min(count, len(prompts))
    return [list(prompts[number * len(prompts) // count]) for number in range(count)]


def dealt(prompts: Sequence[Sequence[int]], rows: int) -> list[list[list[int]]]:
    """Batches of one prompt a row that have every prompt, neighbours in different ones; the first ones fill them up.

    5 prompts:   3 rows   0 2 4, 1 3 0        7 rows   0 1 2 3 4 0 1
    """
    number = -(-len(prompts) // rows)
    filled = (
        itertools.islice(itertools.chain(prompts[b::number], itertools.cycle(prompts)), rows) for b in range(number)
    )
    return [[list(prompt) for prompt in batch] for batch in filled]


def _summary(answers: dict[str, list[list[Decoded]]]) -> dict[str, dict[str, float]]:
    """By contender: tokens a second, over plain's of the same repeat, drafts and tokens a row and round.

    Args:
        answers: by contender, to the batches of every repeat.
    """
    speeds = {name: [_speed(batches) for batches in each] for name, each in answers.items()}
    found = {}
    for name, repeats in answers.items():
        each = list(itertools.chain.from_iterable(repeats))
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


def _speed(batches: Sequence[Decoded]) -> float:
    """Tokens a second of batches one after the other."""
    return sum(len(row) for one in batches for row in one.tokens) / sum(one.decode_seconds for one in batches)


__all__ = ["ROUNDS", "by_rows", "dealt", "room", "spread"]
