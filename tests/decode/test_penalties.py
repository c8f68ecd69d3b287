"""Penalties, bias and min_tokens act at every verified position with the drafts before it, and unwind on rejection."""

import pytest

from jaxspec.sampling import warpers
from tests.decode import faulty
from tests.decode.engines import TABLE_VOCAB, plain, scripted
from tests.decode.schedule import always
from tests.decode.test_greedy import wrong

PENALTIES = {
    "presence_penalty": {"presence_penalty": 2.5},
    "frequency_penalty": {"frequency_penalty": 1.5},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "min_tokens": {"min_tokens": 12, "bias": {3: 3.0}},
}


def plain_at_any_lookahead(fault, setting):
    """Drafts are right but for a few, so most penalties come from drafts, and some of those are taken back."""
    stops = [3] if "min_tokens" in setting else []
    options = {"max_new_tokens": 24, "warp": warpers(8, **setting)}
    wanted = plain(faulty.ENGINE, faulty.PROMPTS, stop_ids=stops, **options)
    assert wanted.tokens != plain(faulty.ENGINE, faulty.PROMPTS, stop_ids=stops, max_new_tokens=24).tokens
    for lookahead in (1, 3):
        drafts = scripted(faulty.ENGINE, faulty.PROMPTS, wrong(wanted.tokens, TABLE_VOCAB, share=0.2))
        got = faulty.run_with(fault, always(8, 1, lookahead), drafts, stop_ids=[stops] * 8, **options)
        assert got.tokens == wanted.tokens
        assert got.state.counters.accepted.sum() > 0


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_are_the_plain_loops_at_every_draft(name):
    plain_at_any_lookahead(faulty.NONE, PENALTIES[name])
    with pytest.raises(AssertionError):
        plain_at_any_lookahead(faulty.PENALTIES_WITHOUT_DRAFTS, PENALTIES[name])
