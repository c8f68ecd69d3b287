"""Real models agree with transformers on the most likely token at every position of a long prompt."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec.models.rope
import tests.models.tiny as t
from jaxspec.checkpoint import load_params, open_checkpoint
from jaxspec.models import ModelConfig, language_model

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

TOKENS = 768
CHUNK = 256
QWEN = ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct")


def reference(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids of a long text, transformers' most likely next token at each, and how far it leads the second."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {} if path.is_dir() else {"gguf_file": path.name}
    folder = path if path.is_dir() else path.parent
    text = Path(jaxspec.models.rope.__file__).read_text(encoding="utf-8")
    ids = AutoTokenizer.from_pretrained(folder, **where)(text, return_tensors="pt").input_ids[:, :TOKENS]
    assert ids.shape[1] == TOKENS
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **where).eval()
    with torch.no_grad():
        best = model(ids).logits[0].topk(2)
    lead = (best.values[:, 0] - best.values[:, 1]).numpy()
    return ids.numpy().astype(np.int32), best.indices[:, 0].numpy(), lead


def check_argmax(path: Path) -> None:
    tokens, expected, lead = reference(path)
    checkpoint = open_checkpoint(path)
    model = language_model(ModelConfig.from_hf(checkpoint.config))
    params = load_params(checkpoint, dtype=jnp.float32)
    cache, best = model.init_cache(1, TOKENS, headroom=CHUNK), []
    run = jax.jit(lambda *args: chunk(model, *args))
    for at in range(0, TOKENS, CHUNK):
        found, cache = run(params, tokens[:, at : at + CHUNK], cache)
        best.append(np.asarray(found)[0])
    wrong = np.flatnonzero(np.concatenate(best) != expected)
    assert wrong.size == 0, f"positions {wrong}, where transformers' first leads its second by {lead[wrong]}"


def chunk(model, params, tokens, cache) -> tuple:
    positions = cache.length[:, None] + jnp.arange(CHUNK, dtype=jnp.int32)[None]
    out = model.forward(params, tokens, positions, t.chain_mask(1, CHUNK), cache)
    return out.logits.argmax(axis=-1), model.commit(cache, out.window, None, jnp.full(1, CHUNK, jnp.int32))


@pytest.mark.model
def test_smollm2(smollm2: Path):
    check_argmax(smollm2)


@pytest.mark.qwen
@pytest.mark.parametrize("name", QWEN)
def test_qwen(name: str):
    folder = Path(os.environ.get("JAXSPEC_TEST_QWEN_DIR", ""))
    files = sorted(folder.glob(f"{name}*.gguf"))
    assert files, f"JAXSPEC_TEST_QWEN_DIR is {str(folder)!r}; set it to a folder with {name}*.gguf"
    check_argmax(files[0])
