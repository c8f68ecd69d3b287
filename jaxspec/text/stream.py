"""Text that arrives token by token, shown as soon as it is certain."""

import re
from collections.abc import Iterable

from jaxspec.text.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "\ufffd"


class Stream:
    """Decodes ids as they come: `push` and `finish` together return what `decode` makes of all ids at once.

    Text is held back while its last character is unfinished: while it ends in U+FFFD (half a character, which the next
    token may complete), or in a byte token such as <0xE2> (one broken byte turns its whole run into U+FFFD).
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True):
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset[int]()
        self._shown: list[int] = []  # the last shown token: a decoder strips blanks off the first token it sees
        self._held: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """The text that became certain with these ids, perhaps none."""
        self._held += [i for i in map(int, ids) if i not in self._skipped]
        if not self._held or self._is_byte(self._held[-1]):
            return ""
        text = self._decode(self._shown + self._held)
        return "" if text.endswith(_REPLACEMENT) else self._release(text)

    def finish(self) -> str:
        """The rest: what was held back is shown as `decode` would show it. The stream then starts afresh."""
        rest = self._release(self._decode(self._shown + self._held)) if self._held else ""
        self._shown = []
        return rest

    def _release(self, text: str) -> str:
        before = self._decode(self._shown)
        self._shown, self._held = self._held[-1:], []
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=False)

    def _is_byte(self, i: int) -> bool:
        token = self._tokenizer.backend.id_to_token(i)
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None
