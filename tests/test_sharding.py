"""Eight devices give what one gives, token for token; the target is split, drafts are whole, nothing compiles twice."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxspec import decode, sharding, telemetry
from jaxspec.models import ModelConfig
from jaxspec.sampling import warpers
from tests.decode.schedule import always, scheduled, shuffled
from tests.decode.tiny import model_of

P = PartitionSpec
ROWS, LOOKAHEAD = 8, 2
MESHES = (
    "data=1,model=8",
    pytest.param("data=2,model=4", marks=pytest.mark.heavy),
    pytest.param("data=8,model=1", marks=pytest.mark.heavy),
)
SOURCES = ("none", "lookup", "exit:1", "lm:d")
# Key-value heads divide the model axis of 4, not that of 8; query heads divide both.
TARGET = ModelConfig(
    family="llama",
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    max_positions=512,
)
DRAFT = dataclasses.replace(TARGET, num_layers=1, hidden_size=16, num_heads=2, num_kv_heads=1)
PROMPTS = [[1, 2, 3, 1, 2], [4], [5] * 9, [6, 7, 6, 7, 6], [8, 9], [10, 11, 12], [3, 1, 4, 1, 5, 9, 2, 6], [13] * 3]
HALF_SAMPLED = warpers(ROWS, temperature=[0, 0, 0, 0, 0.7, 1, 1, 1.3])


@dataclasses.dataclass(frozen=True)
class Engine:
    setup: decode.Setup
    params: decode.EngineParams


@functools.cache
def engine(mesh: str | None) -> Engine:
    """One compiled loop for all sources: what they are asked for is data."""
    (model, params), (draft, drafted) = model_of(TARGET, 0, 1.6), model_of(DRAFT, 1, 0.5)
    on = None if mesh is None else sharding.make_mesh(mesh)
    setup = decode.make_setup(
        model,
        drafts=("lookup", "exit:1", ("lm:d", draft)),
        select=scheduled(LOOKAHEAD),
        verify="coupled",
        lookahead=LOOKAHEAD,
        windows=(1, 1 + LOOKAHEAD),
        mesh=on,
    )
    if on is not None:
        params = jax.device_put(params, sharding.param_shardings(params, on, head_dim=TARGET.head_dim))
        drafted = jax.device_put(drafted, sharding.replicated(drafted, on))
    return Engine(setup, decode.EngineParams(params, {"lm:d": drafted}, ()))


def planned(source: str) -> decode.EngineParams:
    if source == "shuffled":
        return shuffled(ROWS, [0, 1, 2, 3], LOOKAHEAD, 5)
    return always(ROWS, SOURCES.index(source), LOOKAHEAD)


def start(of: Engine, source: str, target=None) -> tuple[decode.EngineParams, decode.State]:
    params = decode.EngineParams(target or of.params.target, of.params.drafts, planned(source))
    request = decode.make_request(of.setup, PROMPTS, max_new_tokens=10, seed=3, warp=HALF_SAMPLED)
    return params, decode.start(of.setup, params, PROMPTS, request, capacity=128)


def run(of: Engine, source: str, target=None) -> np.ndarray:
    params, state = start(of, source, target)
    return np.asarray(decode.loop(of.setup, params, state, 1000, np.zeros(ROWS, bool))[1].tokens)


@functools.cache
def alone(source: str) -> np.ndarray:
    return run(engine(None), source)


@pytest.mark.parametrize("mesh", MESHES)
def test_eight_devices_equal_one_token_for_token(mesh):
    for source in (*SOURCES, "shuffled"):
        np.testing.assert_array_equal(run(engine(mesh), source), alone(source), err_msg=source)
    assert all((alone(source) == alone("none")).all() for source in SOURCES)  # greedy and coupled rows alike
    assert len({tuple(row) for row in alone("none")}) == ROWS


def test_a_parameter_that_is_wrong_on_one_device_is_seen():
    of = engine("data=1,model=8")
    target = dict(of.params.target)
    name = "layers.1.mlp.gate_proj.weight"
    shards = [shard.data + (1.0 if index == 5 else 0.0) for index, shard in enumerate(target[name].addressable_shards)]
    target[name] = jax.make_array_from_single_device_arrays(target[name].shape, target[name].sharding, shards)
    assert (run(of, "lm:d", target) != alone("lm:d")).any()


def test_the_plain_loop_runs_on_a_mesh():
    of = engine("data=2,model=4")
    params, state = start(of, "none")
    np.testing.assert_array_equal(np.asarray(decode.plain_loop(of.setup, params, state, 1000).tokens), alone("none"))


def whole(leaves) -> list[str]:
    """Names of the leaves that every device holds all of."""
    return [name for name, leaf in leaves.items() if leaf.sharding.shard_shape(leaf.shape) == leaf.shape]


@pytest.mark.parametrize("mesh", ["data=1,model=8", "data=2,model=4"])
def test_the_target_is_split_and_drafts_are_whole(mesh):
    params = engine(mesh).params
    kept = [name for name in whole(params.target) if "norm" not in name]
    heads = TARGET.num_kv_heads % sharding.make_mesh(mesh).shape["model"] == 0
    assert all(name.endswith(("k_proj.weight", "v_proj.weight")) for name in kept)
    assert bool(kept) == (not heads)
    drafted = params.drafts["lm:d"]
    assert whole(drafted) == list(drafted)
    for leaf in drafted.values():
        assert len(leaf.addressable_shards) == 8


def test_an_unsplit_target_is_seen():
    _, params = model_of(TARGET, 0, 1.6)
    on = sharding.make_mesh("data=1,model=8")
    placed = jax.device_put(params, sharding.replicated(params, on))
    assert "layers.0.mlp.gate_proj.weight" in whole(placed)


@pytest.mark.parametrize("mesh", MESHES)
def test_the_state_is_given_away_comes_back_as_it_lay_and_compiles_nothing_more(mesh):
    of = engine(mesh)
    run(of, "none")
    params, state = start(of, "shuffled")
    compiled = telemetry.compilations()
    lay = jax.tree.map(lambda leaf: leaf.sharding, state)
    assert lay == sharding.state_shardings(state, of.setup.mesh)
    for chunk in (1, 2, 3):
        before, (state, _) = state, decode.loop(of.setup, params, state, chunk, np.zeros(ROWS, bool))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        assert jax.tree.map(lambda leaf: leaf.sharding, state) == lay
    assert telemetry.compilations() == compiled


def test_states_lie_by_rows_and_the_targets_cache_by_heads_too():
    state = start(engine(None), "none")[1]
    lay = sharding.state_shardings(state, sharding.make_mesh("data=2,model=4"))
    assert lay.cache.layers[0].k.spec == P("data", "model")
    assert lay.sources[3].cache.layers[0].k.spec == P("data")
    assert lay.tokens.spec == lay.request.warpers.bias_ids.spec == lay.counters.accepted.spec == P("data")
    assert lay.selector.source.spec == lay.selector.total.spec == lay.counters.widths.spec == lay.rounds.spec == P()
    # 8 rows do not divide 3 groups of devices, nor 4 heads 8 devices: replicated
    three = sharding.make_mesh("data=3,model=2", jax.devices()[:6])
    assert sharding.state_shardings(state, three).tokens.spec == P()
    assert sharding.state_shardings(state, three).cache.layers[0].k.spec == P(None, "model")
    eight = sharding.make_mesh("model=8")
    assert sharding.state_shardings(state, eight).cache.layers[0].k.spec == P()


def test_parameters_are_split_by_whole_heads():
    on = sharding.make_mesh("data=2,model=4")
    shapes = {
        "embed_tokens.weight": (32, 12),
        "layers.0.self_attn.q_proj.weight": (32, 12),
        "layers.0.self_attn.q_proj.bias": (32,),
        "layers.0.self_attn.k_proj.weight": (16, 12),  # two heads of 8: not in four parts
        "layers.0.self_attn.o_proj.weight": (12, 32),
        "layers.0.mlp.down_proj.weight": (12, 20),
        "layers.0.mlp.up_proj.weight": (18, 12),  # 18 do not divide
        "layers.0.input_layernorm.weight": (12,),
        "somebody.elses.weight": (16, 16),
    }
    arrays = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    specs = [each.spec for each in sharding.param_shardings(arrays, on, head_dim=8).values()]
    split, whole_ = P("model"), P()
    assert specs == [split, split, split, whole_, P(None, "model"), P(None, "model"), whole_, whole_, whole_]


def test_a_mesh_has_auto_axes_of_the_given_sizes():
    on = sharding.make_mesh(" model = 4 , data=2")
    assert dict(on.shape) == {"data": 2, "model": 4}
    assert on.axis_types == (AxisType.Auto, AxisType.Auto)
    assert dict(sharding.make_mesh("model=8").shape) == {"data": 1, "model": 8}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data=1,tensor=8", "axis 'tensor'; the axes are data and model"),
        ("", "axis ''"),
        ("model=8,model=1", "names axis model twice"),
        ("model=0", "size '0'; it must be a whole number from 1"),
        ("model=-8", "size '-8'"),
        ("model", "size ''"),
        ("model=eight", "size 'eight'"),
        ("data=2,model=2", "takes 4 devices and there are 8"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused_in_one_sentence(text, words):
    with pytest.raises(ValueError, match=r"^mesh ") as caught:
        sharding.make_mesh(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fused_matrices_are_not_taken_for_a_part_of_theirs():
    """qkv_proj ends as v_proj does, and its rows are no heads of one kind."""
    on = sharding.make_mesh("data=1,model=8")
    shapes = {name: jax.ShapeDtypeStruct((64, 16), jnp.float32) for name in ("l.v_proj.weight", "l.qkv_proj.weight")}
    found = sharding.param_shardings(shapes, on, head_dim=8)
    assert found["l.v_proj.weight"].spec == PartitionSpec("model")
    assert found["l.qkv_proj.weight"].spec == PartitionSpec()
