"""Are a draft's token ids the target's?"""

import re
from collections.abc import Sequence

from jaxspec.text.tokenizer import Tokenizer

_FILLER = re.compile(r"(\[PAD\d+\])?")  # what converters write into the rows that pad an embedding; "" is a hole


def compare_vocabularies(target: Tokenizer | Sequence[str], draft: Tokenizer | Sequence[str]) -> int:
    """The number of ids that both vocabularies share: those below the end of the shorter one, where the
    filler at an end does not count.

    Takes tokenizers or their `vocabulary()`. ValueError with the first id below that end whose tokens differ: a draft's
    ids would mean something else to the target.
    """
    here, there = _real_tokens(target), _real_tokens(draft)
    shared = min(len(here), len(there))
    if shared == 0:
        raise ValueError("the vocabularies of target and draft share no token: one of them is empty")
    for i, (ours, theirs) in enumerate(zip(here, there, strict=False)):
        if ours != theirs and not (_FILLER.fullmatch(ours) or _FILLER.fullmatch(theirs)):
            raise ValueError(
                f"target and draft have different vocabularies: id {i} is {ours!r} here and {theirs!r} there; "
                f"a draft must use the target's tokenizer"
            )
    return shared


def _real_tokens(source: Tokenizer | Sequence[str]) -> Sequence[str]:
    """The vocabulary without the filler at its end."""
    tokens = source.vocabulary() if isinstance(source, Tokenizer) else source
    end = len(tokens)
    while end and _FILLER.fullmatch(tokens[end - 1]):
        end -= 1
    return tokens[:end]
