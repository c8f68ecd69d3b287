"""What kind of token each id is: a table that selectors read the kind of text from."""

import unicodedata

import numpy as np

from jaxspec.text.tokenizer import Tokenizer

CODE, DIGITS, PUNCTUATION, BLANK, LATIN, OTHER = range(6)
UNKNOWN = -1

NAMES = ("code symbols", "digits", "punctuation", "whitespace", "words in latin script", "other scripts")

SYMBOLS = frozenset("{}[]<>=+*/\\|&^%$#@~`_")
"""Of which a token without letters or digits needs one to be of code, or one of these pairs."""

PAIRS = ("()", ");", "):")


def token_classes(tokenizer: Tokenizer, size: int | None = None) -> np.ndarray:
    """The class of every id, int8 [V]: 0 to 5 as in `NAMES`; -1 for special tokens and ids without text.

    Args:
        size: V, ids of a model, padding included; the tokenizer's where None.

    "    return" is of words: blanks around something do not count. Bytes that are no text alone are of other scripts,
    whose letters they are parts of.
    """
    table = np.full(tokenizer.vocab_size if size is None else size, UNKNOWN, np.int8)
    for index, spelled in enumerate(tokenizer.vocabulary()[: len(table)]):
        if spelled and index not in tokenizer.special_ids:
            text = tokenizer.decode([index], skip_special=False)
            table[index] = class_of(text) if text else BLANK if spelled.strip("▁ ") == "" else UNKNOWN
    return table


def class_of(text: str) -> int:
    """The class of a piece of text that is not empty."""
    inside = text.strip()
    if not inside:
        return BLANK
    letters = [character for character in inside if character.isalpha()]
    if letters:
        latin = sum(unicodedata.name(character, "").startswith("LATIN") for character in letters)
        return LATIN if 2 * latin >= len(letters) else OTHER
    if any(character.isdigit() for character in inside):
        return DIGITS
    if any(character in SYMBOLS for character in inside) or any(pair in inside for pair in PAIRS):
        return CODE
    if all(unicodedata.category(character)[0] in "PZSC" and character.isprintable() for character in inside):
        return OTHER if "\ufffd" in inside else PUNCTUATION
    return OTHER


__all__ = ["NAMES", "UNKNOWN", "class_of", "token_classes"]
