"""All sources alive at once: free ones propose for every row, a model pass runs only if some row chose it."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxspec.contracts import (
    FREE,
    MODEL,
    Choice,
    DraftSource,
    EngineParams,
    Features,
    Proposal,
    Seen,
    Setup,
    Signals,
    Verdict,
    View,
)
from jaxspec.drafts.none import empty_proposal
from jaxspec.tree import depths
from jaxspec.typing import PyTree, RowMask, Rows


def offer(
    setup: Setup, params: EngineParams, view: View, states: tuple[PyTree, ...], seen: Seen | None = None
) -> tuple[dict[int, Proposal], Signals]:
    """Proposals of the free sources, and what every source could give this round.

    A row never drafts more than it may still emit less one, nor more than its own limit; a finished row drafts nothing,
    and no row by a source that is banned for it.
    """
    cap = jnp.minimum(view.request.limit - view.length - 1, view.request.max_lookahead)
    cap = jnp.where(view.active, jnp.clip(cap, 0, setup.lookahead), 0)
    free, signals = offered_by(setup, params, view, states, cap, range(len(setup.sources)))
    lag = [
        jnp.zeros_like(cap) if source.lag is None else source.lag(state, view)
        for source, state in zip(setup.sources, states, strict=True)
    ]
    return free, signals._replace(lag=jnp.stack(lag, 1), seen=seen, room=cap)


def offered_by(
    setup: Setup,
    params: EngineParams,
    view: View,
    states: tuple[PyTree, ...],
    cap: Rows,
    among: Sequence[int],
) -> tuple[dict[int, Proposal], Signals]:
    """Proposals of the free sources in `among`, and what each of these sources could give; the others offer nothing.

    Args:
        cap: drafts a row may have at the most.
    """
    free, offered, match, sure = {}, [], [], []
    for index, (source, state) in enumerate(zip(setup.sources, states, strict=True)):
        most = cap if index in among else jnp.zeros_like(cap)
        if source.max_positions is not None:
            # drafts stand at positions length .. length + most - 1
            most = jnp.minimum(most, jnp.maximum(source.max_positions - view.length, 0))
        if source.most is not None:
            most = jnp.minimum(most, source.most)
        if view.request.steering is not None:
            most = jnp.where(view.request.steering.weights[:, index] > 0, most, 0)
        if source.cost == FREE and index in among:
            free[index], _ = source.propose(params, view, state, most)
            most = jnp.minimum(free[index].count, most)
        offered.append(most)
        match.append(free[index].match if index in free else jnp.zeros_like(cap))
        first = free[index].confidence[:, :1] if index in free else jnp.ones((len(cap), 0), jnp.float32)
        sure.append(jnp.min(first, axis=1, initial=1.0, where=(most > 0)[:, None]))
    signals = Signals(
        offered=jnp.stack(offered, 1),
        match=jnp.stack(match, 1),
        lag=jnp.zeros((len(cap), len(setup.sources)), jnp.int32),
        active=view.active,
        confidence=jnp.stack(sure, 1),
        length=view.length,
        steering=view.request.steering,
        token_class=_last_class(params, view),
    )
    return free, signals


def _last_class(params: EngineParams, view: View) -> Rows | None:
    """Class of each row's last token, where the selector was given a table of classes; None where not."""
    classes = getattr(params.selector, "classes", None)
    if classes is None:
        return None
    last = jnp.take_along_axis(view.tokens, view.length[:, None] - 1, axis=1)[:, 0]
    return classes[last].astype(jnp.int32)


def settle(choice: Choice, signals: Signals) -> Choice:
    """The choice within what was offered; a row left with lookahead 0 is a row of source 0."""
    most = jnp.take_along_axis(signals.offered, choice.source[:, None], axis=1)[:, 0]
    lookahead = jnp.clip(choice.lookahead, 0, most)
    return choice._replace(source=jnp.where(lookahead > 0, choice.source, 0), lookahead=lookahead)


def riders(setup: Setup, view: View, asked: Choice) -> RowMask:
    """Rows for which the setup's branch rides: they ask for drafts of its source, offered or not, and have room for it.

    The source of a choice that was not settled yet counts, so that a source with nothing to offer may come to have it.
    A row that cannot draft any more, since it ends with this token or is allowed no drafts, has no use for it.
    """
    if setup.branch is None:
        return jnp.zeros_like(view.active)
    deepest = int(depths(np.asarray(setup.branch.parents, np.int32)).max())
    more = jnp.minimum(view.request.limit - view.length - 1, view.request.max_lookahead) > 0
    fits = view.length - 1 + deepest < setup.target.config.max_positions
    steering = view.request.steering
    if steering is not None:
        more &= steering.weights[:, setup.carrier] > 0
    return view.active & (asked.source == setup.carrier) & (asked.lookahead > 0) & more & fits


def catch_up(
    setup: Setup, params: EngineParams, view: View, states: tuple[PyTree, ...], choice: Choice
) -> tuple[tuple[PyTree, ...], jax.Array]:
    """Let each chosen source that lags take what it missed; also the tokens taken, [B, N]."""
    fresh, taken = [], []
    for index, (source, state) in enumerate(zip(setup.sources, states, strict=True)):
        count = jnp.zeros_like(choice.source)
        if source.catch_up is not None:
            state, count = source.catch_up(params, view, state, choice.source == index)
        fresh.append(state)
        taken.append(count)
    return tuple(fresh), jnp.stack(taken, 1)


def propose(
    setup: Setup,
    params: EngineParams,
    view: View,
    states: tuple[PyTree, ...],
    choice: Choice,
    free: dict[int, Proposal],
) -> tuple[Proposal, dict[int, PyTree]]:
    """Every row's drafts from the source it chose, and the scratch of each model source (zeros where it did not run).

    One `lax.switch` over the model sources, repeated while a row waits for one: a round in which all rows agree runs
    one branch, a round without a model draft runs none. Each lies in a branch: what a loop's body computes from nothing
    that the loop changes is moved before the loop by XLA, and runs whether or not the loop does.
    """
    view = view._replace(stop=choice.stop)
    models = [i for i, source in enumerate(setup.sources) if source.cost == MODEL]
    wanted = {i: jnp.where(choice.source == i, choice.lookahead, 0) for i in models}
    runs = [functools.partial(setup.sources[i].propose, params, view, states[i], wanted[i]) for i in models]
    shapes = [jax.eval_shape(run) for run in runs]
    proposal = empty_proposal(len(view.length), setup.lookahead)
    laws = [each.q_log for each in (*free.values(), *(drafted for drafted, _ in shapes)) if each.q_log is not None]
    if laws:
        proposal = proposal._replace(q_log=jnp.zeros(laws[0].shape, jnp.float32))
    for index, offered in free.items():
        proposal = _merge(proposal, offered, choice.source == index)
    proposal = proposal._replace(count=jnp.minimum(proposal.count, choice.lookahead))
    if not models:
        return proposal, {}
    scratches = tuple(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), scratch) for _, scratch in shapes)

    def branch(number: int, proposal: Proposal, scratches: tuple[PyTree, ...]) -> tuple[Proposal, tuple[PyTree, ...]]:
        drafted, scratch = runs[number]()
        merged = _merge(proposal, drafted, choice.source == models[number])
        return merged, (*scratches[:number], scratch, *scratches[number + 1 :])

    branches = [functools.partial(branch, number) for number in range(len(models))]
    waiting = jnp.stack([jnp.any(wanted[i] > 0) for i in models])
    if len(models) == 1:  # a switch of one branch is none
        proposal, scratches = jax.lax.cond(waiting[0], branches[0], lambda *same: same, proposal, scratches)
        return proposal, dict(zip(models, scratches, strict=True))

    def body(carry: tuple[jax.Array, Proposal, tuple[PyTree, ...]]) -> tuple[jax.Array, Proposal, tuple[PyTree, ...]]:
        waiting, proposal, scratches = carry
        number = jnp.argmax(waiting)
        proposal, scratches = jax.lax.switch(number, branches, proposal, scratches)
        return waiting.at[number].set(False), proposal, scratches

    _, proposal, scratches = jax.lax.while_loop(lambda carry: jnp.any(carry[0]), body, (waiting, proposal, scratches))
    return proposal, dict(zip(models, scratches, strict=True))


def _merge(into: Proposal, drafted: Proposal, rows: RowMask) -> Proposal:
    """`drafted` for the given rows, `into` for the others; laws only where `into` keeps them."""

    def pick(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    laws = into.q_log
    if laws is not None and drafted.q_log is not None:
        laws = pick(laws, drafted.q_log)
    return Proposal(
        tokens=pick(into.tokens, drafted.tokens),
        count=pick(into.count, drafted.count),
        q_log=laws,
        sampled=pick(into.sampled, drafted.sampled),
        match=pick(into.match, drafted.match),
        confidence=pick(into.confidence, drafted.confidence),
    )


def absorb(
    setup: Setup, states: tuple[PyTree, ...], features: Features, start: Rows, count: Rows
) -> tuple[PyTree, ...]:
    """Every source's state with the features it asked for of the tokens that enter the target's cache at `start`."""

    def taken(source: DraftSource, state: PyTree) -> PyTree:
        if source.absorb is None:
            return state
        return source.absorb(state, {tap: features[tap] for tap in source.taps}, start, count)

    return tuple(taken(source, state) for source, state in zip(setup.sources, states, strict=True))


def learn(
    setup: Setup, view: View, states: tuple[PyTree, ...], guesses: Int[Array, "B M"], rode: RowMask, verdict: Verdict
) -> tuple[PyTree, ...]:
    """Every source's state, that of the branch's with what the target said at its nodes for the rows in `rode`."""
    carrier, branch = setup.carrier, setup.branch
    if carrier is None or branch is None:
        return states
    fresh = branch.learn(states[carrier], view, guesses, rode, verdict)
    return (*states[:carrier], fresh, *states[carrier + 1 :])


def observe(
    setup: Setup,
    view: View,
    states: tuple[PyTree, ...],
    scratches: dict[int, PyTree],
    choice: Choice,
    verdict: Verdict,
) -> tuple[PyTree, ...]:
    """Every source's state after the verdict."""
    fresh = []
    for index, (source, state) in enumerate(zip(setup.sources, states, strict=True)):
        ran: RowMask = choice.source == index
        fresh.append(source.observe(state, scratches.get(index, ()), view, ran, verdict))
    return tuple(fresh)
