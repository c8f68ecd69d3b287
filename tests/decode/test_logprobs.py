"""One log-probability a token, the plain loop's, for accepted, corrected and bonus tokens alike."""

import numpy as np
import pytest

from jaxspec.sampling import warpers
from tests.decode import automata, faulty
from tests.decode.engines import TABLE_VOCAB, plain, run, scripted, tiny_engine
from tests.decode.schedule import always, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, wrong


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
def test_logprobs_are_the_plain_loops(mode):
    engine = tiny_engine(mode)
    warp = warpers(4, temperature=0.0 if mode == "greedy" else 1.3, frequency_penalty=0.3)
    options = {"warp": warp, "seed": 2, **LIMITS}
    wanted = plain(engine, PROMPTS, **options)
    drafts = scripted(engine, PROMPTS, wrong(wanted.tokens, 29, share=0.2))
    got = run(engine, PROMPTS, shuffled(4, [0, 1, 2, 3, 4], 4, 0), drafts, **options)
    assert got.tokens == wanted.tokens
    for mine, plains, output in zip(got.logprobs, wanted.logprobs, got.tokens, strict=True):
        assert len(mine) == len(output)
        np.testing.assert_allclose(mine, plains, atol=1e-4, rtol=0)


def are_the_models_own(fault):
    """Logprobs under softmax of the model's logits over the true vocabulary: no penalty, no padding."""
    engine, prompts = faulty.ENGINE, faulty.PROMPTS
    options = {"max_new_tokens": 20, "warp": warpers(8, frequency_penalty=0.5)}
    wanted, table = plain(engine, prompts, **options), np.asarray(engine.params.target["table"])
    drafts = scripted(engine, prompts, wrong(wanted.tokens, TABLE_VOCAB, share=0.3))
    got = faulty.run_with(fault, always(8, 1, 3), drafts, **options)
    assert 0 < got.state.counters.accepted.sum() < got.state.counters.proposed.sum()
    for prompt, output, logprobs in zip(prompts, got.tokens, got.logprobs, strict=True):
        laws = [automata.law_after(table, prompt, output[:i], TABLE_VOCAB) for i in range(len(output))]
        np.testing.assert_allclose(logprobs, [np.log(law[t]) for law, t in zip(laws, output, strict=True)], atol=1e-5)


def test_logprobs_are_the_models_own():
    are_the_models_own(faulty.NONE)
    with pytest.raises(AssertionError):
        are_the_models_own(faulty.LOGPROBS_OF_THE_NEXT)
