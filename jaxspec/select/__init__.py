"""Selectors: source and lookahead of every row, chosen inside the compiled step."""

from jaxspec.select.fixed import fixed
from jaxspec.select.goodput import Prior, SelectorParams, goodput, no_prior
from jaxspec.select.kinds import Kinds, kinds_of
from jaxspec.select.rule import rule

__all__ = ["Kinds", "Prior", "SelectorParams", "fixed", "goodput", "kinds_of", "no_prior", "rule"]
