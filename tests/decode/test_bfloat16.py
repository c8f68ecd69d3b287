"""In bfloat16 greedy outputs differ from the plain loop's only where the two best logits are as good as equal."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from tests.decode.engines import Engine, plain, plain_setup, run, scripted
from tests.decode.schedule import always, scheduled, script
from tests.decode.test_greedy import wrong
from tests.decode.tiny import TARGET, VOCAB, model_of, whole_pass

TOLERANCE = 0.125
"""Of the gap between the two best logits, of which the largest are near 10: two steps of a bfloat16 of that size."""

PROMPTS = [[t, (3 * t) % VOCAB] for t in range(8)]


@functools.cache
def engine():
    model, params = model_of(dataclasses.replace(TARGET, num_layers=1), 0, 3.0)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    options = {"select": scheduled(3), "lookahead": 3, "windows": (1, 4), "vocab_size": VOCAB}
    setup = decode.make_setup(model, drafts=(script(3),), **options)
    return Engine(setup, plain_setup(model, VOCAB), decode.EngineParams(half, {}, ()), 128)


def differ_only_at_ties(outputs, wanted):
    for prompt, output, plains in zip(PROMPTS, outputs, wanted, strict=True):
        if output == plains:
            continue
        at = next(i for i, (a, b) in enumerate(zip(output, plains, strict=True)) if a != b)
        text = np.zeros((1, 64), np.int32)
        text[0, : len(prompt) + at] = prompt + plains[:at]
        logits = whole_pass(engine().setup.target, engine().params.target, jnp.asarray(text))
        logits = np.asarray(logits[0, len(prompt) + at - 1, :VOCAB])
        assert logits.max() - logits[output[at]] <= TOLERANCE
        assert logits.max() - logits[plains[at]] <= TOLERANCE


def test_differences_sit_at_a_gap_below_the_tolerance():
    wanted = plain(engine(), PROMPTS, max_new_tokens=60)
    assert wanted.state.cache.layers[0].k.dtype == jnp.bfloat16
    for share in (0.0, 0.3):
        drafts = scripted(engine(), PROMPTS, wrong(wanted.tokens, VOCAB, share=share))
        got = run(engine(), PROMPTS, always(8, 1, 3), drafts, max_new_tokens=60)
        assert got.state.counters.accepted.sum() > 100
        differ_only_at_ties(got.tokens, wanted.tokens)
    with pytest.raises(AssertionError):
        differ_only_at_ties(wrong(wanted.tokens, VOCAB, share=0.05), wanted.tokens)
