"""Where a draft's training starts: from the target's own weights."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.models.heads import DraftConfig, init_head
from jaxspec.typing import Params


def start(
    config: DraftConfig, target: Mapping[str, jax.Array], *, seed: int, from_layers: Sequence[int] = ()
) -> Params:
    """Fresh trainable parameters, the draft's vocabulary apart.

    lm: the target's layers `from_layers`, in that order, and its final norm.
    exit, medusa: the target's final norm; the adapter and the residual blocks begin as nothing.
    feature: the target's layer `from_layers[0]`; attention reads the feature as that layer reads its input, the
    features of the last tap alone enter, the embedding's part is small noise.

    Args:
        target: the target's parameters, not fused.
    """
    norm = {"norm.weight": target["norm.weight"]}
    if config.kind == "lm":
        return _layers(target, from_layers) | norm
    params = init_head(config, seed=seed) | norm
    if config.kind == "feature":
        params |= _feature(config, target, params, from_layers[0])
    return {name: jnp.asarray(leaf, jnp.float32) for name, leaf in params.items()}


def _layers(target: Mapping[str, jax.Array], chosen: Sequence[int]) -> Params:
    taken: Params = {}
    for place, layer in enumerate(chosen):
        begin = f"layers.{layer}."
        taken |= {f"layers.{place}.{n.removeprefix(begin)}": leaf for n, leaf in target.items() if n.startswith(begin)}
    return taken


def _feature(config: DraftConfig, target: Mapping[str, jax.Array], fresh: Params, layer: int) -> Params:
    begin, size = f"layers.{layer}.", config.body.hidden_size
    own = {n.removeprefix(begin): leaf.astype(jnp.float32) for n, leaf in target.items() if n.startswith(begin)}
    params: Params = {n: leaf for n, leaf in own.items() if n in fresh and leaf.shape == fresh[n].shape}
    params["hidden_norm.weight"] = own["input_layernorm.weight"]
    params["input_layernorm.weight"] = target["layers.0.input_layernorm.weight"]
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = f"self_attn.{name}.weight"
        noise = 0.1 * fresh[weight][:, :size]
        params[weight] = jnp.concatenate([noise, own[weight]], axis=1)
    wide = np.zeros(fresh["fc.weight"].shape, np.float32)
    wide[:, -size:] = np.eye(size)
    params["fc.weight"] = jnp.asarray(wide) + 0.01 * fresh["fc.weight"]
    return params
