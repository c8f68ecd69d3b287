"""Lookup where it matched, else the model, else none: the rule that a learned selector has to beat."""

import functools

import jax.numpy as jnp

from jaxspec.contracts import Choice, Selector, Signals
from jaxspec.typing import PyTree


@functools.lru_cache(maxsize=256)
def rule(
    free: tuple[int, ...],
    models: tuple[int, ...],
    *,
    free_lookahead: int,
    model_lookahead: int,
    learns: int = 0,
) -> Selector:
    """The first free source that offers a draft, else the first model source that can run, else none.

    A short match is a weak one: a free source that rests on m tokens of context is asked for 2**m - 1 drafts at most
    (1, 3, 7, ..), so that the window stays narrow where little will be accepted.

    Args:
        free, models: indices of the setup's sources in order of preference, "none" left out. Static.
        free_lookahead, model_lookahead: drafts asked of each kind. Static.
        learns: index of the source to ask where no other has anything to offer: asked, it learns (its branch rides in
            the window, `jaxspec.contracts.Branch`), and may have something the next time; 0 without one. Static.
    """

    def choose(params: PyTree, state: PyTree, signals: Signals) -> Choice:
        del params, state
        source = jnp.zeros(len(signals.active), jnp.int32)
        lookahead = jnp.zeros_like(source)
        for index, most in (*((i, free_lookahead) for i in free), *((i, model_lookahead) for i in models)):
            take = (source == 0) & (signals.offered[:, index] > 0)
            match = signals.match[:, index]
            trusted = jnp.where(match > 0, jnp.left_shift(1, jnp.minimum(match, 16)) - 1, most)
            source = jnp.where(take, index, source)
            lookahead = jnp.where(take, jnp.minimum(trusted, most), lookahead)
        if learns:
            lookahead = jnp.where(source == 0, free_lookahead, lookahead)
            source = jnp.where(source == 0, learns, source)
        return Choice(source, lookahead)

    return Selector("rule", lambda rows, sources: (), choose, lambda params, state, *seen: state)
