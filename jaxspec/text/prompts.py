"""Prompts from a file or a pipe: text lines, or JSON lines with a "prompt" (or "messages")."""

import json
from pathlib import Path
from typing import Any


def read_prompts(path: str | Path) -> list[str | list[dict[str, Any]]]:
    """One prompt a line of a .txt file; of a .jsonl file its "prompt" or "messages" (a chat). Blank lines are skipped.

    Raises:
        ValueError: a file that is missing, not UTF-8, without a prompt, or has a malformed line (file and line named).
    """
    path = Path(path)
    lines = decode_utf8(_read(path), str(path)).replace("\r\n", "\n").split("\n")  # JSON may hold other line breaks
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    records = path.suffix == ".jsonl"
    prompts = [_record(line, f"{path}, line {number}") if records else line for number, line in numbered]
    if not prompts:
        raise ValueError(f"{path} holds no prompt; give one a line")
    return prompts


def decode_utf8(content: bytes, where: str) -> str:
    """The text of UTF-8 bytes; `where` names them in the error."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}; save it as UTF-8"
        ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; give a .jsonl or .txt file") from None


def _record(line: str, where: str) -> str | list[dict[str, Any]]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{where} is not JSON ({error}); write one object a line, {{"prompt": "..."}}') from None
    prompt, messages = (record.get("prompt"), record.get("messages")) if isinstance(record, dict) else (None, None)
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return messages
    raise ValueError(
        f'{where} has no prompt; write {{"prompt": "..."}} with a text that is not empty, or {{"messages": [...]}}'
    )
