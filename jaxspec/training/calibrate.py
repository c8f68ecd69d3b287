"""A draft's temperature, fitted to its target: the one at which sampled drafts are accepted most."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.models.heads import DraftConfig
from jaxspec.training.divergences import coarse_laws, total_variation
from jaxspec.training.draft_data import Batch
from jaxspec.training.draft_loss import DECAY, judges, mean_where, say
from jaxspec.training.live import See, as_kept
from jaxspec.typing import Params

COARSE = np.geomspace(0.25, 4.0, 17)
"""Temperatures that are tried first; as many again between the best one's neighbours follow."""


class Fit(NamedTuple):
    """What was found."""

    temperature: float
    before: float  # total variation at temperature 1, weighted by depth as the loss is
    after: float


def fit_temperature(
    config: DraftConfig,
    params: Params,
    batches: Sequence[Batch],
    context: Params,
    *,
    see: See = as_kept,
    depths: int = 3,
) -> Fit:
    """The temperature with the least total variation between the target's laws and the draft's.

    Args:
        params: of the draft, as the engine will use them.
        batches: of text that training did not see.
        context: what the draft takes from the target; its temperature is not used.
        see: completes a batch where the target's view was not kept.
        depths: of a feature draft.
    """
    context = context | {"temperature": jnp.float32(1)}
    measure = jax.jit(functools.partial(_apart, config, see, depths))

    def apart(heats: np.ndarray) -> np.ndarray:
        tried = jnp.asarray(heats, jnp.float32)
        seen = [measure(params, jax.tree.map(jnp.asarray, batch), context, tried) for batch in batches]
        return np.mean(jax.device_get(seen), axis=0)

    return least(apart)


def least(apart: Callable[[np.ndarray], np.ndarray]) -> Fit:
    """The temperature of the least distance, on a grid and then on a finer one about its best place."""
    far = apart(COARSE)
    best = int(np.argmin(far))
    low, high = COARSE[max(best - 1, 0)], COARSE[min(best + 1, len(COARSE) - 1)]
    fine = np.geomspace(low, high, len(COARSE))
    near = apart(fine)
    before = float(far[len(COARSE) // 2])  # temperature 1
    after = float(near.min())
    if after >= before:
        return Fit(1.0, before, before)
    return Fit(round(float(fine[int(np.argmin(near))]), 4), before, after)


def _apart(
    config: DraftConfig, see: See, depths: int, params: Params, batch: Batch, context: Params, heats: jax.Array
) -> jax.Array:
    """Total variation at every temperature."""
    batch, inverse = see(batch, context), context["output.inverse"]
    total, weights = jnp.zeros(heats.shape), 0.0
    for depth, said in enumerate(say(config, params, batch, context, depths)):
        ids, log_p, _, valid = judges(batch, said)
        at = functools.partial(_at, ids, log_p, said.logits, inverse, valid)
        total += DECAY**depth * jax.lax.map(at, heats)
        weights += DECAY**depth
    return total / weights


def _at(
    ids: jax.Array, log_p: jax.Array, logits: jax.Array, inverse: jax.Array, valid: jax.Array, heat: jax.Array
) -> jax.Array:
    """Total variation of one depth at one temperature."""
    return mean_where(total_variation(*coarse_laws(ids, log_p, logits / heat, inverse, sayable=False)), valid)
