"""In rejection verification goodput, its stops and its tails leave the law; parts that would not are noticed."""

import functools
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.drafts import tails
from jaxspec.sampling import warpers
from jaxspec.select import goodput
from jaxspec.select.kinds import kinds_of
from tests.decode import automata
from tests.decode.automata import automaton, chi_square, joint_law
from tests.decode.engines import Engine, plain_setup, run
from tests.decode.priced import priced
from tests.verify.law import FAILS, HOLDS

lm = importlib.import_module("jaxspec.drafts.lm")  # the module; the package has the function of this name

pytestmark = pytest.mark.heavy

VOCAB, ROWS, CALLS, LENGTH, MOST = 6, 1024, 12, 3, 5
PROMPT = [2, 0, 3, 2, 1, 4, 2, 3, 5, 2, 4, 0, 2, 5, 1, 2]  # whatever follows 2 has been there
TABLE = automata.random_table(VOCAB, 3, padded=2, scale=1.0)
DRAFT = automata.related_table(TABLE, VOCAB, 4, padded=3, noise=0.8)


class Seen(NamedTuple):
    """Goodput's own state, and how often what is tested came to pass."""

    own: Any
    stopped: jax.Array  # drafts that stopped before their lookahead
    tails: jax.Array  # drafts of tails

    @property
    def told(self):
        return self.own.told


@functools.cache
def engine(version: int = 0) -> Engine:
    """Lookups of two tokens and a model that samples; every version is a program of its own."""
    model = automaton(VOCAB + 2)
    drafts = ("lookup", ("lm:d", automaton(VOCAB + 3)))
    options = {"verify": "rejection", "lookahead": MOST, "windows": (1, 3, 1 + MOST), "vocab_size": VOCAB}
    setup = decode.make_setup(model, drafts=drafts, select="goodput", **options)
    inner = goodput(kinds_of(setup.sources, setup.windows))
    watched = inner._replace(
        name=f"watched-{version}",
        carry=None,
        init=lambda rows, sources: Seen(
            inner.init(rows, sources), jnp.zeros(rows, jnp.int32), jnp.zeros(rows, jnp.int32)
        ),
        choose=lambda params, state, signals: inner.choose(params, state.own, signals),
        tail=lambda params, state, *rest: inner.tail(params, state.own, *rest),
        update=functools.partial(watch, inner),
    )
    setup = decode.make_setup(model, drafts=drafts, select=watched, **options)
    drafted = {"lm:d": {"table": jnp.asarray(DRAFT)}}
    return Engine(setup, plain_setup(model, VOCAB), decode.EngineParams({"table": jnp.asarray(TABLE)}, drafted, ()), 64)


def watch(inner, params, state, signals, choice, proposal, verdict, feedback):
    own = inner.update(params, state.own, signals, choice, proposal, verdict, feedback)
    drawn = feedback.drawn[:, 2]
    stopped = (drawn > 0) & (drawn < choice.lookahead)
    return Seen(own, state.stopped + stopped.astype(jnp.int32), state.tails + choice.tail_lookahead)


MIXED = {"width": 0.02, "draft": 0.12}
"""Costs at which all sources are chosen, and drafts stop and are continued."""

TAILS = {"width": 0.001, "draft": 0.12, "short": True}
"""Beliefs by which the model drafts one token, and lookup goes on."""


def outputs(version=0, *, beliefs=None, costs: dict[str, Any] = MIXED, **options):
    """The first three tokens of calls x ROWS seeds, and what was seen meanwhile."""
    own, out, seen = engine(version), [], np.zeros(5, int)
    for call in range(CALLS):
        asked = {"max_new_tokens": 9, "warp": warpers(ROWS, temperature=1.0), "seed": call * ROWS, **options}
        known = priced(own.setup, beliefs=None if beliefs is None else beliefs + call, **costs)
        got = run(own, [PROMPT] * ROWS, known, **asked)
        out += got.tokens
        seen += [*got.state.counters.rounds.sum(0), got.log.stopped.sum(), got.log.tails.sum()]
    return np.asarray(out)[:, :LENGTH], dict(zip(("none", "lookup", "lm", "stopped", "tails"), seen, strict=True))


def p_value(got, **settings):
    return chi_square(got, joint_law(TABLE, PROMPT, VOCAB, LENGTH, **settings), VOCAB)


@pytest.mark.parametrize(("beliefs", "costs"), [(None, MIXED), (0, MIXED), (10, MIXED), (None, TAILS)])
def test_goodput_leaves_the_law(beliefs, costs):
    got, seen = outputs(beliefs=beliefs, costs=costs)
    assert seen["lm"] > ROWS
    assert seen["stopped"] > ROWS
    assert seen["tails"] > (CALLS * ROWS if costs == TAILS else 0), "drafts of tails"
    assert p_value(got) > HOLDS
    assert p_value(got, temperature=1.2) < FAILS, "another law would be noticed"


def test_drafts_that_are_cooler_and_unsure_leave_the_law_too():
    got, seen = outputs(draft_temperature=0.6, draft_confidence=0.3)
    assert seen["lm"] > ROWS
    assert p_value(got) > HOLDS


def test_a_tail_that_keeps_the_law_of_the_heads_drafts_is_noticed(monkeypatch):
    """Its tokens are point masses; whatever else lies at its depths is not what they were drawn from."""
    join = tails._join

    def without_laws(proposal, head, tail, length):
        return join(proposal, head, tail, length)._replace(q_log=proposal.q_log)

    monkeypatch.setattr(tails, "_join", without_laws)
    got, seen = outputs(1, costs=TAILS)
    assert seen["tails"] > CALLS * ROWS
    assert p_value(got) < FAILS


def test_a_stop_that_looks_at_the_token_it_drew_is_noticed(monkeypatch):
    """It drops a draft that is unlikely under its own law, where the stop that is used looks at the law alone."""
    begin = lm.begin

    def begin_and_peek(made, view, lookahead):
        begun, take = begin(made, view, lookahead)

        def peek(drawing, logits, depth):
            after = take(drawing, logits, depth)
            token = jax.lax.dynamic_slice_in_dim(after.proposal.tokens, depth, 1, 1)
            law = jax.lax.dynamic_slice_in_dim(after.proposal.q_log, depth, 1, 1)[:, 0]
            unlikely = jnp.exp(jnp.take_along_axis(law, token, 1)[:, 0]) < 0.2
            kept = jnp.where(unlikely, drawing.proposal.count, after.proposal.count)
            return after._replace(proposal=after.proposal._replace(count=kept), alive=after.alive & ~unlikely)

        return begun, peek

    monkeypatch.setattr(lm, "begin", begin_and_peek)
    got, seen = outputs(2)
    assert seen["lm"] > ROWS
    assert p_value(got) < FAILS
