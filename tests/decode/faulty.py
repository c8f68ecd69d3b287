"""One engine with a choice of faults that engines elsewhere had, so that every test can show what it rejects.

A fault is switched on by the request's seed, which greedy decoding does not use otherwise: one compiled program runs
the engine as it is (seed 0) and each fault.
"""

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np

from jaxspec.outcome import LENGTH, RUNNING, STOP
from jaxspec.sampling import penalise
from jaxspec.verify import VERIFIERS, window
from tests.decode.engines import TABLE_VOCAB, Run, run, small_engine
from tests.decode.schedule import script

NONE = 0
FIRST_DRAFT_UNVERIFIED = 1
STOPS_LOOKED_FOR_LAST = 2
LEAST_OF_THE_BATCH = 3
LOGPROBS_OF_THE_NEXT = 4
PENALTIES_WITHOUT_DRAFTS = 5
ONE_TOKEN_MORE = 6
LENGTH_WINS_OVER_STOP = 7
ENDED_ROWS_GO_ON = 8

step = importlib.import_module("jaxspec.decode.step")  # the module; the package has the function of this name

MARK = 1000
"""A stop id beyond the vocabulary tells the penalties of the fault, since they do not see the seed."""


def eager(params, view, state, wanted):
    """Drafts as many as there is room for, whatever is wanted."""
    return script(3).propose(params, view, state, jnp.full_like(wanted, 3))


PROMPTS = [[t] for t in range(TABLE_VOCAB)]
ENGINE = small_engine("greedy", (script(3), script(3)._replace(name="eager", propose=eager)), version=1)


def run_with(fault: int, *args: Any, **options: Any) -> Run:
    """Eight rows with the fault."""
    stops = options.pop("stop_ids", [[]] * len(PROMPTS))
    marked = [[*ids, MARK + fault] for ids in stops]
    with _faults():
        return run(ENGINE, PROMPTS, *args, seed=[fault] * len(PROMPTS), stop_ids=marked, **options)


@contextlib.contextmanager
def _faults() -> Iterator[None]:
    with (
        mock.patch.dict(VERIFIERS, greedy=_verify),
        mock.patch.object(step, "_emit", _emit),
        mock.patch.object(window, "penalise", _penalise),
    ):
        yield


def _verify(logits, drafts, count, q_log, sampled, warpers, seed, positions, law=None):
    fine, following = VERIFIERS["coupled"](logits, drafts, count, q_log, sampled, warpers, seed, positions, law)
    accepted = jnp.where(seed == FIRST_DRAFT_UNVERIFIED, jnp.maximum(fine, jnp.minimum(count, 1)), fine)
    wrong = jnp.take_along_axis(jnp.argmax(logits, -1).astype(jnp.int32), accepted[:, None], axis=1)[:, 0]
    return accepted, jnp.where(accepted == fine, following, wrong)


def _penalise(logits, warpers, history, tokens, ancestors, stop_ids, vocab_size):
    faulty = jnp.any(stop_ids == MARK + PENALTIES_WITHOUT_DRAFTS, axis=1)
    width = tokens.shape[1]
    alone = jnp.asarray(np.arange(width) == 0)
    seen = jnp.where(faulty[:, None, None], alone[None, None, :], jnp.asarray(ancestors)[None])
    return penalise(logits, warpers, history, tokens, seen, stop_ids, vocab_size)


def _emit(view, judged, emit=step._emit):
    fault = view.request.seed
    slowest = jnp.min(jnp.where(view.active, judged.accepted, judged.emitted.shape[1]))
    accepted = jnp.where(fault == LEAST_OF_THE_BATCH, slowest, judged.accepted)
    shifted = jnp.roll(judged.logprobs, 1, axis=1)
    logprobs = jnp.where((fault == LOGPROBS_OF_THE_NEXT)[:, None], shifted, judged.logprobs)
    goes_on = (fault == ENDED_ROWS_GO_ON) & ~view.active
    limit = view.request.limit + (fault == ONE_TOKEN_MORE).astype(jnp.int32)
    limit = jnp.where(goes_on, view.length + 1, limit)
    view = view._replace(request=dataclasses.replace(view.request, limit=limit), active=view.active | goes_on)
    fine, outcome = emit(view, judged._replace(accepted=accepted, logprobs=logprobs))
    full = (view.length + fine.count >= limit) & (outcome == STOP) & (fault == LENGTH_WINS_OVER_STOP)
    outcome = jnp.where(full, LENGTH, outcome)
    blind, unstopped = _emit_blindly(view, judged)
    faulty = fault == STOPS_LOOKED_FOR_LAST
    verdict = fine._replace(count=jnp.where(faulty, blind, fine.count))
    return verdict, jnp.where(faulty, unstopped, outcome)


def _emit_blindly(view, judged):
    """Looks for stop ids at the last token of a run alone, and lets the limit pass."""
    last = jnp.take_along_axis(judged.emitted, judged.accepted[:, None], axis=1)
    stopped = jnp.any(last == view.request.stop_ids, axis=1)
    count = jnp.where(view.active, judged.accepted + 1, 0)
    full = view.length + count >= view.request.limit
    return count, jnp.where(view.active, jnp.where(stopped, STOP, jnp.where(full, LENGTH, RUNNING)), view.outcome)
