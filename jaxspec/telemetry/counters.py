"""Counters kept inside the compiled step, by row, source and depth."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxspec.typing import RowMask, Rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counters:
    """Sums since the state was made; int32. N sources, A drafts a round at the most, Z window widths."""

    rounds: Int[Array, "B N"]  # rounds in which the row's source was this one
    emitted: Int[Array, "B N"]  # tokens emitted in those rounds
    proposed: Int[Array, "B N A"]  # drafts proposed at each depth
    accepted: Int[Array, "B N A"]  # drafts accepted at each depth
    catch_up: Int[Array, "B N"]  # tokens a lagging draft took to catch up outside its rounds' own passes
    widths: Int[Array, "Z"]  # target passes by window width, all rows together


def init_counters(rows: int, sources: int, lookahead: int, widths: int) -> Counters:
    """All zero."""
    by_source, by_depth = (rows, sources), (rows, sources, lookahead)
    shapes = (by_source, by_source, by_depth, by_depth, by_source, (widths,))
    return Counters(*(jnp.zeros(shape, jnp.int32) for shape in shapes))


def count(
    counters: Counters,
    *,
    active: RowMask,
    source: Rows,
    proposed: Rows,
    accepted: Rows,
    tail: Rows,
    tail_proposed: Rows,
    tail_accepted: Rows,
    emitted: Rows,
    catch_up: Int[Array, "B N"],
    width: Int[Array, ""],
) -> Counters:
    """One round more; finished rows count nothing. `width` is the index of the window width the target ran.

    A tail's drafts are its own source's, from depth 0 on; the round and what it emitted are the head's.
    """
    _, sources, depth = counters.proposed.shape
    names = jnp.arange(sources, dtype=jnp.int32)[None, :]
    mine = (names == source[:, None]) & active[:, None]
    theirs = (names == tail[:, None]) & (tail_proposed > 0)[:, None] & active[:, None]

    def by_depth(drafts: Rows, tail_drafts: Rows) -> Int[Array, "B N A"]:
        index = jnp.arange(depth, dtype=jnp.int32)[None, :]
        heads = mine[:, :, None] & (index < drafts[:, None])[:, None, :]
        tails = theirs[:, :, None] & (index < tail_drafts[:, None])[:, None, :]
        return heads.astype(jnp.int32) + tails.astype(jnp.int32)

    return Counters(
        rounds=counters.rounds + mine.astype(jnp.int32),
        emitted=counters.emitted + jnp.where(mine, emitted[:, None], 0),
        proposed=counters.proposed + by_depth(proposed, tail_proposed),
        accepted=counters.accepted + by_depth(accepted, tail_accepted),
        catch_up=counters.catch_up + catch_up,
        widths=counters.widths.at[width].add(1),
    )
