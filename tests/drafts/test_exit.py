"""Early exit drafts what the target's first layers say, and verification may start from those layers."""

import dataclasses

import jax
import numpy as np
from scipy.special import softmax

from jaxspec import decode
from jaxspec.drafts import early_exit
from tests.decode.engines import Engine, plain, run, scripted, tiny_engine
from tests.decode.schedule import always, plan_of, scheduled, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, wrong
from tests.decode.tiny import VOCAB
from tests.drafts.oracle import own_logits, proposals


def test_its_drafts_are_those_of_a_pass_of_its_own():
    engine = tiny_engine("greedy")
    guess = plain(engine, PROMPTS, **LIMITS).tokens
    drafts = scripted(engine, PROMPTS, wrong(guess, VOCAB, share=0.3))
    for plan in (always(4, 2, 4), shuffled(4, [0, 1, 2, 2, 3, 4], 4, 0)):
        got = run(engine, PROMPTS, plan, drafts, **LIMITS)
        drafted = proposals(got, 2)
        assert len(drafted) > 20
        logits = own_logits(engine.setup.target, engine.params.target, drafted, layers=(0, 1))
        for each, own in zip(drafted, logits, strict=True):
            assert each.drafts == own[:, :VOCAB].argmax(-1).tolist()
            confidence = got.log.confidence[each.round, each.row, : len(each.drafts)]
            np.testing.assert_allclose(confidence, softmax(own[:, :VOCAB], -1).max(-1), atol=1e-5)


def with_one_row_plain(source, lookahead):
    """The last row drafts nothing, so no layer may be taken from drafting."""
    choices = np.full((4, 128), source)
    choices[3] = 0
    return plan_of(choices, np.where(choices > 0, lookahead, 0))


def test_reusing_its_layers_gives_what_running_them_again_gives():
    engine = tiny_engine("greedy")
    for lookahead in (1, 3, 4):
        reused = run(engine, PROMPTS, always(4, 2, lookahead), **LIMITS)
        again = run(engine, PROMPTS, with_one_row_plain(2, lookahead), **LIMITS)
        assert reused.tokens == again.tokens
        for mine, other in zip(reused.logprobs, again.logprobs, strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-4)
        for row in range(3):
            held = reused.state.cache.length[row]
            assert held == again.state.cache.length[row]
            for mine, other in zip(*(jax.tree.leaves(r.state.cache.layers) for r in (reused, again)), strict=True):
                np.testing.assert_allclose(mine[row, :, :held], other[row, :, :held], atol=1e-5)


def test_its_layers_are_reused_when_every_row_drafts_by_it_and_only_then():
    """With what drafting hands over spoilt, the output is spoilt exactly when it was used."""
    base = tiny_engine("greedy")
    options = {"vocab_size": VOCAB, "vocab_width": 32, "verify": "greedy"}
    source = early_exit(base.setup.target, 1, lookahead=2, **options)
    spoilt = source._replace(reuse=lambda scratch: source.reuse(scratch)._replace(hidden=-scratch.hidden))
    setup = decode.make_setup(
        base.setup.target, drafts=(spoilt,), select=scheduled(2), lookahead=2, windows=(1, 3), vocab_size=VOCAB
    )
    engine = Engine(setup, base.plain, dataclasses.replace(base.params, drafts={}), 256)
    wanted = plain(engine, PROMPTS, max_new_tokens=12).tokens
    assert run(engine, PROMPTS, with_one_row_plain(1, 2), max_new_tokens=12).tokens == wanted
    assert run(engine, PROMPTS, always(4, 1, 2), max_new_tokens=12).tokens != wanted
    # a row that has ended does not keep the others from it
    mixed = run(engine, PROMPTS, with_one_row_plain(1, 2), max_new_tokens=[12, 12, 12, 1]).tokens
    assert mixed[:3] != wanted[:3]
