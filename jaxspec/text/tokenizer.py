"""One tokenizer for every kind of vocabulary, on the `tokenizers` package alone."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import processors

from jaxspec.text.chat import render_chat

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Roles of special tokens, named as in transformers' tokenizer_config.json."""

END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
)
"""Special tokens that end a turn or a text wherever a vocabulary has them; files tend to name one of several."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to token ids and back, chats included; made by `from_folder` or `from_gguf`.

    `special_tokens` maps the roles of `SPECIAL_NAMES` to token strings; `given_end_ids` are end ids that the model's
    files name besides its eos token.
    """

    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    chat_template: str | None = None
    given_end_ids: tuple[int, ...] = ()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text; `special` adds what the model expects around it (bos, eos). Special tokens written out in
        the text become their single ids either way.
        """
        try:
            return self.backend.encode(text, add_special_tokens=special).ids
        except TypeError:
            raise ValueError(
                f"cannot encode {text!r:.60}: text must be a string that is valid Unicode (no lone surrogates)"
            ) from None

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of some ids; ids that the vocabulary lacks (padding rows) add nothing.

        Bytes that are no UTF-8 become U+FFFD; for text that arrives in pieces see `Stream`.
        """
        numbers = [int(i) for i in ids]
        if numbers and min(numbers) < 0:
            raise ValueError(f"cannot decode token id {min(numbers)}: ids start at 0")
        return self.backend.decode(numbers, skip_special_tokens=skip_special)

    def prompt(self, prompt: str | Sequence[Mapping[str, object]], *, chat: bool) -> list[int]:
        """The ids of a prompt: of its chat where `chat` (a string is the user's turn) or where it is messages."""
        if not isinstance(prompt, str):
            return self.chat(prompt)
        if not prompt:
            raise ValueError("the prompt is empty; give at least one character")
        return self.chat([{"role": "user", "content": prompt}]) if chat else self.encode(prompt)

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        generate: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """The ids of a chat, through the model's own template.

        `messages` are {"role": ..., "content": ...}; `generate` opens the assistant's turn; `variables` reach the
        template (`tools`, `enable_thinking`, ...). The template writes bos itself, so none is added.
        """
        return self.encode(self.render(messages, generate=generate, variables=variables), special=False)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        generate: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The text of a chat before it is encoded; options as in `chat`."""
        if self.chat_template is None:
            raise ValueError("this tokenizer has no chat template; give the prompt as plain text instead of a chat")
        given = {**self.special_tokens, **(variables or {})}
        return render_chat(self.chat_template, messages, generate=generate, variables=given)

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, if the model has one."""
        return self._named_id("bos_token")

    @property
    def eos_id(self) -> int | None:
        """The one id that the model's files call eos."""
        return self._named_id("eos_token")

    @property
    def pad_id(self) -> int | None:
        """The id that fills rows, if the model has one."""
        return self._named_id("pad_token")

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn or a text: eos, those named by the model's files, and the known `END_TOKENS`."""
        known = (self.backend.token_to_id(token) for token in END_TOKENS)
        ends = [self.eos_id, *self.given_end_ids, *(i for i in known if i in self.special_ids)]
        return tuple(dict.fromkeys(i for i in ends if i is not None))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that `decode` leaves out."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def vocab_size(self) -> int:
        """The number of ids, holes included; a model's embedding may have more rows, as padding."""
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def vocabulary(self) -> list[str]:
        """The token string of each id, as the vocabulary spells it; "" where an id has no token."""
        tokens = [""] * self.vocab_size
        for token, i in self.backend.get_vocab(with_added_tokens=True).items():
            tokens[i] = token
        return tokens

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json, tokenizer_config.json and, unless it is there, generation_config.json: a folder that
        `from_folder` and transformers' AutoTokenizer load.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(path / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        settings |= dict(self.special_tokens)
        if self.chat_template is not None:
            settings["chat_template"] = self.chat_template
        _write_json(path / "tokenizer_config.json", settings)
        # transformers reads several end ids from nowhere else.
        if self.eos_ids and not (path / "generation_config.json").exists():
            ids = {"bos_token_id": self.bos_id, "pad_token_id": self.pad_id, "eos_token_id": list(self.eos_ids)}
            _write_json(path / "generation_config.json", {name: i for name, i in ids.items() if i is not None})

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)


def add_ends(backend: tokenizers.Tokenizer, *, bos: str | None, eos: str | None) -> None:
    """Make `backend` put `bos` before and `eos` after what it encodes; None adds nothing on that side."""
    ends = [(token, backend.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token is not None]
    for token, index in ends:
        if index is None:
            raise ValueError(
                f"the tokenizer is told to add {token!r}, which is not in its vocabulary; name another token"
            )
    single = [*([bos] if bos is not None else []), "$A", *([eos] if eos is not None else [])]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
