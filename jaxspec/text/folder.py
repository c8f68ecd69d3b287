"""A tokenizer from the files beside a Hugging Face checkpoint."""

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from jaxspec.text.tokenizer import SPECIAL_NAMES, Tokenizer, add_ends

OLDER_FILES = (("tokenizer.model",), ("vocab.json", "merges.txt"))
"""Sets of files that transformers can turn into a tokenizer.json."""


def from_folder(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a Hugging Face folder.

    Reads tokenizer.json, or else tokenizer.model or vocab.json + merges.txt through transformers' conversion; names,
    flags, template and end ids from tokenizer_config.json, special_tokens_map.json, chat_template.jinja,
    generation_config.json and config.json, where they are there. ValueError when no tokenizer can be made of it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; a tokenizer is read from the folder that holds its files")
    settings = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file():
        backend, converted = _load_backend(folder / "tokenizer.json"), {}
    else:
        backend, converted = _convert_older(folder)
    named = {name: _content(settings.get(name)) for name in SPECIAL_NAMES}
    special = converted | {name: token for name, token in named.items() if token is not None}
    _add_missing(backend, settings, special)
    backend.no_truncation()
    backend.no_padding()
    if "add_bos_token" in settings or "add_eos_token" in settings:  # stated flags outweigh the file's own processor
        bos = special.get("bos_token") if settings.get("add_bos_token") else None
        eos = special.get("eos_token") if settings.get("add_eos_token") else None
        add_ends(backend, bos=bos, eos=eos)
    ends = _end_ids(folder, backend)
    return Tokenizer(backend, special, chat_template=_chat_template(folder, settings), given_end_ids=ends)


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare exceptions
        raise ValueError(f"{path} is no tokenizer that the tokenizers package reads: {error}") from error


def _convert_older(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """The backend and the special tokens that transformers makes of `OLDER_FILES`."""
    found = [names for names in OLDER_FILES if all((folder / name).is_file() for name in names)]
    if not found:
        raise ValueError(
            f"{folder} has no tokenizer: looked for tokenizer.json, tokenizer.model, and vocab.json with merges.txt"
        )
    from transformers import AutoTokenizer  # takes seconds to import, and most folders do without

    try:
        old = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        special = {name: str(token) for name, token in old.special_tokens_map.items() if name in SPECIAL_NAMES}
        return old.backend_tokenizer, special
    except Exception as error:  # whatever a conversion stumbles over, the remedy is the same
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if found[0] == ("tokenizer.model",) and find_spec("sentencepiece") is None:
            reason = "it needs the package sentencepiece, which is not installed"
        raise ValueError(
            f"{folder} has {' and '.join(found[0])} but no tokenizer.json, and transformers cannot convert it here: "
            f"{reason:.200}; install what is missing, or save a tokenizer.json with transformers elsewhere"
        ) from error


def _add_missing(backend: tokenizers.Tokenizer, settings: Mapping[str, object], special: Mapping[str, str]) -> None:
    """Add the tokens that only tokenizer_config.json names, and mark the named ones as special."""
    decoder = settings.get("added_tokens_decoder")
    items = decoder.items() if isinstance(decoder, Mapping) else ()
    if wrong := [key for key, _ in items if not str(key).isdecimal()]:
        raise ValueError(
            f"tokenizer_config.json: added_tokens_decoder has the key {wrong[0]!r}; its keys are token ids"
        )
    listed = sorted(items, key=lambda item: int(item[0]))
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    wanted: dict[str, AddedToken] = {}
    for _, entry in listed:
        if (token := _content(entry)) is not None:
            wanted[token] = AddedToken(token, **{flag: bool(entry[flag]) for flag in flags if flag in entry})
    for token in special.values():
        wanted.setdefault(token, AddedToken(token, normalized=False, special=True))
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_tokens([token for content, token in wanted.items() if content not in known])


def _chat_template(folder: Path, settings: Mapping[str, object]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 ({error}); save it as UTF-8") from None
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates: the plain one is called "default"
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _end_ids(folder: Path, backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    """The end ids that the model's own configuration names; generation_config.json outweighs config.json."""
    for file in ("generation_config.json", "config.json"):
        value = _read_json(folder / file).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        known = tuple(i for i in ids if isinstance(i, int) and i >= 0 and backend.id_to_token(i) is not None)
        if known:
            return known
    return ()


def _content(value: object) -> str | None:
    """A token is written as a string or as a mapping with its flags."""
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None


def _read_json(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(content).__name__}")
    return content
