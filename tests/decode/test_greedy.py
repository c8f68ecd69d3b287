"""Greedy decoding is the plain loop, token for token, whatever drafts."""

import numpy as np
import pytest

from tests.decode import automata, faulty
from tests.decode.engines import TABLE_ROWS, TABLE_VOCAB, plain, run, scripted, table_engine, tiny_engine
from tests.decode.schedule import always, shuffled

PROMPTS = [[5], [3, 1, 4, 1, 5, 9, 2], [6, 22, 17, 8, 6, 22, 17, 8, 6, 22, 17, 8, 6, 22, 17, 8, 6], [11, 0, 28] * 4]
LIMITS = {"max_new_tokens": [60, 23, 48, 40]}


def table_prompts(seed=0, rows=TABLE_ROWS, longest=17, vocab=TABLE_VOCAB):
    rng = np.random.default_rng(seed)
    lengths = [1, longest, *rng.integers(1, longest + 1, rows - 2)]
    return [rng.integers(0, vocab, length).tolist() for length in lengths]


def wrong(outputs, vocab, share=1.0, seed=0):
    """Outputs with the given share of tokens replaced by others."""
    rng = np.random.default_rng(seed)
    return [[(t + (rng.random() < share) * rng.integers(1, vocab)) % vocab for t in row] for row in outputs]


def total(run, name, source):
    return int(getattr(run.state.counters, name)[:, source].sum())


@pytest.mark.parametrize("source", ["none", "lookup", "exit:1", "lm:d", "script"])
def test_every_source_and_lookahead_gives_the_plain_tokens(source):
    engine = tiny_engine("greedy")
    wanted = plain(engine, PROMPTS, **LIMITS)
    drafts = scripted(engine, PROMPTS, wrong(wanted.tokens, 29, share=0.2))
    for lookahead in (1, 2, 4):
        got = run(engine, PROMPTS, always(4, engine.source(source), lookahead), drafts, **LIMITS)
        assert got.tokens == wanted.tokens
        assert got.reasons == wanted.reasons
        if source != "none":
            accepted, proposed = (total(got, name, engine.source(source)) for name in ("accepted", "proposed"))
            assert 0 < accepted < proposed, "the source must be right at times and wrong at times"
            assert got.rounds < wanted.rounds


@pytest.mark.parametrize("seed", range(4))
def test_switching_source_and_lookahead_every_round_gives_the_plain_tokens(seed):
    engine = tiny_engine("greedy")
    wanted = plain(engine, PROMPTS, **LIMITS)
    drafts = scripted(engine, PROMPTS, wrong(wanted.tokens, 29, share=0.3))
    got = run(engine, PROMPTS, shuffled(4, [0, 1, 2, 3, 4], 4, seed, stride=seed % 2), drafts, **LIMITS)
    assert got.tokens == wanted.tokens
    assert (got.state.counters.rounds.sum(0) > 0).all(), "every source had its rounds"


def test_the_plain_loop_itself_is_the_argmax_of_the_model():
    engine, prompts = table_engine("greedy"), table_prompts()
    table = np.asarray(engine.params.target["table"])
    got = plain(engine, prompts, max_new_tokens=30)
    for prompt, output in zip(prompts, got.tokens, strict=True):
        text = list(prompt)
        for token in output:
            assert token == int(np.argmax(automata.logits_after(table, text)[:TABLE_VOCAB]))
            text.append(token)


@pytest.mark.parametrize("seed", range(3))
def test_a_large_ragged_batch_gives_the_plain_tokens_on_any_schedule(seed):
    engine, prompts = table_engine("greedy"), table_prompts(seed)
    limits = {"max_new_tokens": np.random.default_rng(seed).integers(1, 100, TABLE_ROWS).tolist()}
    wanted = plain(engine, prompts, **limits)
    drafts = scripted(engine, prompts, wrong(wanted.tokens, TABLE_VOCAB, share=0.2))
    got = run(engine, prompts, shuffled(TABLE_ROWS, [0, 1, 2, 3, 4], 5, seed, stride=seed), drafts, **limits)
    assert got.tokens == wanted.tokens


def refused_everywhere(fault):
    """Drafts that are wrong at every position; the run must refuse each, from the first draft of a round on."""
    wanted = plain(faulty.ENGINE, faulty.PROMPTS, max_new_tokens=20)
    drafts = scripted(faulty.ENGINE, faulty.PROMPTS, wrong(wanted.tokens, TABLE_VOCAB))
    for lookahead in (1, 2, 3):
        got = faulty.run_with(fault, always(8, 1, lookahead), drafts, max_new_tokens=20)
        assert got.tokens == wanted.tokens
        assert total(got, "accepted", 1) == 0
        assert total(got, "proposed", 1) > 0


def test_the_first_draft_is_verified_too():
    refused_everywhere(faulty.NONE)
    with pytest.raises(AssertionError):
        refused_everywhere(faulty.FIRST_DRAFT_UNVERIFIED)
