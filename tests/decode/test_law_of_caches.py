"""In rejection verification over real caches every token has the target's law given the text before it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxspec.sampling import warpers
from tests.decode.engines import run, tiny_engine
from tests.decode.schedule import always, shuffled
from tests.decode.test_greedy import PROMPTS
from tests.decode.tiny import VOCAB, whole_pass
from tests.verify.law import FAILS, HOLDS

CALLS, LENGTH, HEAT = 8, 100, 1.6
CLASSES = 6  # the likeliest token, the second, .. , all others


def outputs(plan):
    """Texts [N, 128] and where their outputs begin."""
    texts, begins = [], []
    for call in range(CALLS):
        got = run(
            tiny_engine("rejection"),
            PROMPTS,
            plan,
            max_new_tokens=LENGTH,
            warp=warpers(4, temperature=HEAT),
            seed=4 * call,
        )
        texts.append(got.state.tokens[:, :128])
        begins += [len(prompt) for prompt in PROMPTS]
    return np.concatenate(texts), begins


def p_value(texts, begins, heat=HEAT):
    """Of how often tokens of each rank came: the sum of (came - p) over its covariance, both known given the past."""
    engine = tiny_engine("rejection")
    off, covariance = np.zeros(CLASSES), np.zeros((CLASSES, CLASSES))
    for part in range(0, len(texts), 4):
        logits = whole_pass(engine.setup.target, engine.params.target, jnp.asarray(texts[part : part + 4]))
        laws = np.asarray(jax.nn.softmax(logits[..., :VOCAB] / heat, -1), np.float64)
        for text, begin, law in zip(texts[part : part + 4], begins[part : part + 4], laws, strict=True):
            law = law[begin - 1 : begin - 1 + LENGTH]
            token = text[begin : begin + LENGTH]
            rank = np.sum(law > law[np.arange(LENGTH), token][:, None], -1)
            came = np.eye(CLASSES)[np.minimum(rank, CLASSES - 1)]
            down = -np.sort(-law, -1)
            p = np.concatenate([down[:, : CLASSES - 1], down[:, CLASSES - 1 :].sum(-1, keepdims=True)], 1)
            off += (came - p).sum(0)
            covariance += np.diag(p.sum(0)) - p.T @ p
    return scipy.stats.chi2.sf(off @ np.linalg.pinv(covariance) @ off, CLASSES - 1)


@pytest.mark.parametrize("source", ["lookup", "exit:1", "lm:d"])
def test_every_source_leaves_the_law_of_the_target(source):
    got = outputs(always(4, tiny_engine("rejection").source(source), 4))
    assert p_value(*got) > HOLDS
    assert p_value(*got, heat=1.25 * HEAT) < FAILS


def test_switching_leaves_the_law_of_the_target():
    assert p_value(*outputs(shuffled(4, [0, 1, 2, 3], 4, 0, stride=1))) > HOLDS
