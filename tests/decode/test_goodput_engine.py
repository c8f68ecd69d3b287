"""Under goodput the output is the plain loop's, whatever it believes, with stops and tails; caches follow the text."""

import functools
import importlib

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from jaxspec import decode, telemetry
from jaxspec.contracts import Choice
from jaxspec.sampling import warpers
from tests.decode import tiny
from tests.decode.engines import Engine, every_engine, look_up, plain, plain_setup, run, scripted, tiny_engine
from tests.decode.priced import priced
from tests.decode.schedule import always, scheduled, script, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, wrong
from tests.drafts.oracle import own_logits, proposals

pytestmark = pytest.mark.heavy

step = importlib.import_module("jaxspec.decode.step")  # the module; the package has the function of this name

COSTS = {
    "as guessed": {},
    "nothing costs anything": {"width": 0.0, "draft": 0.0, "ride": 0.0},
    "the model is cheap": {"width": 0.01, "draft": {"lm:d": 0.02}},
    "the exit is cheap": {"width": 0.01, "draft": {"exit:1": 0.02}, "ride": 9.0},
    "only windows are cheap": {"width": 0.001, "draft": 5.0, "ride": 0.01},
    "drafts of the model are dear, windows cheap": {"width": 0.001, "draft": {"lm:d": 0.25}, "ride": 9.0},
    "drafts of the exit are dear, windows cheap": {"width": 0.001, "draft": {"exit:1": 0.25}, "ride": 9.0},
    "everything is dear": {"width": 1.0, "draft": 5.0, "ride": 5.0},
}


SHORT = {"width": 0.001, "draft": {"lm:d": 0.1, "exit:1": 0.1}, "short": True}
"""A model that drafts one token, and a lookup that goes on."""


def under(engine, *, beliefs=None, costs="as guessed", **options):
    return run(engine, PROMPTS, priced(engine.setup, beliefs=beliefs, **COSTS[costs]), **options)


def tails_in(got):
    """Rounds in which lookup or suffix drafted, but for those of their own, in which they always do."""
    counters = got.state.counters
    return int((counters.proposed[:, 1:3, 0] - counters.rounds[:, 1:3]).sum())


@pytest.mark.parametrize("costs", COSTS)
def test_greedy_output_is_the_plain_loops(costs):
    engine = every_engine("greedy")
    got = under(engine, costs=costs, **LIMITS)
    assert got.tokens == plain(engine, PROMPTS, **LIMITS).tokens
    ran = dict(zip(engine.setup.names, got.state.counters.rounds.sum(0).tolist(), strict=True))
    if costs == "everything is dear":
        assert set(np.flatnonzero(list(ran.values()))) == {0}
    elif "the model is" in costs or "the exit is" in costs:
        assert ran["lm:d" if "model" in costs else "exit:1"] > 20
    else:
        assert sum(ran.values()) > ran["none"] > 0


def test_greedy_output_is_the_plain_loops_whatever_goodput_believes():
    engine, ran, tails = every_engine("greedy"), np.zeros(6, int), 0
    wanted = plain(engine, PROMPTS, **LIMITS).tokens
    for seed in range(14):
        got = under(engine, beliefs=seed, costs=list(COSTS)[seed % 7], **LIMITS)
        assert got.tokens == wanted
        ran, tails = ran + got.state.counters.rounds.sum(0), tails + tails_in(got)
    assert (ran > 0).all(), "every source was believed in"
    short = run(engine, PROMPTS, priced(engine.setup, **SHORT), **LIMITS)
    assert short.tokens == wanted
    assert tails_in(short) + tails > 20, "and continued"


@pytest.mark.parametrize("heat", [0.7, 1.0])
def test_coupled_output_is_the_plain_loops_of_the_seed(heat):
    engine, ran, tails = every_engine("coupled"), np.zeros(6, int), 0
    options = {"warp": warpers(4, temperature=[heat, heat, 0.0, heat], top_p=[1.0, 0.9, 1.0, 1.0]), "seed": 5, **LIMITS}
    wanted = plain(engine, PROMPTS, **options).tokens
    assert wanted[0] != plain(engine, PROMPTS, **{**options, "seed": 6}).tokens[0]
    for seed in range(7):
        more = {"draft_confidence": 0.3} if seed % 2 else {}
        got = under(engine, beliefs=seed or None, costs=list(COSTS)[seed % 7], **more, **options)
        assert got.tokens == wanted
        ran, tails = ran + got.state.counters.rounds.sum(0), tails + tails_in(got)
    assert (ran > 0).sum() >= 5
    short = run(engine, PROMPTS, priced(engine.setup, **SHORT), **options)
    assert short.tokens == wanted
    assert tails_in(short) + tails > 20


def test_nothing_compiles_after_the_first_requests():
    engine = every_engine("greedy")
    beliefs = [priced(engine.setup, beliefs=seed, **costs) for seed, costs in enumerate(COSTS.values())]
    prompts = (PROMPTS, [[1], [2] * 20, [3] * 60, [4] * 65])
    for each in prompts:
        run(engine, each, beliefs[0], max_new_tokens=3)
    before = telemetry.compilations()
    for each in (*prompts, [[7]] * 4):
        for known in beliefs:
            run(engine, each, known, max_new_tokens=[9, 1, 20, 40], stop_ids=[3], seed=None, max_lookahead=[4, 0, 1, 3])
    assert telemetry.compilations() == before


# A plan whose model drafts are short, so that a script goes on where they end.

HEAD, TAIL = 2, 2


def goes_on(params, state, signals, choice: Choice, head) -> Choice:
    """The script continues every draft that stops."""
    del params, state, signals, head
    some = choice.lookahead > 0
    return choice._replace(tail=jnp.where(some, 4, 0).astype(jnp.int32), tail_lookahead=jnp.where(some, TAIL, 0))


@functools.cache
def with_tails(version: int = 0) -> Engine:
    base = tiny_engine("greedy")
    setup = decode.make_setup(
        base.setup.target,
        drafts=(look_up(4), "exit:1", ("lm:d", tiny.model_of(tiny.DRAFT, 1, 0.5)[0]), script(4)),
        select=scheduled(4, 0, 100 + version)._replace(tail=goes_on),
        lookahead=4,
        windows=(1, 5),
        vocab_size=tiny.VOCAB,
    )
    return Engine(setup, plain_setup(setup.target, tiny.VOCAB), base.params, 256)


def continued(plan, *, share=0.2, engine=None, **options):
    """A run in which the script continues with the plain output, at times wrong; and the plain output."""
    engine = engine or with_tails()
    wanted = plain(engine, PROMPTS, **LIMITS).tokens
    drafts = scripted(engine, PROMPTS, wrong(wanted, tiny.VOCAB, share=share))
    return run(engine, PROMPTS, plan, drafts, **LIMITS, **options), wanted


def tails_of(got):
    """Drafts of the script, and those of them that were taken."""
    counters = got.state.counters
    return int(counters.proposed[:, 4].sum()), int(counters.accepted[:, 4].sum())


@pytest.mark.parametrize("source", [2, 3])
def test_continued_drafts_give_the_plain_tokens_and_tails_are_taken(source):
    got, wanted = continued(always(4, source, HEAD))
    assert got.tokens == wanted
    given, taken = tails_of(got)
    assert 10 < taken < given
    assert got.state.counters.rounds[:, 4].sum() == 0, "the round is the head's"
    alone = run(with_tails(), PROMPTS, always(4, source, HEAD), **LIMITS)  # a script of nothing
    assert tails_of(alone) == (0, 0)
    assert got.rounds < alone.rounds
    assert (got.log.count <= 4).all()


def heads(got, source):
    """What the source itself drafted."""
    return [
        each._replace(drafts=each.drafts[: got.log.lookahead[each.round, each.row]]) for each in proposals(got, source)
    ]


@pytest.mark.parametrize("seed", range(2))
def test_after_tails_a_model_drafts_what_a_fresh_one_would(seed):
    for plan in (always(4, 3, HEAD), shuffled(4, [0, 1, 2, 3, 3, 4], 3, seed, stride=seed)):
        got, wanted = continued(plan)
        assert got.tokens == wanted
        assert tails_of(got)[1] > 0
        for source, model, params, layers in (
            (3, tiny.model_of(tiny.DRAFT, 1, 0.5)[0], with_tails().params.drafts["lm:d"], {}),
            (2, with_tails().setup.target, with_tails().params.target, {"layers": (0, 1)}),
        ):
            drafted = heads(got, source)
            if not drafted:
                continue
            for each, logits in zip(drafted, own_logits(model, params, drafted, **layers), strict=True):
                assert each.drafts == logits[:, : tiny.VOCAB].argmax(-1).tolist()
                sure = got.log.confidence[each.round, each.row, : len(each.drafts)]
                np.testing.assert_allclose(sure, softmax(logits[:, : tiny.VOCAB], -1).max(-1), atol=1e-5)


def test_layers_of_drafting_are_not_reused_where_there_is_a_tail(monkeypatch):
    """It has not run over the tail. Where it is taken for run, the output shows it."""
    got, wanted = continued(always(4, 2, HEAD))
    assert got.tokens == wanted
    judge = step._judge

    def with_tails_forgotten(setup, params, view, proposal, choice, *rest):
        none = jnp.zeros_like(choice.source)
        return judge(setup, params, view, proposal, choice._replace(tail_lookahead=none), *rest)

    monkeypatch.setattr(step, "_judge", with_tails_forgotten)
    faulty, _ = continued(always(4, 2, HEAD), engine=with_tails(1))
    assert faulty.tokens != wanted


def test_layers_of_drafting_are_reused_where_no_row_has_one():
    """With the cache of a spoilt pass: tokens are those of the plain loop only because layers are run again."""
    got, wanted = continued(always(4, 2, HEAD), max_lookahead=HEAD)
    assert got.tokens == wanted
    assert tails_of(got) == (0, 0), "no room for a tail"


def test_tails_stay_within_the_limits_of_a_row():
    most = [0, 1, 3, 4]
    got, wanted = continued(always(4, 3, HEAD), max_lookahead=most)
    assert got.tokens == wanted
    assert (got.log.count <= np.asarray(most)).all()
    assert (got.log.count.max(0) == most).all()
    left = np.cumsum(got.log.emitted, 0) - got.log.emitted
    asked = np.asarray(LIMITS["max_new_tokens"])
    assert np.all(got.log.count + left < asked + (got.log.count == 0) * asked), "never more than may still be emitted"


def test_a_pinned_row_has_no_tail_and_a_banned_source_is_none():
    pinned, wanted = continued(always(4, 3, HEAD), source=["lm:d", None, "none", None], max_lookahead=[2, 4, 4, 4])
    given = pinned.state.counters.proposed[:, 4].sum(1)
    assert given[0] == given[2] == 0 < given[1]
    banned, _ = continued(always(4, 3, HEAD), weights=[{"script": 0.0}, {}, {"script": 0.0}, {}])
    given = banned.state.counters.proposed[:, 4].sum(1)
    assert given[0] == given[2] == 0 < given[1]
    assert pinned.tokens == banned.tokens == wanted
