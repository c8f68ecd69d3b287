"""Published drafts of random weights in the layouts of their authors, and their forward passes in plain numpy."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

VOCAB, WIDTH, LAYERS = 40, 16, 8
TARGET = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
LAYER = TARGET | {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 500.0}
IDS = (3, 4, 9, 11, 12, 20, 21, 33, 38, 39)
SHUFFLED = (20, 3, 39, 4, 11, 38, 9, 33, 21, 12)


@dataclasses.dataclass(frozen=True)
class Draft:
    """What is in a published folder."""

    fields: dict
    tensors: dict[str, np.ndarray]

    def write(self, folder: Path, file: str = "model.safetensors") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.fields))
        safetensors.numpy.save_file(self.tensors, folder / file, {"format": "pt"})
        return folder

    def without(self, *names: str) -> "Draft":
        return Draft(self.fields, {name: t for name, t in self.tensors.items() if name not in names})

    def having(self, fields: Mapping | None = None, **tensors: np.ndarray) -> "Draft":
        renamed = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        return Draft(self.fields | dict(fields or {}), self.tensors | renamed)


def random(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if "norm" in name:
            return 1 + 0.3 * rng.standard_normal(shape)
        return rng.standard_normal(shape) * (0.3 if len(shape) == 1 else shape[-1] ** -0.5)

    return {name: draw(name, shape).astype(np.float32) for name, shape in shapes.items()}


def medusa(*, heads: int = 3, blocks: int = 1, own: bool = True, prefix: str = "") -> Draft:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            shapes |= {f"{head}.{block}.linear.weight": (WIDTH, WIDTH), f"{head}.{block}.linear.bias": (WIDTH,)}
        if own:
            shapes[f"{head}.{blocks}.weight"] = (VOCAB, WIDTH)
    fields = {"medusa_num_heads": heads, "medusa_num_layers": blocks, "base_model_name_or_path": "lmsys/vicuna"}
    return Draft(fields, {prefix + name: tensor for name, tensor in random(shapes).items()})


def layer_shapes(width: int, inputs: int) -> dict[str, tuple[int, ...]]:
    heads, kv, head = LAYER["num_attention_heads"], LAYER["num_key_value_heads"], width // LAYER["num_attention_heads"]
    inner = LAYER["intermediate_size"]
    return {
        "self_attn.q_proj.weight": (heads * head, inputs),
        "self_attn.k_proj.weight": (kv * head, inputs),
        "self_attn.v_proj.weight": (kv * head, inputs),
        "self_attn.o_proj.weight": (width, heads * head),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }


def eagle(*, bias: bool = True, embedding: np.ndarray | None = None) -> Draft:
    shapes = {f"layers.0.{name}": shape for name, shape in layer_shapes(WIDTH, WIDTH).items()}
    shapes["fc.weight"] = (WIDTH, 2 * WIDTH)
    if bias:
        shapes["fc.bias"] = (WIDTH,)
    tensors = random(shapes, seed=1)
    return Draft(LAYER | {"bias": bias}, tensors if embedding is None else tensors | {"embed_tokens.weight": embedding})


def eagle3(*, layer: str = "midlayer.", width: int = WIDTH, ids: tuple[int, ...] = IDS) -> Draft:
    shapes = {f"{layer}{name}": shape for name, shape in layer_shapes(width, 2 * width).items()}
    shapes |= {f"{layer}{name}.weight": (width,) for name in ("input_layernorm", "hidden_norm")}
    shapes |= {"fc.weight": (width, 3 * WIDTH), "norm.weight": (width,), "lm_head.weight": (len(ids), width)}
    t2d = np.zeros(VOCAB, bool)
    t2d[list(ids)] = True
    maps = {"d2t": np.asarray(ids, np.int64) - np.arange(len(ids)), "t2d": t2d}
    return Draft(LAYER | {"hidden_size": width, "draft_vocab_size": len(ids)}, random(shapes, seed=2) | maps)


def speculators() -> Draft:
    """EAGLE-3 with everything that a layer may have besides, of another width than the target's."""
    width = 24
    plain = eagle3(layer="layers.0.", width=width, ids=SHUFFLED)
    head = width // LAYER["num_attention_heads"]
    sizes = {"q_proj": width, "k_proj": 2 * head, "v_proj": 2 * head, "o_proj": width}
    more: dict[str, tuple[int, ...]] = {f"layers.0.self_attn.{name}.bias": (size,) for name, size in sizes.items()}
    more |= {f"layers.0.self_attn.{name}_norm.weight": (head,) for name in "qk"}
    more |= {"layers.0.mlp.gate_proj.bias": (24,), "layers.0.mlp.up_proj.bias": (24,)}
    more |= {"layers.0.mlp.down_proj.bias": (width,), "fc.bias": (width,), "embed_tokens.weight": (VOCAB, width)}
    fields = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": plain.fields,
        "draft_vocab_size": len(SHUFFLED),
        "target_hidden_size": WIDTH,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 7],
    }
    return Draft(fields, plain.tensors | random(more, seed=3))


# the published forward passes


def rms(x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    return weight * x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def medusa_logits(draft: Draft, hidden: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Logits [heads, V] of heads on a normed hidden state [D]; `output` is the target's matrix."""
    said = []
    tensors = {name.removeprefix("medusa_head."): tensor for name, tensor in draft.tensors.items()}
    blocks = draft.fields["medusa_num_layers"]
    for head in range(draft.fields["medusa_num_heads"]):
        x = hidden
        for block in range(blocks):
            name = f"{head}.{block}.linear."
            x = x + silu(tensors[name + "weight"] @ x + tensors[name + "bias"])
        said.append(tensors.get(f"{head}.{blocks}.weight", output) @ x)
    return np.stack(said)


class Layer:
    """The decoder layer of an EAGLE draft, one pair after the other, with its keys and values."""

    def __init__(self, draft: Draft):
        self.fields = draft.fields.get("transformer_layer_config", draft.fields)
        self.normed = draft.fields.get("norm_before_residual", False)
        self.tensors, self.keys, self.values = draft.tensors, [], []
        self.begin = "midlayer." if any(n.startswith("midlayer.") for n in draft.tensors) else "layers.0."

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.tensors[name + ".weight"] @ x + self.tensors.get(name + ".bias", 0)

    def part(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.linear(self.begin + name, x)

    def heads(self, name: str, x: np.ndarray, position: int | None) -> np.ndarray:
        size = self.fields["hidden_size"] // self.fields["num_attention_heads"]
        x = self.part(f"self_attn.{name}_proj", x).reshape(-1, size)
        weight = self.tensors.get(f"{self.begin}self_attn.{name}_norm.weight")
        x = x if weight is None else rms(x, weight)
        if position is None:
            return x
        angle = position * self.fields["rope_theta"] ** (-np.arange(0, size, 2) / size)
        low, high = np.split(x, 2, axis=1)
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)

    def __call__(self, embedded: np.ndarray, feature: np.ndarray, position: int) -> np.ndarray:
        if "norm.weight" in self.tensors:  # EAGLE-3
            normed = rms(feature, self.tensors[self.begin + "hidden_norm.weight"])
            residual = normed if self.normed else feature
            read = np.concatenate([rms(embedded, self.tensors[self.begin + "input_layernorm.weight"]), normed])
        else:
            residual = read = self.linear("fc", np.concatenate([embedded, feature]))
        self.keys.append(self.heads("k", read, position))
        self.values.append(self.heads("v", read, None))
        mixed = []
        for index, query in enumerate(self.heads("q", read, position)):
            group = index * self.fields["num_key_value_heads"] // self.fields["num_attention_heads"]
            keys, values = (np.stack([each[group] for each in kept]) for kept in (self.keys, self.values))
            scores = keys @ query / np.sqrt(len(query))
            weights = np.exp(scores - scores.max())
            mixed.append(weights @ values / weights.sum())
        x = residual + self.part("self_attn.o_proj", np.concatenate(mixed))
        y = rms(x, self.tensors[self.begin + "post_attention_layernorm.weight"])
        return x + self.part("mlp.down_proj", silu(self.part("mlp.gate_proj", y)) * self.part("mlp.up_proj", y))


def eagle_logits(
    draft: Draft, target: Mapping[str, np.ndarray], text: np.ndarray, features: np.ndarray, drafts: np.ndarray
) -> np.ndarray:
    """Logits [A, V] from which each of `drafts` is drawn, -inf at tokens that the draft cannot say.

    Pair i is (what the target made of token i, token i + 1); a drafted token has the layer's last output for it.

    Args:
        features: of every token of the text but the last, what fc reads (EAGLE-3) or the normed state (EAGLE).
    """
    layer, three = Layer(draft), "norm.weight" in draft.tensors
    embedding = draft.tensors.get("embed_tokens.weight", target["embed_tokens.weight"])
    output = draft.tensors.get("lm_head.weight", target["lm_head.weight"])
    ids = np.arange(len(output)) + draft.tensors.get("d2t", 0)
    out, said = features[0], []
    for position, token in enumerate([*text[1:], *drafts[:-1]]):
        known = position < len(features)
        feature = (layer.linear("fc", features[position]) if three else features[position]) if known else out
        out = layer(embedding[token], feature, position)
        if position >= len(features) - 1:
            logits = np.full(VOCAB, -np.inf)
            logits[ids] = output @ (rms(out, draft.tensors["norm.weight"]) if three else out)
            said.append(logits)
    return np.stack(said)
