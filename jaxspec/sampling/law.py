"""The law that tokens are drawn from: temperature, top-k, top-p, min-p, in this order and nowhere else.

Thresholds are found without a sort, by bisection over the bit patterns of float32, so they are exact and cost the same
for every k and p. Ties at a threshold are kept.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxspec.sampling.warpers import Warpers
from jaxspec.typing import Logits, RowFloats, Tokens

INFINITY_BITS = 0x7F800000  # float32 +inf; the patterns of 0 <= x <= inf are ordered as their values are


class Cut(NamedTuple):
    """What the warpers leave of each node's logits, without spelling the law out over the vocabulary."""

    top: Float[Array, "B T"]  # the largest logit
    floor: Float[Array, "B T"]  # the least (logit - top) / temperature that is kept
    log_mass: Float[Array, "B T"]  # logsumexp of what is kept
    best: Int[Array, "B T"]  # argmax; means nothing while every row samples


def argmax(values: Float[Array, "*N V"]) -> Int[Array, "*N"]:
    """Index of the largest value, the first of equals, as jnp.argmax (NaNs apart: index 0); two plain reductions.

    XLA's own reduction over (value, index) pairs is not vectorised on CPU.
    """
    vocab = values.shape[-1]
    ids = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    first = jnp.min(jnp.where(values == jnp.max(values, -1, keepdims=True), ids, vocab), -1)
    return jnp.where(first < vocab, first, 0)


def warp(logits: Logits, warpers: Warpers, law: Cut | None = None) -> Float[Array, "B T V"]:
    """Log-probabilities after temperature, top-k, top-p, min-p; float32; -inf where a token cannot be drawn.

    Takes penalised logits. Rows with temperature 0 are exactly 0 at the argmax and -inf elsewhere. A row whose every
    token is banned has no law: its values are NaN and `pick` gives 0. `law` is their `cut`, where it is known.
    """
    ids = lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    return log_prob(logits, ids, cut(logits, warpers) if law is None else law, warpers.temperature)


def cut(logits: Logits, warpers: Warpers) -> Cut:
    """Thresholds and mass of every node's law; what no row uses is not computed.

    As in transformers, top-p is the smallest set that reaches p of what top-k left; the likeliest token always stays.

    Source: top-k, Fan et al. 2018; top-p, Holtzman et al. 2020; min-p, Nguyen et al. 2024.
    """
    logits = logits.astype(jnp.float32)
    top = jnp.max(logits, -1)
    scaled = _scale(logits, top, warpers.temperature)
    everything = jnp.full(top.shape, -jnp.inf, jnp.float32)
    sampled = warpers.temperature > 0
    floor = lax.cond(
        jnp.any(sampled & (warpers.top_k > 0)), lambda: _top_k_floor(scaled, warpers.top_k), lambda: everything
    )
    floor = lax.cond(
        jnp.any(sampled & (warpers.top_p < 1)), lambda: _top_p_floor(scaled, floor, warpers.top_p), lambda: floor
    )
    floor = jnp.maximum(floor, jnp.log(warpers.min_p)[:, None])
    kept = jnp.where(scaled >= floor[..., None], jnp.exp(scaled), 0.0)
    best = lax.cond(jnp.all(sampled), lambda: jnp.zeros(top.shape, jnp.int32), lambda: argmax(logits))
    return Cut(top, floor, jnp.log(jnp.sum(kept, -1)), best)


def log_prob(
    logits: Float[Array, "B T N"], ids: Int[Array, "B T N"], cut: Cut, temperature: RowFloats
) -> Float[Array, "B T N"]:
    """Log-probabilities of the tokens `ids`, whose logits these are; for a few tokens or a few nodes of a law."""
    scaled = _scale(logits.astype(jnp.float32), cut.top, temperature)
    drawn = jnp.where(scaled >= cut.floor[..., None], scaled - cut.log_mass[..., None], -jnp.inf)
    greedy = jnp.where(ids == cut.best[..., None], 0.0, -jnp.inf)
    return jnp.where((temperature > 0)[:, None, None], drawn, greedy)


def probability(logits: Logits, ids: Int[Array, "B T N"], cut: Cut, temperature: RowFloats) -> Float[Array, "B T N"]:
    """Probability that each of some tokens is drawn at its node; 0 for an id that the logits do not have."""
    known = (ids >= 0) & (ids < logits.shape[-1])
    inside = jnp.where(known, ids, 0)
    log_p = log_prob(jnp.take_along_axis(logits, inside, 2), inside, cut, temperature)
    return jnp.where(known, jnp.exp(log_p), 0.0)


def pick(log_probs: Float[Array, "*N V"], gumbel: Float[Array, "*N V"]) -> Int[Array, "*N"]:
    """One token by the Gumbel-max trick: argmax(log p + g). p need not be normalised; p = 0 is never picked."""
    return argmax(log_probs + gumbel)


def token_logprobs(raw_logits: Logits, tokens: Tokens, vocab_size: int) -> Float[Array, "B T"]:
    """Log-softmax of the model's own logits at `tokens`, over the true vocabulary: before penalties and warpers."""
    logits = raw_logits[..., :vocab_size].astype(jnp.float32)
    at = jnp.take_along_axis(logits, jnp.clip(tokens, 0, vocab_size - 1)[..., None], -1)[..., 0]
    return at - jax.nn.logsumexp(logits, -1)


def _scale(logits: Float[Array, "B T N"], top: Float[Array, "B T"], temperature: RowFloats) -> Float[Array, "B T N"]:
    """(logits - top) / temperature, at most 0; the shift comes first so that a small temperature cannot overflow."""
    heat = jnp.where(temperature > 0, temperature, 1.0)
    return (logits - top[..., None]) / heat[:, None, None]


def _top_k_floor(scaled: Logits, top_k: Int[Array, "B"]) -> Float[Array, "B T"]:
    vocab = scaled.shape[-1]
    least = jnp.where(top_k > 0, jnp.minimum(top_k, vocab), vocab)[:, None]

    def enough(floor: Float[Array, "B T"]) -> Bool[Array, "B T"]:
        return jnp.sum(scaled >= floor[..., None], -1, dtype=jnp.int32) >= least

    return _highest_floor(enough, scaled.shape[:2])


def _top_p_floor(scaled: Logits, kept: Float[Array, "B T"], top_p: RowFloats) -> Float[Array, "B T"]:
    weight = jnp.where(scaled >= kept[..., None], jnp.exp(scaled), 0.0)
    least = top_p[:, None] * jnp.sum(weight, -1)

    def enough(floor: Float[Array, "B T"]) -> Bool[Array, "B T"]:
        # p = 1 keeps everything, also the tail that rounding loses from the sum.
        mass = jnp.sum(jnp.where(scaled >= floor[..., None], weight, 0.0), -1)
        return (mass >= least) & (top_p < 1)[:, None]

    return jnp.maximum(kept, _highest_floor(enough, scaled.shape[:2]))


def _highest_floor(
    enough: Callable[[Float[Array, "B T"]], Bool[Array, "B T"]], shape: tuple[int, ...]
) -> Float[Array, "B T"]:
    """The highest float32 floor <= 0 that leaves enough; -inf where none does. `enough` stays true as the floor falls.

    The bit patterns of -floor are bisected: 31 halvings find one of the 2^31 - 2^23 + 1 values from 0 to inf exactly.
    """

    def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + ((high - low) >> 1)
        good = enough(-lax.bitcast_convert_type(middle, jnp.float32))
        return jnp.where(good, low, middle + 1), jnp.where(good, middle, high)

    low = jnp.zeros(shape, jnp.int32)
    _, high = lax.fori_loop(0, 31, halve, (low, jnp.full(shape, INFINITY_BITS, jnp.int32)))
    return -lax.bitcast_convert_type(high, jnp.float32)
