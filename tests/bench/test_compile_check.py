"""The compile check sees what it must, and (mark `aot`) the loop compiles for a TPU and a GPU as it should."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import pytest

from jaxspec import decode
from jaxspec.bench import chips, compile_check, compile_drafts, compile_table, findings, hlo
from jaxspec.bench.compile_check import Plan
from jaxspec.models import language_model, parameter_shapes

CACHE = "bf16[8,2,64,128]"
FACTS = findings.Facts(
    caches=frozenset({(2, 8, 64, 128)}),
    weights=frozenset({(256, 512)}),
    slots=frozenset({64}),
    vocab=frozenset({1000, 250}),
    feed_forward=frozenset({512}),
    widest=10_000,
)


FUSED = f"""
%fused_turn (p: {CACHE}) -> bf16[8,2,128,64] {{
  %p = {CACHE}{{3,2,1,0}} parameter(0)
  ROOT %turned = bf16[8,2,128,64]{{3,2,1,0}} transpose(%p), dimensions={{0,1,3,2}}
}}
"""


def program(*lines: str, trips: str = "") -> hlo.Program:
    """A loop with the given operations in its body, as a compiler prints it."""
    body = "\n".join(f"  {line}" for line in lines)
    return hlo.parse(
        f"""HloModule jit_loop, is_scheduled=true
{FUSED if "fused_turn" in body else ""}
%body (arg: (s32[], {CACHE})) -> (s32[], {CACHE}) {{
  %arg = (s32[], {CACHE}{{3,2,1,0:T(8,128)(2,1)}}) parameter(0)
  %old = {CACHE}{{3,2,1,0:T(8,128)(2,1)}} get-tuple-element(%arg), index=1
{body}
  ROOT %out = (s32[], {CACHE}) tuple(%old, %old)
}}

ENTRY %main (k: {CACHE}) -> {CACHE} {{
  %k = {CACHE}{{3,2,1,0}} parameter(0), metadata={{op_name="state.cache.layers[0].k"}}
  %t = (s32[], {CACHE}) tuple(%k, %k)
  ROOT %loop = (s32[], {CACHE}) while(%t), condition=%cond, body=%body, metadata={{op_name="jit(loop)/while"}}{trips}
}}
"""
    )


PLACES = f"""BufferAssignment:
allocation 0: size 262144, parameter 0, shape |{CACHE}| at ShapeIndex {{}}, maybe-live-out:
 value: <1 k @0> (size=262144,offset=0): {CACHE}{{3,2,1,0}}
 value: <2 written @0> (size=262144,offset=0): {CACHE}{{3,2,1,0}}
allocation 1: size 40000000, preallocated-temp:
 value: <3 scores{{}} @0> (size=33554432,offset=64): f32[8,2,8192,64]{{3,2,1,0}}
 value: <4 odd @0> (size=20000000,offset=0): f32[5000000]{{0}}
 value: <5 small @0> (size=4,offset=0): s32[]
allocation 2: size 1048576, color 1, preallocated-temp:
 value: <6 near @1> (size=262144,offset=0): {CACHE}{{3,2,1,0:S(1)}}
"""


def copies(*lines: str, places: str = PLACES) -> list[str]:
    return [each["name"] for each in findings.cache_copies(program(*lines), hlo.parse_buffers(places), FACTS)]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (f"%copied = {CACHE}{{2,3,1,0}} copy(%old)", True),
        ("%turned.1 = bf16[8,2,128,64]{3,2,1,0} fusion(%old), kind=kInput, calls=%fused_turn", True),
        ("%joined = bf16[8,2,72,128]{3,2,1,0} concatenate(%old, %small), dimensions={2}", True),
        ("%wide = f32[8,2,64,128]{3,2,1,0} convert(%old)", True),
        (f"%moved = ({CACHE}{{3,2,1,0}}, {CACHE}{{3,2,1,0:T(8,128)(2,1)}}, u32[]) copy-start(%old)", True),
        (f"%near = ({CACHE}{{3,2,1,0:S(1)}}, {CACHE}{{3,2,1,0:T(8,128)(2,1)}}, u32[]) copy-start(%old)", False),
        (f"%put = {CACHE}{{3,2,1,0}} dynamic-update-slice(%old, %small, %zero)", False),
        (f"%written = {CACHE}{{3,2,1,0}} fusion(%old, %small), kind=kLoop, calls=%fused_turn", False),
        ("%scores.1 = f32[8,2,1024,64]{3,2,1,0} dot(%queries, %old), lhs_batch_dims={0,1}", False),
        ("%piece = bf16[8,2,16,128]{3,2,1,0} slice(%old), slice={[0:8], [0:2], [0:16], [0:128]}", False),
    ],
)
def test_a_copy_of_a_cache_is_found_and_nothing_else_is(line, wrong):
    assert bool(copies(line)) == wrong


def test_a_write_that_is_not_in_place_is_a_copy():
    line = f"%written = {CACHE}{{3,2,1,0}} fusion(%old, %small), kind=kLoop, calls=%fused_turn"
    assert copies(line) == []
    assert copies(line, places=PLACES.replace("2 written", "2 other")) == ["written"]


def loop(op_name: str, trips: int) -> str:
    config = f', backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
    return f'%w = (s32[]) while(%t), condition=%c, body=%b, metadata={{op_name="{op_name}"}}{config}'


def test_loops_in_a_commit_and_over_rows_are_found():
    inside, outside = "jit(loop)/while/body/commit/vmap()/scatter", "jit(loop)/while/body/cond/branch_1_fun/while"
    assert findings.commit_loops(program(loop(inside, 8))) == [inside]
    assert findings.commit_loops(program(loop(outside, 8))) == []
    assert [each["trips"] for each in findings.row_loops(program(loop(outside, 8)), 8)] == [8]
    assert findings.row_loops(program(loop(outside, 31)), 8) == []


def test_temporaries_are_named_and_what_is_unknown_is_a_violation():
    found = findings.temporaries(program(), hlo.parse_buffers(PLACES), FACTS)
    assert [(each["shape"], each["what"]) for each in found] == [
        ("f32[8,2,8192,64]", "attention scores"),
        ("f32[5000000]", findings.UNKNOWN),
    ]
    report = {"cache_copies": [], "commit_loops": [], "temporaries": found, "mesh": {}, "sharded": {}}
    assert len(findings.violations(report)) == 1
    assert "f32[5000000]" in findings.violations(report)[0]


@pytest.mark.parametrize(
    ("dims", "what"),
    [
        ((2, 8, 128, 64), "cache"),
        ((512, 1, 256), "weights"),
        ((8, 4, 250), findings.VOCABULARY),
        ((8, 10, 100), findings.VOCABULARY),
        ((8, 16, 64), "attention scores"),
        ((512, 64000), "feed-forward"),
        ((8, 16, 77), "activations"),
        ((8, 1600, 77), findings.UNKNOWN),
    ],
)
def test_a_temporary_is_known_by_its_dimensions(dims, what):
    assert FACTS.what(hlo.Shape("f32", dims)) == what


def test_memory_is_counted_by_what_it_holds():
    held = findings.memory(program(), hlo.parse_buffers(PLACES), chips.CHIPS["v5e"], temporaries=50_000_000, code=7)
    assert (held["caches"], held["temporaries"], held["code"]) == (262144, 50_000_000, 7)
    assert held["total"] == 262144 + 50_000_000 + 7
    assert held["fits"]
    tight = dataclasses.replace(chips.CHIPS["v5e"], memory=1000)
    assert not findings.memory(program(), hlo.parse_buffers(PLACES), tight)["fits"]


def test_collectives_of_the_costliest_branch_are_counted():
    text = """
%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %s = f32[] add(%a, %b)
}

%cheap (p: f32[8]) -> f32[8] {
  ROOT %r.1 = f32[8]{0} all-reduce(%p), to_apply=%add
}

%dear (p: f32[8]) -> f32[8] {
  %r.2 = f32[8]{0} all-reduce(%p), to_apply=%add
  ROOT %g.2 = f32[64]{0} all-gather-start(%r.2), dimensions={0}
}

%body (p: f32[8]) -> f32[8] {
  ROOT %c = f32[8]{0} conditional(%i, %p, %p), branch_computations={%cheap, %dear}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %outside = f32[8]{0} all-reduce(%p), to_apply=%add
  ROOT %loop = f32[8]{0} while(%outside), condition=%none, body=%body
}
"""
    assert findings.collectives(hlo.parse(text)) == {"count": {"all-reduce": 1, "all-gather": 1}, "bytes": 32 + 256}


def test_an_unknown_topology_or_model_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="topology 'v9z:2x2' is unknown; examples are v5e:2x2"):
        compile_check.build(Plan("v9z:2x2", "llama-3-8b"))
    with pytest.raises(ValueError, match=r"'no-such' is no preset and no readable config.json .*smollm2-135m"):
        compile_check.read_config("no-such")


@pytest.mark.parametrize("full", [True, False])
def test_a_program_that_does_not_fit_is_one_sentence_with_what_lies_on_a_device(monkeypatch, full):
    said = f"{'RESOURCE_EXHAUSTED' if full else 'INTERNAL'}: Ran out of memory (16.22G).\n\nProgram: 9G"

    class Lowered:
        def compile(self, **_):
            raise jax.errors.JaxRuntimeError(said)

    plan = Plan("v5e:2x2", "smollm2-135m", ("lookup", "lm:smollm2-135m"), rows=4, context=1024, mesh="model=2,data=2")
    monkeypatch.setattr(chips, "devices", lambda *_: (chips.CHIPS["v5e"], jax.devices()[:4]))
    monkeypatch.setattr(compile_check.decode, "loop", types.SimpleNamespace(lower=lambda *_: Lowered()))
    if not full:
        with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
            compile_check.check(plan)
        return
    engine = compile_check.build(plan)
    placed = jax.tree.map(lambda s: jax.device_put(jnp.zeros(s.shape, s.dtype), s.sharding), engine.params.target)
    first = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(placed))
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(engine.params.drafts))
    message = rf"does not fit a TPU v5e, .*Ran out of memory \(16.22G\)\.'; .*in GB: the target {first / 1e9:.1f}, "
    with pytest.raises(ValueError, match=message + rf"drafts {whole / 1e9:.1f}, caches and counters 0\.") as raised:
        compile_check.check(plan)
    assert "\n" not in str(raised.value)
    assert first < 0.6 * whole


def test_presets_are_the_models_they_name():
    sizes = {name: compile_check.read_config(name) for name in compile_check.PRESETS}
    count = {name: sum(s.size for s in compile_check.parameter_shapes(c).values()) for name, c in sizes.items()}
    billions = {name: round(number / 1e9, 2) for name, number in count.items()}
    assert billions == {"smollm2-135m": 0.13, "llama-3-1b": 1.24, "llama-3-8b": 8.03, "llama-3-70b": 70.55}


DRAFTS = ("lookup", "suffix", "jacobi", "exit:1", "lm:llama-3-1b")
TRAINED = ("ngram", "medusa", "feature", "lm", "exit")


@pytest.mark.aot
@pytest.mark.parametrize("topology", ["v5e:2x2", "h200"])
def test_the_loop_with_every_source_copies_no_cache_and_accounts_for_its_memory(topology):
    report = compile_check.check(Plan(topology, "llama-3-8b", DRAFTS, layers=2, draft_layers=1, rows=8))
    assert report["violations"] == []
    assert report["cache_copies"] == report["commit_loops"] == report["row_loops"] == []
    assert all(each["what"] not in (findings.UNKNOWN, "cache", "weights") for each in report["temporaries"])
    assert report["memory"]["fits"]
    assert report["memory"]["temporaries"] < report["memory"]["target"] + report["memory"]["caches"]
    if topology != chips.GPU:
        split = report["sharded"]
        assert split["whole_matrices"] == []
        assert split["bytes_on_a_device"] < 0.2501 * split["bytes"]
    assert [table.row_count for table in compile_table.tables(json.loads(json.dumps(report)))]


@pytest.mark.parametrize("name", TRAINED)
def test_a_source_that_is_trained_has_the_shapes_of_what_training_leaves(name):
    """Its shapes trace through the whole loop, which refuses any that do not fit."""
    config = compile_check.read_config("smollm2-135m", 2)
    made = compile_drafts.source(name, config, jnp.dtype("float32"), read=compile_check.read_config, fused=False)
    setup = decode.make_setup(language_model(config), drafts=[made.draft], lookahead=3)
    request = decode.make_request(setup, [[0]], max_new_tokens=8, seed=0)
    tokens = jax.ShapeDtypeStruct((1, 128), jnp.int32)
    state = jax.eval_shape(lambda t, r: decode.init_state(setup, t, r, headroom=256), tokens, request)
    params = decode.EngineParams(parameter_shapes(config), {name: made.shapes}, ())
    jax.eval_shape(lambda p, s: decode.loop(setup, p, s, 1, jnp.zeros(1, bool)), params, state)
    leaf = next(key for key, value in made.shapes.items() if value.ndim > 0 and key != "output.ids")
    short = {key: value for key, value in made.shapes.items() if key != leaf}
    with pytest.raises((KeyError, ValueError)):  # the control
        jax.eval_shape(
            lambda p, s: decode.loop(setup, p, s, 1, jnp.zeros(1, bool)),
            dataclasses.replace(params, drafts={name: short}),
            state,
        )


@pytest.mark.aot
def test_a_commit_that_writes_rows_in_a_loop_or_copies_is_seen(monkeypatch):
    """The control: a vmapped write, which a TPU's compiler makes a loop over rows."""

    def vmapped(slots, fresh, *, path, length, ring):
        put = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice(row, new.astype(row.dtype), (0, at, 0)))
        return put(slots, fresh, length)

    monkeypatch.setattr("jaxspec.cache.slots._write", vmapped)
    plan = Plan("v5e:2x2", "smollm2-135m", ("lookup",), layers=1, rows=8, lookahead=1, context=1024, mesh="data=4")
    jax.clear_caches()
    report = compile_check.check(dataclasses.replace(plan, rows=32))
    jax.clear_caches()
    assert report["violations"] != []
    assert report["commit_loops"] or report["cache_copies"]
