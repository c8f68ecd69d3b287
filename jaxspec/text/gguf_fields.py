"""The tokenizer's part of a GGUF file's metadata, checked before anything is built from it.

Field names and meanings: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral, Real

PREFIX = "tokenizer.ggml."
MAX_TOKEN = 1024  # characters; merges are sought at every cut of a token, so a hostile one could take hours


class TokenType(IntEnum):
    """What a GGUF file says of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GGUFVocabulary:
    """A vocabulary as a GGUF file spells it; its lists run over ids.

    `ids` maps "bos", "eos", "eot", "eom", "unk" and "pad" to the ids that the file names. Flags are None where the file
    does not state them: their default depends on the kind of vocabulary.
    """

    kind: str
    pre: str | None
    architecture: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None
    merges: list[tuple[str, str]] | None
    ids: dict[str, int]
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None

    def named(self, name: str) -> str | None:
        """The token that the file names as its bos, eos, ..., if it names one."""
        return self.tokens[self.ids[name]] if name in self.ids else None


def read_vocabulary(fields: Mapping[str, object]) -> GGUFVocabulary:
    """The vocabulary in `fields` (plain Python values by GGUF key); ValueError names the field at fault."""
    kind = fields.get(PREFIX + "model")
    if not isinstance(kind, str) or PREFIX + "tokens" not in fields:
        raise ValueError(
            f"this GGUF file has no tokenizer: its fields {PREFIX}model (text) and {PREFIX}tokens (list of texts) "
            f"are both needed"
        )
    tokens = _texts(fields, "tokens")
    if not tokens:
        raise ValueError(f"{PREFIX}tokens of this GGUF file is empty; a tokenizer needs a vocabulary")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN:
        raise ValueError(f"{PREFIX}tokens of this GGUF file has one of {longest} characters, allowed are {MAX_TOKEN}")
    names = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unk": "unknown", "pad": "padding"}
    ids = {name: _id(fields, f"{field}_token_id", len(tokens)) for name, field in names.items()}
    pre = fields.get(PREFIX + "pre")
    return GGUFVocabulary(
        kind=kind,
        pre=None if pre is None else str(pre),
        architecture=str(fields.get("general.architecture", "")),
        tokens=tokens,
        types=[int(kind) for kind in _numbers(fields, "token_type", len(tokens))] or [TokenType.NORMAL] * len(tokens),
        scores=_numbers(fields, "scores", len(tokens)) or None,
        merges=[_pair(merge) for merge in _texts(fields, "merges")] or None,
        ids={name: i for name, i in ids.items() if i is not None},
        add_bos=_flag(fields, "add_bos_token"),
        add_eos=_flag(fields, "add_eos_token"),
        add_space_prefix=_flag(fields, "add_space_prefix"),
    )


def _texts(fields: Mapping[str, object], name: str) -> list[str]:
    """The texts under `name`, empty if it is absent."""
    values = _list(fields, name)
    wrong = [value for value in values if not isinstance(value, str)]
    if wrong:
        raise ValueError(f"{PREFIX}{name} of this GGUF file must hold texts only, got {wrong[0]!r:.60}")
    return [value for value in values if isinstance(value, str)]


def _numbers(fields: Mapping[str, object], name: str, length: int) -> list[float]:
    """The numbers under `name`, one for each token, empty if it is absent."""
    values = _list(fields, name)
    wrong = [value for value in values if not isinstance(value, Real) or not math.isfinite(value)]
    if wrong:
        raise ValueError(f"{PREFIX}{name} of this GGUF file must hold finite numbers only, got {wrong[0]!r:.60}")
    if values and len(values) != length:
        raise ValueError(f"{PREFIX}{name} of this GGUF file has {len(values)} entries for {length} tokens")
    return [float(value) for value in values if isinstance(value, Real)]


def _list(fields: Mapping[str, object], name: str) -> list[object]:
    value = fields.get(PREFIX + name, [])
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ValueError(f"{PREFIX}{name} of this GGUF file must be a list, got a {type(value).__name__}")
    return list(value)


def _id(fields: Mapping[str, object], name: str, size: int) -> int | None:
    value = fields.get(PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, Integral) or not 0 <= int(value) < size:
        raise ValueError(f"{PREFIX}{name} of this GGUF file is {value!r:.60}, but its ids are 0 to {size - 1}")
    return int(value)


def _flag(fields: Mapping[str, object], name: str) -> bool | None:
    value = fields.get(PREFIX + name)
    return None if value is None else bool(value)


def _pair(merge: str) -> tuple[str, str]:
    at = merge.find(" ", 1)  # a left part may itself be a blank
    if at < 0 or at == len(merge) - 1:
        raise ValueError(f"{PREFIX}merges of this GGUF file must hold pairs with a blank between, got {merge!r:.60}")
    return merge[:at], merge[at + 1 :]
