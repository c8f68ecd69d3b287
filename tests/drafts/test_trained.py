"""A trained draft proposes what a fresh one would; the distilled model and the exit say what their weights say."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

from jaxspec import decode
from jaxspec.models.heads import small_model
from tests.decode.engines import began, plain, run, scripted
from tests.decode.schedule import always, script, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, wrong
from tests.decode.tiny import TARGET, VOCAB, model_of
from tests.decode.trained import IDS, LOOKAHEAD, NAMES, engine_of, trained, trained_engine
from tests.drafts.oracle import empty_pass, own_logits, proposals
from tests.drafts.test_exit import with_one_row_plain

pytestmark = pytest.mark.heavy

LONGEST = 64


def evolved(engine, source, seed):
    """A run in which every source has its turn, the given one the most often."""
    drafts = scripted(engine, PROMPTS, wrong(plain(engine, PROMPTS, **LIMITS).tokens, VOCAB, share=0.3))
    plan = shuffled(4, [*range(len(engine.setup.names)), *[source] * 6], LOOKAHEAD, seed, stride=1)
    return run(engine, PROMPTS, plan, drafts, **LIMITS)


def cold(engine, source, prefixes):
    """What the source proposes in the first round after a prefill of four prefixes: tokens, counts, confidence."""
    params, state = began(engine, prefixes, always(4, source, LOOKAHEAD), max_new_tokens=40)
    state, _ = decode.loop(engine.setup, params, state, 1, np.zeros(4, bool))
    log = jax.device_get(state.selector)
    return log.tokens[0], log.count[0], log.confidence[0]


def as_fresh(engine, source, seed=0):
    """Whether proposals late in a run are those of a cold start on the same prefix."""
    got = evolved(engine, source, seed)
    drafted = [each for each in proposals(got, source) if 2 <= len(each.prefix) <= LONGEST]
    assert len(drafted) >= 8
    drafted = drafted[:: max(1, len(drafted) // 20)]
    drafted = drafted[: len(drafted) // 4 * 4]
    for part in range(0, len(drafted), 4):
        batch = drafted[part : part + 4]
        tokens, count, confidence = cold(engine, source, [each.prefix for each in batch])
        for row, each in enumerate(batch):
            many = len(each.drafts)
            if count[row] < many or tokens[row, :many].tolist() != each.drafts:
                return False
            mine = got.log.confidence[each.round, each.row, :many]
            if not np.allclose(mine, confidence[row, :many], atol=1e-4):
                return False
    return True


@pytest.mark.parametrize("name", ["suffix", "ngram", "lookup", "exit:1", "lm:d", *NAMES])
def test_after_any_history_a_source_proposes_what_a_cold_start_does(name):
    engine = trained_engine("greedy")
    assert as_fresh(engine, engine.source(name))


def faulty(name, **changes):
    """The trained draft and a script alone, with parts of the draft replaced."""
    model, params = model_of(TARGET, 0, 1.6)
    honest = trained_engine("greedy")
    source = honest.setup.sources[honest.source(name)]
    changed = source._replace(**{part: change(source) for part, change in changes.items()})
    return engine_of("greedy", model, params, (script(LOOKAHEAD), changed), {name: trained(name).params})


def first_token(source):
    """Takes the features of the first token of a round for those of the last."""
    return lambda state, features, start, count: source.absorb(state, features, start, jnp.minimum(count, 1))


def with_a_hole(source):
    """Takes a pair of a fully accepted round for one that is in the cache."""

    def observe(state, scratch, view, ran, verdict):
        after = source.observe(state, scratch, view, ran, verdict)
        missed = (ran & (verdict.count > 1)).astype(jnp.int32)
        return after._replace(cache=dataclasses.replace(after.cache, length=after.cache.length + missed))

    return observe


def test_a_stale_hidden_state_and_a_hole_in_a_cache_are_noticed():
    assert not as_fresh(faulty("medusa", absorb=first_token), 2)
    assert not as_fresh(faulty("feature", observe=with_a_hole), 2)


# What the weights say


def test_the_distilled_model_drafts_what_its_layers_say():
    engine = trained_engine("greedy")
    source, draft = engine.source("lm"), trained("lm")
    got = evolved(engine, source, 1)
    drafted = proposals(got, source)
    assert len(drafted) > 20
    target = model_of(TARGET, 0, 1.6)[1]
    for each, logits in zip(drafted, own_logits(small_model(draft.config), draft.params, drafted), strict=True):
        assert np.isneginf(np.delete(logits, IDS, axis=-1)).all()
        logits = logits[:, :VOCAB]
        assert each.drafts == logits.argmax(-1).tolist()
        confidence = got.log.confidence[each.round, each.row, : len(each.drafts)]
        np.testing.assert_allclose(confidence, softmax(logits, -1).max(-1), atol=1e-4)
    assert draft.params["embed_tokens.weight"] is target["embed_tokens.weight"], "shared by reference"
    assert draft.params["norm.weight"] is target["norm.weight"]


def exit_logits(hidden):
    """Logits [T, V] of the trained exit after its layers, by its definition."""
    own = {name: np.asarray(leaf, np.float64) for name, leaf in trained("exit").params.items()}

    def normed(x, weight):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + TARGET.norm_eps) * weight

    inner = normed(hidden, own["input_norm.weight"]) @ own["down.weight"].T
    x = normed(hidden + (inner * expit(inner)) @ own["up.weight"].T, own["norm.weight"])
    logits = np.full((len(hidden), TARGET.vocab_size), -np.inf)
    logits[:, IDS] = x @ own["output.weight"].T / own["temperature"]
    return logits


def test_the_trained_exit_drafts_what_its_head_says():
    engine = trained_engine("greedy")
    source = engine.source("exit")
    got = evolved(engine, source, 2)
    drafted = proposals(got, source)
    assert len(drafted) > 20
    texts = np.zeros((len(drafted), 96), np.int32)
    for row, each in enumerate(drafted):
        texts[row, : len(each.prefix) + len(each.drafts)] = each.prefix + each.drafts
    whole = jax.jit(functools.partial(empty_pass, layers=(0, 1)), static_argnums=0)
    hidden = np.asarray(whole(engine.setup.target, engine.params.target, texts).hidden, np.float64)
    for each, states in zip(drafted, hidden, strict=True):
        begin = len(each.prefix) - 1
        logits = exit_logits(states[begin : begin + len(each.drafts)])[:, :VOCAB]
        assert each.drafts == logits.argmax(-1).tolist()
        confidence = got.log.confidence[each.round, each.row, : len(each.drafts)]
        np.testing.assert_allclose(confidence, softmax(logits, -1).max(-1), atol=1e-4)


# Layers that drafting has run serve other sources too

TALL = dataclasses.replace(TARGET, num_layers=4)


@functools.cache
def tall_engine(*, spoilt=False):
    """An exit after two of four layers, beside sources that read after one, two, three and four."""
    model, params = model_of(TALL, 0, 1.6)
    made = {
        "exit": trained("exit", TALL, layers=2),
        "feature": trained("feature", TALL, taps=(1, 2, 3)),
        "medusa": trained("medusa", TALL),
    }
    own = {name: each.params for name, each in made.items()}
    if not spoilt:
        return engine_of("greedy", model, params, [(name, each.config) for name, each in made.items()], own)
    sources = list(tall_engine().setup.sources[1:])
    handed = sources[0].reuse

    def reuse(scratch):
        fine = handed(scratch)
        return fine._replace(features={tap: -leaf for tap, leaf in fine.features.items()})

    return engine_of("greedy", model, params, [sources[0]._replace(reuse=reuse), *sources[1:]], own)


def features_left(engine, lookahead, *, reused):
    """What a run by the exit leaves in the feature head's store and in medusa's state; the first three rows'."""
    plan = always(4, 1, lookahead) if reused else with_one_row_plain(1, lookahead)
    got = run(engine, PROMPTS, plan, **LIMITS)
    store, hidden = got.state.sources[2], got.state.sources[3]
    return got.tokens[:3], [store.features[row, : got.state.length[row] - 1] for row in range(3)], hidden[:3]


@pytest.mark.parametrize("lookahead", [1, 3, 4])
def test_layers_that_drafting_ran_give_other_sources_the_same_features(lookahead):
    (tokens, store, hidden), (again, fresh, other) = (
        features_left(tall_engine(), lookahead, reused=reused) for reused in (True, False)
    )
    assert tokens == again
    for mine, others in zip(store, fresh, strict=True):
        np.testing.assert_allclose(mine, others, atol=1e-4)
    np.testing.assert_allclose(hidden, other, atol=1e-4)


def test_features_that_drafting_hands_over_wrongly_are_noticed():
    _, store, _ = features_left(tall_engine(spoilt=True), 3, reused=True)
    _, fresh, _ = features_left(tall_engine(), 3, reused=False)
    assert all(np.abs(mine - others).max() > 0.1 for mine, others in zip(store, fresh, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_without_parameters_is_named(name):
    model, params = model_of(TARGET, 0, 1.6)
    setup = decode.make_setup(model, drafts=((name, trained(name).config),), lookahead=1)
    with pytest.raises(ValueError, match=f"draft '{name}' has no parameters; give them in EngineParams.drafts"):
        decode.generate(setup, decode.EngineParams(params, {}, ()), [[1, 2]], max_new_tokens=2)


def test_a_draft_of_a_deeper_target_is_refused():
    model, _ = model_of(TARGET, 0, 1.6)
    config = trained("feature", TALL, taps=(1, 2, 3)).config
    with pytest.raises(ValueError, match="reads after 3 layers; the target has 2"):
        decode.make_setup(model, drafts=(("feature", config),))
