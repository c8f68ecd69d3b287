"""What each row is asked for, checked on the host in plain sentences."""

import math
import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jax
import numpy as np

from jaxspec.buckets import PREFILL, capacity_bucket
from jaxspec.contracts import Request, Setup
from jaxspec.decode.prefill import plan
from jaxspec.decode.steering import make_steering, per_row, refuse
from jaxspec.sampling import Warpers, warpers

STOP_SLOTS = 8
"""Least number of stop ids a row has room for, so that a first one does not change a shape."""


def make_request(
    setup: Setup,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | Sequence[int],
    stop_ids: Sequence[int] | Sequence[Sequence[int]] = (),
    seed: int | Sequence[int | None] | None = None,
    warp: Warpers | None = None,
    max_lookahead: int | Sequence[int] | None = None,
    draft_temperature: float | Sequence[float] = 1.0,
    draft_confidence: float | Sequence[float] = 0.0,
    source: str | Sequence[str | None] | None = None,
    weights: Mapping[str, float] | Sequence[Mapping[str, float]] = MappingProxyType({}),
    domain: int | Sequence[int] = -1,
    load: float | Sequence[float] = 0.0,
    latency_budget: float | Sequence[float] = math.inf,
    least_width: int | Sequence[int] = 1,
) -> Request:
    """One row a prompt; every option is one value for all rows or a sequence of one a row. All become traced arrays.

    Args:
        setup: checked against its vocabulary, verify mode and largest lookahead.
        prompts: token ids, one sequence a row.
        max_new_tokens: tokens to generate at the most, 1 or more.
        stop_ids: ids that end a row, for all rows or one sequence a row.
        seed: non-negative below 2**32; row r of one seed gets seed + r; None draws a fresh one.
        warp: sampling settings (`jaxspec.sampling.warpers`); greedy where None.
        max_lookahead: drafts a round at the most, the setup's largest where None.
        draft_temperature: times the row's temperature for sampled drafts; 0 drafts greedily.
        draft_confidence: in [0, 1]; a model draft stops before a token whose largest probability is below it.
        source, weights, domain, load, latency_budget, least_width: as in `jaxspec.decode.steering.make_steering`.

    Raises:
        ValueError: an empty prompt, an id outside the vocabulary, or a value out of range.
    """
    rows = len(prompts)
    check_prompts(prompts, setup.vocab_size)
    lengths = np.asarray([len(p) for p in prompts], np.int32)
    fresh = per_row("max_new_tokens", max_new_tokens, rows, np.int64)
    fits = fresh < 2**31 - lengths.astype(np.int64)
    refuse("max_new_tokens", fresh, (fresh >= 1) & fits, "1 or more, and below 2147483648 with the prompt")
    settings = warpers(rows) if warp is None else warp
    if settings.temperature.shape != (rows,):
        raise ValueError(
            f"warp has {settings.temperature.shape[0]} rows for {rows} prompts; make it with warpers({rows}, ...)"
        )
    if setup.verify == "greedy" and np.any(np.asarray(settings.temperature) > 0):
        raise ValueError(
            "temperature is above 0 but verify is 'greedy'; use verify 'coupled' or 'rejection', or temperature 0"
        )
    ahead = per_row("max_lookahead", setup.lookahead if max_lookahead is None else max_lookahead, rows, np.int64)
    refuse(
        "max_lookahead", ahead, (ahead >= 0) & (ahead <= setup.lookahead), f"0 to {setup.lookahead}, the largest bucket"
    )
    heat = per_row("draft_temperature", draft_temperature, rows, np.float32)
    refuse("draft_temperature", heat, np.isfinite(heat) & (heat >= 0), "0 or more")
    sure = per_row("draft_confidence", draft_confidence, rows, np.float32)
    refuse("draft_confidence", sure, (sure >= 0) & (sure <= 1), "from 0 to 1")
    return Request(
        prompt_length=jax.device_put(lengths),
        limit=jax.device_put((lengths + fresh).astype(np.int32)),
        stop_ids=jax.device_put(_stop_ids(stop_ids, rows)),
        seed=jax.device_put(_seeds(seed, rows)),
        warpers=settings,
        max_lookahead=jax.device_put(ahead.astype(np.int32)),
        draft_temperature=jax.device_put(heat),
        draft_confidence=jax.device_put(sure),
        steering=make_steering(
            setup.names,
            rows,
            source=source,
            weights=weights,
            domain=domain,
            load=load,
            latency_budget=latency_budget,
            least_width=least_width,
        ),
    )


def check_prompts(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Refuse no prompts, an empty one, and ids outside the vocabulary."""
    if len(prompts) == 0:
        raise ValueError("there are no prompts; give at least one")
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompt {row} is empty; give at least one token")
        if np.asarray(prompt).dtype.kind not in "iu":
            raise ValueError(f"prompt {row} begins with {prompt[0]!r} and is not all token ids; give whole numbers")
        worst = max(max(prompt), -min(prompt) - 1 if min(prompt) < 0 else 0)
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            bad = min(prompt) if min(prompt) < 0 else worst
            raise ValueError(f"prompt {row} has token id {bad}; ids of this target are 0 to {vocab_size - 1}")


def needed_capacity(setup: Setup, prompt_length: int, max_new_tokens: int, capacity: int | None = None) -> int:
    """Tokens a row's buffers must hold: prompt, output, the widest window past it, and the padded last prefill chunk.

    Raises:
        ValueError: more than the target's positions, or than a given capacity.
    """
    total = prompt_length + max_new_tokens
    most = setup.target.config.max_positions
    if total > most:
        raise ValueError(
            f"a prompt of {prompt_length} tokens with max_new_tokens {max_new_tokens} needs {total} positions; "
            f"the target has {most}, so shorten the prompt or ask for at most {max(0, most - prompt_length)}"
        )
    chunks = plan(max(prompt_length - 1, 0), PREFILL)
    prefilled = sum(chunks[-1]) if chunks else 0
    needed = max(total + setup.windows[-1], prefilled)
    if capacity is None:
        return capacity_bucket(needed)
    if needed > capacity:
        raise ValueError(
            f"a prompt of {prompt_length} tokens with max_new_tokens {max_new_tokens} needs a capacity of {needed}; "
            f"it is {capacity}, so shorten the prompt, ask for less, or raise the capacity"
        )
    return capacity


def pad_prompts(prompts: Sequence[Sequence[int]], capacity: int) -> np.ndarray:
    """Left-aligned int32 [B, capacity]."""
    tokens = np.zeros((len(prompts), capacity), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    return tokens


def _stop_ids(stop_ids: Sequence[int] | Sequence[Sequence[int]], rows: int) -> np.ndarray:
    if not isinstance(stop_ids, Sequence | np.ndarray):
        raise ValueError(f"stop_ids is {stop_ids!r}; give a sequence of ids, or one sequence a row")
    nested = len(stop_ids) > 0 and not isinstance(stop_ids[0], int | np.integer)
    each = [list(ids) for ids in stop_ids] if nested else [list(stop_ids)] * rows  # type: ignore[arg-type]
    if len(each) != rows:
        raise ValueError(f"stop_ids has {len(each)} sequences for {rows} rows; give one sequence of ids, or one a row")
    if wrong := [i for ids in each for i in ids if not isinstance(i, int | np.integer) or not -1 <= i < 2**31]:
        raise ValueError(f"stop_ids names {wrong[0]!r}; give token ids, whole numbers from 0")
    widest = max(STOP_SLOTS, 1 << (max((len(ids) for ids in each), default=1) - 1).bit_length())
    out = np.full((rows, widest), -1, np.int32)
    for row, ids in enumerate(each):
        out[row, : len(ids)] = ids
    return out


def _seeds(seed: int | Sequence[int | None] | None, rows: int) -> np.ndarray:
    if seed is None or isinstance(seed, int | np.integer):
        each = [None if seed is None else int(seed) + row for row in range(rows)]
        first = 0 if seed is None else int(seed)
        if not 0 <= first < 2**32:
            raise ValueError(f"seed is {seed}; give a whole number from 0 to {2**32 - 1}")
        each = [s if s is None else s % 2**32 for s in each]
    else:
        given = seed if isinstance(seed, list | tuple) else np.asarray(seed)  # of numpy or jax; a list may hold None
        many = isinstance(given, list | tuple) or given.ndim == 1
        each = [s if s is None else np.asarray(s).item() for s in given] if many else []
    if len(each) != rows or not all(s is None or (isinstance(s, int) and 0 <= s < 2**32) for s in each):
        raise ValueError(f"seed is {seed!r} for {rows} rows; give one whole number from 0 to {2**32 - 1}, or one a row")
    return np.asarray([secrets.randbits(32) if s is None else s for s in each], np.uint32)
