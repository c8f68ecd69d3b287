"""What training takes for a draft's law at every place and depth is what the engine drafts from there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from jaxspec import decode, sampling
from jaxspec.contracts import Choice, Selector
from jaxspec.models.heads import spread
from jaxspec.training.draft_data import Batch
from jaxspec.training.draft_loss import draft_loss, say
from jaxspec.training.live import for_context, live
from tests.decode import tiny
from tests.training import small

LOOKAHEAD = 3
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7], np.random.default_rng(3).integers(0, tiny.VOCAB, 90).tolist()]
HEAT = 1.7
"""The drafts' temperature."""


def by_data() -> Selector:
    """The source of every round from `EngineParams.selector`, all drafts; one program for every source."""

    def choose(params, state, signals):
        rows = len(signals.active)
        return Choice(jnp.full(rows, params, jnp.int32), jnp.full(rows, LOOKAHEAD, jnp.int32))

    return Selector("by data", lambda rows, sources: (), choose, lambda params, state, *seen: state)


@functools.cache
def engine():
    model, params = small.target()
    drafts, own = [], {}
    for kind in small.KINDS:
        config, mine = small.draft_of(kind)
        drafts.append((kind, config))
        own[kind] = mine | small.context_of(config, mine, temperature=HEAT)
    setup = decode.make_setup(
        model, drafts=drafts, select=by_data(), verify="rejection", lookahead=LOOKAHEAD, vocab_size=tiny.VOCAB
    )
    return setup, decode.EngineParams(params, own, jnp.int32(0)), jax.jit(decode.step, static_argnums=0)


def drafted(order: list[int]):
    """(source, known text of each row, its drafts, the laws they came from) of each round."""
    setup, params, step = engine()
    warp = sampling.warpers(len(PROMPTS), temperature=1.0, vocab_size=tiny.VOCAB)
    request = decode.make_request(setup, PROMPTS, max_new_tokens=60, seed=1, warp=warp)
    state, rounds = decode.start(setup, params, PROMPTS, request, capacity=256), []
    for source in order:
        known = [np.asarray(state.tokens)[row, :n].tolist() for row, n in enumerate(np.asarray(state.length))]
        params = decode.EngineParams(params.target, params.drafts, jnp.int32(source))
        state, info = step(setup, params, state)
        rounds.append((source, known, np.asarray(info.proposal.tokens), np.asarray(info.proposal.q_log)))
        assert source == 0 or np.all(np.asarray(info.proposal.count) == LOOKAHEAD)
    return rounds


@functools.partial(jax.jit, static_argnums=(0, 1))
def laws(kind: str, ahead: int, tokens: jax.Array) -> list[jax.Array]:
    """Training's log-laws over the target's vocabulary of every depth; `ahead` spoils the features by a place."""
    config, own = small.draft_of(kind)
    context = small.context_of(config, own)
    rows, width = tokens.shape
    places = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    nothing = jnp.zeros((rows, width, 0), jnp.int32)
    batch = Batch(tokens, places, tokens >= 0, nothing, nothing.astype(jnp.float32), {})
    taps = {"exit": (2,), "lm": ()}.get(kind, config.taps)
    see = live(small.target()[0], taps=taps, vocab_size=tiny.VOCAB)
    batch = see(batch, for_context(small.target()[1]))
    batch = batch._replace(features={tap: jnp.roll(leaf, ahead, axis=1) for tap, leaf in batch.features.items()})
    found = say(config, small.trainable(own), batch, context, LOOKAHEAD)
    inverse = context["output.inverse"]
    return [jax.nn.log_softmax(spread(said.logits / HEAT, inverse), axis=-1) for said in found]


def apart(kind: str, ahead: int = 0) -> np.ndarray:
    """Largest difference of a probability between the engine and training, by depth."""
    source = 1 + small.KINDS.index(kind)
    worst = np.zeros(LOOKAHEAD)
    # others have their turns between, so that there is something to catch up
    for at, known, drafts, q_log in drafted([source, source, *[0] * 9, 1 + source % 4, source, source]):
        if at != source:
            continue
        texts = np.zeros((len(known), 160), np.int32)
        for row, text in enumerate(known):
            texts[row, : len(text) + LOOKAHEAD] = [*text, *drafts[row]]
        found = [np.asarray(law) for law in laws(kind, ahead, jnp.asarray(texts))]
        for row, text in enumerate(known):
            last = len(text) - 1  # place of the pending token
            for depth in range(LOOKAHEAD):
                # exit and lm read the drafts themselves; a head reads the hidden state before the pending token; a
                # feature layer's pair is named by its first token
                place = {"exit": last + depth, "lm": last + depth, "medusa": last - 1, "feature": last - 1 + depth}
                law = found[depth if kind in ("medusa", "feature") else 0][row, place[kind]]
                worst[depth] = max(worst[depth], np.abs(np.exp(law) - np.exp(q_log[row, depth])).max())
    return worst


@pytest.mark.heavy
@pytest.mark.parametrize("kind", small.KINDS)
def test_the_engine_drafts_from_the_law_that_is_trained(kind):
    assert apart(kind).max() < 2e-5


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["medusa", "feature", "exit"])
def test_features_of_another_place_are_told(kind):
    """The control."""
    assert apart(kind, ahead=1).min() > 1e-3


def random_batch(lengths: list[int], width: int = 12) -> Batch:
    """Random text with whole random laws, past its end too."""
    rng, rows = np.random.default_rng(0), len(lengths)
    tokens = rng.integers(0, tiny.VOCAB, (rows, width)).astype(np.int32)
    law = log_softmax(2 * rng.standard_normal((rows, width, tiny.VOCAB)), -1)
    ids = np.argsort(-law, -1).astype(np.int32)
    features = {3: rng.standard_normal((rows, width, 32)).astype(np.float32)}
    places = np.broadcast_to(np.arange(width, dtype=np.int32), tokens.shape)
    kept = np.take_along_axis(law, ids, -1).astype(np.float32)
    return Batch(tokens, places, places < np.asarray(lengths)[:, None], ids, kept, features)


def naive(config, said, batch: Batch, inverse: np.ndarray, *, share: float, decay: float) -> float:
    """The loss, place by place."""
    total = 0.0
    for depth, (logits, ahead, skip) in enumerate(said):
        apart, text = [], []
        q = np.full((*logits.shape[:2], tiny.VOCAB), -np.inf)
        known = np.flatnonzero(inverse[: tiny.VOCAB] < config.vocab)
        q[..., known] = log_softmax(np.asarray(logits), -1)[..., inverse[known]]
        for row in range(len(batch.tokens)):
            for t in range(skip, logits.shape[1]):
                if not batch.valid[row, t + ahead]:
                    continue
                p = np.zeros(tiny.VOCAB)
                p[batch.ids[row, t + ahead]] = batch.log_p[row, t + ahead]
                p = p[known] - logsumexp(p[known])
                apart.append(np.sum(np.exp(p) * (p - q[row, t, known])))
                if t + ahead + 1 < batch.valid.shape[1] and batch.valid[row, t + ahead + 1]:
                    after = batch.tokens[row, t + ahead + 1]
                    text.append(-q[row, t, after] if after in known else 0.0)
        total += decay**depth * ((1 - share) * np.mean(apart) + share * np.mean(text))
    return total / sum(decay**depth for depth in range(len(said)))


@pytest.mark.parametrize("kind", ["lm", "medusa"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_loss_is_that_of_every_place_that_counts(kind, share):
    config, own = small.draft_of(kind)
    context, params, batch = small.context_of(config, own), small.trainable(own), random_batch([12, 7, 4])
    loss = jax.jit(draft_loss(config, tokens_share=share, decay=0.6))
    value, seen = loss(params, batch, context)
    said = say(config, params, batch, context, 3)
    inverse = np.asarray(context["output.inverse"])
    np.testing.assert_allclose(value, naive(config, said, batch, inverse, share=share, decay=0.6), rtol=1e-3)
    assert len(seen.acceptance) == len(said)
    beyond = ~batch.valid
    spoilt = batch._replace(
        tokens=np.where(beyond, 0, batch.tokens), log_p=np.where(beyond[..., None], -1.0, batch.log_p)
    )
    np.testing.assert_allclose(loss(params, spoilt, context)[0], value, rtol=1e-6)  # what lies past the end is nothing
    shorter = batch._replace(valid=batch.valid & (np.arange(12) < 6)[None])
    assert abs(loss(params, shorter, context)[0] - value) > 1e-3  # the control


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"tokens_share": 1.5}, {"depths": 0}, {"decay": 0.0}])
def test_a_loss_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match="allowed are above 0, 0 to 1, 1 or more, above 0 to 1"):
        draft_loss(small.draft_of("lm")[0], **wrong)
