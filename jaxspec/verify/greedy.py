"""Greedy verification: token for token what the plain loop's argmax gives."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.sampling import Cut, Warpers, argmax
from jaxspec.typing import Logits, Positions, RowMask, Rows, Seeds, Tokens


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
    """Accept while the argmax equals the draft; next is the argmax at the first miss, or the bonus. See `Verify`."""
    del q_log, sampled, warpers, seed, positions, law
    return match(argmax(logits), drafts, count)


def match(wanted: Tokens, drafts: Int[Array, "B T-1"], count: Rows) -> tuple[Rows, Rows]:
    """Accept while the draft is the token wanted at its node; next is the token wanted at the first miss.

    wanted  5 7 2 9    drafts  5 7 4    ->    accepted 2, next 2
    """
    accepted = leading(wanted[:, :-1] == drafts, count)
    return accepted, jnp.take_along_axis(wanted, accepted[:, None], 1)[:, 0]


def leading(good: Bool[Array, "B N"], count: Rows) -> Rows:
    """How many of each row's first `count` drafts are good before the first that is not; int32."""
    valid = jnp.arange(good.shape[1])[None, :] < count[:, None]
    return jnp.sum(jnp.cumprod((good & valid).astype(jnp.int32), 1), 1, dtype=jnp.int32)
