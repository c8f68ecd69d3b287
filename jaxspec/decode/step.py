"""One round: choose, catch up, propose, judge, commit."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxspec.buckets import bucket_index
from jaxspec.cache import append
from jaxspec.contracts import Choice, EngineParams, Feedback, Proposal, Setup, Signals, Verdict, View
from jaxspec.decode.state import State, look, on_mesh
from jaxspec.drafts import bank
from jaxspec.drafts.tails import continued
from jaxspec.models.windows import in_branch
from jaxspec.outcome import LENGTH, RUNNING, STOP
from jaxspec.select.feedback import at_hand, full_information
from jaxspec.select.sense import look_back, pin, wanted_width
from jaxspec.sharding import constrain
from jaxspec.telemetry import count
from jaxspec.typing import PyTree, RowMask, Rows
from jaxspec.verify.window import Judged, judge


class StepInfo(NamedTuple):
    """What a round did; telemetry, not needed to go on."""

    choice: Choice
    proposal: Proposal
    verdict: Verdict
    catch_up: Int[Array, "B N"]  # tokens each source took to catch up
    width: Int[Array, ""]  # index of the window width the target ran
    rode: RowMask  # rows for which the setup's branch rode in the window
    signals: Signals
    feedback: Feedback | None  # None where the selector does not read it


@on_mesh
def step(setup: Setup, params: EngineParams, state: State) -> tuple[State, StepInfo]:
    """One round for every row; finished rows stay as they are. Pure; jit with `setup` static and `state` donated.

    Every cache is read-only until the commit at the end, so a rejected token never touches one.
    """
    view = look(state)
    free, signals = bank.offer(setup, params, view, state.sources, state.seen)
    wish = pin(setup.selector.choose(params.selector, state.selector, signals), view)
    rode = bank.riders(setup, view, wish)
    choice = bank.settle(wish, signals)
    sources, caught_up = bank.catch_up(setup, params, view, state.sources, choice)
    head, scratches = bank.propose(setup, params, view, sources, choice, free)
    proposal, choice = continued(setup, params, view, sources, choice, head, state.selector)
    width = bucket_index(jnp.max(wanted_width(view, proposal.count)), setup.windows)
    carrier = None if setup.carrier is None else sources[setup.carrier]
    hand = at_hand(setup, free, head, choice) if setup.selector.feedback else None
    asked = None if hand is None else hand.tokens
    judged = _judge(setup, params, view, proposal, choice, scratches, width, jnp.any(rode), carrier, asked)
    verdict, outcome = _emit(view, judged)
    feedback = None
    if hand is not None:
        assert judged.chances is not None
        heat = view.request.warpers.temperature
        feedback = full_information(setup, hand, head, choice, verdict, judged.chances, heat)
    clusters = params.selector.clusters if setup.selector.clusters else None
    seen, gist = look_back(clusters, state.seen, state.gist, judged.certainty, judged.hidden, view.active)
    tokens, logprobs = _append(state, verdict)
    sources = bank.absorb(setup, sources, judged.features, view.length - 1, verdict.count)
    sources = bank.observe(setup, view, sources, scratches, choice, verdict)
    fresh = State(
        tokens=tokens,
        length=state.length + verdict.count,
        outcome=outcome,
        logprobs=logprobs,
        cache=setup.target.commit(state.cache, judged.window, None, verdict.count),
        sources=bank.learn(setup, view, sources, judged.guesses, rode, verdict),
        selector=setup.selector.update(params.selector, state.selector, signals, choice, proposal, verdict, feedback),
        seen=seen,
        gist=gist,
        request=state.request,
        counters=count(
            state.counters,
            active=view.active,
            source=choice.source,
            proposed=head.count,
            accepted=jnp.minimum(verdict.accepted, head.count),
            tail=choice.source if choice.tail is None else choice.tail,
            tail_proposed=proposal.count - head.count,
            tail_accepted=jnp.maximum(verdict.accepted - head.count, 0),
            emitted=verdict.count,
            catch_up=caught_up,
            width=width,
        ),
        rounds=state.rounds + 1,
    )
    return constrain(fresh, setup.mesh), StepInfo(choice, proposal, verdict, caught_up, width, rode, signals, feedback)


def _judge(
    setup: Setup,
    params: EngineParams,
    view: View,
    proposal: Proposal,
    choice: Choice,
    scratches: dict[int, PyTree],
    width: Int[Array, ""],
    rides: Bool[Array, ""],
    carrier: PyTree | None,
    asked: Int[Array, "B N A"] | None,
) -> Judged:
    """One target pass of the bucket's width; from the layers that drafting ran already, where every row has those.

    arms   width 1, 2, 4, ..  |  with the branch: 1, 2, 4, ..  |  reusing source a: 1, 2, 4, ..  |  reusing source b: ..

    Where no row asks for the branch its nodes are not in the window: other arms run.
    """
    arms = [functools.partial(judge, setup, params, view, proposal, width=w, asked=asked) for w in setup.windows]
    arm = width
    if carrier is not None:
        arms += [functools.partial(plain, carrier=carrier) for plain in arms]
        arm = jnp.where(rides, width + len(setup.windows), arm)
    for index, source in enumerate(setup.sources):
        if source.reuse is None:
            continue
        mine = (choice.source == index) & (choice.tail_lookahead == 0)  # drafting has not run over a tail
        everyone = jnp.all(mine | ~view.active) & jnp.any(view.active)
        arm = jnp.where(everyone, width + len(arms), arm)
        reuse = source.reuse(scratches[index])
        arms += [
            functools.partial(arm_, reuse=reuse, layers=source.reuse_layers) for arm_ in arms[: len(setup.windows)]
        ]
    return jax.lax.switch(arm, arms) if len(arms) > 1 else in_branch(arms[0], jnp.any(view.active))


def _emit(view: View, judged: Judged) -> tuple[Verdict, Rows]:
    """What a row emits, up to its first stop id and its limit, nothing once it has ended; and how it stands then.

    accepted 3, emitted  5 8 2 9, stop id 2   ->   count 3, outcome STOP
    """
    request = view.request
    index = jnp.arange(judged.emitted.shape[1], dtype=jnp.int32)[None, :]
    stops = jnp.any(judged.emitted[:, :, None] == request.stop_ids[:, None, :], axis=-1)
    first = jnp.min(jnp.where(stops, index, index.shape[1]), axis=1)
    room = request.limit - view.length
    whole = jnp.minimum(judged.accepted + 1, room)
    count_ = jnp.where(view.active, jnp.minimum(whole, first + 1), 0)
    stopped = view.active & (first < whole)
    full = view.active & (count_ >= room)
    going = jnp.where(stopped, STOP, jnp.where(full, LENGTH, RUNNING))
    outcome = jnp.where(view.active, going, view.outcome)
    accepted = jnp.where(view.active, jnp.minimum(judged.accepted, count_), 0)
    return Verdict(accepted, judged.emitted, count_, judged.logprobs), outcome


def _append(state: State, verdict: Verdict) -> tuple[jax.Array, jax.Array | None]:
    """Tokens and log-probabilities with the emitted ones at each row's length."""
    logprobs = state.logprobs
    if logprobs is not None and verdict.logprobs is not None:
        logprobs = append(logprobs, verdict.logprobs, state.length, verdict.count)
    return append(state.tokens, verdict.emitted, state.length, verdict.count), logprobs


__all__ = ["StepInfo", "step"]
