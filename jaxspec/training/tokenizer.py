"""A byte-level vocabulary with a chat template, learnt from text."""

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from jaxspec.text import Tokenizer

TEXT_END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML."""


def train_tokenizer(texts: Iterable[str], *, size: int) -> Tokenizer:
    """A byte-pair encoding of exactly `size` ids: three special tokens, the 256 bytes, then merges.

    Source: Sennrich et al. 2016; bytes as in GPT-2.

    Raises:
        ValueError: `size` below 259, or texts too short for that many merges.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [TEXT_END, TURN, TURN_END]
    least = len(alphabet) + len(special)
    if size < least:
        raise ValueError(f"a vocabulary of {size} ids is too small; the bytes and special tokens alone take {least}")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    made = backend.get_vocab_size()
    if made != size:
        raise ValueError(f"the texts give {made} ids, not {size}; give more text, or ask for a smaller vocabulary")
    roles = {"bos_token": TEXT_END, "eos_token": TURN_END, "pad_token": TEXT_END}
    return Tokenizer(backend, roles, chat_template=CHAT_TEMPLATE)
