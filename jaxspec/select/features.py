"""What is known before a round, as numbers that a linear model can use: one vector for every row, source and depth.

    columns   what
    0         1, for sources that cost a pass
    1 .. 7    tokens that a free source matched: 1, 2, .. 6, 7 or more
    8 .. 13   depth of the draft: 0, 1, .. 4, 5 or deeper
    14        log-odds of the target's largest probability where it made the last token
    15        its entropy there
    16        a free source's confidence in its first draft, above one half: its probability or its share of matches
    17        logarithm of the match beyond 6 tokens
    18 .. 25  kind of text: the caller's tag, or else the nearest cluster, modulo 8
    26 .. 31  class of the last token (`jaxspec.text.classes`)

About as large as 1 each, so that one learning rate serves all.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxspec.contracts import Signals
from jaxspec.sampling.confidence import odds

MATCHES, DEPTHS, KINDS, CLASSES = 7, 6, 8, 6
BIAS, MATCH, DEPTH = 0, 1, 8
TOP, ENTROPY, LAW, LONG, KIND, CLASS = 14, 15, 16, 17, 18, 26
WIDTH = CLASS + CLASSES
VERSION = 1
"""Of what the columns mean; trained weights of another version are refused."""


def features(signals: Signals, depth: int, free: tuple[bool, ...]) -> Float[Array, "B N A F"]:
    """Of every row, source and depth 0 .. depth - 1; what a setup does not know is 0.

    Args:
        free: sources whose proposals are at hand. Static.
    """
    rows, sources = signals.offered.shape
    shape = (rows, sources, depth)
    at_hand = jnp.asarray(free)[None, :] & (signals.offered > 0)
    match = jnp.where(at_hand, signals.match, 0)
    sure = jnp.full(match.shape, 0.5) if signals.confidence is None else signals.confidence
    own = [
        jnp.broadcast_to(~jnp.asarray(free)[None, :], match.shape),
        *(jnp.minimum(match, MATCHES) == m for m in range(1, MATCHES + 1)),
        jnp.where(at_hand, sure - 0.5, 0.0),
        jnp.log1p(jnp.maximum(match - 6, 0)) / 2,
    ]
    own = jnp.stack([each.astype(jnp.float32) for each in own], -1)[:, :, None, :]  # [B, N, 1, 10]
    deep = (jnp.minimum(jnp.arange(depth), DEPTHS - 1)[:, None] == jnp.arange(DEPTHS)[None, :]).astype(jnp.float32)
    text = _text(signals, rows)[:, None, None, :]
    parts = (
        own[..., : 1 + MATCHES],
        deep[None, None],
        text[..., :2],
        own[..., 1 + MATCHES :],
        text[..., 2:],
    )
    return jnp.concatenate([jnp.broadcast_to(part, (*shape, part.shape[-1])) for part in parts], axis=-1)


def _text(signals: Signals, rows: int) -> Float[Array, "B X"]:
    """What is the same for every source: the target's certainty, the kind of text, the last token's class."""
    seen = signals.seen
    if seen is None:
        sure = jnp.zeros((rows, 2), jnp.float32)
        kind = jnp.full(rows, -1, jnp.int32)
    else:
        begun = seen.top > 0
        sure = jnp.stack([jnp.where(begun, odds(seen.top), 0.0), jnp.where(begun, seen.entropy / 3, 0.0)], -1)
        kind = seen.domain
    if signals.steering is not None:
        kind = jnp.where(signals.steering.domain >= 0, signals.steering.domain, kind)
    klass = jnp.full(rows, -1, jnp.int32) if signals.token_class is None else signals.token_class
    kinds = ((kind[:, None] % KINDS) == jnp.arange(KINDS)[None, :]) & (kind[:, None] >= 0)
    classes = klass[:, None] == jnp.arange(CLASSES)[None, :]
    return jnp.concatenate([sure, kinds.astype(jnp.float32), classes.astype(jnp.float32)], axis=-1)


def naive_weights(free: tuple[bool, ...]) -> np.ndarray:
    """Weights [N, F] float32 of somebody who has seen nothing: longer matches and a surer target are trusted more."""
    weights = np.zeros((len(free), WIDTH), np.float32)
    matched = 0.3 + 0.1 * np.minimum(np.arange(1, MATCHES + 1), 5)
    for row, at_hand in zip(weights, free, strict=True):
        if at_hand:
            row[MATCH : MATCH + MATCHES] = np.log(matched / (1 - matched))
        else:
            row[BIAS], row[TOP] = 0.3, 0.5
    return weights


__all__ = ["VERSION", "WIDTH", "features", "naive_weights"]
