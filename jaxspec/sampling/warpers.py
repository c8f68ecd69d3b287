"""What each row asks of its sampling: traced settings, checked once on the host."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from jaxspec.typing import RowFloats, Rows

BIAS_SLOTS = 8
"""Least number of bias entries a row has room for, so that a first bias does not change a shape."""

PerRow = float | int | Sequence[float] | Sequence[int] | np.ndarray
Bias = Mapping[int, float]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Warpers:
    """Sampling settings of every row. All traced: changing a value never recompiles, changing E does.

    Build it with `warpers`, which checks the values.
    """

    # penalise
    bias_ids: Int[Array, "B E"]  # int32, -1 where unused
    bias_values: Float[Array, "B E"]  # float32, added to the logit; -inf bans the token
    repetition_penalty: RowFloats  # 1 off; over prompt and output (CTRL, Keskar et al. 2019)
    presence_penalty: RowFloats  # 0 off; subtracted once from what the output holds
    frequency_penalty: RowFloats  # 0 off; subtracted for each time the output holds it
    min_tokens: Rows  # 0 off; stop ids are banned until the output has that many tokens
    # warp
    temperature: RowFloats  # 0 is argmax
    top_k: Rows  # 0 off
    top_p: RowFloats  # 1 off
    min_p: RowFloats  # 0 off; least probability, as a share of the likeliest token's


def warpers(
    rows: int,
    *,
    temperature: PerRow = 0.0,
    top_k: PerRow = 0,
    top_p: PerRow = 1.0,
    min_p: PerRow = 0.0,
    repetition_penalty: PerRow = 1.0,
    presence_penalty: PerRow = 0.0,
    frequency_penalty: PerRow = 0.0,
    bias: Bias | Sequence[Bias | None] | None = None,
    min_tokens: PerRow = 0,
    vocab_size: int | None = None,
) -> Warpers:
    """Settings for `rows` rows, each a scalar for all rows or a sequence with one value a row.

    `bias` maps token ids to what is added to their logits (-inf bans), for all rows or one mapping (or None) a row.
    `vocab_size` is what its ids are checked against.

    Raises:
        ValueError: a value out of range, NaN, or a sequence that has not one value a row.
    """
    ids, values = _bias(rows, bias, vocab_size)
    return Warpers(
        bias_ids=ids,
        bias_values=values,
        repetition_penalty=_floats(
            rows, "repetition_penalty", repetition_penalty, lambda x: x > 0, "above 0; 1 is off"
        ),
        presence_penalty=_floats(rows, "presence_penalty", presence_penalty, np.isfinite, "finite (0 is off)"),
        frequency_penalty=_floats(rows, "frequency_penalty", frequency_penalty, np.isfinite, "finite (0 is off)"),
        min_tokens=_counts(rows, "min_tokens", min_tokens),
        temperature=_floats(rows, "temperature", temperature, lambda x: x >= 0, "at least 0 (0 is greedy)"),
        top_k=_counts(rows, "top_k", top_k),
        top_p=_floats(rows, "top_p", top_p, lambda x: (x > 0) & (x <= 1), "above 0 and at most 1 (1 is off)"),
        min_p=_floats(rows, "min_p", min_p, lambda x: (x >= 0) & (x <= 1), "from 0 to 1 (0 is off)"),
    )


def _per_row(rows: int, name: str, value: PerRow) -> np.ndarray:
    numbers = np.asarray(value, np.float64)
    if numbers.ndim > 0 and numbers.shape != (rows,):
        raise ValueError(f"{name} has shape {numbers.shape} for {rows} rows; give one number, or one number a row")
    return np.broadcast_to(numbers, (rows,))


def _floats(
    rows: int, name: str, value: PerRow, allowed: Callable[[np.ndarray], np.ndarray], rule: str
) -> Float[Array, "B"]:
    with np.errstate(over="ignore", under="ignore"):
        numbers = _per_row(rows, name, value).astype(np.float32)
    # What the device would flush to 0 is 0 here already, so that no check and no branch sees it otherwise.
    numbers = np.where(np.abs(numbers) < np.finfo(np.float32).tiny, np.float32(0), numbers)
    _refuse(name, numbers, np.isfinite(numbers) & allowed(numbers), f"a finite float32, {rule}")
    return jax.device_put(numbers)


def _counts(rows: int, name: str, value: PerRow) -> Int[Array, "B"]:
    numbers = _per_row(rows, name, value)
    whole = (numbers >= 0) & (numbers < 2**31) & (numbers == np.floor(numbers))
    _refuse(name, numbers, whole, "a whole number from 0 (off) to 2147483647")
    return jax.device_put(numbers.astype(np.int32))


def _refuse(name: str, numbers: np.ndarray, good: np.ndarray, rule: str) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(f"{name} of row {row} is {numbers[row]:g}; it must be {rule}")


def _bias(
    rows: int, bias: Bias | Sequence[Bias | None] | None, vocab_size: int | None
) -> tuple[Int[Array, "B E"], Float[Array, "B E"]]:
    each = [bias] * rows if bias is None or isinstance(bias, Mapping) else list(bias)
    if len(each) != rows:
        raise ValueError(f"bias has {len(each)} mappings for {rows} rows; give one mapping, or one (or None) a row")
    longest = max((len(entries) for entries in each if entries), default=0)
    slots = max(BIAS_SLOTS, 1 << (longest - 1).bit_length() if longest else 0)
    ids = np.full((rows, slots), -1, np.int32)
    values = np.zeros((rows, slots), np.float32)
    for row, entries in enumerate(each):
        for slot, (token, value) in enumerate((entries or {}).items()):
            _check_bias(row, token, value, vocab_size)
            ids[row, slot], values[row, slot] = token, value
    return jax.device_put(ids), jax.device_put(values)


def _check_bias(row: int, token: int, value: float, vocab_size: int | None) -> None:
    last = 2**31 - 1 if vocab_size is None else vocab_size - 1
    if int(token) != token or not 0 <= token <= last:
        raise ValueError(f"bias of row {row} names token {token}; token ids go from 0 to {last}")
    largest = float(np.finfo(np.float32).max)
    if value != -math.inf and not -largest <= value <= largest:
        raise ValueError(f"bias of row {row} for token {token} is {value}; it must be a finite float32, or -inf to ban")
