"""Coupled verification: noise is fixed by position, so a seed's output does not depend on what was drafted."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxspec.sampling import Cut, Warpers, argmax, gumbel, pick, warp
from jaxspec.typing import Logits, Positions, RowMask, Rows, Seeds
from jaxspec.verify.greedy import match


def verify(
    logits: Logits,
    drafts: Int[Array, "B T-1"],
    count: Rows,
    q_log: Float[Array, "B T-1 V"] | None,
    sampled: RowMask,
    warpers: Warpers,
    seed: Seeds,
    positions: Positions,
    law: Cut | None = None,
) -> tuple[Rows, Rows]:
    """Accept while the draft is what plain decoding draws at its position. See `Verify`.

    The token at absolute position i is argmax(log p + Gumbel(seed, i)). A draft drawn with the same noise from a law
    close to p is the likeliest to match. `q_log` is not needed.

    Source: Daliri, Musco and Suresh 2025, "Coupling without communication and drafter-invariant speculative decoding".
    """
    del q_log, sampled
    wanted = lax.cond(
        jnp.any(warpers.temperature > 0),
        lambda: pick(warp(logits, warpers, law), gumbel(seed, positions, logits.shape[-1])),
        lambda: argmax(logits),
    )
    return match(wanted, drafts, count)
