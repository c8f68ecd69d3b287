"""Selectors: source and lookahead of every row, chosen inside the compiled step."""

from jaxspec.select.fixed import fixed
from jaxspec.select.goodput import Prior, SelectorParams, goodput, learnt, no_prior
from jaxspec.select.kinds import Kinds, kinds_of
from jaxspec.select.learned import LEARNED, learned, prior_of, weighs
from jaxspec.select.rule import rule

__all__ = [
    "LEARNED",
    "Kinds",
    "Prior",
    "SelectorParams",
    "fixed",
    "goodput",
    "kinds_of",
    "learned",
    "learnt",
    "no_prior",
    "prior_of",
    "rule",
    "weighs",
]
