"""The library's face for JAX code: `make_setup` once, then `generate`, or `prefill`, `step` and `loop` by hand."""

from jaxspec.contracts import DraftSource, EngineParams, Request, Selector, Setup
from jaxspec.decode.config import DEFAULT_LOOKAHEAD, check_select, make_setup, windows_for
from jaxspec.decode.generate import Generation, collect, generate, start, stream
from jaxspec.decode.loop import Progress, loop
from jaxspec.decode.plain import plain_loop, plain_step
from jaxspec.decode.prefill import prefill
from jaxspec.decode.request import make_request
from jaxspec.decode.state import State, init_state
from jaxspec.decode.step import StepInfo, step
from jaxspec.models.api import LanguageModel, Output

__all__ = [
    "DEFAULT_LOOKAHEAD",
    "DraftSource",
    "EngineParams",
    "Generation",
    "LanguageModel",
    "Output",
    "Progress",
    "Request",
    "Selector",
    "Setup",
    "State",
    "StepInfo",
    "check_select",
    "collect",
    "generate",
    "init_state",
    "loop",
    "make_request",
    "make_setup",
    "plain_loop",
    "plain_step",
    "prefill",
    "start",
    "step",
    "stream",
    "windows_for",
]
