"""A model draft proposes what a fresh one would, after any acceptance, rejection, other source or lag."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from jaxspec import decode
from jaxspec.drafts.lm import CATCH_UP, FIRST
from jaxspec.sampling import Purpose, gumbel, warpers
from tests.decode import automata
from tests.decode.engines import TABLE_ROWS, TABLE_VOCAB, began, host, plain, run, scripted, table_engine, tiny_engine
from tests.decode.schedule import ROUNDS, always, plan_of, shuffled
from tests.decode.test_coupled import SETTINGS, settings
from tests.decode.test_greedy import LIMITS, PROMPTS, table_prompts, wrong
from tests.decode.tiny import VOCAB
from tests.drafts.oracle import empty_pass, own_logits, proposals


def model_of(engine, name):
    """The draft's model and parameters."""
    source = engine.setup.sources[engine.source(name)]
    return source.propose.args[0].model, engine.params.drafts[name]


def follows_its_own_model(engine, run_, name="lm:d"):
    """Every draft of the run is the argmax of a pass over the whole text, at its own confidence."""
    drafted = proposals(run_, engine.source(name))
    assert len(drafted) > 20
    for each, logits in zip(drafted, own_logits(*model_of(engine, name), drafted), strict=True):
        logits = logits[:, :VOCAB]
        assert each.drafts == logits.argmax(-1).tolist()
        confidence = run_.log.confidence[each.round, each.row, : len(each.drafts)]
        np.testing.assert_allclose(confidence, softmax(logits, -1).max(-1), atol=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_after_any_switches_it_drafts_what_its_model_says_of_the_text(seed):
    engine = tiny_engine("greedy")
    drafts = scripted(engine, PROMPTS, wrong(plain(engine, PROMPTS, **LIMITS).tokens, VOCAB, share=0.3))
    plan = shuffled(4, [0, 1, 2, 3, 3, 4], 4, seed, stride=seed)
    got = run(engine, PROMPTS, plan, drafts, **LIMITS)
    follows_its_own_model(engine, got)
    lag = got.log.lag[..., engine.source("lm:d")]
    chosen = (got.log.source == engine.source("lm:d")) & (got.log.count > 0)
    assert {0, 1} < set(lag[chosen]), "none, the bonus of a full round, and more"


def late(rounds):
    """Nothing is drafted for some rounds, then the model drafts."""
    first = np.arange(ROUNDS) < rounds
    return plan_of(np.tile(np.where(first, 0, 3), (4, 1)), np.tile(np.where(first, 0, 4), (4, 1)))


def test_it_catches_up_however_far_it_lags():
    engine, limits = tiny_engine("greedy"), {"max_new_tokens": 75}
    got = run(engine, PROMPTS, late(66), **limits)
    assert got.tokens == plain(engine, PROMPTS, **limits).tokens
    lag = got.log.lag[66, :, 3]
    assert lag.min() > CATCH_UP, "more than one pass takes"
    assert (got.state.counters.catch_up[:, 3] == lag).all()
    drafted = proposals(got, 3)
    assert {each.round for each in drafted} >= {66, 67}
    for each, logits in zip(drafted, own_logits(*model_of(engine, "lm:d"), drafted), strict=True):
        assert each.drafts == logits[:, :VOCAB].argmax(-1).tolist()


@pytest.mark.parametrize("lagging", [FIRST[-1] - 1, FIRST[-1], FIRST[-1] + 1])
def test_a_lag_at_the_edge_of_the_first_pass(lagging):
    """From prompts of one token the lag after n plain rounds is n."""
    engine, prompts = tiny_engine("greedy"), [[5], [9], [14], [20]]
    got = run(engine, prompts, late(lagging), max_new_tokens=30)
    assert got.log.lag[lagging, :, 3].tolist() == [lagging] * 4
    assert (got.state.counters.catch_up[:, 3] == (lagging if lagging >= FIRST[-1] else 0)).all()
    follows_its_own_model(engine, got)


def test_its_cache_holds_what_one_pass_over_the_text_gives():
    engine = tiny_engine("greedy")
    params, state = began(engine, PROMPTS, shuffled(4, [0, 1, 3, 3], 4, 1), **LIMITS)
    model, own = model_of(engine, "lm:d")
    for rounds in (3, 1, 1, 6):
        state, _ = decode.loop(engine.setup, params, state, rounds, np.zeros(4, bool))
        seen = host(state).state
        draft = seen.sources[3]
        assert (draft.length <= seen.length - 1).all(), "the pending token is never in it"
        window = jax.jit(empty_pass, static_argnums=0)(model, own, seen.tokens[:, :96]).window
        for row, length in enumerate(draft.length):
            for kept, fresh in ((draft.cache.layers[0].k, window.k[0]), (draft.cache.layers[0].v, window.v[0])):
                np.testing.assert_allclose(kept[row, :, :length], fresh[row, :, :length], atol=1e-5)
    assert draft.length.max() > 16


def accepts_itself_always(name):
    """A draft that is the target: every draft is right, round after round, since no round leaves a hole."""
    engine, prompts = table_engine("greedy"), table_prompts()
    same = automata.random_table(TABLE_VOCAB, 9, padded=4)
    same[:TABLE_VOCAB, :, :TABLE_VOCAB] = np.asarray(engine.params.target["table"])[:TABLE_VOCAB, :, :TABLE_VOCAB]
    drafts = {**engine.params.drafts, name: {"table": jnp.asarray(same)}}
    own = dataclasses.replace(engine, params=dataclasses.replace(engine.params, drafts=drafts))
    got = run(own, prompts, always(TABLE_ROWS, engine.source(name), 5), max_new_tokens=40)
    assert got.tokens == plain(own, prompts, max_new_tokens=40).tokens
    assert (got.log.accepted == got.log.count).all()
    assert got.rounds == -(-40 // 6)


def test_no_hole_is_left_in_its_cache_after_full_acceptance():
    accepts_itself_always("lm:d")
    with pytest.raises(AssertionError):
        accepts_itself_always("lm:hole")


def drafts_follow_the_table(name, seed):
    """On any schedule, checked against the table itself."""
    engine, prompts = table_engine("greedy"), table_prompts(seed)
    guess = plain(engine, prompts, max_new_tokens=40).tokens
    drafts = scripted(engine, prompts, wrong(guess, TABLE_VOCAB, share=0.2))
    source = engine.source(name)
    got = run(engine, prompts, shuffled(TABLE_ROWS, [0, 1, source, source, 4], 5, seed), drafts, max_new_tokens=40)
    table = np.asarray(engine.params.drafts[name]["table"])
    for _, _, prefix, drafted in proposals(got, source):
        for depth, token in enumerate(drafted):
            assert token == automata.logits_after(table, prefix + drafted[:depth])[:TABLE_VOCAB].argmax()


@pytest.mark.parametrize("seed", range(2))
def test_switching_leaves_no_trace_in_what_it_drafts(seed):
    drafts_follow_the_table("lm:d", seed)
    drafts_follow_the_table("lm:short", seed)
    with pytest.raises(AssertionError):
        drafts_follow_the_table("lm:hole", seed)


def noise_of(drafted, seeds, vocab):
    """A round's own noise for each draft, [proposals, 4, V]."""
    start = jnp.asarray([len(each.prefix) for each in drafted], jnp.int32)
    seed = jnp.asarray([seeds[each.row] for each in drafted], jnp.uint32)
    at = start[:, None] + jnp.arange(4, dtype=jnp.int32)[None, :]
    return np.asarray(gumbel(seed, at, vocab, purpose=Purpose.DRAFT, start=start))


@pytest.mark.parametrize("name", ["lm:d", "exit:1"])
def test_sampled_drafts_come_from_the_law_they_declare(name):
    """The law is the model's own under the row's settings and the draft's temperature; the noise is the round's own."""
    engine = tiny_engine("rejection")
    source, heat, seeds = engine.source(name), [1.0, 1.0, 0.5, 1.6], [3, 4, 5, 6]
    options = {"warp": settings(), "seed": seeds, "draft_temperature": heat, **LIMITS}
    got = run(engine, PROMPTS, shuffled(4, [0, 1, source, source], 4, 2), **options)
    drafted = proposals(got, source)
    whole = {"exit:1": (engine.setup.target, engine.params.target)}
    model, params = whole[name] if name in whole else model_of(engine, name)
    logits = own_logits(model, params, drafted, layers=(0, 1) if name == "exit:1" else None)
    sampled = 0
    noise = noise_of(drafted, seeds, got.log.q_log.shape[-1])
    for index, (each, own) in enumerate(zip(drafted, logits, strict=True)):
        row, depths = each.row, np.arange(len(each.drafts))
        warmth = SETTINGS["temperature"][row] * heat[row]
        if warmth == 0:
            assert each.drafts == own[:, :VOCAB].argmax(-1).tolist()
            continue
        sampled += 1
        q_log = got.log.q_log[each.round, row][depths]
        assert np.isneginf(q_log[:, VOCAB:]).all()
        kept = np.isfinite(q_log[:, :VOCAB])
        wanted = softmax(np.where(kept, own[:, :VOCAB] / warmth, -np.inf), -1)
        np.testing.assert_allclose(np.exp(q_log[:, :VOCAB]), wanted, atol=2e-4)
        if SETTINGS["top_k"][row]:
            assert (kept.sum(-1) <= SETTINGS["top_k"][row]).all()
        else:
            assert kept.all()
        assert each.drafts == (q_log + noise[index, depths]).argmax(-1).tolist()
    assert sampled > 20


@pytest.mark.parametrize("mode", ["greedy", "coupled", "rejection"])
def test_it_stops_before_the_first_token_it_is_unsure_of(mode):
    engine, sure = tiny_engine(mode), [0.0, 0.4, 0.6, 1.0]
    warm = warpers(4, temperature=0.0 if mode == "greedy" else [1.2, 0.0, 1.0, 1.5])
    got = run(engine, PROMPTS, shuffled(4, [2, 3], 4, 0), draft_confidence=sure, warp=warm, seed=0, **LIMITS)
    log, cut = got.log, 0
    asked = (log.lookahead > 0) & (log.emitted > 0)
    for at, row in zip(*np.nonzero(asked), strict=True):
        count, lookahead = log.count[at, row], log.lookahead[at, row]
        assert (log.confidence[at, row, :count] >= sure[row]).all()
        if count < lookahead:
            assert log.confidence[at, row, count] < sure[row]
            cut += 1
    assert cut > 10
    assert (log.count == log.lookahead)[:, 0].all(), "at threshold 0 it never stops early"
    assert log.count[:, 3].max() == 0 or mode != "greedy"
