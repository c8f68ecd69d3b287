"""The branch fills the pool as a naive simulation says, never reaches the output, and is gone when nobody asks."""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode, telemetry
from jaxspec.drafts import jacobi
from jaxspec.models import Output
from jaxspec.sampling import warpers
from jaxspec.verify import window
from tests.decode import automata, test_law
from tests.decode.automata import chi_square
from tests.decode.engines import Engine, plain, plain_setup, run, scripted, small_engine
from tests.decode.schedule import always, free_source, plan_of, point_masses, scheduled, script, shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, wrong
from tests.decode.test_sliding import SLIDING
from tests.decode.tiny import VOCAB, model_of
from tests.verify.law import FAILS, HOLDS

W, N, G, BUCKETS = 3, 4, 2, 5
NODES, DEEPEST = W * (N - 1) - 1, W + N - 3
AHEAD, LETTERS, POSITIONS = 4, 8, 64
NONE, LOOKUP, JACOBI = 0, 1, 2
TABLE = automata.random_table(LETTERS, 0, padded=2)
TEXTS = [[1], [2, 3, 1, 2], [4] * 9, [5, 6, 7, 0, 1, 2, 3, 4], [0, 7], [3, 1, 3, 1, 3], [6, 6, 2], [7, 5]]
SHORT = {"max_new_tokens": [40, 23, 33, 9, 62, 2, 1, 50]}
PASSES: collections.Counter = collections.Counter()


@functools.cache
def watched():
    """The automaton, which notes the width and the furthest position of every pass that runs."""
    model = automata.automaton(LETTERS + 2, max_positions=POSITIONS)

    def forward(params, tokens, positions, *args, **options):
        note = lambda last: PASSES.update([(tokens.shape[1], int(last))])  # noqa: E731
        jax.debug.callback(note, jnp.max(positions))
        return model.forward(params, tokens, positions, *args, **options)

    return model._replace(forward=forward)


@functools.cache
def engine():
    source = jacobi(W, N, G, buckets=BUCKETS, lookahead=AHEAD)
    options = {"select": scheduled(AHEAD), "lookahead": AHEAD, "windows": (1, 1 + AHEAD), "vocab_size": LETTERS}
    setup = decode.make_setup(watched(), drafts=("lookup", source), **options)
    params = decode.EngineParams({"table": jnp.asarray(TABLE)}, {}, ())
    return Engine(setup, plain_setup(watched(), LETTERS), params, 128)


class Naive:
    """Lookahead decoding with lists, one row, one token after the other."""

    def __init__(self, prompt, *, blind=False):
        self.text, self.grid, self.blind = list(prompt), None, blind
        self.pool = [[] for _ in range(BUCKETS)]  # each bucket's n-grams, the oldest first

    def propose(self, most):
        out, match = [], 0
        while len(out) < most:
            text = self.text + out
            for context in range(min(N - 1, len(text)), 0, -1):
                end = text[-context:]
                if found := [gram for gram in self.pool[end[0] % BUCKETS] if gram[:context] == end]:
                    match = match or context
                    out += found[-1][context:]
                    break
            else:
                break
        return out[:most], match

    def learn(self):
        n = len(self.text)
        if self.grid is None:
            tail = self.text * (1 + DEEPEST)  # as if it had been repeated before
            self.grid = [[tail[len(tail) - 1 - DEEPEST + row + i] for i in range(W)] for row in range(N - 1)]
        self.grid[0][0] = self.text[-1]
        said = []
        for i in range(W):
            left = [] if self.blind else self.grid[0][1:i]
            chain = [*left, *self.grid[0][max(i, 1) : i + 1], *(row[i] for row in self.grid[1:])]
            said.append(int(np.argmax(automata.logits_after(TABLE, self.text + chain)[:LETTERS])))
        self.grid.append(said)
        for i in range(W):
            gram = [row[i] for row in self.grid]
            bucket = self.pool[gram[0] % BUCKETS]
            if gram in bucket:
                bucket.remove(gram)
            bucket.append(gram)
            del bucket[:-G]
        del self.grid[0]
        assert len(self.text) == n

    def emit(self, tokens, rode):
        if rode:
            self.learn()
        self.text += tokens
        if self.grid is not None:
            left = len(tokens) - rode
            self.grid = [[row[(i + left) % W] for i in range(W)] for row in self.grid]


def held(state, row):
    """A row's pool as the naive one keeps it."""
    order = np.argsort(state.stamps[row], axis=-1)
    kept = np.take_along_axis(state.stamps[row], order, -1) > 0
    grams = np.take_along_axis(state.pool[row], order[..., None], 1)
    return [grams[bucket][kept[bucket]].tolist() for bucket in range(BUCKETS)]


def follows_the_simulation(plan, *, blind=False):
    """Proposals of every round, and grid and pool at the end; the drafts that were accepted."""
    got = run(engine(), TEXTS, plan, **SHORT)
    asked = np.asarray(plan.source), np.asarray(plan.lookahead)
    state = got.state.sources[JACOBI]
    for row, prompt in enumerate(TEXTS):
        naive, left = Naive(prompt, blind=blind), list(got.tokens[row])
        for at in range(int((got.log.emitted[:, row] > 0).sum())):
            wants = asked[1][row, at] if asked[0][row, at] == JACOBI else 0
            drafts, match = naive.propose(min(wants, len(left) - 1))
            if got.log.source[at, row] != LOOKUP:
                assert got.log.tokens[at, row, : got.log.count[at, row]].tolist() == drafts
                assert got.log.source[at, row] == (JACOBI if drafts else NONE)
                assert not drafts or got.log.match[at, row, JACOBI] == match
            rode = bool(wants > 0 and len(left) > 1 and len(naive.text) - 1 + DEEPEST < POSITIONS)
            emitted, left = left[: got.log.emitted[at, row]], left[got.log.emitted[at, row] :]
            naive.emit(emitted, rode)
        assert held(state, row) == naive.pool
        assert state.started[row] == (naive.grid is not None)
        if naive.grid is not None:
            flat = np.asarray(naive.grid).ravel()[1:]
            assert state.grid[row].ravel()[1:].tolist() == flat.tolist(), "but for the corner"
    return int(got.state.counters.accepted[:, JACOBI].sum())


def test_pool_and_proposals_are_those_of_a_naive_simulation():
    assert follows_the_simulation(always(8, JACOBI, AHEAD)) > 10
    assert follows_the_simulation(always(8, JACOBI, 2)) > 10
    for seed in range(3):
        assert follows_the_simulation(shuffled(8, [NONE, LOOKUP, JACOBI], AHEAD, seed)) > 0


def test_a_branch_that_does_not_see_what_is_left_of_it_is_noticed():
    with pytest.raises(AssertionError):
        follows_the_simulation(always(8, JACOBI, AHEAD), blind=True)


def passes(plan, **options):
    """Widths of the passes that ran, prefill's left out, and the run."""
    wanted = plain_tokens()
    jax.effects_barrier()
    PASSES.clear()
    got = run(engine(), TEXTS, plan, **{**SHORT, **options})
    jax.effects_barrier()
    assert got.tokens == wanted
    widths = collections.Counter()
    for (width, last), count in PASSES.items():
        if width > 1 + AHEAD and width < 16:
            assert last < POSITIONS, "the branch has no place beyond the last position"
        widths[width] += count * (width < 16)
    return widths, got


@functools.cache
def plain_tokens():
    return plain(engine(), TEXTS, **SHORT).tokens


def test_when_the_source_is_off_its_nodes_are_not_in_the_window():
    plain_widths, _ = passes(always(8, NONE, 0))
    assert set(+plain_widths) == {1}
    matched, _ = passes(always(8, LOOKUP, AHEAD))
    assert set(+matched) <= {1, 1 + AHEAD}
    off, got = passes(always(8, JACOBI, 0))
    assert set(+off) == {1}, "no drafts asked for is off"
    capped, _ = passes(always(8, JACOBI, AHEAD), max_lookahead=0)
    assert set(+capped) == {1}, "no drafts allowed is off"
    on, _ = passes(always(8, JACOBI, AHEAD))
    assert set(+on) >= {1 + NODES, 1 + AHEAD + NODES}
    assert on[1] + on[1 + AHEAD] > 0, "near the last position there is no branch either"
    untouched = got.state.sources[JACOBI]
    assert not untouched.started.any()
    assert not untouched.stamps.any()


def test_it_rides_in_rounds_without_a_proposal_too():
    widths, got = passes(always(8, JACOBI, AHEAD))
    first = got.log.count[0]
    assert (first == 0).all(), "the pool is empty in the beginning"
    assert widths[1 + NODES] > 0
    ends = [len(prompt) + most for prompt, most in zip(TEXTS, SHORT["max_new_tokens"], strict=True)]
    near = np.asarray(ends) - 1 + DEEPEST >= POSITIONS
    rounds = (got.log.emitted > 0).sum(0)
    last = got.log.emitted[rounds - 1, np.arange(8)] == 1
    idle = last & (got.log.count[rounds - 1, np.arange(8)] == 0)  # a row's last token leaves nothing to draft
    assert (got.state.sources[JACOBI].rounds == rounds - idle)[~near].all()


def test_rows_do_not_learn_from_the_branch_of_another_row():
    alone = np.full((8, 128), NONE)
    alone[3] = JACOBI
    _, mixed = passes(plan_of(alone, np.full((8, 128), AHEAD)))
    _, everyone = passes(always(8, JACOBI, AHEAD))
    first, second = (got.state.sources[JACOBI] for got in (mixed, everyone))
    assert held(first, 3) == held(second, 3)
    assert not first.stamps[[0, 1, 2, 4, 5, 6, 7]].any()
    assert mixed.state.counters.rounds[3].tolist() == everyone.state.counters.rounds[3].tolist()


def test_never_chosen_it_changes_nothing():
    with_it = run(engine(), TEXTS, always(8, LOOKUP, AHEAD), **SHORT)
    base = engine()
    options = {"select": scheduled(AHEAD), "lookahead": AHEAD, "windows": (1, 1 + AHEAD), "vocab_size": LETTERS}
    without = dataclasses.replace(base, setup=decode.make_setup(watched(), drafts=("lookup",), **options))
    got = run(without, TEXTS, always(8, LOOKUP, AHEAD), **SHORT)
    assert got.tokens == with_it.tokens
    for name in ("rounds", "accepted", "emitted"):
        mine, other = (getattr(each.state.counters, name) for each in (with_it, got))
        np.testing.assert_array_equal(mine[:, :2], other)


def test_nothing_compiles_whether_it_rides_or_not():
    run(engine(), TEXTS, always(8, NONE, 0), **SHORT)
    before = telemetry.compilations()
    for seed in range(2):
        run(engine(), TEXTS, shuffled(8, [NONE, LOOKUP, JACOBI], AHEAD, seed), **SHORT)
    assert telemetry.compilations() == before


def test_drafts_that_saw_the_branch_would_be_noticed(monkeypatch):
    own = small_engine("greedy", (jacobi(W, N, G, buckets=BUCKETS, lookahead=3),), version=7)
    monkeypatch.setattr(window, "ancestors", seeing_all(window.ancestors))
    got = run(own, TEXTS, always(8, 1, 3), max_new_tokens=30).tokens
    assert got != plain(own, TEXTS, max_new_tokens=30).tokens


def seeing_all(ancestors):
    """In place of the mask of a tree that is no chain, one in which the pending token sees the last node."""

    def mask(parents):
        within = ancestors(parents).copy()
        within[0, -1] |= bool((parents != np.arange(len(parents)) - 1).any())
        return within

    return mask


def listener():
    """No drafts; keeps the target's features of every token."""

    def absorb(state, features, start, count):
        store, seen = state
        fresh = jnp.concatenate([features[1], features[2]], -1)
        for row in range(4):
            store = jax.lax.dynamic_update_slice(store, fresh[row : row + 1], (row, start[row], 0))
        return store, seen + count

    def init(rows, capacity, dtype):
        return jnp.zeros((rows, capacity + 256, 2 * SLIDING.hidden_size)), jnp.zeros(rows, jnp.int32)

    nothing = free_source(
        "listener", lambda params, view, state, wanted: (point_masses(jnp.zeros((4, 3), jnp.int32), 0 * wanted), ())
    )
    return nothing._replace(init=init, taps=(1, 2), absorb=absorb)


@functools.cache
def real():
    """Real caches, one of them a ring, with taps and layers that are reused."""
    model, params = model_of(SLIDING, 2, 1.6)
    setup = decode.make_setup(
        model,
        drafts=("lookup", "jacobi:4:3:3", "exit:1", script(3), listener()),
        select=scheduled(3),
        lookahead=3,
        windows=(1, 4),
        vocab_size=VOCAB,
        logprobs=True,
    )
    return Engine(setup, plain_setup(model, VOCAB), decode.EngineParams(params, {}, ()), 640)


@pytest.mark.heavy
def test_with_real_caches_output_logprobs_caches_and_features_are_those_without_it():
    wanted = plain(real(), PROMPTS, **LIMITS)
    bare = run(real(), PROMPTS, always(4, 0, 0), **LIMITS)
    drafts = scripted(real(), PROMPTS, wrong(wanted.tokens, VOCAB, share=0.3))
    accepted = 0
    for plan in (always(4, 2, 3), *(shuffled(4, [0, 1, 2, 3, 4], 3, seed, stride=seed) for seed in range(3))):
        got = run(real(), PROMPTS, plan, drafts, **LIMITS)
        assert got.tokens == wanted.tokens
        accepted += got.state.counters.accepted[:, 2].sum()
        assert (got.state.sources[2].rounds > 0).all()
        for row in range(4):
            np.testing.assert_allclose(got.logprobs[row], wanted.logprobs[row], atol=1e-4)
            known = int(got.state.cache.length[row])
            assert known == bare.state.cache.length[row] == got.state.sources[5][1][row]
            for mine, other in zip(*(jax.tree.leaves(r.state.cache.layers) for r in (got, bare)), strict=True):
                np.testing.assert_allclose(mine[row, :, :known], other[row, :, :known], atol=1e-4)
            mine, other = (r.state.sources[5][0][row, :known] for r in (got, bare))
            np.testing.assert_allclose(mine, other, atol=1e-3)
    assert accepted > 10


@functools.cache
def law_engine():
    """Jacobi in rejection sampling; with `wrong` it says of its point masses that they were drawn from a flat law."""
    source = jacobi(3, 3, 2, buckets=8, lookahead=3)

    def propose(params, view, state, wanted):
        drafts, scratch = source.propose(params, view, state, wanted)
        flat = jnp.full((len(wanted), 3, test_law.VOCAB + 2), -np.log(test_law.VOCAB), jnp.float32)
        sampled = jnp.broadcast_to(params.drafts["wrong"], wanted.shape)
        return drafts._replace(q_log=flat, sampled=sampled), scratch

    drafts = ("lookup", source._replace(propose=propose))
    params = {"wrong": jnp.asarray(False)}
    return small_engine("rejection", drafts, params, table=test_law.TABLE, vocab=test_law.VOCAB, rounds=1)


@pytest.mark.heavy
def test_in_rejection_sampling_the_law_is_the_targets():
    rows, own = test_law.ROWS, law_engine()
    for plan in (always(rows, 2, 3), shuffled(rows, [0, 1, 2], 3, 0, stride=1)):
        assert chi_square(test_law.outputs(plan, own=own), test_law.law(), test_law.VOCAB) > HOLDS
    lying = dataclasses.replace(own.params, drafts={"wrong": jnp.asarray(True)})
    lying = dataclasses.replace(own, params=lying)
    assert chi_square(test_law.outputs(always(rows, 2, 3), own=lying), test_law.law(), test_law.VOCAB) < FAILS


def test_in_coupled_sampling_a_seed_gives_the_plain_tokens():
    own = small_engine("coupled", ("lookup", "jacobi:4:3:3"), version=9)
    warp = warpers(8, temperature=[0.0, 0.7, 1.0, 1.0, 0.3, 0.5, 0.2, 1.0], top_p=0.9, presence_penalty=0.3)
    options = {"seed": 3, "warp": warp, "max_new_tokens": 40}
    wanted = plain(own, TEXTS, **options)
    for plan in (always(8, 2, 3), shuffled(8, [0, 1, 2], 3, 1, stride=1)):
        got = run(own, TEXTS, plan, **options)
        assert got.tokens == wanted.tokens
        assert got.state.counters.accepted[:, 2].sum() > 0


def test_rule_lets_it_learn_where_nothing_is_drafted_and_then_drafts_from_it():
    base = small_engine("coupled", ("lookup", "jacobi:4:3:3"), version=9)
    setup = decode.make_setup(
        base.setup.target, drafts=("lookup", "jacobi:4:3:3"), lookahead=3, windows=(1, 4), vocab_size=LETTERS
    )
    got = decode.generate(setup, base.params, TEXTS, max_new_tokens=30)
    assert got.tokens == plain(base, TEXTS, max_new_tokens=30).tokens
    assert got.counters.proposed[:, 2].sum() > 0


def test_only_the_text_and_the_guesses_reach_a_pass(monkeypatch):
    """A third party's model gets one window: the chain, then the branch, each node with its ancestors."""
    seen = []
    model = automata.automaton(LETTERS + 2)

    def forward(params, tokens, positions, mask, cache, carried=None, **options) -> Output:
        seen.append((tokens.shape, mask.shape, carried))
        return model.forward(params, tokens, positions, mask, cache, carried, **options)

    setup = decode.make_setup(
        model._replace(forward=forward), drafts=("jacobi:2:3:1",), lookahead=3, windows=(1, 4), vocab_size=LETTERS
    )
    assert setup.carrier == 1
    assert setup.branch is not None
    assert setup.branch.parents == (-1, 0, 0, 1)
    request = decode.make_request(setup, [[1, 2]], max_new_tokens=4)
    params = decode.EngineParams({"table": jnp.asarray(TABLE)}, {}, ())
    state = decode.start(setup, params, [[1, 2]], request)
    jax.eval_shape(functools.partial(decode.step, setup), params, state)
    assert {tokens[1] for tokens, _, _ in seen} >= {1, 4, 1 + 3, 4 + 3}
    assert all(mask == (*tokens, tokens[1]) and carried is None for tokens, mask, carried in seen)


@pytest.mark.parametrize("sizes", [(0, 4, 7), (5, 2, 7), (5, 17, 7), (5, 4, 0)])
def test_sizes_out_of_range_are_refused(sizes):
    with pytest.raises(ValueError, match=r"jacobi got W .* give W 1 or more"):
        jacobi(*sizes, lookahead=3)


@pytest.mark.parametrize(
    "name", ["jacobi:", "jacobi:5", "jacobi:5:4", "jacobi:a:b:c", "jacobi:5:4:7:1", "jacobi:-1:4:7"]
)
def test_a_name_without_three_sizes_is_refused(name):
    with pytest.raises(ValueError, match="give jacobi or jacobi:W:N:G"):
        decode.make_setup(automata.automaton(8), drafts=(name,))


def test_two_of_them_do_not_fit_in_one_window():
    with pytest.raises(ValueError, match="give one of them"):
        decode.make_setup(automata.automaton(8), drafts=("jacobi", "jacobi:3:3:3"))


def test_the_same_sizes_are_the_same_source_so_nothing_compiles_twice():
    assert jacobi(lookahead=3) is jacobi(lookahead=3)
    assert jacobi(lookahead=3) != jacobi(4, lookahead=3)
