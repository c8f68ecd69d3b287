"""The feature head drafts what its layer says of the target's features and of its own outputs, after any history."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

from jaxspec import decode
from jaxspec.drafts.feature import CATCH_UP, FIRST
from jaxspec.models.tapped import tapped
from tests.decode.engines import began, host, plain, run, scripted
from tests.decode.schedule import ROUNDS, plan_of, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, wrong
from tests.decode.tiny import TARGET, VOCAB
from tests.decode.trained import IDS, trained, trained_engine
from tests.drafts.oracle import proposals

pytestmark = pytest.mark.heavy

TAPS = (1, TARGET.num_layers)
WIDTH = 128


@functools.partial(jax.jit, static_argnums=0)
def features_pass(model, params, tokens):
    """Residual streams after the taps of whole texts [N, 128], side by side, over an empty cache."""
    rows, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], (rows, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool))[None], (rows, length, length))
    cache = model.init_cache(rows, 1, headroom=1, dtype=jnp.float32)
    found = tapped(model, params, tokens, positions, mask, cache, taps=TAPS, logits=False)[1]
    return jnp.concatenate([found[tap] for tap in TAPS], axis=-1)


def features_of(engine, texts):
    padded = np.zeros((-(-len(texts) // 32) * 32, WIDTH), np.int32)
    for row, text in enumerate(texts):
        padded[row, : len(text)] = text
    parts = np.split(padded, len(padded) // 32)
    return np.concatenate([features_pass(engine.setup.target, engine.params.target, part) for part in parts])


def normed(x, weight):
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + TARGET.norm_eps) * weight


def turned(x, position):
    """Rotary embedding of heads [N, H], first half against second."""
    half = TARGET.head_dim // 2
    angle = position * TARGET.rope_theta ** (-np.arange(half) / half)
    low, high = x[:, :half], x[:, half:]
    return np.concatenate([low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)], -1)


class Layer:
    """The head by its definition, one pair at a time, in float64; keeps keys and values."""

    def __init__(self):
        self.own = {name: np.asarray(leaf, np.float64) for name, leaf in trained("feature").params.items()}
        self.keys, self.values = [], []

    def weight(self, name):
        return self.own[f"{name}.weight"]

    def pair(self, feature, token, position):
        """The layer's output on (a feature of the draft's width, the embedding of the token after it)."""
        embedded = normed(self.weight("embed_tokens")[token], self.weight("input_layernorm"))
        read = np.concatenate([embedded, normed(feature, self.weight("hidden_norm"))])
        q, k, v = (
            (self.weight(f"self_attn.{name}_proj") @ read).reshape(-1, TARGET.head_dim) for name in ("q", "k", "v")
        )
        self.keys.append(turned(k, position))
        self.values.append(v)
        groups = TARGET.num_heads // TARGET.num_kv_heads
        mixed = []
        for head, query in enumerate(turned(q, position)):
            scores = np.stack([key[head // groups] for key in self.keys]) @ query / TARGET.head_dim**0.5
            mixed.append(softmax(scores) @ np.stack([value[head // groups] for value in self.values]))
        x = feature + self.weight("self_attn.o_proj") @ np.concatenate(mixed)
        inner = normed(x, self.weight("post_attention_layernorm"))
        gate = self.weight("mlp.gate_proj") @ inner
        return x + self.weight("mlp.down_proj") @ (gate * expit(gate) * (self.weight("mlp.up_proj") @ inner))

    def logits(self, x):
        said = np.full(TARGET.vocab_size, -np.inf)
        said[IDS] = self.weight("output") @ normed(x, self.weight("norm")) / self.own["temperature"]
        said[VOCAB:] = -np.inf
        return said


def drafted_by(features, prefix, drafts, *, missing=()):
    """Logits [drafts, V] of each draft after the prefix, the drafts before it being as given."""
    layer, x = Layer(), np.zeros(TARGET.hidden_size)
    for i in range(len(prefix) - 1):
        if i not in missing:
            x = layer.pair(layer.weight("fc") @ features[i].astype(np.float64), prefix[i + 1], i)
    logits = [layer.logits(x)]
    for depth, token in enumerate(drafts[:-1]):
        x = layer.pair(x, token, len(prefix) - 1 + depth)
        logits.append(layer.logits(x))
    return np.stack(logits)


def agree(engine, got, *, most=40, hole=None):
    """Whether every draft is what the layer says of its text; with `hole`, without that pair, counted from the end."""
    drafted = proposals(got, engine.source("feature"))
    assert len(drafted) >= 4
    drafted = drafted[:: -(-len(drafted) // most)]
    for each, features in zip(drafted, features_of(engine, [each.prefix for each in drafted]), strict=False):
        missing = () if hole is None else (len(each.prefix) - 2 - hole,)
        logits = drafted_by(features, each.prefix, each.drafts, missing=missing)
        if each.drafts != logits.argmax(-1).tolist():
            return False
        confidence = got.log.confidence[each.round, each.row, : len(each.drafts)]
        if not np.allclose(confidence, softmax(logits, -1).max(-1), atol=1e-4):
            return False
    return True


@pytest.mark.parametrize("seed", range(2))
def test_after_any_switches_it_drafts_what_its_layer_says_of_the_text(seed):
    engine = trained_engine("greedy")
    source = engine.source("feature")
    drafts = scripted(engine, PROMPTS, wrong(plain(engine, PROMPTS, **LIMITS).tokens, VOCAB, share=0.3))
    plan = shuffled(4, [*range(len(engine.setup.names)), *[source] * 8], 4, seed, stride=seed)
    got = run(engine, PROMPTS, plan, drafts, **LIMITS)
    assert agree(engine, got)
    assert not agree(engine, got, hole=3), "a pair that is missing from its cache would be noticed"
    lag, chosen = got.log.lag[..., source], (got.log.source == source) & (got.log.count > 0)
    assert {0, 1, 2} < set(lag[chosen]), "none, the tokens of a full round, and more"
    assert got.log.accepted[chosen].any(), "rounds of which drafts were accepted are among them"


def late(engine, rounds):
    """Nothing is drafted for some rounds, then the head drafts."""
    first = np.arange(ROUNDS) < rounds
    source = engine.source("feature")
    return plan_of(np.tile(np.where(first, 0, source), (4, 1)), np.tile(np.where(first, 0, 4), (4, 1)))


@pytest.mark.parametrize("lagging", [FIRST[-1] - 1, FIRST[-1], FIRST[-1] + 1, CATCH_UP, CATCH_UP + 9])
def test_it_catches_up_however_far_it_lags(lagging):
    """From prompts of one token the lag after n plain rounds is n - 1."""
    engine, prompts = trained_engine("greedy"), [[5], [9], [14], [20]]
    source, limits = engine.source("feature"), {"max_new_tokens": lagging + 20}
    got = run(engine, prompts, late(engine, lagging + 1), **limits)
    assert got.log.lag[lagging + 1, :, source].tolist() == [lagging] * 4
    assert (got.state.counters.catch_up[:, source] == (lagging if lagging >= FIRST[-1] else 0)).all()
    assert agree(engine, got, most=8)
    assert got.tokens == plain(engine, prompts, **limits).tokens


def test_its_store_holds_the_features_of_every_token_but_the_pending_one():
    engine = trained_engine("greedy")
    source = engine.source("feature")
    params, state = began(engine, PROMPTS, shuffled(4, range(len(engine.setup.names)), 4, 1), **LIMITS)
    for rounds in (0, 3, 1, 8):
        state, _ = decode.loop(engine.setup, params, state, rounds, np.zeros(4, bool))
        seen = host(state).state
        own = seen.sources[source]
        assert (own.cache.length <= np.maximum(seen.length - 1, 0)).all()
        wanted = features_of(engine, [row[:n].tolist() for row, n in zip(seen.tokens, seen.length, strict=True)])
        for row, count in enumerate(seen.length - 1):
            np.testing.assert_allclose(own.features[row, :count], wanted[row, :count], atol=1e-4)


def test_a_row_of_one_token_drafts_nothing_yet():
    engine = trained_engine("greedy")
    got = run(engine, [[5], [9], [14], [20]], late(engine, 0), max_new_tokens=6)
    assert (got.log.count[0] == 0).all()
    assert (got.log.count[1] > 0).all()
