"""What advice says of memory is what an engine's arrays take on real (fake) devices, and a fit is one."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from jaxspec import decode, sharding
from jaxspec.bench import advise_fit, advise_memory, chips, compile_drafts
from jaxspec.bench.advise_memory import Layout
from jaxspec.bench.advise_models import find_draft, find_model, shapes_of
from jaxspec.models import language_model, parameter_shapes
from tests.scripts.tiny import TINY

TARGET = find_model(str(TINY / "target"))
DRAFTS = ["none", str(TINY / "draft"), "feature", "medusa", "lm", "exit", "exit:2", "lookup", "suffix", "jacobi"]
MESHES = [(1, 1), (2, 4), (1, 8)]
CASES = [(*mesh, name) for mesh in MESHES for name in (DRAFTS if mesh == (2, 4) else DRAFTS[1:3])]


def layout_of(data: int, model: int) -> Layout:
    return Layout(rows=4, context=256, dtype="float32", data=data, model=model, lookahead=7)


def real(draft, layout: Layout) -> dict[str, float]:
    """Bytes on the first device of an engine's real arrays, by what they hold; nothing is compiled."""
    config = TARGET.config
    mesh = sharding.make_mesh(f"data={layout.data},model={layout.model}", jax.devices()[: layout.devices])
    zeros = lambda shapes: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)  # noqa: E731
    split = lambda params, c: jax.device_put(params, sharding.param_shardings(params, mesh, head_dim=c.head_dim))  # noqa: E731
    whole = lambda params: jax.device_put(params, sharding.replicated(params, mesh))  # noqa: E731
    target = split(zeros(parameter_shapes(config)), config)
    drafts, made = {}, []
    if draft is not None and draft.model is not None:
        made = [(draft.source, language_model(draft.model.config))]
        drafts = zeros(parameter_shapes(draft.model.config))
        drafts = split(drafts, draft.model.config) if layout.shard_drafts else whole(drafts)
    elif draft is not None and draft.trained is not None:
        made = [(draft.source, draft.trained)]
        drafts = whole(zeros(compile_drafts.attached(draft.trained, parameter_shapes(config), jnp.dtype("float32"))))
    elif draft is not None:
        made = [draft.source]
    setup = decode.make_setup(language_model(config), drafts=made, verify="coupled", lookahead=layout.lookahead)
    request = decode.make_request(setup, [[0]] * layout.rows, max_new_tokens=100, seed=0)
    tokens = jnp.zeros((layout.rows, layout.context), jnp.int32)
    state = sharding.place(decode.init_state(setup, tokens, request, headroom=256), mesh)
    caches = [layer for layer in jax.tree.leaves(state.cache) if layer.ndim == 4]
    own = [leaf for source in state.sources for leaf in keys_and_values(source)]
    held = {"target": target, "caches": caches, "drafts": drafts, "draft_caches": own}
    found = {name: on_first(tree) for name, tree in held.items()}
    return found | {"other": on_first(state) - found["caches"] - found["draft_caches"]}


def keys_and_values(tree) -> list[jax.Array]:
    return [
        leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if path and getattr(path[-1], "name", "") in ("k", "v")
    ]


def on_first(tree) -> int:
    first = jax.devices()[0]
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return sum(shard.data.nbytes for leaf in arrays for shard in leaf.addressable_shards if shard.device == first)


@pytest.mark.parametrize(("data", "model", "name"), CASES)
def test_bytes_are_those_of_the_shards(data, model, name, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSPEC_ARTIFACTS", str(tmp_path))  # no draft of these sizes is published
    layout = layout_of(data, model)
    draft = None if name == "none" else find_draft(name, TARGET)
    claimed, counted = advise_memory.held(TARGET, draft, layout)._asdict(), real(draft, layout)
    if draft is not None and draft.trained is not None and layout.devices == 1:
        lent = draft.trained.body.vocab_size * TARGET.config.hidden_size * 4  # the embedding, which is the target's
        lent *= {"feature": 2, "lm": 2}.get(draft.kind, 1)  # and the whole output matrix, which is it again
        counted["drafts"] -= lent
    assert claimed == counted


def test_split_drafts_are_counted_split():
    draft, whole = find_draft(str(TINY / "draft"), TARGET), layout_of(2, 4)
    split = dataclasses.replace(whole, shard_drafts=True)
    assert advise_memory.held(TARGET, draft, split)._asdict() == real(draft, split)
    assert advise_memory.held(TARGET, draft, split).drafts < advise_memory.held(TARGET, draft, whole).drafts


@pytest.mark.parametrize(("data", "model"), MESHES)
def test_the_caches_that_a_pass_reads_are_those_that_lie_there(data, model):
    layout = layout_of(data, model)
    keys = advise_memory.target_parts(TARGET.config, layout).keys
    assert 2 * 4 * sum(map(math.prod, keys)) == advise_memory.held(TARGET, None, layout).caches


def test_shapes_of_one_layer_stand_for_all():
    assert shapes_of(TARGET.config, "bfloat16") == parameter_shapes(TARGET.config, jnp.bfloat16)


def test_a_size_alone_is_its_bytes():
    layout = dataclasses.replace(layout_of(1, 4), dtype="bfloat16")
    held = advise_memory.held(find_model("70b"), find_draft("8B", find_model("70b")), layout)
    assert (held.target, held.drafts, held.caches, held.draft_caches) == (35e9, 16e9, None, None)
    split = dataclasses.replace(layout, shard_drafts=True)
    assert advise_memory.held(find_model("70b"), find_draft("8b", find_model("70b")), split).drafts == 4e9


def chip(memory: float) -> chips.Chip:
    return chips.Chip("small", int(memory), 1e9, 1e12)


def test_every_remedy_fits_and_the_fewest_rows_do():
    layout = dataclasses.replace(layout_of(1, 2), rows=8)
    draft = find_draft(str(TINY / "draft"), TARGET)
    total = advise_memory.held(TARGET, draft, layout).total
    assert advise_fit.verdict(TARGET, draft, layout, chip(total))["fits"] is True
    assert advise_fit.verdict(TARGET, draft, layout, chip(0))["fits"] is None
    tight = advise_fit.verdict(TARGET, draft, layout, chip(0.6 * total))
    assert tight["fits"] is False
    assert tight["spare"] == pytest.approx(-0.4 * total, abs=1)
    rows = int(tight["remedies"][0].split()[0])
    held = lambda n: advise_memory.held(TARGET, draft, dataclasses.replace(layout, rows=n)).total  # noqa: E731
    assert held(rows) <= 0.6 * total < held(rows + 1)
    assert "--dtype bfloat16" in tight["remedies"]
    assert advise_memory.held(TARGET, draft, dataclasses.replace(layout, dtype="bfloat16")).total <= 0.6 * total


def test_more_devices_are_named_where_nothing_else_helps():
    layout = dataclasses.replace(layout_of(1, 1), rows=1, context=16, dtype="bfloat16", lookahead=1)
    held = advise_memory.held(TARGET, None, layout)
    said = advise_fit.verdict(TARGET, None, layout, chip(held.target * 0.8 + held.caches + held.other))["remedies"]
    assert said == ["2 devices, --mesh data=1,model=2"]
    assert advise_fit.verdict(TARGET, None, layout, chip(1000))["remedies"] == []


def test_what_does_not_divide_is_said():
    notes = advise_fit.notes(TARGET, [], dataclasses.replace(layout_of(8, 4), rows=3), chip(1))
    assert any("2 key-value heads do not divide model=4" in note for note in notes)
    assert any("3 rows do not divide data=8" in note for note in notes)
    assert advise_fit.notes(TARGET, [], layout_of(2, 2), chip(1)) == []
