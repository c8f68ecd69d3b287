"""Selectors: source and lookahead of every row, chosen inside the compiled step."""

from jaxspec.select.fixed import fixed
from jaxspec.select.goodput import Kinds, SelectorParams, goodput, kinds_of
from jaxspec.select.rule import rule

__all__ = ["Kinds", "SelectorParams", "fixed", "goodput", "kinds_of", "rule"]
