"""Trained drafts on disk: `draft.json` and `model.safetensors`, tied to the weights of one target.

What a draft shares with its target is not stored: the embedding, the output matrix (or the rows of it that a reduced
vocabulary keeps) and, where a draft has none of its own, the final norm. Loading takes them from the target.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxspec.checkpoint import safetensors
from jaxspec.checkpoint.source import check_finite
from jaxspec.checkpoint.staging import new_folder
from jaxspec.checkpoint.tensors import CheckpointError, differences, in_memory, report
from jaxspec.models import ModelConfig, RopeScaling, parameter_shapes
from jaxspec.models.heads import DraftConfig, head_shapes, inverse_of
from jaxspec.typing import Params

RECORD = "draft.json"
FORMAT = 1

IDS = "output.ids"
"""int32 [Q], ascending: the tokens that the draft can say."""


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A draft as it lies on disk, checked."""

    path: Path
    config: DraftConfig
    target: str  # fingerprint of the weights it was trained for; "" where that is not known
    temperature: float  # what the draft's logits are divided by, fitted to the target
    card: dict[str, Any]  # data, command, steps, tokens, acceptance: for people
    tensors: dict[str, np.ndarray]


def save_draft(
    folder: str | Path,
    config: DraftConfig,
    params: Mapping[str, jax.Array | np.ndarray],
    *,
    target: str,
    temperature: float = 1.0,
    card: Mapping[str, Any] | None = None,
    dtype: DTypeLike = jnp.bfloat16,
    overwrite: bool = False,
) -> None:
    """Write a draft, whole or not at all.

    Args:
        params: of the draft itself, with `output.ids`; arrays it shares with the target are left out by the caller.
        target: `fingerprint` of the target's weights.
        dtype: floating-point parameters are stored in it.

    Raises:
        CheckpointError: parameters that do not belong to the config, a folder that exists, a full disk.
    """
    stored = {name: _stored(leaf, dtype) for name, leaf in params.items()}
    _check(config, {name: tuple(leaf.shape) for name, leaf in stored.items()}, Path(folder))
    record = {
        "format": FORMAT,
        "config": dataclasses.asdict(config),
        "target": target,
        "temperature": temperature,
        "card": dict(card or {}),
    }
    with new_folder(Path(folder), overwrite=overwrite, marker=RECORD) as fresh:
        tensors = {name: in_memory(leaf) for name, leaf in sorted(stored.items())}
        safetensors.write_folder(fresh, tensors, max_shard_bytes=1 << 40)
        (fresh / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _stored(leaf: jax.Array | np.ndarray, dtype: DTypeLike) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array


def open_draft(folder: str | Path) -> Artifact:
    """Read an artifact.

    Raises:
        CheckpointError: a folder that is none, a record that is broken, weights that are truncated or misshapen.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {RECORD}; give the folder of a trained draft, or train one with scripts/train_draft.py"
        ) from None
    except (OSError, RecursionError, ValueError) as error:
        raise CheckpointError(f"{folder / RECORD} cannot be read ({error}); train or copy the draft again") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise CheckpointError(f"{folder / RECORD} is of no format this version reads ({FORMAT}); train the draft again")
    try:
        config = _config(record["config"])
        target, temperature = str(record["target"]), float(record["temperature"])
        card = dict(record["card"])
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / RECORD} is broken ({error!r}); train or copy the draft again") from None
    if not 0 < temperature < 1e3:
        raise CheckpointError(f"{folder / RECORD} has temperature {temperature}; it must be above 0")
    return Artifact(folder, config, target, temperature, card, _weights(folder, config))


def _weights(folder: Path, config: DraftConfig) -> dict[str, np.ndarray]:
    """The stored arrays, checked against the config."""
    infos = safetensors.read_folder(folder)
    _check(config, {name: info.shape for name, info in infos.items()}, folder)
    tensors = {name: safetensors.lazy(info).read() for name, info in infos.items()}
    ids = tensors[IDS]
    if ids.dtype != np.int32 or np.any(np.diff(ids) <= 0) or ids[0] < 0 or ids[-1] >= config.body.vocab_size:
        raise CheckpointError(f"{folder} names tokens out of order or outside the vocabulary; train the draft again")
    for name, tensor in tensors.items():
        if name != IDS and not jnp.issubdtype(tensor.dtype, jnp.floating):
            raise CheckpointError(f"{folder}: {name} is {tensor.dtype}, not floating-point; train the draft again")
        check_finite(folder, name, tensor)
    return tensors


def _config(stored: Mapping[str, Any]) -> DraftConfig:
    body = _frozen(stored["body"])
    scaling = RopeScaling(**_frozen(body.pop("rope_scaling")))
    rest = {name: value for name, value in _frozen(stored).items() if name != "body"}
    return DraftConfig(body=ModelConfig(**body, rope_scaling=scaling), **rest)


def _frozen(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's lists as the tuples they were."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def stored_shapes(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of what an artifact holds."""
    own = parameter_shapes(config.body) if config.kind == "lm" else head_shapes(config)
    shapes = {name: tuple(leaf.shape) for name, leaf in own.items()}
    for shared in ("embed_tokens.weight", "lm_head.weight"):
        shapes.pop(shared, None)
    shapes[IDS] = (config.vocab,)
    if config.kind == "feature" and config.own_embedding:
        shapes["embed_tokens.weight"] = (config.body.vocab_size, config.body.hidden_size)
    if config.own_output:
        names = [f"output.{i}.weight" for i in range(config.heads)] if config.kind == "medusa" else ["output.weight"]
        shapes |= dict.fromkeys(names, (config.vocab, config.body.hidden_size))
    return shapes


def _check(config: DraftConfig, found: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    expected = stored_shapes(config)
    if "norm.weight" not in found and config.target_size is None:  # the target's then
        expected.pop("norm.weight", None)
    report(differences(found, expected), where=str(folder), config=RECORD)


def attach(
    artifact: Artifact, target: ModelConfig, params: Params, fingerprint: str, *, dtype: DTypeLike = jnp.float32
) -> Params:
    """The draft's parameters with what it shares with the target: `EngineParams.drafts[name]`.

    Args:
        target, params: of the target; the embedding is shared by reference, rows of the output matrix are gathered.
        fingerprint: of the target's weights.
        dtype: of the draft's own parameters.

    Raises:
        CheckpointError: an artifact of another target.
    """
    config = artifact.config
    if artifact.target and artifact.target != fingerprint:
        raise CheckpointError(
            f"{artifact.path} was trained for another target (weights {artifact.target[:12]}, these are "
            f"{fingerprint[:12]}); train one for this target with scripts/train_draft.py --kind {config.kind}"
        )
    check_fits(config, target, where=artifact.path)
    own = {
        name: jnp.asarray(leaf, dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype)
        for name, leaf in artifact.tensors.items()
    }
    heat = {"temperature": jnp.float32(artifact.temperature)}
    return own | heat | shared(config, own, params)


def check_fits(config: DraftConfig, target: ModelConfig, *, where: Path) -> None:
    """Refuse a draft whose sizes are not those of a target.

    Raises:
        CheckpointError: of another width or vocabulary, or one that reads layers which the target does not have.
    """
    if (config.feature_size, config.body.vocab_size) != (target.hidden_size, target.vocab_size):
        raise CheckpointError(
            f"{where} is for a target of width {config.feature_size} and {config.body.vocab_size} tokens; "
            f"this one has {target.hidden_size} and {target.vocab_size}, so give a draft of this target"
        )
    deepest = max((*config.taps, config.layers if config.kind == "exit" else 0))
    last = config.kind == "feature" and config.layout == "eagle"
    if deepest > target.num_layers or (last and deepest < target.num_layers):
        raise CheckpointError(
            f"{where} reads after layer {deepest} of a target; this one has {target.num_layers} layers, so give a "
            "draft of this target"
        )


def shared(config: DraftConfig, own: Params, target: Params) -> Params:
    """What a draft takes from the target's parameters, given its own with `output.ids`."""
    taken: Params = {"output.inverse": inverse_of(own[IDS], config.body.vocab_size)}
    output = target.get("lm_head.weight", target["embed_tokens.weight"])
    if not config.own_output:
        whole = config.vocab == config.body.vocab_size
        taken["output.weight"] = output if whole else jnp.take(output, own[IDS], axis=0)
    if config.kind in ("feature", "lm") and "embed_tokens.weight" not in own:
        taken["embed_tokens.weight"] = target["embed_tokens.weight"]
    if "norm.weight" not in own:
        taken["norm.weight"] = target["norm.weight"]
    return taken
