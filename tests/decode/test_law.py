"""In rejection verification the output has the plain law, whatever drafts: chi-square on outputs of three tokens."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sampling import Purpose, gumbel, pick, warpers
from jaxspec.verify import rejection
from tests.decode import automata
from tests.decode.automata import chi_square, joint_law
from tests.decode.engines import plain, run, small_engine
from tests.decode.schedule import always, free_source, point_masses, shuffled
from tests.verify.law import FAILS, HOLDS

pytestmark = pytest.mark.heavy

VOCAB, ROWS, CALLS, LENGTH = 6, 1024, 5, 3
PROMPT = [1, 2, 0, 1, 2]
TABLE = automata.random_table(VOCAB, 3, padded=2, scale=1.0)
DRAFT = automata.related_table(TABLE, VOCAB, 4, padded=3, noise=0.8)
UNIGRAM = np.log(np.array([0.30, 0.05, 0.25, 0.1, 0.2, 0.1, 1e-30, 1e-30]))


def unigram(name, lookahead, *, likeliest=False, drop_below=0.0):
    """Drafts from one law at every depth. Right as it is; wrong with the two options, as engines elsewhere were.

    likeliest: draft the argmax, but declare the law. drop_below: drop a draft for its own probability.
    """

    def propose(params, view, state, wanted):
        at = view.length[:, None] + jnp.arange(lookahead, dtype=jnp.int32)[None, :]
        law = jnp.broadcast_to(jnp.asarray(UNIGRAM, jnp.float32), (*at.shape, len(UNIGRAM)))
        noise = gumbel(view.request.seed, at, len(UNIGRAM), purpose=Purpose.DRAFT, start=view.length)
        tokens = pick(law, jnp.zeros_like(noise) if likeliest else noise)
        own = jnp.exp(jnp.take_along_axis(law, tokens[..., None], -1)[..., 0])
        kept = jnp.sum(jnp.cumprod((own >= drop_below).astype(jnp.int32), 1), 1, dtype=jnp.int32)
        drafts = point_masses(tokens, jnp.minimum(kept, wanted))
        return drafts._replace(q_log=law, sampled=jnp.ones(len(tokens), bool)), ()

    return free_source(name, propose, samples=True)


@functools.cache
def engine():
    drafts = (
        "lookup",
        ("lm:d", automata.automaton(VOCAB + 3)),
        unigram("unigram", 3),
        unigram("softmax of an argmax", 3, likeliest=True),
        unigram("drops what it drew", 3, drop_below=0.15),
    )
    params = {"lm:d": {"table": jnp.asarray(DRAFT)}}
    return small_engine("rejection", drafts, params, table=TABLE, vocab=VOCAB, rounds=1)  # nobody reads the log


def outputs(plan, *, how=run, own=None, **options):
    """The first three tokens of calls x ROWS seeds; more are generated so that lookahead is not cut."""
    warp = warpers(ROWS, **{"temperature": 1.0, **options.pop("warp", {})})
    out = []
    for call in range(CALLS):
        options |= {"max_new_tokens": 7, "warp": warp, "seed": call * ROWS}
        out += how(own or engine(), [PROMPT] * ROWS, **({} if plan is None else {"plan": plan}), **options).tokens
    return np.asarray(out)[:, :LENGTH]


def law(**settings):
    return joint_law(TABLE, PROMPT, VOCAB, LENGTH, **settings)


def chosen(source, lookahead):
    return always(ROWS, engine().source(source), lookahead)


def everything(seed):
    """Every honest source and lookahead in turn, and how much was accepted has a say in it."""
    return shuffled(ROWS, [0, 1, 2, 3], 3, seed, stride=1)


def test_the_plain_loop_has_the_law_of_the_model():
    assert chi_square(outputs(None, how=plain), law(), VOCAB) > HOLDS
    assert chi_square(outputs(None, how=plain), law(temperature=1.2), VOCAB) < FAILS


@pytest.mark.parametrize("lookahead", [1, 3])
@pytest.mark.parametrize("source", ["lookup", "lm:d", "unigram"])
def test_every_source_leaves_the_law_of_the_model(source, lookahead):
    assert chi_square(outputs(chosen(source, lookahead)), law(), VOCAB) > HOLDS


@pytest.mark.parametrize(
    ("option", "value"), [("draft_temperature", 0.0), ("draft_temperature", 0.5), ("draft_confidence", 0.4)]
)
def test_drafts_that_are_greedy_cooler_or_stop_when_unsure_leave_the_law(option, value):
    assert chi_square(outputs(chosen("lm:d", 3), **{option: value}), law(), VOCAB) > HOLDS


def test_switching_by_schedule_and_by_what_was_accepted_leaves_the_law():
    assert chi_square(outputs(everything(0)), law(), VOCAB) > HOLDS


def test_the_law_of_a_draft_is_the_law_it_was_drawn_from():
    assert chi_square(outputs(chosen("softmax of an argmax", 1)), law(), VOCAB) < FAILS


def test_a_draft_that_is_dropped_for_its_own_probability_is_noticed():
    assert chi_square(outputs(chosen("drops what it drew", 3)), law(), VOCAB) < FAILS


SETTINGS = {
    "temperature before top-p": {"temperature": 2.0, "top_p": 0.75},
    "all warpers": {"temperature": 1.5, "top_k": 5, "top_p": 0.95, "min_p": 0.05},
    "penalties": {"frequency_penalty": 0.9, "presence_penalty": -0.5, "repetition_penalty": 1.4, "bias": {1: 1.0}},
    "a banned token": {"bias": {2: -np.inf}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_warpers_and_penalties_act_on_drafts_residual_and_bonus_alike(name):
    settings = SETTINGS[name]
    wanted = law(**settings)
    for plan in (chosen("lm:d", 3), chosen("lookup", 3), everything(1)):
        assert chi_square(outputs(plan, warp=settings), wanted, VOCAB) > HOLDS


def test_warpers_in_another_order_would_be_noticed():
    reordered = law(**SETTINGS["temperature before top-p"], order=("top_p", "temperature"))
    assert chi_square(outputs(chosen("lm:d", 3), warp=SETTINGS["temperature before top-p"]), reordered, VOCAB) < FAILS


def test_stop_ids_are_held_back_until_min_tokens_at_drafted_positions_too():
    settings = {"min_tokens": 2, "bias": {4: 1.0}}
    warp = warpers(ROWS, temperature=1.0, **settings)
    out = []
    for call in range(CALLS):
        options = {"max_new_tokens": 7, "stop_ids": [4], "warp": warp, "seed": call * ROWS}
        out += run(engine(), [PROMPT] * ROWS, chosen("lm:d", 3), **options).tokens
    got = np.asarray([row[:3] for row in out])  # min_tokens 2: nothing is shorter than three
    assert chi_square(got, law(stop_ids=(4,), **settings), VOCAB) > HOLDS
    assert chi_square(got, law(bias={4: 1.0}), VOCAB) < FAILS
    assert all(row.index(4) == len(row) - 1 for row in out if 4 in row)


def test_rows_at_temperature_zero_beside_sampled_ones_are_the_first_argmax():
    """With a table full of ties, whose first entry plain decoding takes."""
    ties = np.round(TABLE)
    ties[:, :, VOCAB:] = 8
    tied = dict(engine().params.target, table=jnp.asarray(ties))
    own = dataclasses.replace(engine(), params=dataclasses.replace(engine().params, target=tied))
    prompts = [[t % VOCAB] for t in range(ROWS)]

    def got(cold):
        warp = warpers(ROWS, temperature=[cold, 1.0] * (ROWS // 2))
        return run(own, prompts, everything(2), max_new_tokens=20, warp=warp, seed=1).tokens

    def argmaxes(outputs):
        for prompt, output in list(zip(prompts, outputs, strict=True))[::2]:
            text = list(prompt)
            for token in output:
                if token != int(np.argmax(automata.logits_after(ties, text)[:VOCAB])):
                    return False
                text.append(token)
        return True

    assert argmaxes(got(0.0))
    assert not argmaxes(got(1e-6)), "a tiny temperature in its place breaks ties at random"


def by_seed(seed, positions, purpose):
    """In place of the acceptance noise: below 0 for seed 0, as an epsilon would have it; else 0, and 1."""
    u = jnp.asarray([-1e-7, 0.0, 1.0], jnp.float32)[jnp.minimum(seed, 2)]
    return jnp.broadcast_to(u[:, None], positions.shape)


def without_fallback(log_p, q, residual=rejection._residual):
    """What is left of the target's law, and for the last token of the vocabulary nothing in place of nothing."""
    unguarded = jnp.log(jnp.maximum(jnp.exp(log_p) - q, 0.0))
    return jnp.where((jnp.argmax(log_p, -1) == VOCAB - 1)[..., None], unguarded, residual(log_p, q))


def only_one_token_can_come(monkeypatch, *, seed, allowed, drafted):
    """Whether a row that has one possible token emits it alone, whatever is drafted."""
    monkeypatch.setattr(rejection, "uniform", by_seed)
    monkeypatch.setattr(rejection, "_residual", without_fallback)
    own = small_engine("rejection", table=TABLE, vocab=VOCAB, version=2)
    warp = warpers(8, temperature=1.0, bias={token: -np.inf for token in range(VOCAB) if token != allowed})
    drafts = np.full((8, own.capacity), drafted, np.int32)
    got = run(own, [[0]] * 8, always(8, 1, 3), drafts, max_new_tokens=8, warp=warp, seed=[seed] * 8)
    assert got.state.counters.proposed.sum() > 0
    if seed == 2:
        assert got.state.counters.accepted.sum() == 0, "u = 1 refuses whatever comes"
    return all(set(row) == {allowed} for row in got.tokens)


def test_acceptance_is_strict_so_a_token_of_probability_zero_is_never_emitted(monkeypatch):
    for drafted in range(VOCAB + 2):
        assert only_one_token_can_come(monkeypatch, seed=1, allowed=3, drafted=drafted), "even at u = 0"
    assert not only_one_token_can_come(monkeypatch, seed=0, allowed=3, drafted=2), "an epsilon accepts p = 0"


def test_a_residual_of_no_mass_falls_back_to_the_target(monkeypatch):
    """All of p is on the draft that is refused; what is left of it is nothing, and no law."""
    for token in range(VOCAB - 1):
        assert only_one_token_can_come(monkeypatch, seed=2, allowed=token, drafted=token)
    assert not only_one_token_can_come(monkeypatch, seed=2, allowed=VOCAB - 1, drafted=VOCAB - 1)


def test_a_draft_that_is_the_target_leaves_the_law():
    same = automata.random_table(VOCAB, 3, padded=3, scale=1.0)
    same[:VOCAB, :, :VOCAB] = TABLE[:VOCAB, :, :VOCAB]
    own = dataclasses.replace(engine().params, drafts={"lm:d": {"table": jnp.asarray(same)}})
    got = outputs(chosen("lm:d", 3), own=dataclasses.replace(engine(), params=own))
    assert chi_square(got, law(), VOCAB) > HOLDS


def test_logprobs_are_the_models_own():
    warp = warpers(ROWS, temperature=1.5, top_k=5, presence_penalty=0.5)
    got = run(engine(), [PROMPT] * ROWS, everything(3), max_new_tokens=7, warp=warp, seed=0)
    for output, logprobs in list(zip(got.tokens, got.logprobs, strict=True))[:100]:
        laws = [automata.law_after(TABLE, PROMPT, output[:i], VOCAB) for i in range(len(output))]
        np.testing.assert_allclose(logprobs, [np.log(law[t]) for law, t in zip(laws, output, strict=True)], atol=1e-5)
