"""Drafts as others publish them, and what they are in our terms.

Medusa (FasterDecoding/Medusa, also with every name behind "medusa_head."):
    {head}.{block}.linear.weight [D, D], .bias [D]      x + silu(W x + b) on the target's last normed hidden state
    {head}.{blocks}.weight [V, D]                       the head's output matrix; without them the target's serves all
EAGLE (SafeAILab/EAGLE): reads the target's last normed hidden state, and ends in the target's output matrix
    fc.weight [D, 2D] over (embedding, feature), fc.bias [D] or none; layers.0.* without input_layernorm
EAGLE-3 (SafeAILab/EAGLE, SGLang; vLLM and speculators say layers.0 for midlayer):
    fc.weight [D, 3T] over the target's residual streams, T wide, at three layers; midlayer.* with hidden_norm,
    input_layernorm and q, k, v of 2D inputs (embedding, feature); norm.weight; lm_head.weight [Q, D]
    d2t int [Q]: draft token i is the target's token i + d2t[i]; t2d bool [V]: which tokens those are
Either may have embed_tokens.weight [V, D] of its own.

EAGLE-3's code keeps the state that enters layers 2, L // 2 and L - 3 (counted from 0), which is what leaves after as
many layers: taps 2, L // 2, L - 3. A config may name others, in one of two ways: ids in `eagle_config` are layers whose
output is meant (SGLang adds one), ids at the top level are numbers of layers (vLLM).
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxspec.checkpoint import hub, safetensors
from jaxspec.checkpoint.artifact import IDS, stored_shapes
from jaxspec.checkpoint.config_file import read_config
from jaxspec.checkpoint.source import open_checkpoint
from jaxspec.checkpoint.tensors import CheckpointError, LazyTensor
from jaxspec.models import ModelConfig
from jaxspec.models.heads import MOST, DraftConfig
from jaxspec.models.limits import check_integer

KINDS = ("medusa", "eagle", "eagle3")

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""model_type of EAGLE layers that are read; what biases and norms of heads a layer has, its tensors say."""

EMBEDDING, OUTPUT, IN_LAYERS = "embed_tokens.weight", "lm_head.weight", "eagle_aux_hidden_state_layer_ids"
_HEADS = "medusa_head."
_BLOCK = re.compile(r"(\d{1,4})\.\d+\.linear\.weight")


class Published(NamedTuple):
    """A draft as it was published; names less prefixes that say nothing."""

    path: Path
    fields: dict[str, Any]  # config.json
    tensors: dict[str, LazyTensor]


class Target(NamedTuple):
    """The model that a draft is for."""

    config: ModelConfig
    tensors: Mapping[str, LazyTensor]


def read_published(source: str | Path) -> Published:
    """Config and lazy tensors of a published draft."""
    path = hub.resolve(source)
    folder = path if path.is_dir() else path.parent
    files = sorted(folder.iterdir()) if path.is_dir() else [path]
    pickles = [file for file in files if file.suffix in safetensors.PICKLES]
    if pickles and not any(file.suffix == ".safetensors" for file in files):
        raise CheckpointError(
            f"{pickles[0]}: pickled weights can run code when they are read, so they are refused; convert them where "
            'you trust them: python -c "import torch, safetensors.torch as s; s.save_file({n: t.clone() for n, t in '
            f"torch.load('{pickles[0].name}', map_location='cpu').items()}}, 'model.safetensors')\""
        )
    infos = safetensors.read_folder(folder) if path.is_dir() else safetensors.read_header(path)
    headed = any(name.startswith(_HEADS) for name in infos)  # with the whole target beside them
    kept = {n.removeprefix(_HEADS): i for n, i in infos.items() if not headed or n.startswith(_HEADS)}
    tensors = {n.removeprefix("model."): safetensors.lazy(i) for n, i in kept.items() if not n.endswith("inv_freq")}
    fields = read_config(folder)
    inner = fields.get("transformer_layer_config")
    if isinstance(inner, dict):  # speculators
        fields = {"norm_before_residual": True, **fields, **inner}
    return Published(path, fields, tensors)


def read_target(name: str | Path) -> Target:
    """The model that a draft is for."""
    checkpoint = open_checkpoint(name)
    return Target(ModelConfig.from_hf(checkpoint.config), checkpoint.tensors)


def kind_of(published: Published) -> str:
    """Which of `KINDS` a draft is, by its tensors."""
    names = published.tensors
    if any(_BLOCK.fullmatch(name) for name in names):
        return "medusa"
    if "d2t" in names or any(name.endswith("hidden_norm.weight") for name in names):
        return "eagle3"
    if "fc.weight" in names:
        return "eagle"
    raise CheckpointError(
        f"{published.path}: its tensors ({', '.join(list(names)[:3])}, ...) are none of a Medusa, EAGLE or EAGLE-3 "
        "draft's; give the folder of such a draft"
    )


def described(
    kind: str, published: Published, known: Target | None, taps: Sequence[int] | None
) -> tuple[DraftConfig, dict[str, str]]:
    """The draft's config, and the published name of each of our parameters.

    Raises:
        ValueError: an unknown kind or variant, or sizes that are told nowhere.
    """
    if kind not in KINDS:
        raise CheckpointError(f"kind {kind!r} is unknown; choose {', '.join(KINDS)}")
    if kind == "medusa":
        if taps is not None:
            raise CheckpointError("Medusa heads read the target's last hidden state; --taps is for EAGLE drafts")
        config = _medusa(published, known)
        named = [name for name in stored_shapes(config) if name not in (IDS, "norm.weight")]
        return config, {name: _medusa_name(name, config.blocks) for name in named}
    config = _eagle(published, known, taps, eagle3=kind == "eagle3")
    skipped = (IDS, "norm.weight") if kind == "eagle" else (IDS,)
    names = {name: _layer(published) + name for name in stored_shapes(config) if name not in skipped}
    names |= {name: name for name in names if name.startswith(("fc.", "norm.", "embed_tokens."))}
    if config.own_output:
        names["output.weight"] = EMBEDDING if _says_its_embedding(published) else OUTPUT
    return config, names


def _medusa(published: Published, known: Target | None) -> DraftConfig:
    names, fields = published.tensors, published.fields
    indices = [int(match[1]) for name in names if (match := _BLOCK.fullmatch(name))]
    said, blocks = fields.get("medusa_num_heads", 1), fields.get("medusa_num_layers", 1)
    check_integer("medusa_num_heads", said, 1, MOST["heads"])
    check_integer("medusa_num_layers", blocks, 1, MOST["blocks"])
    # Published configs say fewer heads than there are weights of; if they say more, some are missing.
    heads = max([said, *(index + 1 for index in indices)])
    own = [t.shape[0] for n, t in names.items() if re.fullmatch(rf"\d+\.{blocks}\.weight", n) and t.shape]
    target = None if known is None else known.config
    first = names.get("0.0.linear.bias")
    width = first.shape[0] if first is not None and first.shape else fields.get("hidden_size")
    vocab = own[0] if own else fields.get("vocab_size") or (target and target.vocab_size)
    if width is None or vocab is None:
        raise CheckpointError(
            f"{published.path}: neither its tensors nor its config say the target's width and vocabulary; give --target"
        )
    if target is not None and (target.hidden_size, target.vocab_size) == (width, vocab):
        body = dataclasses.replace(target, num_layers=1, windows=(), rope_local_theta=None)
    else:
        body = ModelConfig(  # layers are not read; a norm's epsilon is
            family="llama",
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=1,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=2,
            max_positions=2**30,
            norm_eps=fields.get("rms_norm_eps", 1e-5),
        )
    taps = () if target is None else (target.num_layers,)
    return DraftConfig("medusa", body, vocab, heads=heads, blocks=blocks, taps=taps, own_output=bool(own))


def _medusa_name(ours: str, blocks: int) -> str:
    """heads.1.0.linear.bias -> 1.0.linear.bias, output.1.weight -> 1.{blocks}.weight"""
    if ours.startswith("output."):
        return f"{ours.split('.')[1]}.{blocks}.weight"
    return ours.removeprefix("heads.")


def _eagle(published: Published, known: Target | None, taps: Sequence[int] | None, *, eagle3: bool) -> DraftConfig:
    names, fields = published.tensors, published.fields
    _refuse_variants(published)
    body = ModelConfig.from_hf({**fields, "architectures": None, "num_hidden_layers": 1, "layer_types": None})
    layer = _layer(published)

    def has(*parts: str, kind: str = "bias") -> bool:
        return any(f"{layer}{part}.{kind}" in names for part in parts)

    body = dataclasses.replace(
        body,
        qkv_bias=has("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out_bias=has("self_attn.o_proj"),
        mlp_bias=has("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        qk_norm=has("self_attn.q_norm", "self_attn.k_norm", kind="weight"),
        windows=(),
        tie_embeddings=False,
    )
    vocab = (fields.get("draft_vocab_size") if eagle3 else None) or body.vocab_size
    size = fields.get("target_hidden_size")
    other = size is not None and size != body.hidden_size
    return DraftConfig(
        "feature",
        body,
        vocab,
        taps=_taps(published, known, taps, eagle3=eagle3),
        layout="eagle3" if eagle3 else "eagle",
        own_output=OUTPUT in names or _says_its_embedding(published) or vocab < body.vocab_size or other,
        own_embedding=EMBEDDING in names or other,
        target_size=size if other else None,
        fc_bias="fc.bias" in names or fields.get("bias") is True,
        norm_before_residual=eagle3 and bool(fields.get("norm_before_residual")),
    )


def _layer(published: Published) -> str:
    """How names of the decoder layer begin."""
    return "midlayer." if any(name.startswith("midlayer.") for name in published.tensors) else "layers.0."


def _says_its_embedding(published: Published) -> bool:
    """Whether the draft's own embedding is its output matrix too."""
    tied = published.fields.get("tie_word_embeddings") is True and not published.fields.get("draft_vocab_size")
    return tied and OUTPUT not in published.tensors and EMBEDDING in published.tensors


def _refuse_variants(published: Published) -> None:
    fields, options = published.fields, published.fields.get("eagle_config")
    options = options if isinstance(options, dict) else {}
    found = {
        f"model_type {fields.get('model_type')!r}": fields.get("model_type") not in FAMILIES,
        f"num_hidden_layers {fields.get('num_hidden_layers')!r}": fields.get("num_hidden_layers", 1) != 1,
        "quantised weights (quantization_config)": bool(fields.get("quantization_config")),
        "EAGLE-3 on the last hidden state (use_aux_hidden_state false)": options.get("use_aux_hidden_state") is False,
        "parallel drafting (mask_hidden)": "mask_hidden" in published.tensors,
        "scaled logits (logit_scale)": fields.get("logit_scale") not in (None, 1),
        "normed output (norm_output)": bool(fields.get("norm_output")),
    }
    for variant, there in found.items():
        if there:
            raise CheckpointError(
                f"{published.path}: {variant} is not supported; supported is one decoder layer of model_type "
                f"{', '.join(FAMILIES)} as EAGLE and EAGLE-3 have it, so give another draft"
            )


def _taps(published: Published, known: Target | None, given: Sequence[int] | None, *, eagle3: bool) -> tuple[int, ...]:
    if given is not None:
        return tuple(given)
    options = published.fields.get("eagle_config")
    inner = options.get(IN_LAYERS) if isinstance(options, dict) else None
    for ids, plus in ((inner, 1), (published.fields.get(IN_LAYERS), 0)):
        if eagle3 and ids:
            return tuple(layer + plus for layer in ids)
    if known is None:
        raise CheckpointError(
            f"{published.path}: which layers of the target it reads after depends on how many there are; give --target "
            "or --taps"
        )
    layers = known.config.num_layers
    return (2, layers // 2, layers - 3) if eagle3 else (layers,)
