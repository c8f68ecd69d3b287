"""What a compiled loop does that it should or should not: memory, copies of caches, loops, collectives, bytes."""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from jaxspec.bench import hlo
from jaxspec.bench.chips import Chip
from jaxspec.buckets import PREFILL
from jaxspec.contracts import MODEL, EngineParams, Setup
from jaxspec.decode import State
from jaxspec.models import ModelConfig
from jaxspec.typing import PyTree

LARGE = 16_000_000
"""Bytes from which a temporary is named."""

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_VIEWS = frozenset({"parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "constant"})
_IN_PLACE = frozenset({"dynamic-update-slice"})  # where it cannot be, the compiler adds a copy of its own
_PRODUCTS = frozenset({"dot", "convolution", "custom-call"})
_CACHE = re.compile(r"^state\.(cache|sources)\b.*\.(k|v)$")
VOCABULARY = "vocabulary: logits, laws, noise"
UNKNOWN = "unaccounted"


@dataclasses.dataclass(frozen=True)
class Facts:
    """Sizes on one device by which a buffer is recognised."""

    caches: frozenset[tuple[int, ...]]  # dimensions of a layer's keys or values, sorted, ones left out
    weights: frozenset[tuple[int, ...]]  # those of matrices, whole and as split
    slots: frozenset[int]
    vocab: frozenset[int]
    feed_forward: frozenset[int]
    widest: int  # elements of the widest pass's activations

    @classmethod
    def of(cls, setup: Setup, params: EngineParams, state: State) -> "Facts":
        """Facts of an engine given as shapes on devices."""
        caches = [leaf for path, leaf in _leaves(state, "state") if _CACHE.match(path)]
        matrices = [leaf for leaf in jax.tree.leaves((params.target, params.drafts)) if len(leaf.shape) == 2]
        named = [(path, leaf) for path, leaf in _leaves(params, "params") if len(leaf.shape) == 2]
        widths = {leaf.shape[1 - (leaf.shape[0] < leaf.shape[1])] for leaf in matrices}
        rows = state.length.shape[0]
        return cls(
            caches=frozenset(_key(_local(leaf)) for leaf in caches),
            weights=frozenset(_key(shape) for leaf in matrices for shape in (leaf.shape, _local(leaf))),
            slots=frozenset(leaf.shape[2] for leaf in caches) | {state.tokens.shape[1]},
            vocab=frozenset(
                n for path, leaf in named if _ends(path, "embed_tokens") for n in (leaf.shape[0], _local(leaf)[0])
            ),
            feed_forward=frozenset(
                n
                for path, leaf in named
                for name, axis in (("gate_proj", 0), ("gate_up_proj", 0), ("down_proj", 1))
                if _ends(path, name)
                for n in (leaf.shape[axis], _local(leaf)[axis])
            ),
            widest=rows * max(PREFILL[1], setup.windows[-1]) * max(widths, default=0),
        )

    def is_cache(self, shape: hlo.Shape) -> bool:
        """Whether an array has a layer's keys or values in it, in any order and type."""
        return _key(shape.dims) in self.caches

    def what(self, shape: hlo.Shape) -> str:
        """What a temporary is, by its dimensions."""
        dims = set(shape.dims)
        if self.is_cache(shape):
            return "cache"
        if _key(shape.dims) in self.weights:
            return "weights"
        kinds = {VOCABULARY: self.vocab, "attention scores": self.slots, "feed-forward": self.feed_forward}
        exact = next((kind for kind, sizes in kinds.items() if dims & sizes), None)
        split = next((kind for kind, sizes in kinds.items() if _runs(shape.dims) & sizes), None)
        return exact or split or ("activations" if shape.elements <= self.widest else UNKNOWN)


def memory(
    program: hlo.Program, buffers: Sequence[hlo.Allocation], chip: Chip, *, temporaries: int = 0, code: int = 0
) -> dict[str, Any]:
    """Bytes on one device, padding included, by what they hold.

    Args:
        temporaries, code: what the compiler says in all; on TPUs it needs more than the buffers that it names.
    """
    arguments = {i.name: i.op_name for i in program.computations[program.entry] if i.opcode == "parameter"}
    held: Counter[str] = Counter(dict.fromkeys(("target", "drafts", "caches", "other", "temporaries"), 0))
    for each in buffers:
        if each.on_chip:
            continue
        names = [arguments[value.name] for value in each.values if value.name in arguments]
        if each.temporary:
            held["temporaries"] += each.nbytes
        elif each.parameter and names:
            held[_kind(names[0])] += each.nbytes
        else:
            held["other"] += each.nbytes
    held["temporaries"] = max(temporaries, held["temporaries"])
    held["code"] = code
    total = sum(held.values())
    return dict(held) | {"total": total, "chip": chip.memory, "chip_name": chip.name, "fits": total <= chip.memory}


def _kind(name: str) -> str:
    if name.startswith("params.target"):
        return "target"
    if name.startswith("params.drafts"):
        return "drafts"
    return "caches" if _CACHE.match(name) else "other"


def sharded(target: Mapping[str, Any]) -> dict[str, Any]:
    """How much of the target is split, and which matrices are not."""
    whole = [name for name, leaf in target.items() if len(leaf.shape) == 2 and _local(leaf) == tuple(leaf.shape)]
    size = sum(_bytes(leaf.shape, leaf.dtype) for leaf in target.values())
    return {"bytes": size, "bytes_on_a_device": bytes_on_a_device(target), "whole_matrices": whole}


def bytes_on_a_device(shapes: Any) -> int:
    """Of the leaves of a tree, each as its sharding splits it."""
    return sum(_bytes(_local(leaf), leaf.dtype) for leaf in jax.tree.leaves(shapes))


def temporaries(program: hlo.Program, buffers: Sequence[hlo.Allocation], facts: Facts) -> list[dict[str, Any]]:
    """Every kind of temporary of `LARGE` bytes or more, largest first: what it is and which operations make it."""
    makers = {i.name: i for i in program.instructions()}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for value in (v for each in buffers if each.temporary and not each.on_chip for v in each.values):
        if value.nbytes < LARGE:
            continue
        maker = makers.get(value.name)
        entry = found.setdefault(
            (str(value.shape), value.nbytes),
            {"shape": str(value.shape), "bytes": value.nbytes, "what": facts.what(value.shape), "count": 0}
            | {"name": value.name, "opcode": maker.opcode if maker else "", "op_name": maker.op_name if maker else ""},
        )
        entry["count"] += 1
    return sorted(found.values(), key=lambda entry: -entry["bytes"])


def cache_copies(program: hlo.Program, buffers: Sequence[hlo.Allocation], facts: Facts) -> list[dict[str, Any]]:
    """Operations that read a layer's keys or values and write as much again somewhere else in main memory.

    Writes in place (into the argument's own allocation), products, and loads into on-chip memory are none.
    """
    at = {value.name: (index, value.offset) for index, each in enumerate(buffers) for value in each.values}
    by_name = {i.name: i for i in program.instructions()}
    least = min((math.prod(dims) for dims in facts.caches), default=0)
    found = []
    for each in by_name.values():
        if each.opcode in _VIEWS | _IN_PLACE or each.opcode.endswith(("-done", "-update")):
            continue
        read = [shape for name in each.operands if name in by_name for shape in by_name[name].shapes]
        made = [shape for shape in _made(each, read) if not shape.on_chip and shape.elements >= least // 2]
        home = at.get(each.name)
        if not made or not any(facts.is_cache(shape) for shape in read) or program.opcodes(each) & _PRODUCTS:
            continue
        if home is not None and (buffers[home[0]].on_chip or buffers[home[0]].parameter):
            continue
        found.append({"name": each.name, "opcode": each.opcode, "shape": str(made[0]), "op_name": each.op_name})
    return found


def _made(each: hlo.Instruction, read: Sequence[hlo.Shape]) -> list[hlo.Shape]:
    """What an operation writes; the tuple of one that is only started names what it reads as well."""
    made = list(each.shapes)
    if each.opcode.endswith("-start"):
        for shape in read:
            if shape in made:
                made.remove(shape)
    return made


def commit_loops(program: hlo.Program) -> list[str]:
    """Loops that the compiler made inside a commit; each would write row after row."""
    return [i.op_name for i in program.instructions() if i.opcode == "while" and re.search(r"/commit\b", i.op_name)]


def row_loops(program: hlo.Program, rows: int) -> list[dict[str, Any]]:
    """Loops that run once for every row, where XLA knows how often they run."""
    loops = [i for i in program.instructions() if i.opcode == "while" and i.trips == rows and rows > 1]
    return [{"name": i.name, "trips": i.trips, "op_name": i.op_name} for i in loops]


def collectives(program: hlo.Program) -> dict[str, Any]:
    """Exchanges between devices in the costliest round, each inner loop of unknown length run once."""
    loops = [i for i in program.computations[program.entry] if i.opcode == "while"]
    counted = [_exchanged(program, name) for loop in loops for name in loop.called]
    worst = max(counted, key=lambda each: each[1], default=(Counter(), 0))
    return {"count": dict(worst[0]), "bytes": worst[1]}


def _exchanged(program: hlo.Program, name: str) -> tuple[Counter[str], int]:
    """Collectives and their bytes in one run of a computation; of several branches, the costliest."""
    count: Counter[str] = Counter()
    nbytes = 0
    for each in program.computations.get(name, ()):
        kind = each.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            count[kind] += 1
            nbytes += max((shape.nbytes for shape in each.shapes), default=0)
        inner = [_exchanged(program, called) for called in each.called if each.opcode not in ("fusion", *COLLECTIVES)]
        if each.opcode == "conditional":
            inner = [max(inner, key=lambda found: found[1])] if inner else []
        times = (each.trips or 1) if each.opcode == "while" else 1
        for found, size in inner:
            count.update({key: times * value for key, value in found.items()})
            nbytes += times * size
    return count, nbytes


def rounds(
    setup: Setup, configs: Mapping[str, ModelConfig], params: EngineParams, state: State, chip: Chip
) -> list[dict[str, Any]]:
    """Bytes that each kind of round must read on one device, every slot of the caches counted, and their least time."""
    held = [leaf for path, leaf in _leaves(state, "state") if path.startswith("state.cache") and _CACHE.match(path)]
    target = _read(params.target, configs["target"]) + _held(held)
    out = [{"round": "plain, or drafts that cost nothing", "bytes": target}]
    for index, source in enumerate(setup.sources):
        if source.cost != MODEL:
            continue
        drafts = min(setup.lookahead, source.most or setup.lookahead)
        passes = 1 if source.most else drafts  # heads that guess side by side are read once
        trained = params.drafts.get(source.name) if source.name not in configs else None
        own = 0 if trained is None else _held(leaf for name, leaf in trained.items() if name != "embed_tokens.weight")
        if source.reuse_layers:
            share = source.reuse_layers / configs["target"].num_layers
            head = _bytes(_local(_head(params.target)), _head(params.target).dtype)
            each = (own or head) + round(share * (target - head))
            verify = target - round(share * (target - head))
        else:
            cache = [leaf for path, leaf in _leaves(state.sources[index], "state.sources") if _CACHE.match(path)]
            weights = own if trained is not None else _read(params.drafts[source.name], configs[source.name])
            each, verify = weights + _held(cache), target
        out.append({"round": f"{drafts} drafts of {source.name}", "bytes": verify + passes * each})
    return [each | {"seconds": each["bytes"] / chip.bandwidth} for each in out]


def _read(params: Mapping[str, Any], config: ModelConfig) -> int:
    """Bytes of weights that a pass reads; of an embedding that is no output matrix, next to nothing."""
    skipped = "" if config.tie_embeddings else "embed_tokens.weight"
    return sum(_bytes(_local(leaf), leaf.dtype) for name, leaf in params.items() if name != skipped)


def _head(params: Mapping[str, Any]) -> Any:
    return params.get("lm_head.weight", params["embed_tokens.weight"])


def _held(leaves: Iterable[Any]) -> int:
    return sum(_bytes(_local(leaf), leaf.dtype) for leaf in leaves)


def violations(report: Mapping[str, Any]) -> list[str]:
    """What must not be, one sentence each."""
    copies = Counter((each["opcode"], each["shape"], each["op_name"]) for each in report["cache_copies"])
    out = [
        f"{n} x {kind} {shape} copies a cache ({name or 'at the ends'})" for (kind, shape, name), n in copies.items()
    ]
    out += [f"a loop inside a commit: {name}" for name in report["commit_loops"]]
    out += [
        f"{each['name']} ({each['shape']}, {each['bytes']} bytes) is a temporary that nothing accounts for"
        for each in report["temporaries"]
        if each["what"] in (UNKNOWN, "cache", "weights")
    ]
    if report["mesh"].get("model", 1) > 1 and report["sharded"]["bytes_on_a_device"] == report["sharded"]["bytes"]:
        out.append("no parameter of the target is split over the model axis")
    return out


def _leaves(tree: PyTree, name: str) -> list[tuple[str, Any]]:
    """Paths as XLA names arguments: state.cache.layers[0].k."""
    return [(name + jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _ends(path: str, name: str) -> bool:
    return f"{name}.weight" in path


def _local(leaf: Any) -> tuple[int, ...]:
    return tuple(leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape))


def _bytes(shape: Sequence[int], dtype: Any) -> int:
    return math.prod(shape) * dtype.itemsize


def _key(dims: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(n for n in dims if n > 1))


def _runs(dims: Sequence[int]) -> frozenset[int]:
    """Products of neighbouring dimensions, as where a compiler split one in two."""
    return frozenset(math.prod(dims[i:j]) for i in range(len(dims)) for j in range(i + 2, len(dims) + 1))
