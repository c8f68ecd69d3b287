"""From text to batches of token windows."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxspec.text import Tokenizer, decode_utf8

PASSAGES = 8
"""Passages a document, an even number: a chat of that many turns, or plain text."""


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, lines ended by "\\n". ValueError where it cannot be read or is not UTF-8."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; give a UTF-8 text file") from None
    return decode_utf8(content, str(path)).replace("\r\n", "\n")


def tokenize(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """The ids of a text, int32 [N]: cut at blank lines into documents, every second one told as a chat.

    So a model learns what the chat template's tokens mean, and to end a turn, without any chats in its data. A document
    ends with the tokenizer's bos token, which stands between texts.
    """
    passages = [passage for passage in text.split("\n\n") if passage.strip()]
    between = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    ids: list[int] = []
    for number, start in enumerate(range(0, len(passages), PASSAGES)):
        part = passages[start : start + PASSAGES]
        if number % 2:
            turns = [{"role": ("user", "assistant")[i % 2], "content": passage} for i, passage in enumerate(part)]
            ids += tokenizer.chat(turns, generate=False)
        else:
            ids += tokenizer.encode("\n\n".join(part), special=False)
        ids += between
    return np.asarray(ids, np.int32)


def split_off(ids: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """All but the last `share` of the tokens, and these."""
    cut = round(len(ids) * (1 - share))
    return ids[:cut], ids[cut:]


def windows(sources: Sequence[np.ndarray], *, rows: int, width: int, steps: int, seed: int) -> Iterator[np.ndarray]:
    """`steps` batches, int32 [rows, width], each row a random stretch of a source; the sources take turns.

    The same seed gives the same batches.

    Raises:
        ValueError: no source, or one that is shorter than `width`.
    """
    short = min((len(source) for source in sources), default=0)
    if short < width:
        raise ValueError(f"the shortest text has {short} tokens; windows of {width} need as many in each")
    rng = np.random.default_rng(seed)
    for step in range(steps):
        chosen = [sources[(step * rows + row) % len(sources)] for row in range(rows)]
        starts = [int(rng.integers(len(source) - width + 1)) for source in chosen]
        yield np.stack([source[start : start + width] for source, start in zip(chosen, starts, strict=True)])
