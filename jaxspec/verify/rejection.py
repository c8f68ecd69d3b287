"""Rejection verification: the most drafts that can be accepted while the law of the output stays the target's."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxspec.sampling import Cut, Purpose, Warpers, argmax, cut, gumbel, log_prob, pick, probability, uniform
from jaxspec.typing import Logits, Positions, RowFloats, RowMask, Rows, Seeds
from jaxspec.verify.greedy import leading, match


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
    """Accept draft x with probability min(1, p(x)/q(x)); replace the first rejected one from (p - q)+. See `Verify`.

    A draft that was not sampled is a point mass, q(x) = 1: it is accepted with p(x), and replaced from p without x.
    After full acceptance the bonus is drawn from p.

    Source: Leviathan, Kalman and Matias 2023; Chen et al. 2023.
    """

    def sample() -> tuple[Rows, Rows]:
        laws = cut(logits, warpers) if law is None else law
        p = _target_probability(logits, laws, drafts, warpers.temperature)
        q = _draft_probability(drafts, q_log, sampled)
        # Strict, so that a draft with p = 0 is never accepted, not even at u = 0.
        accepted = leading(uniform(seed, positions[:, :-1], Purpose.ACCEPT) * q < p, count)
        rejected = accepted < count

        log_p = _law_at(logits, laws, accepted, warpers.temperature)
        if drafts.shape[1] > 0:
            left = _residual(log_p, _draft_law_at(drafts, q_log, sampled, accepted, logits.shape[-1]))
            log_p = jnp.where(rejected[:, None, None], left, log_p)
        purpose = jnp.where(rejected, Purpose.RESIDUAL, Purpose.TARGET)[:, None]
        at = jnp.take_along_axis(positions, accepted[:, None], 1)
        return accepted, pick(log_p, gumbel(seed, at, logits.shape[-1], purpose=purpose))[:, 0]

    return lax.cond(jnp.any(warpers.temperature > 0), sample, lambda: match(argmax(logits), drafts, count))


def _target_probability(
    logits: Logits, law: Cut, drafts: Int[Array, "B T-1"], temperature: RowFloats
) -> Float[Array, "B T-1"]:
    """Probability p of each draft; 0 for an id that the target does not have."""
    judges = Cut(*(leaf[:, :-1] for leaf in law))
    return probability(logits[:, :-1], drafts[..., None], judges, temperature)[..., 0]


def _draft_probability(
    drafts: Int[Array, "B N"], q_log: Float[Array, "B N V"] | None, sampled: RowMask
) -> Float[Array, "B N"]:
    """Probability q of each draft: 1 where it is a point mass."""
    if q_log is None:
        return jnp.ones(drafts.shape, jnp.float32)
    x = jnp.clip(drafts, 0, q_log.shape[-1] - 1)[..., None]
    return jnp.where(sampled[:, None], jnp.exp(jnp.take_along_axis(q_log, x, 2)[..., 0]), 1.0)


def _law_at(logits: Logits, law: Cut, node: Rows, temperature: RowFloats) -> Float[Array, "B 1 V"]:
    """Target's log-probabilities at one node of each row; the only one whose law is spelt out."""
    at = node[:, None]
    row = jnp.take_along_axis(logits, at[..., None], 1)
    ids = lax.broadcasted_iota(jnp.int32, row.shape, 2)
    return log_prob(row, ids, Cut(*(jnp.take_along_axis(leaf, at, 1) for leaf in law)), temperature)


def _draft_law_at(
    drafts: Int[Array, "B N"], q_log: Float[Array, "B N V"] | None, sampled: RowMask, node: Rows, vocab: int
) -> Float[Array, "B 1 V"]:
    """Law q that the draft judged at one node of each row was drawn from; any, where a row has no draft there."""
    at = jnp.minimum(node, drafts.shape[1] - 1)[:, None]
    ids = jnp.arange(vocab, dtype=jnp.int32)[None, None, :]
    point = (ids == jnp.take_along_axis(drafts, at, 1)[..., None]).astype(jnp.float32)
    if q_log is None:
        return point
    return jnp.where(sampled[:, None, None], jnp.exp(jnp.take_along_axis(q_log, at[..., None], 1)), point)


def _residual(log_p: Float[Array, "B 1 V"], q: Float[Array, "B 1 V"]) -> Float[Array, "B 1 V"]:
    """Logarithm of (p - q)+, not normalised; log p where nothing is left, as when p = q or all of p is on the draft."""
    left = jnp.maximum(jnp.exp(log_p) - q, 0.0)
    return jnp.where(jnp.any(left > 0, -1, keepdims=True), jnp.log(left), log_p)
