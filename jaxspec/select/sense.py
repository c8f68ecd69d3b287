"""What selectors see of the target: how sure it was of each row's last token, and what kind of text that is."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspec.contracts import Choice, Seen, View
from jaxspec.typing import PyTree, RowFloats, RowMask, Rows

MEMORY = 0.9
"""What a round leaves of the running mean of hidden states: about ten rounds count."""


def pin(choice: Choice, view: View) -> Choice:
    """The choice, but for rows whose caller has pinned a source: as many of its drafts as the row may have."""
    steering = view.request.steering
    if steering is None:
        return choice
    pinned = steering.pinned >= 0
    most = jnp.where(steering.pinned > 0, view.request.max_lookahead, 0)
    stop = choice.stop
    return choice._replace(
        source=jnp.where(pinned, steering.pinned, choice.source),
        lookahead=jnp.where(pinned, most, choice.lookahead),
        stop=None if stop is None else stop._replace(step=jnp.where(pinned, 0.0, stop.step)),
    )


def wanted_width(view: View, drafts: Rows) -> Rows:
    """Tokens that the target's window needs for each row: the pending one, its drafts, and what its caller asks for."""
    steering = view.request.steering
    width = drafts + 1 if steering is None else jnp.maximum(drafts + 1, steering.least_width)
    return jnp.where(view.active, width, 1)


def look_back(
    clusters: PyTree,
    seen: Seen,
    gist: Float[Array, "B D"] | None,
    certainty: tuple[RowFloats, RowFloats, RowFloats] | None,
    hidden: Float[Array, "B D"] | None,
    active: RowMask,
) -> tuple[Seen, Float[Array, "B D"] | None]:
    """How the target stood where it made the round's last token; finished rows stay as they are.

    Args:
        clusters: [C, D] float32 directions; read only where there is a gist.
        gist: running mean of the hidden states' directions.
    """
    if certainty is not None:
        top, margin, entropy = (
            jnp.where(active, new, old)
            for new, old in zip(certainty, (seen.top, seen.margin, seen.entropy), strict=True)
        )
        seen = Seen(top, margin, entropy, seen.domain)
    if gist is not None and hidden is not None:
        gist = jnp.where(active[:, None], MEMORY * gist + (1 - MEMORY) * direction(hidden), gist)
        seen = seen._replace(domain=nearest(clusters, gist))
    return seen, gist


def direction(hidden: Float[Array, "B D"]) -> Float[Array, "B D"]:
    """Hidden states at length 1: a large one says no more than a small one of what the text is about."""
    return hidden / jnp.maximum(jnp.linalg.norm(hidden, axis=-1, keepdims=True), 1e-9)


def nearest(clusters: Float[Array, "C D"], gist: Float[Array, "B D"]) -> Array:
    """Index of the cluster whose direction each row's gist is nearest to, int32 [B]."""
    return jnp.argmax(gist @ clusters.T, axis=-1).astype(jnp.int32)


__all__ = ["direction", "look_back", "nearest", "pin", "wanted_width"]
