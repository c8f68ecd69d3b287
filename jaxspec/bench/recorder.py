"""Makes records: plain decoding in one compiled loop, in which every source drafts at every place and is not heeded.

    at every place    free sources offer   model sources catch up and draft   the target makes one token
                      every source observes, the branch rides                 what each would draft is kept

Afterwards the text is known, and with it how many of the drafts it confirms.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxspec import decode
from jaxspec.bench.record import Pool, Record, run_length
from jaxspec.cache import append
from jaxspec.contracts import Choice, EngineParams, Proposal, Seen, Setup, Verdict, View
from jaxspec.decode.request import needed_capacity
from jaxspec.decode.state import State, look, on_mesh
from jaxspec.drafts import bank
from jaxspec.drafts.none import empty_proposal
from jaxspec.outcome import LENGTH, RUNNING, STOP
from jaxspec.pipeline import Pipeline
from jaxspec.sampling import warpers
from jaxspec.select.sense import look_back
from jaxspec.text import Case
from jaxspec.typing import PyTree
from jaxspec.verify.window import Judged, judge

Told = Callable[[str, int, int], None]
"""Told (what, texts done, texts in all)."""


class Kept(NamedTuple):
    """What there was at every place of one text: n places, N sources, A drafts."""

    drafts: Array  # [n, N, A] int32
    offered: Array  # [n, N] int32
    match: Array  # [n, N] int32
    confidence: Array  # [n, N, A] float32
    seen: Seen  # [n] each


def record(
    setup: Setup,
    params: EngineParams,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    category: str = "",
    name: str = "",
    capacity: int | None = None,
    dtype: Any = None,
    **options: Any,
) -> Record:
    """Decode a prompt, and keep what every source of the setup would draft at every place.

    A source whose branch rides in the window has it ride in every round.

    Args:
        setup: static (recompiles); verify "greedy" or "coupled", whose text does not depend on the drafts.
        max_new_tokens: static (recompiles); tokens at the most.
        capacity, dtype: as in `jaxspec.decode.start`.
        options: of `jaxspec.decode.make_request`: stop_ids, seed, warp, draft_temperature.

    Raises:
        ValueError: a setup that judges by rejection, or bad input.
    """
    if setup.verify == "rejection":
        raise ValueError(
            "verify 'rejection' draws other texts with other drafts, so no record holds for all; use coupled, or greedy"
        )
    watching = setup.selector._replace(certainty=True)
    setup = dataclasses.replace(setup, selector=watching, logprobs=False)
    request = decode.make_request(setup, [prompt], max_new_tokens=max_new_tokens, **options)
    state = decode.start(setup, params, [prompt], request, capacity=capacity, dtype=dtype)
    state, kept = _watch(setup, max_new_tokens, params, state)
    tokens, length, kept = jax.device_get((state.tokens, state.length, kept))
    ids = np.asarray(tokens[0, len(prompt) : int(length[0])], np.int32)
    kept = jax.tree.map(lambda leaf: leaf[: len(ids)], kept)
    right = [
        [run_length(drafts, int(n), ids[at:]) for drafts, n in zip(kept.drafts[at], kept.offered[at], strict=True)]
        for at in range(len(ids))
    ]
    return Record(
        pool=pool_of_setup(setup),
        offered=kept.offered,
        right=np.asarray(right, np.int32),
        match=kept.match,
        confidence=kept.confidence,
        **kept.seen._asdict(),
        ids=ids,
        prompt_length=len(prompt),
        limit=max_new_tokens,
        category=category,
        name=name,
    )


def pool_of_setup(setup: Setup) -> Pool:
    """The setup's sources, as records name them."""
    return Pool(
        names=setup.names,
        costs=tuple(source.cost for source in setup.sources),
        lags=tuple(source.lag is not None for source in setup.sources),
        carrier=setup.carrier,
        nodes=0 if setup.branch is None else len(setup.branch.parents) - 1,
    )


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
@on_mesh
def _watch(setup: Setup, places: int, params: EngineParams, state: State) -> tuple[State, Kept]:
    sources, depth = len(setup.sources), setup.lookahead
    counts, laws = jnp.zeros((places, sources), jnp.int32), jnp.ones((places, sources, depth), jnp.float32)
    seen = Seen(*(jnp.zeros(places, leaf.dtype) for leaf in state.seen))
    kept = Kept(jnp.zeros((places, sources, depth), jnp.int32), counts, counts, laws, seen)

    def body(carry: tuple[Array, State, Kept]) -> tuple[Array, State, Kept]:
        at, state, kept = carry
        state, here = _round(setup, params, state)
        return at + 1, state, jax.tree.map(lambda into, value: into.at[at].set(value), kept, here)

    start = (jnp.int32(0), state, kept)
    _, state, kept = jax.lax.while_loop(lambda carry: jnp.all(carry[1].outcome == RUNNING), body, start)
    return state, kept


def _round(setup: Setup, params: EngineParams, state: State) -> tuple[State, Kept]:
    """One token; nothing of it depends on the drafts."""
    view = look(state)
    rides = None if setup.carrier is None else state.sources[setup.carrier]
    # no draft is cut short because the text is to end here: a replay knows the limit
    room = view.length + setup.lookahead + 1
    ahead = view._replace(request=dataclasses.replace(view.request, limit=room))
    proposals, sources, scratches = _drafts(setup, params, ahead, state)
    judged = judge(setup, params, view, empty_proposal(1, setup.lookahead), width=1, carrier=rides)
    verdict = Verdict(jnp.zeros_like(view.length), judged.emitted, view.active.astype(jnp.int32), None)
    sources = bank.absorb(setup, tuple(sources), judged.features, view.length - 1, verdict.count)
    sources = tuple(
        source.observe(own, scratch, view, view.active, verdict)
        for source, own, scratch in zip(setup.sources, sources, scratches, strict=True)
    )
    asked = Choice(jnp.full(1, setup.carrier or 0, jnp.int32), jnp.full(1, setup.lookahead, jnp.int32))
    rode = bank.riders(setup, ahead, asked)
    sources = bank.learn(setup, view, sources, judged.guesses, rode, verdict)
    depth = jnp.arange(setup.lookahead)
    here = Kept(
        drafts=jnp.stack([proposal.tokens[0] for proposal in proposals]),
        offered=jnp.stack([proposal.count[0] for proposal in proposals]),
        match=jnp.stack([proposal.match[0] for proposal in proposals]),
        confidence=jnp.stack([jnp.where(depth < p.count[0], p.confidence[0], 1.0) for p in proposals]),
        seen=Seen(*(leaf[0] for leaf in state.seen)),
    )
    return _committed(setup, params, state, judged, verdict, sources), here


def _drafts(
    setup: Setup, params: EngineParams, view: View, state: State
) -> tuple[list[Proposal], list[PyTree], list[PyTree]]:
    """Every source's proposal; its state, caught up; its scratch."""
    free, signals = bank.offer(setup, params, view, state.sources, state.seen)
    proposals, sources, scratches = [], [], []
    for index, (source, own) in enumerate(zip(setup.sources, state.sources, strict=True)):
        scratch: PyTree = ()
        if index in free:
            proposal = free[index]._replace(count=signals.offered[:, index])
        else:
            if source.catch_up is not None:
                own, _ = source.catch_up(params, view, own, view.active)
            proposal, scratch = source.propose(params, view, own, signals.offered[:, index])
        proposals.append(proposal)
        sources.append(own)
        scratches.append(scratch)
    return proposals, sources, scratches


def _committed(
    setup: Setup, params: EngineParams, state: State, judged: Judged, verdict: Verdict, sources: tuple[PyTree, ...]
) -> State:
    request, active = state.request, state.outcome == RUNNING
    clusters = params.selector.clusters if setup.selector.clusters else None
    seen, gist = look_back(clusters, state.seen, state.gist, judged.certainty, judged.hidden, active)
    length = state.length + verdict.count
    stopped = jnp.any(judged.emitted[:, :1] == request.stop_ids, axis=1)
    ended = jnp.where(stopped, STOP, jnp.where(length >= request.limit, LENGTH, RUNNING))
    return dataclasses.replace(
        state,
        tokens=append(state.tokens, verdict.emitted, state.length, verdict.count),
        length=length,
        outcome=jnp.where(active, ended, state.outcome),
        cache=setup.target.commit(state.cache, judged.window, None, verdict.count),
        sources=sources,
        seen=seen,
        gist=gist,
        rounds=state.rounds + 1,
    )


def record_cases(
    pipeline: Pipeline,
    cases: Sequence[Case],
    *,
    max_new_tokens: int = 96,
    temperature: float = 0.0,
    seed: int = 0,
    told: Told | None = None,
) -> tuple[list[Record], dict[str, Any]]:
    """A record of every prompt, and the settings that made them.

    Raises:
        ValueError: a prompt that does not fit.
    """
    setup = pipeline.setup(sampled=temperature > 0, logprobs=False)
    prompts = [pipeline.encode(case.prompt, chat=True) for case in cases]
    capacity = max(needed_capacity(setup, len(prompt), max_new_tokens) for prompt in prompts)
    records = []
    for number, (case, prompt) in enumerate(zip(cases, prompts, strict=True)):
        records.append(
            record(
                setup,
                pipeline.params,
                prompt,
                max_new_tokens=max_new_tokens,
                category=case.category,
                name=case.name,
                capacity=capacity,
                dtype=pipeline.dtype,
                stop_ids=pipeline.target.tokenizer.eos_ids,
                seed=(seed + number) % 2**32,
                warp=warpers(1, temperature=temperature, vocab_size=pipeline.vocab_size),
            )
        )
        if told is not None:
            told("recording", number + 1, len(cases))
    settings = {
        "target": pipeline.target.name,
        "drafts": list(pipeline.drafts),
        "verify": setup.verify,
        "windows": list(setup.windows),
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    return records, settings


__all__ = ["Kept", "pool_of_setup", "record", "record_cases"]
