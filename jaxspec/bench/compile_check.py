"""Compile the whole loop for TPUs and GPUs that are not there, and report what the compilers made of it.

Everything is done on shapes: no weights are made and nothing runs.
"""

import contextlib
import dataclasses
import functools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from jaxspec import decode, sharding
from jaxspec.bench import chips, compile_drafts, findings, hlo
from jaxspec.buckets import PREFILL
from jaxspec.contracts import EngineParams, Setup
from jaxspec.models import ModelConfig, language_model, parameter_shapes
from jaxspec.typing import PyTree

ROUNDS = 8
CACHE = "jax_enable_compilation_cache"
FULL = "RESOURCE_EXHAUSTED"
"""In what XLA says of a program that is larger than a chip."""

_LLAMA3 = {
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def _llama(layers: int, width: int, feed_forward: int, heads: int, **fields: Any) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": feed_forward}
    return _LLAMA3 | sizes | {"num_attention_heads": heads} | fields


PRESETS: dict[str, dict[str, Any]] = {
    "smollm2-135m": _llama(
        *(30, 576, 1536, 9),
        vocab_size=49152,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    "llama-3-1b": _llama(16, 2048, 8192, 32, head_dim=64, tie_word_embeddings=True),
    "llama-3-8b": _llama(32, 4096, 14336, 32),
    "llama-3-70b": _llama(80, 8192, 28672, 64),
}
"""Shapes by name, as config.json would say them."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to compile. Everything is static."""

    topology: str
    target: str  # a preset, or a config.json
    drafts: tuple[str, ...] = ("lookup",)  # as in `jaxspec.load`, without paths; lm:PRESET or lm:CONFIG
    mesh: str | None = None  # data=1,model=(all) where None
    rows: int = 8
    context: int = 4096  # tokens a row's buffers hold
    layers: int | None = None  # of the target, in place of the config's
    draft_layers: int | None = None  # of model drafts
    lookahead: int = decode.DEFAULT_LOOKAHEAD
    verify: str = "coupled"
    dtype: str = "bfloat16"  # of weights and caches
    shard_drafts: bool = False  # split model drafts as the target is, where one device cannot hold them


@dataclasses.dataclass(frozen=True)
class Engine:
    """A plan as setup, chip and shapes on its devices."""

    chip: chips.Chip
    setup: Setup
    params: EngineParams
    state: decode.State
    configs: dict[str, ModelConfig]  # "target", and each model draft's


def check(plan: Plan, *, dump: Path | None = None) -> dict[str, Any]:
    """Compile a plan and report on it; "violations" lists what must not be, in sentences.

    Args:
        dump: folder to keep the compiler's own files in.

    Raises:
        ValueError: an unknown topology, preset or source, a mesh that does not fit, a compiler that is not installed;
            a program that the chip's memory does not hold.
    """
    engine = build(plan)
    began = time.perf_counter()
    nobody = np.zeros(plan.rows, bool)
    lowered = decode.loop.lower(engine.setup, engine.params, engine.state, ROUNDS, nobody)
    traced = time.perf_counter()
    with _compiling(dump) as folder:
        options: dict[str, Any] = {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}
        try:
            compiled = lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if FULL not in str(error):
                raise
            raise ValueError(_no_room(engine, str(error))) from None
        seconds = {"trace": traced - began, "compile": time.perf_counter() - traced}
        buffers = hlo.parse_buffers(_dumped(folder, "*buffer-assignment.txt"))
    analysis, text = compiled.memory_analysis(), compiled.as_text()
    if analysis is None or text is None:
        raise RuntimeError("the compiler tells nothing of its program; this release of it cannot be reported on")
    sizes = {"temporaries": analysis.temp_size_in_bytes, "code": analysis.generated_code_size_in_bytes}
    return report(plan, engine, hlo.parse(text), buffers, seconds, sizes)


def report(
    plan: Plan,
    engine: Engine,
    program: hlo.Program,
    buffers: Sequence[hlo.Allocation],
    seconds: dict[str, float],
    sizes: dict[str, int],
) -> dict[str, Any]:
    """What is worth knowing of a compiled program, as plain data; `sizes` are the options of `findings.memory`."""
    facts = findings.Facts.of(engine.setup, engine.params, engine.state)
    memory = findings.memory(program, buffers, engine.chip, **sizes)
    found = {
        "plan": dataclasses.asdict(plan),
        "devices": engine.setup.mesh.size if engine.setup.mesh else 1,
        "mesh": dict(engine.setup.mesh.shape) if engine.setup.mesh else {},
        "windows": list(engine.setup.windows),
        "seconds": seconds,
        "memory": memory,
        "sharded": findings.sharded(engine.params.target),
        "temporaries": findings.temporaries(program, buffers, facts),
        "cache_copies": findings.cache_copies(program, buffers, facts),
        "commit_loops": findings.commit_loops(program),
        "row_loops": findings.row_loops(program, plan.rows),
        "collectives": findings.collectives(program),
        "rounds": findings.rounds(engine.setup, engine.configs, engine.params, engine.state, engine.chip),
    }
    return found | {"violations": findings.violations(found)}


def _no_room(engine: Engine, said: str) -> str:
    """Why a program does not fit, in one sentence with what lies on a device before anything is computed."""
    held = {"the target": engine.params.target, "drafts": engine.params.drafts, "caches and counters": engine.state}
    sizes = ", ".join(f"{name} {findings.bytes_on_a_device(tree) / 1e9:.1f}" for name, tree in held.items())
    return (
        f"the program does not fit a {engine.chip.name}, whose compiler says {said.strip().splitlines()[0]!r}; on each "
        f"device lie, in GB: {sizes}; give fewer rows, a shorter context, a smaller draft or more devices"
    )


def build(plan: Plan) -> Engine:
    """Shapes of a plan's engine on its devices."""
    count = None
    if plan.topology == chips.GPU and plan.mesh is not None:
        sizes = [part.partition("=")[2] for part in plan.mesh.split(",")]
        count = int(np.prod([int(size) if size.isdecimal() else 1 for size in sizes]))
    chip, devices = chips.devices(plan.topology, count)
    mesh = sharding.make_mesh(plan.mesh or f"data=1,model={len(devices)}", devices)
    dtype = jnp.dtype(plan.dtype)
    config = dataclasses.replace(read_config(plan.target, plan.layers), fused=mesh.size == 1)  # as `load_model` does
    read = functools.partial(read_config, layers=plan.draft_layers)
    drafts = {d: compile_drafts.source(d, config, dtype, read=read, fused=config.fused) for d in plan.drafts}
    setup = decode.make_setup(
        language_model(config),
        drafts=[each.draft for each in drafts.values()],
        verify=plan.verify,
        lookahead=plan.lookahead,
        mesh=mesh,
    )
    models = {name: each.draft[1].config for name, each in drafts.items() if name.startswith("lm:")}

    def split(shapes: PyTree, config: ModelConfig) -> PyTree:
        return _on(shapes, sharding.param_shardings(shapes, mesh, head_dim=config.head_dim))

    def placed(name: str, shapes: PyTree) -> PyTree:
        whole = not (plan.shard_drafts and name in models)
        return _on(shapes, sharding.replicated(shapes, mesh)) if whole else split(shapes, models[name])

    drafted = {name: placed(name, each.shapes) for name, each in drafts.items() if each.shapes is not None}
    params = EngineParams(target=split(parameter_shapes(config, dtype), config), drafts=drafted, selector=())
    return Engine(chip, setup, params, _state(plan, setup, dtype), {"target": config, **models})


def read_config(name: str, layers: int | None = None) -> ModelConfig:
    """A preset's config or a config.json's.

    Raises:
        ValueError: neither, or a config that is not supported.
    """
    fields = PRESETS.get(name)
    if fields is None:
        path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            known = ", ".join(PRESETS)
            raise ValueError(
                f"{name!r} is no preset and no readable config.json ({error}); presets are {known}"
            ) from error
    if layers is not None:
        fields = {**fields, "num_hidden_layers": layers}
    return ModelConfig.from_hf(fields)


def _state(plan: Plan, setup: Setup, dtype: jnp.dtype) -> decode.State:
    most = max(1, min(plan.context, setup.target.config.max_positions) - setup.windows[-1] - 1)
    request = decode.make_request(setup, [[0]] * plan.rows, max_new_tokens=most, seed=0)
    headroom = max(PREFILL[-1], setup.windows[-1])
    tokens = jax.ShapeDtypeStruct((plan.rows, plan.context), jnp.int32)
    shapes = jax.eval_shape(
        lambda tokens, request: decode.init_state(setup, tokens, request, headroom=headroom, dtype=dtype),
        *(tokens, request),
    )
    assert setup.mesh is not None
    return _on(shapes, sharding.state_shardings(shapes, setup.mesh))


def _on(shapes: PyTree, shardings: PyTree) -> PyTree:
    return jax.tree.map(lambda s, place: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place), shapes, shardings)


@contextlib.contextmanager
def _compiling(dump: Path | None) -> Iterator[Path]:
    """A folder for XLA's dump, with the compilation cache off: a program from the cache is not dumped."""
    before = getattr(jax.config, CACHE)
    jax.config.update(CACHE, False)
    compilation_cache.reset_cache()  # it looks at the setting once
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) if dump is None else dump
    finally:
        jax.config.update(CACHE, before)
        compilation_cache.reset_cache()


def _dumped(folder: Path, pattern: str) -> str:
    """The largest file of a pattern: the loop's, beside those of small programs the compiler makes on the way."""
    found = sorted(folder.glob(pattern), key=lambda file: file.stat().st_size)
    if not found:
        raise RuntimeError(f"the compiler wrote no {pattern}; this release of it cannot be reported on")
    return found[-1].read_text(encoding="utf-8")
