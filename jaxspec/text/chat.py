"""Chat templates: untrusted Jinja, rendered in a sandbox with the names that transformers gives its templates."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    generate: bool = True,
    variables: Mapping[str, object] | None = None,
) -> str:
    """The text that `template` makes of a chat.

    `messages` are mappings of JSON values with at least a "role"; keys whose value is None are left out, since
    templates test for a key rather than for a value. `generate` opens the assistant's turn; `variables` are further
    names for the template. A template that fails or refuses the chat is a ValueError with its message.
    """
    chat = _checked(messages)
    names = {"tools": None, "documents": None, **{key: _plain(value) for key, value in (variables or {}).items()}}
    try:
        return _compiled(template).render({**names, "messages": chat, "add_generation_prompt": generate})
    except Exception as error:  # a template is somebody's program: it can fail in any way
        raise ValueError(f"the chat template does not accept this chat: {error}") from error


def _checked(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    if isinstance(messages, str | Mapping) or len(messages) == 0:
        raise ValueError(f"a chat is a list with at least one message, got {messages!r:.60}")
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f'message {at} of the chat must be a mapping with a "role" string, got {message!r:.60}')
    return [{key: _plain(value) for key, value in message.items() if value is not None} for message in messages]


def _plain(value: object) -> object:
    """Rebuild `value` from plain JSON types: the sandbox does not know which methods of richer objects are safe."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case Mapping():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    raise ValueError(f"a chat holds JSON values only (text, numbers, lists, mappings), got a {type(value).__name__}")


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


class _GenerationBlock(Extension):
    """Lets `{% generation %} ... {% endgeneration %}` through: it only marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 reads

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
