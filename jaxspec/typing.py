"""Letters and aliases for shapes, one legend for types, einsum strings and comments.

B rows, T window tokens, C carried tokens, S cache slots, N query heads, K key-value heads, G = N / K query heads a
key-value head, H head size, D width, F feed-forward width, V vocabulary, L layers, W beams, P tree nodes.
p is the target's distribution, q the draft's.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int, UInt32

Params = dict[str, jax.Array]
"""A model's parameters: one flat dict from dotted name to array."""

PyTree = Any
"""A pytree whose structure belongs to one part and is opaque to the others."""

Rows = Int[Array, "B"]
RowMask = Bool[Array, "B"]
RowFloats = Float[Array, "B"]
Seeds = UInt32[Array, "B"]
Tokens = Int[Array, "B T"]
Positions = Int[Array, "B T"]
WindowMask = Bool[Array, "B T C_plus_T"]
Logits = Float[Array, "B T V"]
Hidden = Float[Array, "B T D"]
Config = Mapping[str, Any]
