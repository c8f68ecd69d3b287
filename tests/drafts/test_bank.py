"""Free sources propose each round; a source that costs a model pass runs only in rounds in which a row chose it."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.contracts import MODEL, Choice, Signals
from jaxspec.drafts import bank
from tests.decode import faulty
from tests.decode.engines import TABLE_VOCAB, plain, run, scripted, small_engine
from tests.decode.schedule import always, plan_of, script

CALLS: collections.Counter = collections.Counter()
PROMPTS = [[t] for t in range(TABLE_VOCAB)]


@functools.lru_cache
def counted(name, cost):
    """The script as a source that notes every time it runs."""
    source = script(3)

    def propose(params, view, state, wanted):
        jax.debug.callback(lambda: CALLS.update([name]))
        return source.propose(params, view, state, wanted)

    return source._replace(name=name, cost=cost, propose=propose)


def calls(*choices):
    """How often each source ran in rounds of which every row's source is given by the eight choices."""
    engine = small_engine("greedy", (counted("script", MODEL), counted("other", MODEL)))
    drafts = scripted(engine, PROMPTS, plain(engine, PROMPTS, max_new_tokens=13).tokens)
    plan = plan_of(np.tile(np.asarray(choices)[:, None], (1, 128)), np.full((8, 128), 3))
    CALLS.clear()
    got = run(engine, PROMPTS, plan, drafts, max_new_tokens=13)
    jax.effects_barrier()
    return CALLS["script"], CALLS["other"], got


def test_a_model_runs_in_the_rounds_in_which_a_row_chose_it():
    assert calls(0, 0, 0, 0, 0, 0, 0, 0)[:2] == (0, 0)
    assert calls(1, 1, 1, 1, 1, 1, 1, 1)[:2] == (3, 0), "thirteen tokens, four a round; for the last there is no draft"
    assert calls(2, 2, 2, 2, 2, 2, 2, 2)[:2] == (0, 3)
    assert calls(0, 0, 0, 0, 0, 0, 0, 2)[:2] == (0, 3)
    assert calls(0, 1, 2, 0, 1, 2, 0, 1)[:2] == (3, 3), "each once a round, not once a row"


def test_every_row_gets_the_drafts_of_its_own_source():
    _, _, got = calls(0, 1, 2, 0, 1, 2, 0, 1)
    assert got.log.count[0].tolist() == [0, 3, 3, 0, 3, 3, 0, 3]
    assert got.state.counters.rounds[:, 0].tolist()[:3] == [13, 1, 1]


def signals(offered):
    offered = jnp.asarray(offered, jnp.int32)
    return Signals(offered, jnp.zeros_like(offered), jnp.zeros_like(offered), jnp.ones(len(offered), bool))


def test_a_choice_is_settled_within_what_was_offered():
    offered = signals([[5, 3, 0], [5, 0, 2], [0, 0, 0], [5, 3, 4]])
    choice = Choice(jnp.asarray([1, 1, 2, 2], jnp.int32), jnp.asarray([7, 2, 3, -1], jnp.int32))
    settled = bank.settle(choice, offered)
    assert settled.source.tolist() == [1, 0, 0, 0], "a row without drafts is a row of no source"
    assert settled.lookahead.tolist() == [3, 0, 0, 0]


@pytest.mark.parametrize(("most", "rounds"), [(0, 12), (1, 6), (3, 3)])
def test_a_row_never_drafts_more_than_its_own_lookahead(most, rounds):
    drafts = scripted(faulty.ENGINE, PROMPTS, plain(faulty.ENGINE, PROMPTS, max_new_tokens=12).tokens)
    ahead = [most, 3] * 4
    got = faulty.run_with(faulty.NONE, always(8, 1, 3), drafts, max_new_tokens=12, max_lookahead=ahead)
    assert (got.log.count <= np.asarray(ahead)).all()
    assert got.state.counters.rounds.sum(1).tolist() == [rounds, 3] * 4
