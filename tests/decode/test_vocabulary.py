"""Padding ids are never proposed, accepted or emitted; every model is padded to a size of its own."""

import numpy as np
import pytest

from jaxspec import decode
from jaxspec.sampling import warpers
from tests.decode import automata
from tests.decode.engines import (
    TABLE_ROWS,
    TABLE_VOCAB,
    Engine,
    plain_setup,
    run,
    small_engine,
    table_engine,
    tiny_engine,
)
from tests.decode.schedule import always, scheduled, script, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, table_prompts


def no_padding_anywhere(got, vocab):
    emitted = {token for row in got.tokens for token in row}
    drafts = got.log.tokens[np.arange(got.log.tokens.shape[2]) < got.log.count[..., None]]
    assert max(emitted) < vocab
    assert drafts.size == 0 or drafts.max() < vocab


@pytest.mark.parametrize("mode", ["greedy", "coupled", "rejection"])
def test_padding_is_never_proposed_nor_emitted(mode):
    """Padding rows of every model win whenever they are not masked: see the models."""
    warm = 0.0 if mode == "greedy" else 1.0
    engine = tiny_engine(mode)
    plan = shuffled(4, [1, 2, 3], 4, 0)
    no_padding_anywhere(run(engine, PROMPTS, plan, warp=warpers(4, temperature=warm), seed=0, **LIMITS), 29)
    if mode != "rejection":  # whose law over tables would notice padding
        engine, warp = table_engine(mode), warpers(TABLE_ROWS, temperature=warm)
        plan = shuffled(TABLE_ROWS, [1, 2, 3], 5, 0)
        no_padding_anywhere(run(engine, table_prompts(), plan, warp=warp, seed=0, max_new_tokens=40), TABLE_VOCAB)


def test_padding_that_is_drafted_is_refused():
    engine, prompts = table_engine("coupled"), table_prompts()
    drafts = np.full((TABLE_ROWS, engine.capacity), TABLE_VOCAB + 1, np.int32)
    warp, script_ = warpers(TABLE_ROWS, temperature=[0.0, 2.0] * (TABLE_ROWS // 2)), engine.source("script")
    got = run(engine, prompts, always(TABLE_ROWS, script_, 5), drafts, max_new_tokens=20, warp=warp, seed=0)
    assert got.state.counters.proposed.sum() > 0
    assert got.state.counters.accepted.sum() == 0
    assert max(max(row) for row in got.tokens) < TABLE_VOCAB


def test_without_its_true_vocabulary_an_engine_emits_padding_so_these_tests_can_fail():
    table = automata.random_table(TABLE_VOCAB, 0, padded=2)
    model = automata.automaton(len(table))
    setup = decode.make_setup(model, drafts=(script(3),), select=scheduled(3), lookahead=3, windows=(1, 4))
    params = small_engine("greedy").params
    engine = Engine(setup, plain_setup(model, len(table)), params, 64)
    with pytest.raises(AssertionError):
        no_padding_anywhere(run(engine, [[t] for t in range(8)], max_new_tokens=20), TABLE_VOCAB)
