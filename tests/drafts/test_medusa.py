"""Medusa's heads draft from the hidden state of the last committed token, wherever that was computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

from jaxspec.decode.state import look
from jaxspec.drafts.medusa import TOP
from tests.decode.engines import began, plain, run, scripted
from tests.decode.schedule import always, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, wrong
from tests.decode.tiny import TARGET, VOCAB
from tests.decode.trained import HEADS, IDS, trained, trained_engine
from tests.drafts.oracle import empty_pass, proposals

pytestmark = pytest.mark.heavy

WIDTH = 96


def hidden_of(engine, texts):
    """Residual streams [N, 96, D] after all layers, from passes over empty caches."""
    padded = np.zeros((-(-len(texts) // 32) * 32, WIDTH), np.int32)
    for row, text in enumerate(texts):
        padded[row, : len(text)] = text
    whole = jax.jit(empty_pass, static_argnums=0)
    parts = np.split(padded, len(padded) // 32)
    return np.concatenate([whole(engine.setup.target, engine.params.target, part).hidden for part in parts])


def said_of(hidden):
    """Logits [heads, V] of one hidden state by the definition, -inf where the draft has no token."""
    own = {name: np.asarray(leaf, np.float64) for name, leaf in trained("medusa").params.items()}
    x = hidden / np.sqrt(np.mean(hidden.astype(np.float64) ** 2) + TARGET.norm_eps) * own["norm.weight"]
    logits = np.full((HEADS, TARGET.vocab_size), -np.inf)
    for head in range(HEADS):
        y = own[f"heads.{head}.0.linear.weight"] @ x + own[f"heads.{head}.0.linear.bias"]
        logits[head, IDS] = own[f"output.{head}.weight"] @ (x + y * expit(y)) / own["temperature"]
    logits[:, VOCAB:] = -np.inf
    return logits


def evolved(seed=0):
    """A run in which every source has its turn, medusa the most often."""
    engine = trained_engine("greedy")
    source = engine.source("medusa")
    drafts = scripted(engine, PROMPTS, wrong(plain(engine, PROMPTS, **LIMITS).tokens, VOCAB, share=0.3))
    plan = shuffled(4, [*range(len(engine.setup.names)), *[source] * 8], 4, seed, stride=1)
    return engine, run(engine, PROMPTS, plan, drafts, **LIMITS), source


def agree(shift):
    """Whether each draft is its head's likeliest token of the last committed token's state, or of one `shift` away."""
    engine, got, source = evolved()
    drafted = proposals(got, source)
    assert len(drafted) > 20
    hidden = hidden_of(engine, [each.prefix for each in drafted])
    for each, states in zip(drafted, hidden, strict=False):  # padded to whole batches
        at = len(each.prefix) - 2 + shift  # the token before the pending one; none in a row of one token
        logits = said_of(states[at] if at >= 0 else np.zeros(TARGET.hidden_size))[: len(each.drafts)]
        if each.drafts != logits.argmax(-1).tolist():
            return False
        confidence = got.log.confidence[each.round, each.row, : len(each.drafts)]
        np.testing.assert_allclose(confidence, softmax(logits, -1).max(-1), atol=1e-4)
    return True


def test_after_any_switches_the_heads_read_the_last_committed_token():
    assert agree(0)
    assert not agree(-1), "the token before it would be noticed"


def test_no_more_is_drafted_than_there_are_heads():
    _, got, source = evolved()
    assert got.log.offered[..., source].max() == HEADS
    assert got.log.count[got.log.source == source].max() == HEADS
    assert got.log.lookahead[got.log.source == source].max() == HEADS


def test_the_likeliest_tokens_of_each_head_are_kept():
    engine = trained_engine("greedy")
    params, state = began(engine, PROMPTS, always(4, 0, 0), **LIMITS)
    source = engine.source("medusa")
    propose = jax.jit(engine.setup.sources[source].propose)
    proposal, scratch = propose(params, look(state), state.sources[source], jnp.full(4, HEADS, jnp.int32))
    assert scratch.tokens.shape == (4, HEADS, TOP)
    for row, states in enumerate(hidden_of(engine, PROMPTS)[:4]):
        at = len(PROMPTS[row]) - 2
        logits = said_of(states[at] if at >= 0 else np.zeros(TARGET.hidden_size))
        for head, own in enumerate(logits):
            tokens, log_q = np.asarray(scratch.tokens[row, head]), np.asarray(scratch.log_q[row, head])
            assert (np.diff(log_q) <= 0).all()
            assert log_q[0] < 0
            real = tokens < VOCAB  # the draft has one token that is padding
            assert tokens[real].tolist() == np.argsort(-own)[: real.sum()].tolist()
            assert int(proposal.tokens[row, head]) == tokens[real][0]
            np.testing.assert_allclose(np.diff(log_q[real]), np.diff(own[tokens[real]]), atol=1e-3)
