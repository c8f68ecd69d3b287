"""What goodput is told in tests: costs that make it choose this or that, and beliefs that nothing supports."""

import jax.numpy as jnp
import numpy as np

from jaxspec.decode import Setup
from jaxspec.select import SelectorParams, kinds_of, no_prior
from jaxspec.select.cost import CostTable
from jaxspec.select.features import BIAS, MATCH, MATCHES
from jaxspec.select.logistic import fresh


def priced(
    setup: Setup,
    *,
    width: float = 0.05,
    draft=0.1,
    ride: float = 0.2,
    lag: float = 0.0,
    beliefs: int | None = None,
    short: bool = False,
) -> SelectorParams:
    """Costs in plain steps, and a prior.

    Args:
        width: of one more token in the window.
        draft: of each draft of a source that costs a pass; one number, or one by source name.
        beliefs: seed of a prior that is made up; nothing known where None.
        short: believe that passes pay, though no draft of theirs but the first, and that matches are worth to follow.
    """
    kinds = kinds_of(setup.sources, setup.windows)
    steps = np.arange(setup.lookahead + 1)
    each = [draft.get(name, 9.0) if isinstance(draft, dict) else draft for name in kinds.names]
    costs = (
        1 + width * (np.asarray(setup.windows) - 1.0),
        np.where(kinds.passes, each, 0.0)[:, None] * steps,
        np.where(kinds.passes, lag, 0.0),
        ride,
    )
    prior = no_prior(kinds)
    if beliefs is not None:
        rng = np.random.default_rng(beliefs)
        random = (jnp.asarray(rng.normal(size=model.weights.shape) * 1.5, jnp.float32) for model in prior[:3])
        prior = prior._replace(**dict(zip(("takes", "draws", "trust"), map(fresh, random), strict=True)))
    if short:
        passes = jnp.asarray(kinds.passes)
        takes = jnp.where(passes[:, None], 0.0, prior.takes.weights).at[:, BIAS].set(jnp.where(passes, 3.0, 0.0))
        takes = takes.at[:, MATCH : MATCH + MATCHES].set(jnp.where(passes, 0.0, 3.0)[:, None])
        trust = jnp.broadcast_to(jnp.asarray([-1.5, 0.0]), prior.trust.weights.shape)
        prior = prior._replace(takes=fresh(takes), trust=fresh(trust))
    return SelectorParams(CostTable(*(jnp.asarray(leaf, jnp.float32) for leaf in costs)), prior)
