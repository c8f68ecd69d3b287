"""transformers' model of a tiny config with our parameters. Imports torch when called, so that collection does not."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def transformers_config(fields: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(**copy.deepcopy(dict(fields)))  # it fills in the dictionaries that it is given


def transformers_model(fields: Mapping[str, Any], params: Mapping[str, Any], *, bfloat16: bool = False) -> Any:
    """Eager attention: the implementation that every family's definition is written in."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(transformers_config(fields), attn_implementation="eager").eval()
    model.load_state_dict(_state(fields, params), strict=True)
    return model.to(torch.bfloat16) if bfloat16 else model


def logits(model: Any, tokens: np.ndarray, widths: Sequence[int] | None = None) -> np.ndarray:
    """Logits of every token, in one pass or in cached windows of the given widths, repeated until the text ends."""
    import torch
    from transformers import DynamicCache

    ids = torch.from_numpy(tokens).long()
    with torch.no_grad():
        if widths is None:
            return model(ids).logits.float().numpy()
        cache, parts, at, turn = DynamicCache(config=model.config), [], 0, 0
        while at < ids.shape[1]:
            width = min(widths[turn % len(widths)], ids.shape[1] - at)
            out = model(ids[:, at : at + width], past_key_values=cache, use_cache=True)
            parts.append(out.logits.float().numpy())
            at, turn = at + width, turn + 1
    return np.concatenate(parts, axis=1)


def _state(fields: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    arrays = {name: np.asarray(value, np.float32) for name, value in params.items()}
    if fields["model_type"] == "phi3":
        arrays = _fuse(arrays)
    state = {name if name == "lm_head.weight" else f"model.{name}": torch.tensor(a) for name, a in arrays.items()}
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    return state


def _fuse(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Phi-3 stores query, key and value as one matrix, and gate and up as one."""
    for parts, whole in ((("q_proj", "k_proj", "v_proj"), "qkv_proj"), (("gate_proj", "up_proj"), "gate_up_proj")):
        for name in [name for name in arrays if f".{parts[0]}." in name]:
            rows = [arrays.pop(name.replace(parts[0], part)) for part in parts]
            arrays[name.replace(parts[0], whole)] = np.concatenate(rows)
    return arrays
