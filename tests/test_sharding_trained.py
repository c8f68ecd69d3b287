"""Every other source on eight devices: the target split, drafts whole on each; the tokens are one device's."""

import functools

import jax
import numpy as np
import pytest

from jaxspec import decode, sharding
from tests.decode.schedule import always, scheduled, shuffled
from tests.decode.tiny import model_of
from tests.decode.trained import NAMES, table, trained
from tests.test_sharding import HALF_SAMPLED, LOOKAHEAD, PROMPTS, ROWS, TARGET

pytestmark = pytest.mark.heavy

FREE = ("suffix", "ngram", "jacobi:2:3:2")
SOURCES = ("none", *NAMES, *FREE)
MESH = "data=2,model=4"


@functools.cache
def engine(mesh: str | None) -> tuple[decode.Setup, decode.EngineParams]:
    model, params = model_of(TARGET, 0, 1.6)
    made = {name: trained(name, TARGET) for name in NAMES}
    drafts = {name: each.params for name, each in made.items()} | {"ngram": table()}
    on = None if mesh is None else sharding.make_mesh(mesh)
    if on is not None:
        params = jax.device_put(params, sharding.param_shardings(params, on, head_dim=TARGET.head_dim))
        drafts = jax.device_put(drafts, sharding.replicated(drafts, on))
    setup = decode.make_setup(
        model,
        drafts=[*((name, each.config) for name, each in made.items()), *FREE],
        select=scheduled(LOOKAHEAD),
        verify="coupled",
        lookahead=LOOKAHEAD,
        windows=(1, 1 + LOOKAHEAD),
        mesh=on,
    )
    return setup, decode.EngineParams(params, drafts, ())


def run(mesh: str | None, source: str, drafts=None) -> tuple[np.ndarray, decode.State]:
    setup, params = engine(mesh)
    every = shuffled(ROWS, range(len(SOURCES)), LOOKAHEAD, 5)
    plan = every if source == "shuffled" else always(ROWS, SOURCES.index(source), LOOKAHEAD)
    params = decode.EngineParams(params.target, drafts or params.drafts, plan)
    request = decode.make_request(setup, PROMPTS, max_new_tokens=10, seed=3, warp=HALF_SAMPLED)
    state = decode.start(setup, params, PROMPTS, request, capacity=128)
    state, last = decode.loop(setup, params, state, 1000, np.zeros(ROWS, bool))
    return np.asarray(last.tokens), state


def test_sources_give_on_eight_devices_what_they_give_on_one():
    plain, _ = run(None, "none")
    taken = 0
    for source in (*SOURCES, "shuffled"):
        tokens, state = run(MESH, source)
        np.testing.assert_array_equal(tokens, plain, err_msg=source)
        alone = run(None, source)[1].counters
        np.testing.assert_array_equal(state.counters.accepted, alone.accepted, err_msg=source)
        taken += int(np.asarray(state.counters.accepted).sum()) > 0
    assert taken >= 4, "drafts are accepted, so that a wrong one would matter"


def test_they_are_whole_on_every_device_and_their_states_lie_by_rows():
    setup, params = engine(MESH)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(params.drafts))
    _, state = run(MESH, "shuffled")
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == sharding.state_shardings(state, setup.mesh)
    feature = state.sources[SOURCES.index("feature")]
    for leaf in (feature.features, feature.cache.layers[0].k, state.sources[SOURCES.index("medusa")]):
        assert leaf.sharding.spec == jax.sharding.PartitionSpec("data")


def test_a_draft_that_is_wrong_on_some_devices_is_seen():
    """In what is accepted of their rows: the tokens are the target's."""
    _, params = engine(MESH)
    own = dict(params.drafts["medusa"])
    weight = own["output.0.weight"]
    shards = [-shard.data if place >= 4 else shard.data for place, shard in enumerate(weight.addressable_shards)]
    own["output.0.weight"] = jax.make_array_from_single_device_arrays(weight.shape, weight.sharding, shards)
    spoilt = {**params.drafts, "medusa": own}
    _, state = run(MESH, "medusa", spoilt)
    _, fine = run(MESH, "medusa")
    got, wanted = (np.asarray(each.counters.accepted).sum(1) for each in (state, fine))
    np.testing.assert_array_equal(got[:4], wanted[:4])
    assert got[4:].sum() < wanted[4:].sum()
