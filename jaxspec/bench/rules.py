"""Selectors by name for records, and the rule of the field, which others are measured by."""

import functools
from typing import NamedTuple

import jax.numpy as jnp

from jaxspec.bench.prices import Priced
from jaxspec.bench.record import Pool
from jaxspec.contracts import FREE, MODEL, Choice, Selector, Signals
from jaxspec.select import LEARNED, SelectorParams, fixed, learned, no_prior, prior_of, rule, weighs
from jaxspec.select.cost import CostTable
from jaxspec.select.kinds import kinds_from
from jaxspec.typing import PyTree


class Info(NamedTuple):
    """What a selector is made for."""

    pool: Pool
    depth: int  # drafts a round at the most
    windows: tuple[int, ...]  # widths that the costs have times to verify for
    costs: Priced


def selector_by_name(name: str, info: Info) -> tuple[Selector, PyTree]:
    """A selector for a pool, and its parameters.

    Args:
        name: one of `jaxspec.select.LEARNED`, "router:FOLDER", "goodput:FOLDER", "rule" (the engine's), "field"
            (`lookup_else_model`), "fixed:SOURCE:K", or "fixed:none".

    Raises:
        ValueError: a name that no selector has, or that this pool has no sources for.
    """
    pool = info.pool
    free = tuple(i for i, kind in enumerate(pool.costs) if kind == FREE and i > 0)
    models = tuple(i for i, kind in enumerate(pool.costs) if kind == MODEL)
    if name == "rule":
        sizes = {"free_lookahead": info.depth, "model_lookahead": min(info.depth, 3)}
        return rule(free, models, learns=pool.carrier or 0, **sizes), ()
    if name == "field":
        if not (free and models):
            raise ValueError(f"select 'field' needs a free source and a model; the records have {pool.names}")
        return lookup_else_model(free[0], models[0]), ()
    if weighs(name):
        kinds = kinds_from(pool.names, pool.costs, pool.carrier, pool.nodes, info.windows)
        costs = info.costs
        cost = CostTable(
            *(jnp.asarray(each, jnp.float32) for each in (costs.verify, costs.draft, costs.lag, costs.ride))
        )
        return learned(name, kinds), SelectorParams(cost, prior_of(name, kinds) or no_prior(kinds))
    kind, _, rest = name.partition(":")
    source, _, drafts = rest.rpartition(":")
    if kind == "fixed" and rest == "none":
        return fixed(0, 0), ()
    if kind == "fixed" and source in pool.names and drafts.isdecimal() and int(drafts) <= info.depth:
        return fixed(pool.index(source), int(drafts)), ()
    raise ValueError(
        f"select {name!r} is unknown; choose {', '.join(LEARNED)}, router:FOLDER, rule, field or fixed:SOURCE:K "
        f"with SOURCE among {', '.join(pool.names)} and K up to {info.depth}"
    )


@functools.lru_cache(maxsize=64)
def lookup_else_model(
    lookup: int, model: int, *, least_match: int = 3, lookup_lookahead: int = 10, model_lookahead: int = 4
) -> Selector:
    """Lookup where it rests on a match that is long enough, else the model, always: the rule of the field.

    Args:
        lookup, model: indices of the two sources. Static.
        least_match: tokens of context that a lookup must rest on. Static.
        lookup_lookahead, model_lookahead: drafts asked of each. Static.
    """

    def choose(params: PyTree, state: PyTree, signals: Signals) -> Choice:
        del params, state
        matched = (signals.match[:, lookup] >= least_match) & (signals.offered[:, lookup] > 0)
        source = jnp.where(matched, lookup, model).astype(jnp.int32)
        return Choice(source, jnp.where(matched, lookup_lookahead, model_lookahead).astype(jnp.int32))

    return Selector("lookup-else-model", lambda rows, sources: (), choose, lambda params, state, *seen: state)


__all__ = ["Info", "lookup_else_model", "selector_by_name"]
