"""Chi-square for token laws, and the rows that every law test draws: each row is one independent seed."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

ROWS = 40_000
SEEDS = jnp.arange(ROWS, dtype=jnp.uint32)
HOLDS = 1e-3  # p-value that a right implementation exceeds, at these fixed seeds
FAILS = 1e-6  # p-value that a wrong one stays below


def p_value(tokens, law) -> float:
    """Probability of counts at least this far from the law; 0 where a token came that cannot come."""
    law = np.asarray(law, np.float64)
    counts = np.bincount(np.asarray(tokens).ravel(), minlength=law.size)
    if counts.size > law.size or counts[law == 0].any():
        return 0.0
    possible = law > 0
    if possible.sum() == 1:
        return 1.0
    expected = law[possible] / law.sum() * counts.sum()
    return float(scipy.stats.chisquare(counts[possible], expected).pvalue)


def rows_of(values, rows: int = ROWS) -> jax.Array:
    """The same array for every row."""
    values = jnp.asarray(values, jnp.float32)
    return jnp.broadcast_to(values, (rows, *values.shape))
