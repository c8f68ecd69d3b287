"""SentencePiece vocabularies of the BPE kind: merges ranked by score, blanks spelled ▁, unknown characters as bytes."""

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from jaxspec.text.gguf_fields import GGUFVocabulary, TokenType

BLANK = "▁"

_UNMERGED = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE)


def sentencepiece_backend(vocabulary: GGUFVocabulary) -> tokenizers.Tokenizer:
    """The tokenizer without its special tokens.

    Where blanks come from depends on the family, which no field but the architecture tells: Gemma adds none and spells
    runs of blanks as one token, Phi-3 puts one before every stretch of text between special tokens, the others one
    before a text that does not begin with a blank.
    """
    gemma = vocabulary.architecture.startswith("gemma")
    tokens = [_spelled(token) for token in vocabulary.tokens] if gemma else vocabulary.tokens
    ids = {token: i for i, token in enumerate(tokens)}
    if vocabulary.merges is not None:
        merges = vocabulary.merges
    elif gemma:  # Gemma's scores do not follow the order of its merges, its ids do
        merges = merges_by_rank(tokens, vocabulary.types, [-float(i) for i in range(len(tokens))])
    elif vocabulary.scores is not None:
        merges = merges_by_rank(tokens, vocabulary.types, vocabulary.scores)
    else:
        raise ValueError("this GGUF file has a SentencePiece vocabulary but no scores (tokenizer.ggml.scores)")
    unknown = tokens[vocabulary.ids["unk"]] if "unk" in vocabulary.ids else None
    model = models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    prefix = not gemma and vocabulary.add_space_prefix is not False
    _spell_blanks(backend, prefix=prefix, everywhere=gemma or vocabulary.architecture == "phi3")
    return backend


def merges_by_rank(tokens: list[str], types: list[int], ranks: list[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that joins to a third, the join of the highest rank first.

    Control, unknown and byte tokens neither join nor result. Of equal ranks the longer left part goes first, then the
    longer right one.
    """
    joinable = {token for token, kind in zip(tokens, types, strict=True) if kind not in _UNMERGED}
    found = []
    for whole, rank in zip(tokens, ranks, strict=True):
        if whole not in joinable:
            continue
        for at in range(len(whole) - 1, 0, -1):
            left, right = whole[:at], whole[at:]
            if left in joinable and right in joinable:
                found.append((-rank, -at, at - len(whole), left, right))
    found.sort(key=lambda merge: merge[:3])
    return [merge[3:] for merge in found]


def _spelled(token: str) -> str:
    """Gemma's GGUF files hold runs of blanks as they are, its tokenizer spells them."""
    return BLANK * len(token) if token and not token.strip(" ") else token


def _spell_blanks(backend: tokenizers.Tokenizer, *, prefix: bool, everywhere: bool) -> None:
    """Spell " " as ▁ and back; `prefix` puts one before the text, `everywhere` does it to every stretch by itself."""
    if everywhere:
        spell = normalizers.Replace(" ", BLANK)
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), spell]) if prefix else spell
    else:
        scheme = "first" if prefix else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme=scheme, split=False)
    steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
