"""The peer: transformers' generate on torch and the CPU, with our weights and our token ids."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from jaxspec.bench.contenders import PEER, Ask, Contender, Run
from jaxspec.checkpoint import names
from jaxspec.checkpoint.tensors import in_memory
from jaxspec.models import unfuse
from jaxspec.pipeline import Loaded, Pipeline

LOOKUP_TOKENS = 10
"""`prompt_lookup_num_tokens`, the value of transformers' own examples."""


def contenders(pipeline: Pipeline, ask: Ask, *, threads: int) -> list[Contender]:
    """transformers' greedy (or sampled) decoding, its prompt lookup, and its assisted decoding with each model draft.

    All use one model that shares our parameters' memory, in their dtype, and end at our end ids.

    Args:
        threads: torch's threads; all cores for a fair race.
    """
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # it warns of options that its own assisted decoding passes
    model = build(pipeline.target, ask)
    first = "greedy" if ask.temperature == 0 else "sampling"
    found = [
        _contender(f"transformers:{first}", model, ask, {}),
        _contender("transformers:lookup", model, ask, {"prompt_lookup_num_tokens": LOOKUP_TOKENS}),
    ]
    for name, loaded in pipeline.models.items():
        assistant = build(loaded, ask)
        found.append(_contender(f"transformers:assisted:{name}", model, ask, {"assistant_model": assistant}))
    return found


def build(loaded: Loaded, ask: Ask) -> transformers.PreTrainedModel:
    """transformers' model over the memory of our parameters: nothing is copied but matrices that it fuses itself."""
    on_host = {name: np.asarray(array) for name, array in loaded.params.items()}
    ours, arrays = unfuse(loaded.model.config, on_host)
    fields = ours.to_hf()
    config = transformers.AutoConfig.for_model(**fields)
    lazy = names.to_hf({name: in_memory(array) for name, array in arrays.items()}, fields)
    weights = {name: _tensor(tensor.read()) for name, tensor in lazy.items()}
    kind: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = kind.from_pretrained(None, config=config, state_dict=weights, dtype=next(iter(weights.values())).dtype)
    ends = list(ask.stop_ids)
    model.generation_config = transformers.GenerationConfig(eos_token_id=ends or None, pad_token_id=(ends or [0])[0])
    return model.eval()


def _tensor(array: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # and nobody writes
        if array.dtype.name == "bfloat16":  # which torch does not take from numpy
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


class _Clock(transformers.StoppingCriteria):
    """Never stops; notes when the prompt's pass was done and what it gave, and counts the passes."""

    def __init__(self) -> None:
        self.rounds, self.first_length, self.first = 0, 0, 0.0

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> Any:
        if self.rounds == 0:
            self.first, self.first_length = time.perf_counter(), input_ids.shape[1]
        self.rounds += 1
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def _contender(name: str, model: Any, ask: Ask, extra: dict[str, Any]) -> Contender:
    law: dict[str, Any] = {"do_sample": False}
    if ask.temperature > 0:
        law = {"do_sample": True, "temperature": ask.temperature, "top_k": 0, "top_p": 1.0}
    generate: Callable[..., torch.Tensor] = model.generate

    def run(prompt: Sequence[int], max_new_tokens: int) -> Run:
        torch.manual_seed(ask.seed)
        clock = _Clock()
        began = time.perf_counter()
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            output = generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                stopping_criteria=transformers.StoppingCriteriaList([clock]),
                **law,
                **extra,
            )
        tokens = output[0, len(prompt) :].tolist()
        ended = time.perf_counter()
        later = len(prompt) + len(tokens) - clock.first_length
        return Run(tokens, ended - began, ended - clock.first, later, clock.rounds)

    return Contender(name, PEER, run)
