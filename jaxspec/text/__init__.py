"""Text to token ids and back: tokenizers from folders and GGUF files, chats, streaming, stop strings."""

from jaxspec.text.cases import UNSORTED, Case, read_cases
from jaxspec.text.chat import render_chat
from jaxspec.text.folder import from_folder
from jaxspec.text.gguf_tokenizer import from_gguf
from jaxspec.text.prompts import decode_utf8, read_prompts
from jaxspec.text.stop import StopMatcher, StopStream
from jaxspec.text.stream import Stream
from jaxspec.text.tokenizer import Tokenizer
from jaxspec.text.vocabulary import compare_vocabularies

__all__ = [
    "UNSORTED",
    "Case",
    "StopMatcher",
    "StopStream",
    "Stream",
    "Tokenizer",
    "compare_vocabularies",
    "decode_utf8",
    "from_folder",
    "from_gguf",
    "read_cases",
    "read_prompts",
    "render_chat",
]
