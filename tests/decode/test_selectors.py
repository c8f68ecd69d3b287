"""Whatever a selector chooses and learns, the output is the plain loop's; classes and clusters reach it."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.select import LEARNED, Kinds, SelectorParams, goodput, kinds_of, no_prior, prior_of
from jaxspec.select.cost import guess
from tests.decode import tiny
from tests.decode.automata import automaton, random_table, related_table
from tests.decode.engines import Engine, look_up, plain, plain_setup, run
from tests.decode.test_greedy import PROMPTS

pytestmark = pytest.mark.heavy

VOCAB = 8
ROWS = [[5, 1], [3, 1, 4, 1, 5, 3, 2], [6, 2, 7, 0, 6, 2, 7, 0, 6]]
LIMITS = {"max_new_tokens": 24}
OTHERS = sorted({*LEARNED} - {"goodput"})


@functools.cache
def engine_of(select) -> Engine:
    """Tables for models, with lookup and a draft that is often right."""
    target = random_table(VOCAB, 0, padded=2)
    draft = related_table(target, VOCAB, 1, padded=0)
    setup = decode.make_setup(
        automaton(VOCAB + 2),
        drafts=(look_up(4), ("lm:d", automaton(VOCAB))),
        select=select,
        lookahead=4,
        windows=(1, 5),
        vocab_size=VOCAB,
        logprobs=True,
    )
    drafts = {"lm:d": {"table": jnp.asarray(draft)}}
    params = decode.EngineParams({"table": jnp.asarray(target)}, drafts, ())
    return Engine(setup, plain_setup(automaton(VOCAB + 2), VOCAB), params, 64)


@functools.cache
def tiny_with(select) -> Engine:
    """A tiny model, whose hidden states mean something, with lookup."""
    model, params = tiny.model_of(tiny.TARGET, 0, 1.6)
    setup = decode.make_setup(
        model, drafts=(look_up(4),), select=select, lookahead=4, windows=(1, 5), vocab_size=tiny.VOCAB, logprobs=True
    )
    return Engine(setup, plain_setup(model, tiny.VOCAB), decode.EngineParams(params, {}, ()), 256)


def params_of(engine: Engine, select: str = "", **more) -> SelectorParams:
    kinds = kinds_of(engine.setup.sources, engine.setup.windows)
    cost = guess(kinds.passes, kinds.nodes, kinds.windows)
    return SelectorParams(cost, prior_of(select, kinds) or no_prior(kinds), **more)


@pytest.mark.parametrize("select", [*OTHERS, "router:nowhere"])
def test_greedy_output_is_the_plain_loops(select):
    engine = engine_of(select)
    given = () if "router" in select else params_of(engine, select)
    got = run(engine, ROWS, given, **LIMITS)
    assert got.tokens == plain(engine, ROWS, **LIMITS).tokens
    proposed = got.state.counters.rounds.sum(0)
    assert proposed[1:].sum() > 0
    if "router" not in select:
        assert got.state.selector.rounds == got.state.rounds
        again = run(engine, ROWS, given, **LIMITS)  # the draws are of the rounds alone
        np.testing.assert_array_equal(again.state.counters.rounds, got.state.counters.rounds)
        learnt = engine.setup.selector.carry(given, got.state.selector)
        third = run(engine, ROWS, given._replace(prior=learnt), **LIMITS)
        assert third.tokens == got.tokens
        assert third.state.selector.rounds == got.state.rounds + third.state.rounds


def test_clusters_and_classes_reach_the_selector():
    """Two directions apart: the text's gist is nearest to one of them; classes are those of each last token."""
    model, _ = tiny.model_of(tiny.TARGET, 0, 1.6)
    kinds = Kinds(("none", "lookup"), (False, False), 0, 0, (1, 5))
    engine = tiny_with(watching(goodput(kinds, clusters=2)))
    one = np.random.default_rng(0).normal(size=model.config.hidden_size)
    classes = np.arange(32) % 6
    given = params_of(
        engine, clusters=jnp.asarray(np.stack([one, -one]), jnp.float32), classes=jnp.asarray(classes, jnp.int8)
    )
    got = run(engine, PROMPTS, given, **LIMITS)
    assert got.tokens == plain(engine, PROMPTS, **LIMITS).tokens
    gist, domain = got.state.gist, got.state.seen.domain
    np.testing.assert_array_equal(domain, np.where(gist @ one > 0, 0, 1))
    other = run(engine, PROMPTS, given._replace(clusters=-given.clusters), **LIMITS)
    assert other.tokens == got.tokens
    np.testing.assert_array_equal(other.state.gist @ one > 0, other.state.seen.domain == 1)
    last = got.state.selector.told["signal class"]
    for row, (tokens, prompt) in enumerate(zip(got.tokens, PROMPTS, strict=True)):
        assert last[row] in {classes[token] for token in (*prompt, *tokens)}
    # before the round in which a row is finished the last token is one of its last few
    assert all(last[row] in {classes[token] for token in got.tokens[row][-6:]} for row in range(len(PROMPTS)))


@functools.cache
def watching(selector):
    """The selector, which also tells the class it has seen."""

    def choose(params, state, signals):
        choice = selector.choose(params, state, signals)
        assert signals.token_class is not None
        return choice._replace(told=choice.told | {"signal class": signals.token_class.astype(jnp.float32)})

    def init(rows, sources):
        state = selector.init(rows, sources)
        return state._replace(told=state.told | {"signal class": jnp.zeros(rows, jnp.float32)})

    return selector._replace(init=init, choose=choose)
