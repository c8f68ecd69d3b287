"""Suffix in whole runs: the plain tokens, whatever it drafts; and drafts of the text so far, whatever came before."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.drafts.suffix import SuffixState, suffix, suffix_pool
from tests.decode.automata import automaton, random_table
from tests.decode.engines import TABLE_ROWS, TABLE_VOCAB, Engine, plain, plain_setup, run, scripted
from tests.decode.schedule import always, scheduled, script, shuffled
from tests.decode.test_greedy import table_prompts, wrong
from tests.drafts.oracle import proposals
from tests.drafts.test_suffix import AHEAD, POOL, SETTINGS, pool_of, reference


def deaf():
    """A suffix source that takes rounds of three tokens or more for ones it has seen."""
    source = suffix(lookahead=AHEAD, **SETTINGS)

    def observe(state, scratch, view, ran, verdict):
        fine = source.observe(state, scratch, view, ran, verdict)
        stale = (verdict.count >= 3)[:, None]
        return SuffixState(jnp.where(stale, state.match, fine.match), fine.seen)

    return source._replace(name="deaf", observe=observe)


@functools.cache
def engine():
    """Tables for models, with suffix alone, with a pool, and a faulty one."""
    model = automaton(TABLE_VOCAB + 2)
    pooled = suffix(lookahead=AHEAD, pool=POOL, **SETTINGS)._replace(name="pooled")
    setup = decode.make_setup(
        model,
        drafts=(suffix(lookahead=AHEAD, **SETTINGS), pooled, deaf(), script(AHEAD)),
        select=scheduled(AHEAD),
        lookahead=AHEAD,
        windows=(1, 1 + AHEAD),
        vocab_size=TABLE_VOCAB,
        logprobs=True,
    )
    table = random_table(TABLE_VOCAB, 0, padded=2)
    params = decode.EngineParams({"table": jnp.asarray(table)}, {"suffix": jnp.asarray(pool_of(0))}, ())
    return Engine(setup, plain_setup(model, TABLE_VOCAB), params, 256)


def ran(plan, seed=0, pool=None):
    """A ragged batch through the engine: what it drafted, equal to the plain loop."""
    own, prompts = engine(), table_prompts(seed)
    limits = {"max_new_tokens": np.random.default_rng(seed).integers(20, 70, TABLE_ROWS).tolist()}
    wanted = plain(own, prompts, **limits).tokens
    if pool is not None:
        own.params.drafts["suffix"] = jnp.asarray(pool)
    got = run(own, prompts, plan, scripted(own, prompts, wrong(wanted, TABLE_VOCAB, share=0.2)), **limits)
    assert got.tokens == wanted
    return got


def as_tried(got, name, **options):
    """Whether every proposal of a source in a run is the one of its text so far."""
    source = engine().source(name)
    drafted = proposals(got, source)
    assert len(drafted) > 50
    for row, at, prefix, drafts in drafted:
        longest, wanted, _ = reference(prefix, **options)
        if got.log.match[at, row, source] != longest or drafts != wanted[: len(drafts)]:
            return False
    return True


@pytest.mark.parametrize("lookahead", [1, 3, AHEAD])
def test_in_a_run_it_gives_the_plain_tokens_and_drafts_from_the_text_so_far(lookahead):
    got = ran(always(TABLE_ROWS, 1, lookahead))
    assert as_tried(got, "suffix")
    accepted, proposed_ = (int(getattr(got.state.counters, name)[:, 1].sum()) for name in ("accepted", "proposed"))
    assert 0 < accepted < proposed_


@pytest.mark.parametrize("seed", range(2))
def test_switching_leaves_no_trace_in_what_it_drafts(seed):
    plans = (shuffled(TABLE_ROWS, [0, 1, source, source, 4], AHEAD, seed, stride=seed) for source in (1, 3))
    fine, faulty = (ran(plan, seed) for plan in plans)
    assert as_tried(fine, "suffix")
    assert not as_tried(faulty, "deaf"), "the control"


def test_a_pool_changes_what_is_drafted_and_no_token():
    outputs = ran(always(TABLE_ROWS, 1, AHEAD)).tokens
    full, rounds = suffix_pool(outputs[:2], POOL), []
    for pool in (np.full(POOL, -1, np.int32), full):
        got = ran(always(TABLE_ROWS, 2, AHEAD), pool=pool)
        assert as_tried(got, "pooled", pool=pool.tolist())
        rounds.append(int(got.state.counters.rounds.sum()))
    assert rounds[1] < rounds[0]
