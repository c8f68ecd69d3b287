"""Selectors: source and lookahead of every row, chosen inside the compiled step."""

from jaxspec.select.fixed import fixed
from jaxspec.select.rule import rule

__all__ = ["fixed", "rule"]
