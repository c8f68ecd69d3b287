"""What each kind of draft says at every position of a batch, and its loss against the target's laws there."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspec.models import language_model
from jaxspec.models.attention import NEGATIVE
from jaxspec.models.heads import DraftConfig, bind_head, output_logits, small_logits
from jaxspec.models.layers import rope_tables, softcap
from jaxspec.models.rope import frequencies
from jaxspec.training.divergences import coarse_laws, cross_entropy, divergence_named, total_variation
from jaxspec.training.draft_data import Batch
from jaxspec.typing import Params

DECAY = 0.8
"""Weight of a depth over that of the one before: about how often drafting gets so far."""


class Said(NamedTuple):
    """A draft's logits of one depth: entry t is judged by the target's law at t + ahead."""

    logits: Float[Array, "B T Q"]
    ahead: int
    skip: int  # first entries that no drafting would reach


class Measured(NamedTuple):
    """What a batch shows, by depth."""

    acceptance: Float[Array, "A"]  # 1 - total variation: expected acceptance of sampled drafts
    agreement: Float[Array, "A"]  # share of positions where the likeliest tokens agree: greedy acceptance


DraftLoss = Callable[[Params, Batch, Params], tuple[Float[Array, ""], Measured]]


def check_loss(divergence: str, temperature: float, tokens_share: float, depths: int, decay: float = DECAY) -> None:
    """Refuse what `draft_loss` cannot be made of."""
    divergence_named(divergence)
    if not (temperature > 0 and 0 <= tokens_share <= 1 and depths >= 1 and 0 < decay <= 1):
        raise ValueError(
            f"temperature is {temperature}, tokens_share {tokens_share}, depths {depths}, decay {decay}; "
            "allowed are above 0, 0 to 1, 1 or more, above 0 to 1"
        )


def draft_loss(
    config: DraftConfig,
    *,
    divergence: str = "kl",
    temperature: float = 1.0,
    tokens_share: float = 0.0,
    depths: int = 3,
    decay: float = DECAY,
) -> DraftLoss:
    """loss(params, batch, context) -> (loss in nats, what the batch shows).

    Args:
        divergence: "kl", "reverse-kl", "js" or "tv".
        temperature: of both laws.
        tokens_share: weight of the cross-entropy of the text's own tokens, the divergence has the rest.
        depths: of a feature draft, how many of its own steps it is trained on; a Medusa draft has its heads.
        decay: weight of a depth over that of the one before.

    Raises:
        ValueError: an unknown divergence or a number out of range.
    """
    check_loss(divergence, temperature, tokens_share, depths, decay)
    apart = divergence_named(divergence)

    def loss(params: Params, batch: Batch, context: Params) -> tuple[Float[Array, ""], Measured]:
        total, weights, accepted, agreed = jnp.float32(0), 0.0, [], []
        inverse = context["output.inverse"]
        for depth, said in enumerate(say(config, params, batch, context, depths)):
            ids, log_p, tokens, valid = judges(batch, said)
            each = mean_where(apart(*coarse_laws(ids, log_p, said.logits, inverse, temperature=temperature)), valid)
            if tokens_share:
                text = mean_where(cross_entropy(tokens, said.logits, inverse), _followed(valid))
                each = (1 - tokens_share) * each + tokens_share * text
            total += decay**depth * each
            weights += decay**depth
            laws = coarse_laws(ids, log_p, said.logits, inverse, sayable=False)
            accepted.append(mean_where(1 - total_variation(*laws), valid))
            best = jnp.take(inverse, ids[..., 0], mode="clip")
            agreed.append(mean_where((jnp.argmax(said.logits, -1) == best).astype(jnp.float32), valid))
        return total / weights, Measured(jnp.stack(accepted), jnp.stack(agreed))

    return loss


def judges(batch: Batch, said: Said) -> tuple[jax.Array, ...]:
    """The target's law, the token that came after, and whether it counts, for every entry of `said`."""
    a, n = said.ahead, said.logits.shape[1]
    after = jnp.pad(batch.tokens, ((0, 0), (0, 1)))[:, a + 1 : a + 1 + n]
    valid = jnp.asarray(batch.valid)[:, a : a + n] & (jnp.arange(n) >= said.skip)[None, :]
    return jnp.asarray(batch.ids)[:, a : a + n], jnp.asarray(batch.log_p)[:, a : a + n], after, valid


def _followed(valid: jax.Array) -> jax.Array:
    """Without each document's last entry, whose next token is not in the batch."""
    return valid & jnp.pad(valid, ((0, 0), (0, 1)))[:, 1:]


def mean_where(each: jax.Array, valid: jax.Array) -> jax.Array:
    """Mean over the entries that count; 0 where none does."""
    return jnp.sum(jnp.where(valid, each, 0.0)) / jnp.maximum(jnp.sum(valid), 1).astype(jnp.float32)


def say(config: DraftConfig, params: Params, batch: Batch, context: Params, depths: int) -> list[Said]:
    """Logits of every depth; what `params` does not hold is the target's, in `context`."""
    return _KINDS[config.kind](config, context | params, batch, depths)


def _exit(config: DraftConfig, params: Params, batch: Batch, depths: int) -> list[Said]:
    del depths
    x = bind_head(config)(params)(_major(batch.features[config.layers], params))
    return [Said(output_logits(config, params["output.weight"], x), 0, 0)]


def _medusa(config: DraftConfig, params: Params, batch: Batch, depths: int) -> list[Said]:
    del depths
    width = batch.tokens.shape[1]
    vectors = bind_head(config)(params)(_major(batch.features[config.taps[-1]], params))
    said = []
    for head, x in enumerate(vectors):
        weight = params[f"output.{head}.weight" if config.own_output else "output.weight"]
        said.append(Said(output_logits(config, weight, x[..., : width - 1 - head]), 1 + head, 0))
    return said


def _lm(config: DraftConfig, params: Params, batch: Batch, depths: int) -> list[Said]:
    del depths
    model = language_model(config.body)
    rows, width = batch.tokens.shape
    cache = model.init_cache(rows, 1, headroom=1)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (rows, width, width))
    out = model.forward(params, jnp.asarray(batch.tokens), jnp.asarray(batch.positions), mask, cache, logits=False)
    return [Said(small_logits(config, params, out.hidden), 0, 0)]


def _feature(config: DraftConfig, params: Params, batch: Batch, depths: int) -> list[Said]:
    """Depth s + 1 reads, in the place of the target's feature, what depth s made of the token before.

    Source: Li et al. 2025, "EAGLE-3", training-time test.
    """
    layer = bind_head(config)(params)
    embedded = jnp.take(params["embed_tokens.weight"], batch.tokens[:, 1:], axis=0).transpose(2, 0, 1)
    embedded = (embedded * config.body.embed_scale).astype(params["fc.weight"].dtype)
    feature = layer.fuse([_major(batch.features[tap], params)[..., :-1] for tap in config.taps])
    places = jnp.asarray(batch.positions)[:, :-1]
    rope = rope_tables(places, *frequencies(config.body, places, local=False))
    keys, values, said = [], [], []
    for depth in range(depths):
        x, read = layer.enter(feature, embedded)
        q, k, v = layer.self_attn.project(read, rope)
        keys.append(k)
        values.append(v)
        mixed = attend_unrolled(q, keys, values, scale=layer.self_attn.scale, cap=config.body.attention_softcap)
        mixed = layer.self_attn.o_proj(mixed.reshape(-1, *mixed.shape[3:]).astype(x.dtype))
        x = layer.leave(x, mixed)
        said.append(Said(output_logits(config, params["output.weight"], layer.say(x)), 1, depth))
        feature = jnp.pad(x, ((0, 0), (0, 0), (1, 0)))[..., :-1]
    return said


def attend_unrolled(
    q: Float[Array, "K G H B T"], keys: list[jax.Array], values: list[jax.Array], *, scale: float, cap: float | None
) -> Float[Array, "K G H B T"]:
    """Attention of drafting step s = len(keys) - 1 at every position at once; keys and values are [B, K, T, H] a step.

    Drafting that has come to place i began s places before: it sees the target's features up to i - s, then what its
    own steps 1 .. s made of the places i - s + 1 .. i.
    """
    step, width = len(keys) - 1, q.shape[-1]
    place = jnp.arange(width)
    product = functools.partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)
    own = [(_back(k, step - m), _back(v, step - m)) for m, (k, v) in enumerate(zip(keys, values, strict=True)) if m]
    scores = [product("kghbt,bkuh->bkgtu", q, keys[0])]
    scores += [product("kghbt,bkth->bkgt", q, k)[..., None] for k, _ in own]
    capped = softcap(jnp.concatenate(scores, -1) * scale, cap)
    seen = jnp.pad(place[None, :] <= place[:, None] - step, ((0, 0), (0, step)), constant_values=True)
    weights = jax.nn.softmax(jnp.where(seen[None, None, None], capped, NEGATIVE), axis=-1).astype(q.dtype)
    mixed = product("bkgtu,bkuh->kghbt", weights[..., :width], values[0])
    for m, (_, v) in enumerate(own):
        mixed += product("bkgt,bkth->kghbt", weights[..., width + m], v)
    return mixed


def _back(leaf: Float[Array, "B K T H"], places: int) -> Float[Array, "B K T H"]:
    """Entry t is what stood `places` before t."""
    return jnp.pad(leaf, ((0, 0), (0, 0), (places, 0), (0, 0)))[:, :, : leaf.shape[2]]


def _major(features: Any, params: Params) -> Float[Array, "D B T"]:
    """Feature-major, in the parameters' dtype."""
    return jnp.asarray(features).astype(params["norm.weight"].dtype).transpose(2, 0, 1)


_KINDS = {"exit": _exit, "medusa": _medusa, "lm": _lm, "feature": _feature}
