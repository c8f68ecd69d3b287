"""The library's face: generate, stream, step and prefill on token arrays."""

import jax
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.buckets import PREFILL
from jaxspec.decode.prefill import OVERHEAD, plan
from tests.decode.automata import automaton
from tests.decode.engines import TABLE_VOCAB, began, host, plain, run, small_engine, table_engine, tiny_engine
from tests.decode.schedule import always
from tests.decode.test_greedy import LIMITS, PROMPTS


def engine_of(select, *, lookahead=3, verify="greedy"):
    """The tables with sources and a selector by name, as users ask for them."""
    base = table_engine("greedy")
    setup = decode.make_setup(
        base.setup.target,
        drafts=("lookup", ("lm:d", automaton(TABLE_VOCAB + 4))),
        select=select,
        verify=verify,
        lookahead=lookahead,
        windows=(1, 4),
        vocab_size=TABLE_VOCAB,
    )
    return base, setup, decode.EngineParams(base.params.target, {"lm:d": base.params.drafts["lm:d"]}, ())


def test_generate_gives_the_plain_tokens():
    base, setup, params = engine_of("rule")
    prompts, limits = [[1, 2, 3, 1, 2], [4], [5, 6]], [9, 30, 1]
    wanted = plain(base, prompts, max_new_tokens=limits, stop_ids=[2])
    got = decode.generate(setup, params, prompts, max_new_tokens=limits, stop_ids=[2])
    assert got.tokens == wanted.tokens
    assert got.finish_reason == wanted.reasons
    assert got.logprobs is None, "they were not asked for"
    assert got.rounds == int(np.max(got.counters.rounds.sum(1)))
    assert got.seconds > 0
    assert (got.counters.rounds.sum(0) > 0).all(), "every source had its rounds"


def test_lookahead_zero_is_plain_decoding_whatever_the_sources():
    base, setup, params = engine_of("rule", lookahead=0)
    got = decode.generate(setup, params, [[1, 2, 1, 2]], max_new_tokens=6)
    assert got.tokens == plain(base, [[1, 2, 1, 2]], max_new_tokens=6).tokens
    assert got.rounds == 6
    assert setup.names == ("none", "lookup", "lm:d")


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_stream_grows_to_what_generate_gives(chunk):
    engine, plan_ = tiny_engine("greedy"), always(4, 3, 4)
    whole = run(engine, PROMPTS, plan_, **LIMITS)
    params, state = began(engine, PROMPTS, plan_, **LIMITS)
    lengths, last = [np.asarray([len(p) for p in PROMPTS])], None
    for last in decode.stream(engine.setup, params, state, chunk=chunk):
        assert (np.asarray(last.length) >= lengths[-1]).all()
        assert int(last.rounds) <= chunk * len(lengths)
        lengths.append(np.asarray(last.length))
    request = decode.make_request(engine.setup, PROMPTS, **LIMITS)
    assert decode.collect(last, request, prefill_seconds=0.0, seconds=0.0).tokens == whole.tokens
    assert int(last.rounds) == whole.rounds


def test_a_step_by_hand_says_what_it_did():
    engine = small_engine("greedy")
    prompts, step = [[t] for t in range(8)], jax.jit(decode.step, static_argnums=0)
    wanted = plain(engine, prompts, max_new_tokens=10)
    drafts = np.full((8, engine.capacity), -1, np.int32)
    drafts[:, 1:11] = wanted.tokens
    drafts[:, 2] = (drafts[:, 2] + 1) % 8  # the second draft of the first round is wrong
    params, state = began(engine, prompts, always(8, 1, 3), drafts, max_new_tokens=10)
    state, info = step(engine.setup, params, state)
    assert np.asarray(info.choice.source).tolist() == [1] * 8
    assert np.asarray(info.choice.lookahead).tolist() == [3] * 8
    assert np.asarray(info.proposal.count).tolist() == [3] * 8
    assert np.asarray(info.verdict.accepted).tolist() == [1] * 8, "drafts 1 and 3 are right, 2 is not"
    assert np.asarray(info.verdict.count).tolist() == [2] * 8
    assert engine.setup.windows[int(info.width)] == 4
    assert np.asarray(state.tokens)[:, 1:3].tolist() == [row[:2] for row in wanted.tokens]
    while np.any(np.asarray(state.outcome) == 0):
        state, info = step(engine.setup, params, state)
    assert host(state).tokens == wanted.tokens


@pytest.mark.parametrize("length", [1, 2, 16, 17, 18, 65, 66, 257, 258, 300, 600])
def test_prefill_takes_all_tokens_but_the_last_in_chunks(length):
    engine = small_engine("greedy")
    rng = np.random.default_rng(length)
    prompts = [rng.integers(0, TABLE_VOCAB, n).tolist() for n in (length, max(1, length // 2), 1)]
    request = decode.make_request(engine.setup, prompts, max_new_tokens=4)
    state = decode.start(engine.setup, engine.params, prompts, request)
    assert np.asarray(state.cache.total).tolist() == [sum(prompt[:-1]) for prompt in prompts]
    assert np.asarray(state.cache.length).tolist() == [len(prompt) - 1 for prompt in prompts]


def test_chunks_cover_a_prompt_and_cost_the_least_there_is():
    assert plan(0) == []
    assert plan(300) == [(0, 256), (256, 64)]
    assert plan(250) == [(0, 256)], "padded, since four chunks of 64 cost more than one of 256"

    def cost(widths):
        return sum(widths) + OVERHEAD * len(widths)

    for tokens in range(1, 600):
        chunks = plan(tokens)
        ends = [start + width for start, width in chunks]
        assert [start for start, _ in chunks] == [0, *ends[:-1]]
        assert ends[-1] >= tokens > ends[-1] - chunks[-1][1]
        single = [[width] * -(-tokens // width) for width in PREFILL]
        assert cost([width for _, width in chunks]) <= min(cost(widths) for widths in single)
