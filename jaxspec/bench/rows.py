"""Modes against plain decoding with many rows side by side: how much is drafted, and whether it still pays.

rows                      1       4       16      64
tokens/s over plain's     1.5     1.3     1.0     1.0     never below what plain decoding gives
drafts a row and round    3.9     2.1     0.4     0.0     fall: a window's tokens are no longer free
"""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxspec import decode
from jaxspec.bench.contenders import PLAIN, pinned, setups, shared_capacity
from jaxspec.bench.measure import Told
from jaxspec.contracts import EngineParams, Setup
from jaxspec.pipeline import Pipeline
from jaxspec.sampling import warpers
from jaxspec.select import weighs


@dataclasses.dataclass(frozen=True)
class _Side:
    """One way to answer a batch, and what it has learnt."""

    name: str
    setup: Setup
    params: EngineParams
    capacity: int
    temperature: float
    seed: int
    dtype: Any


@dataclasses.dataclass(frozen=True)
class _Answer:
    seconds: float  # of decoding, after the prefill
    tokens: int
    rounds: int  # of rows
    proposed: int
    accepted: int


def by_rows(
    pipeline: Pipeline,
    modes: Sequence[str],
    prompts: Sequence[Sequence[int]],
    rows: Sequence[int],
    *,
    rounds: int = 32,
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

    Raises:
        ValueError: no rows, or fewer than 1; no rounds.
    """
    if not rows or min(rows) < 1:
        raise ValueError(f"rows are {list(rows)}; give one number of rows or more, each 1 or more")
    if rounds < 1 or repeats < 1:
        raise ValueError(f"rounds are {rounds} and repeats {repeats}; both must be 1 or more")
    max_new_tokens = rounds * (pipeline.lookahead + 1) + 1
    made = setups(pipeline, modes, sampled=temperature > 0)
    capacity = shared_capacity(made, prompts, max_new_tokens)
    found = []
    for done, count in enumerate(rows):
        batch = dealt(prompts, count)
        sides = []
        for name, setup in made.items():
            if told is not None:
                told(f"{count} rows: {name}", done, len(rows))
            params = pipeline.params
            if weighs(name):
                params = pipeline.priced(setup, rows=count, capacity=capacity, prompt_ids=[0] * 32)[0]
            side = _Side(name, setup, params, capacity, temperature, seed, pipeline.dtype)
            sides.append(_answer(side, batch, rounds)[0])
        answers: dict[str, list[_Answer]] = {side.name: [] for side in sides}
        for repeat in range(repeats):
            for turn in range(len(sides)):
                place = (repeat + turn) % len(sides)
                sides[place], answer = _answer(sides[place], batch, rounds)
                answers[sides[place].name].append(answer)
        found.append({"rows": count, "contenders": _summary(answers)})
    return found


def dealt(prompts: Sequence[Sequence[int]], rows: int) -> list[list[int]]:
    """One prompt a row, as far apart in the list as they can be, so that few rows have many categories too.

    5 prompts:   3 rows   0 1 3        7 rows   0 1 2 3 4 0 1
    """
    if rows >= len(prompts):
        return [list(prompts[row % len(prompts)]) for row in range(rows)]
    return [list(prompts[row * len(prompts) // rows]) for row in range(rows)]


def _answer(side: _Side, batch: list[list[int]], rounds: int) -> tuple[_Side, _Answer]:
    rows = len(batch)
    request = decode.make_request(
        side.setup,
        batch,
        max_new_tokens=rounds * max(side.setup.windows) + 1,
        seed=side.seed,
        warp=warpers(rows, temperature=side.temperature),
        **pinned(side.name, side.setup),
    )
    state = decode.start(side.setup, side.params, batch, request, capacity=side.capacity, dtype=side.dtype)
    jax.block_until_ready(state)
    began = time.perf_counter()
    learnt = None
    if side.name == PLAIN:
        last = decode.plain_loop(side.setup, side.params, state, rounds)
    else:
        _, last = decode.loop(side.setup, side.params, state, rounds, np.zeros(rows, bool))
        learnt = last.learnt
    length, counters = jax.device_get((last.length, last.counters))
    seconds = time.perf_counter() - began
    if learnt is not None and weighs(side.name):  # as a pipeline does from call to call
        selector = side.params.selector._replace(prior=learnt)
        side = dataclasses.replace(side, params=dataclasses.replace(side.params, selector=selector))
    tokens = int(np.sum(length)) - sum(map(len, batch))
    sums = (counters.rounds, counters.proposed, counters.accepted)
    return side, _Answer(seconds, tokens, *(0 if side.name == PLAIN else int(np.sum(each)) for each in sums))


def _summary(answers: dict[str, list[_Answer]]) -> dict[str, dict[str, float]]:
    """By contender: tokens a second, over plain's of the same repeat, drafts and tokens a row and round."""
    plain = [each.seconds / each.tokens for each in answers[PLAIN]]
    found = {}
    for name, each in answers.items():
        ratios = [base * one.tokens / one.seconds for base, one in zip(plain, each, strict=True)]
        rounds = sum(one.rounds for one in each)
        found[name] = {
            "decode_tokens_per_second": statistics.median(one.tokens / one.seconds for one in each),
            "ratio_to_plain": statistics.median(ratios),
            "drafts_a_round": sum(one.proposed for one in each) / max(rounds, 1),
            "tokens_a_round": 1.0 if not rounds else sum(one.tokens for one in each) / rounds,
            "acceptance": sum(one.accepted for one in each) / max(sum(one.proposed for one in each), 1),
        }
    return found


__all__ = ["by_rows", "dealt"]
