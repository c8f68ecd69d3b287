"""A tokenizer from nothing but a GGUF file's own metadata."""

from collections.abc import Mapping

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from jaxspec.text.byte_level import byte_level_backend, splitting
from jaxspec.text.gguf_fields import PREFIX, GGUFVocabulary, TokenType, read_vocabulary
from jaxspec.text.sentencepiece import sentencepiece_backend
from jaxspec.text.tokenizer import Tokenizer, add_ends

KINDS = {"gpt2": byte_level_backend, "llama": sentencepiece_backend}
"""By `tokenizer.ggml.model`."""

_ROLES = {"bos": "bos_token", "eos": "eos_token", "unk": "unk_token", "pad": "pad_token"}


def from_gguf(fields: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that a GGUF file describes; `fields` are its metadata as plain Python values by key.

    Byte-level BPE (`tokenizer.ggml.model` "gpt2", cut by `tokenizer.ggml.pre`, see `byte_level.SPLITTINGS`) and
    SentencePiece ("llama"). Control and user-defined tokens are single ids wherever they stand in a text. ValueError
    names the field that is missing, malformed or not supported.
    """
    vocabulary = read_vocabulary(fields)
    build = KINDS.get(vocabulary.kind)
    if build is None:
        raise ValueError(
            f"this GGUF file has a tokenizer of kind {vocabulary.kind!r} ({PREFIX}model), which is not supported; "
            f"supported are {', '.join(KINDS)}"
        )
    try:
        backend = build(vocabulary)
    except ValueError:
        raise
    except Exception as error:  # tokenizers raises bare exceptions, on a merge of unknown tokens for one
        raise ValueError(f"this GGUF file's vocabulary and merges do not fit together: {error}") from error
    _add_special(backend, vocabulary)
    _add_ends(backend, vocabulary)
    template = fields.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        {role: token for name, role in _ROLES.items() if (token := vocabulary.named(name)) is not None},
        chat_template=template if isinstance(template, str) else None,
        given_end_ids=tuple(vocabulary.ids[name] for name in ("eot", "eom") if name in vocabulary.ids),
    )


def _add_special(backend: Backend, vocabulary: GGUFVocabulary) -> None:
    """Make control, user-defined and named tokens single ids; only the user-defined ones show in decoded text."""
    named = set(vocabulary.ids.values())
    added = []
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        special = kind == TokenType.CONTROL or i in named
        # A token that the backend spells otherwise (Gemma's runs of blanks) comes from merges.
        if (special or kind == TokenType.USER_DEFINED) and backend.token_to_id(token) is not None:
            added.append(AddedToken(token, normalized=False, special=special))
    backend.add_tokens(added)


def _add_ends(backend: Backend, vocabulary: GGUFVocabulary) -> None:
    add_bos = vocabulary.add_bos
    if add_bos is None:  # what files that do not say have meant all along
        add_bos = vocabulary.kind == "llama" or splitting(vocabulary).add_bos
    bos = vocabulary.named("bos") if add_bos else None
    eos = vocabulary.named("eos") if vocabulary.add_eos else None
    if bos is not None or eos is not None:
        add_ends(backend, bos=bos, eos=eos)
