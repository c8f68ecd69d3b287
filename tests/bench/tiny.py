"""A random target and a smaller random draft with one byte-level tokenizer, as checkpoints on disk."""

import json
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from jaxspec.checkpoint import save
from jaxspec.models import config_from_hf, parameter_shapes
from jaxspec.text import Tokenizer

END = "<|im_end|>"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>a\n"


def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ("<|im_start|>", END)])
    return Tokenizer(backend, {"eos_token": END}, chat_template=TEMPLATE)


def checkpoint(folder: Path, *, layers: int, seed: int) -> Path:
    """A llama of random weights."""
    config = {
        "model_type": "llama",
        "vocab_size": 258,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "eos_token_id": 257,
    }
    rng = np.random.default_rng(seed)
    shapes = parameter_shapes(config_from_hf(config))
    weights = {name: rng.standard_normal(s.shape).astype(np.float32) * 0.3 for name, s in shapes.items()}
    save(folder, config, weights, write_tokenizer=tokenizer().save)
    return folder


def prompts(file: Path) -> Path:
    """Two categories, three prompts each, with a line separator that JSON allows inside a string."""
    texts = ["One two", "three\u2028four " * 4, "five " * 30, "six", "seven eight", "nine"]
    records = [{"id": f"p{i}", "category": "ab"[i // 3], "prompt": text} for i, text in enumerate(texts)]
    file.write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in records) + "\n", encoding="utf-8")
    return file
