"""Whatever a trained draft says, the output is plain decoding's, or has its law; with every source there is alive."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxspec import telemetry
from jaxspec.sampling import warpers
from jaxspec.verify import rejection
from tests.decode.engines import Engine, plain, run, scripted
from tests.decode.schedule import always, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, total, wrong
from tests.decode.tiny import TARGET, VOCAB, model_of, whole_pass
from tests.decode.trained import HEADS, IDS, NAMES, engine_of, trained, trained_engine
from tests.verify.law import FAILS, HOLDS

pytestmark = pytest.mark.heavy

SETTINGS = {"temperature": [0.7, 1.0, 1.0, 1.0], "top_k": [0, 0, 0, 5], "top_p": [1.0, 1.0, 0.9, 1.0]}
SOURCES = ("none", "lookup", "suffix", "ngram", "jacobi:2:3:2", "exit:1", "lm:d", "script", *NAMES)
ALL = list(range(1, len(SOURCES)))


def settings(rows=4):
    return warpers(rows, **{name: values[:rows] for name, values in SETTINGS.items()})


def options_of(mode, seed):
    return {"seed": seed, **({} if mode == "greedy" else {"warp": settings()}), **LIMITS}


def guesses(engine, wanted):
    return scripted(engine, PROMPTS, wrong(wanted.tokens, VOCAB, share=0.3))


def test_every_source_is_alive():
    assert trained_engine("greedy").setup.names == SOURCES


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
@pytest.mark.parametrize("name", NAMES)
def test_every_trained_source_and_lookahead_gives_the_plain_tokens(name, mode):
    engine = trained_engine(mode)
    source = engine.source(name)
    for seed, lookahead in enumerate((1, 2, 4)):
        options = options_of(mode, seed)
        wanted, got = plain(engine, PROMPTS, **options), run(engine, PROMPTS, always(4, source, lookahead), **options)
        assert got.tokens == wanted.tokens
        assert got.reasons == wanted.reasons
        accepted, proposed = (total(got, what, source) for what in ("accepted", "proposed"))
        assert 0 < accepted < proposed, "the source must be right at times and wrong at times"
        assert got.rounds < wanted.rounds
        assert got.log.count.max() == min(lookahead, HEADS if name == "medusa" else lookahead)


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
@pytest.mark.parametrize("seed", range(3))
def test_switching_every_round_among_all_sources_gives_the_plain_tokens(seed, mode):
    engine, options = trained_engine(mode), options_of(mode, seed)
    wanted = plain(engine, PROMPTS, **options)
    plan = shuffled(4, [0, *ALL], 4, seed, stride=seed % 2)
    drafting = {} if mode == "greedy" else {"draft_temperature": [1.0, 0.5, 0.0, 1.5], "draft_confidence": 0.2}
    got = run(engine, PROMPTS, plan, guesses(engine, wanted), **drafting, **options)
    assert got.tokens == wanted.tokens
    for mine, plains in zip(got.logprobs, wanted.logprobs, strict=True):
        np.testing.assert_allclose(mine, plains, atol=1e-4)
    drafted = set(got.log.source[got.log.count > 0].tolist())
    assert {engine.source(name) for name in NAMES} <= drafted, "every trained source has drafted"


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
def test_a_row_by_itself_gives_the_plain_tokens(mode):
    engine = trained_engine(mode)
    for row, prompt in enumerate(PROMPTS[1:]):
        options = {"max_new_tokens": 30, "seed": row}
        if mode == "coupled":
            options["warp"] = warpers(1, **{name: values[row] for name, values in SETTINGS.items()})
        wanted = plain(engine, [prompt], **options)
        drafts = scripted(engine, [prompt], wrong(wanted.tokens, VOCAB, share=0.3))
        plans = [shuffled(1, [0, *ALL], 4, row), *(always(1, engine.source(name), 4) for name in NAMES)]
        for plan in plans:
            assert run(engine, [prompt], plan, drafts, **options).tokens == wanted.tokens


# Rejection: the law of the target

CALLS, LENGTH, CLASSES = 7, 60, 6


def outputs(plan, own: Engine | None = None, rows=4, calls=CALLS):
    """Texts, each with the row that it came from and where its output begins."""
    out = []
    engine = own or trained_engine("rejection")
    prompts = PROMPTS[:rows] if rows > 1 else [PROMPTS[1]]
    nothing = np.tile(np.arange(engine.capacity, dtype=np.int32) % VOCAB, (rows, 1))  # drafts of the script
    for call in range(calls):
        options = {"max_new_tokens": LENGTH, "warp": settings(rows), "seed": rows * call}
        got = run(engine, prompts, plan, nothing, **options)
        out += [(got.state.tokens[row, :80], row, len(prompt)) for row, prompt in enumerate(prompts)]
    return out


def warped(logits, row, heat):
    """Laws [T, V] of a row by the warpers' definitions."""
    values = np.asarray(logits, np.float64) / (SETTINGS["temperature"][row] * heat)
    if SETTINGS["top_k"][row]:
        values = np.where(values >= np.sort(values, -1)[:, [-SETTINGS["top_k"][row]]], values, -np.inf)
    p = scipy.special.softmax(values, -1)
    down = np.argsort(-p, -1)
    before = np.cumsum(np.take_along_axis(p, down, -1), -1) - np.take_along_axis(p, down, -1)
    kept = np.empty_like(p, bool)
    np.put_along_axis(kept, down, before < SETTINGS["top_p"][row], -1)
    return scipy.special.softmax(np.where(kept, values, -np.inf), -1)


def p_value(texts, heat=1.0):
    """Of how often tokens of each rank came: the sum of (came - p) over its covariance, both known given the past."""
    model, params = model_of(TARGET, 0, 1.6)
    off, covariance = np.zeros(CLASSES), np.zeros((CLASSES, CLASSES))
    for part in range(0, len(texts), 4):
        batch = texts[part : part + 4]
        padded = np.stack([text for text, _, _ in (batch * 4)[:4]])
        logits = np.asarray(whole_pass(model, params, jnp.asarray(padded)))[..., :VOCAB]
        for (text, row, begin), values in zip(batch, logits, strict=False):
            law = warped(values[begin - 1 : begin - 1 + LENGTH], row, heat)
            own = law[np.arange(LENGTH), text[begin : begin + LENGTH]]
            if (own == 0).any():
                return 0.0
            came = np.eye(CLASSES)[np.minimum(np.sum(law > own[:, None], -1), CLASSES - 1)]
            down = -np.sort(-law, -1)
            p = np.concatenate([down[:, : CLASSES - 1], down[:, CLASSES - 1 :].sum(-1, keepdims=True)], 1)
            off += (came - p).sum(0)
            covariance += np.diag(p.sum(0)) - p.T @ p
    return scipy.stats.chi2.sf(off @ np.linalg.pinv(covariance) @ off, CLASSES - 1)


@pytest.mark.parametrize("name", NAMES)
def test_every_trained_source_leaves_the_law_of_the_target(name):
    got = outputs(always(4, trained_engine("rejection").source(name), 4))
    assert p_value(got) > HOLDS
    assert p_value(got, heat=1.4) < FAILS


@pytest.mark.parametrize(("rows", "calls"), [(4, CALLS), pytest.param(1, 24, marks=pytest.mark.slow)])
def test_switching_among_all_sources_leaves_the_law_of_the_target(rows, calls):
    got = outputs(shuffled(rows, [0, *ALL], 4, 0, stride=1), rows=rows, calls=calls)
    assert p_value(got) > HOLDS
    assert p_value(got, heat=1.4) < FAILS


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_says_its_own_tokens_alone_and_its_law_is_zero_elsewhere(name):
    engine = trained_engine("rejection")
    source = engine.source(name)
    got = run(engine, PROMPTS, shuffled(4, [0, source, source], 4, 1), seed=5, warp=settings(), **LIMITS)
    said, others = IDS[IDS < VOCAB], np.setdiff1d(np.arange(TARGET.vocab_size), IDS[IDS < VOCAB])
    rounds, rows = np.nonzero((got.log.source == source) & (got.log.count > 0))
    for at, row in zip(rounds, rows, strict=True):
        count = got.log.count[at, row]
        assert np.isin(got.log.tokens[at, row, :count], said).all()
        q = np.exp(got.log.q_log[at, row, :count].astype(np.float64))
        assert (q[:, others] == 0).all()
        np.testing.assert_allclose(q.sum(-1), 1, atol=1e-5)
    assert not np.isin(np.concatenate(got.tokens), IDS).all(), "the output is not so bound"


def faulty(version, **changes):
    """An engine of its own with one source, the given parts of it replaced."""
    model, params = model_of(TARGET, 0, 1.6)
    draft = trained("medusa")
    base = trained_engine("rejection").setup.sources[trained_engine("rejection").source("medusa")]
    changes = {name: change(base) for name, change in changes.items()}
    source = base._replace(**changes)
    return engine_of("rejection", model, params, (source,), {"medusa": draft.params}, version=version)


def boasting(source):
    """Declares the law that it draws from for other tokens, so that it seems unsure of those that it draws."""

    def propose(params, view, state, lookahead):
        proposal, scratch = source.propose(params, view, state, lookahead)
        return proposal._replace(q_log=jnp.roll(proposal.q_log, 1, -1)), scratch

    return propose


def test_a_draft_that_declares_another_law_is_noticed():
    """The same draft that declares its own law passes, above."""
    assert p_value(outputs(always(4, 1, 4), faulty(11, propose=boasting))) < FAILS


def test_a_residual_that_forgets_what_the_draft_could_not_say_is_noticed(monkeypatch):
    """Where the draft's law is zero the residual is the target's own: here it is taken away as well."""

    def without(log_p, q, residual=rejection._residual):
        return jnp.where(jnp.any(q > 0, -1, keepdims=True) & (q == 0), -jnp.inf, residual(log_p, q))

    monkeypatch.setattr(rejection, "_residual", without)
    assert p_value(outputs(always(4, 1, 4), faulty(12))) < FAILS


def test_with_all_sources_alive_nothing_compiles_after_warm_up():
    engine = trained_engine("coupled")
    drafts = scripted(engine, PROMPTS, [[1] * 30] * 4)
    run(engine, PROMPTS, always(4, 1, 1), drafts, max_new_tokens=4, warp=settings())
    before = telemetry.compilations()
    for source in range(len(SOURCES)):
        for lookahead in range(5):
            run(engine, PROMPTS, always(4, source, lookahead), drafts, max_new_tokens=8, warp=settings())
    run(engine, PROMPTS, shuffled(4, [0, *ALL], 4, 0), drafts, seed=None, warp=settings(), **LIMITS)
    assert telemetry.compilations() == before
