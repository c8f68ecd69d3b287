"""Drafts that others published, converted to ours: Medusa heads, EAGLE and EAGLE-3 layers."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint.artifact import IDS, check_fits, save_draft, stored_shapes
from jaxspec.checkpoint.fingerprint import fingerprint
from jaxspec.checkpoint.published import (
    EMBEDDING,
    KINDS,
    Published,
    Target,
    described,
    kind_of,
    read_published,
    read_target,
)
from jaxspec.checkpoint.source import check_finite
from jaxspec.checkpoint.tensors import CheckpointError, Shape, differences, report
from jaxspec.models.heads import DraftConfig

FLOATS = ("float16", "bfloat16", "float32", "float64")


def convert_draft(
    source: str | Path,
    destination: str | Path,
    *,
    target: str | Path | None = None,
    kind: str | None = None,
    taps: Sequence[int] | None = None,
    overwrite: bool = False,
) -> DraftConfig:
    """Write a published draft as one of ours; what it became.

    Args:
        source: folder with config.json and safetensors, one such file, or a hub id.
        target: the model it is for: checked against it, tied to its weights, and asked for its number of layers. Where
            it is not given any target of the same width and vocabulary is accepted later, and what Medusa heads do not
            say of it (the epsilon of its last norm) is taken to be Llama's.
        kind: of `KINDS`; told from the tensors where None.
        taps: after how many layers of the target an EAGLE draft reads; where it is None as its config
            says, or else as EAGLE's code does (`jaxspec.checkpoint.published`).

    Raises:
        CheckpointError: pickles, unknown variants, tensors that do not fit, a draft of another target, a taken
            destination.
    """
    published, known = read_published(source), None if target is None else read_target(target)
    kind = kind_of(published) if kind is None else kind
    try:
        config, names = described(kind, published, known, taps)
    except CheckpointError:
        raise
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{published.path}: {error}") from None
    if known is not None:
        check_fits(config, known.config, where=published.path)
    _check(published, config, names)
    if known is not None and config.own_embedding and config.target_size is None and _shares(published, known):
        config = dataclasses.replace(config, own_embedding=False)
        names.pop(EMBEDDING)
    ids = _vocabulary(published, config)
    order = np.argsort(ids)
    params = {IDS: ids[order].astype(np.int32)}
    for ours, theirs in names.items():
        values = published.tensors[theirs].read()
        check_finite(published.path, theirs, values)
        params[ours] = values[order] if ours == "output.weight" else values
    stored = {array.dtype for name, array in params.items() if name != IDS}
    save_draft(
        destination,
        config,
        params,
        target="" if known is None else fingerprint(known.config, known.tensors),
        card={"converted_from": str(source), "layout": kind, "base": published.fields.get("base_model_name_or_path")},
        dtype=stored.pop() if len(stored) == 1 else jnp.float32,
        overwrite=overwrite,
    )
    return config


def _check(published: Published, config: DraftConfig, names: Mapping[str, str]) -> None:
    """Raise one error that names every tensor that is missing, unexpected, misshapen or not of floats."""
    shapes, tensors = stored_shapes(config), published.tensors
    expected: dict[str, Shape] = {theirs: shapes[ours] for ours, theirs in names.items()}
    if config.kind == "feature" and config.layout == "eagle3":
        mapped = {"d2t": (config.vocab,), "t2d": (config.body.vocab_size,)}
        needed = ("d2t",) if config.vocab < config.body.vocab_size else ()
        expected |= {name: shape for name, shape in mapped.items() if name in tensors or name in needed}
    problems = differences({name: tensor.shape for name, tensor in tensors.items()}, expected)
    floating = [theirs for theirs in names.values() if theirs in tensors]
    problems += [f"not floating: {n} is {tensors[n].dtype}" for n in floating if tensors[n].dtype.name not in FLOATS]
    report(problems, where=str(published.path))


def _vocabulary(published: Published, config: DraftConfig) -> np.ndarray:
    """The target's id of each of the draft's tokens, in the draft's order."""
    tensors, path, total = published.tensors, published.path, config.body.vocab_size
    ids = np.arange(config.vocab, dtype=np.int64)
    if "d2t" in tensors:
        ids = ids + tensors["d2t"].read().astype(np.int64)
    if ids.min() < 0 or ids.max() >= total or len(np.unique(ids)) < len(ids):
        raise CheckpointError(
            f"{path}: d2t leads to tokens outside of 0 to {total - 1}, or to one of them twice; fetch the draft again"
        )
    if "t2d" in tensors and not np.array_equal(np.flatnonzero(tensors["t2d"].read()), np.sort(ids)):
        raise CheckpointError(f"{path}: d2t and t2d name different tokens; fetch the draft again")
    return ids


def _shares(published: Published, known: Target) -> bool:
    """Whether the draft's embedding is the target's."""
    mine, other = (tensors[EMBEDDING].read() for tensors in (published.tensors, known.tensors))
    if mine.shape != other.shape:
        return False
    parts = (slice(i, i + 4096) for i in range(0, len(mine), 4096))
    return all(np.array_equal(mine[p].astype(np.float32), other[p].astype(np.float32)) for p in parts)


__all__ = ["KINDS", "convert_draft"]
