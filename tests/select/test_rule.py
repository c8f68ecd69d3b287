import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.contracts import Signals
from jaxspec.select import rule
from tests.decode.engines import plain
from tests.decode.test_generate import engine_of

# sources: 0 none, 1 lookup, 2 another free one, 3 and 4 models
RULE = rule((1, 2), (3, 4), free_lookahead=7, model_lookahead=4)
CASES = {  # drafts offered, context matched: source and lookahead
    "lookup where it matched": ([0, 5, 6, 7, 7], [0, 6, 6, 0, 0], (1, 7)),
    "few drafts of a match of two tokens": ([0, 5, 6, 7, 7], [0, 2, 6, 0, 0], (1, 3)),
    "one draft of a match of one token": ([0, 5, 6, 7, 7], [0, 1, 6, 0, 0], (1, 1)),
    "the next free source where lookup did not match": ([0, 0, 2, 7, 7], [0, 0, 4, 0, 0], (2, 7)),
    "a free source that rests on no context": ([0, 0, 2, 7, 7], [0, 0, 0, 0, 0], (2, 7)),
    "a model where no free source offers": ([0, 0, 0, 7, 7], [0, 0, 0, 0, 0], (3, 4)),
    "the next model where the first has come to its end": ([0, 0, 0, 0, 2], [0, 0, 0, 0, 0], (4, 4)),
    "none where nothing may be drafted": ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], (0, 0)),
}


def signals(offered, match):
    offered, match = (jnp.asarray(values, jnp.int32) for values in (offered, match))
    return Signals(offered, match, jnp.zeros_like(offered), jnp.ones(len(offered), bool))


def test_each_row_gets_the_first_source_that_can_draft():
    offered, match, wanted = zip(*CASES.values(), strict=True)
    choice = RULE.choose((), (), signals(offered, match))
    assert list(zip(choice.source.tolist(), choice.lookahead.tolist(), strict=True)) == list(wanted)


def test_a_source_that_learns_is_asked_where_no_other_offers_anything():
    offered, match, wanted = zip(*CASES.values(), strict=True)
    asking = rule((1, 2), (3, 4), free_lookahead=7, model_lookahead=4, learns=2)
    choice = asking.choose((), (), signals(offered, match))
    instead = [(2, 7) if each == (0, 0) else each for each in wanted]
    assert list(zip(choice.source.tolist(), choice.lookahead.tolist(), strict=True)) == instead


def test_a_setup_lists_its_sources_in_their_order():
    _, setup, _ = engine_of("rule")
    choice = setup.selector.choose((), (), signals([[0, 3, 3], [0, 0, 3]], [[0, 2, 0], [0, 0, 0]]))
    assert [setup.names[i] for i in choice.source.tolist()] == ["lookup", "lm:d"]


@pytest.mark.parametrize("prompt", [[1, 2, 3, 4, 1, 2], [5]])
def test_in_a_run_lookup_takes_the_rounds_it_matched_and_the_model_the_rest(prompt):
    base, setup, params = engine_of("rule")
    prompts = [prompt] * 3
    got = decode.generate(setup, params, prompts, max_new_tokens=[9, 30, 1])
    assert got.tokens == plain(base, prompts, max_new_tokens=[9, 30, 1]).tokens
    rounds = got.counters.rounds.sum(0)
    assert rounds.sum() == got.counters.rounds.sum()
    drafted = got.counters.proposed.sum(2)
    assert (drafted[:2, 2] > 0).all() or (drafted[:2, 1] > 0).all()
    assert np.all(got.counters.rounds[2] == [1, 0, 0]), "one token leaves nothing to draft"
