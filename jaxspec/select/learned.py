"""Selectors that weigh what the sources bring against what they cost, by name.

goodput, hedge, ucb, thompson, exp3     learn from what the rounds bring
router:FOLDER                           chooses by a network that was trained beforehand
goodput:FOLDER                          begins with a prior that was trained beforehand
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from jaxspec.contracts import Selector
from jaxspec.select import arms
from jaxspec.select.exp3 import exp3
from jaxspec.select.goodput import goodput
from jaxspec.select.hedge import hedge
from jaxspec.select.kinds import Kinds
from jaxspec.select.router import router
from jaxspec.select.thompson import thompson
from jaxspec.select.trained import KINDS, read_trained
from jaxspec.select.ucb import ucb
from jaxspec.typing import PyTree

BANDITS: dict[str, Callable[[Kinds], Selector]] = {"hedge": hedge, "ucb": ucb, "thompson": thompson, "exp3": exp3}
LEARNED = ("goodput", *BANDITS)
"""Selectors that learn from what the rounds bring."""


def weighs(select: str) -> bool:
    """Whether a name is that of a selector here; its parameters are `SelectorParams`, or () to guess."""
    return select in LEARNED or folder_of(select) is not None


def folder_of(select: str) -> Path | None:
    """The folder with what was trained, of a name that gives one.   "router:my-router" -> my-router, "ucb" -> None"""
    name, colon, folder = select.partition(":")
    return Path(folder) if colon and folder and name in KINDS else None


def learned(select: str, kinds: Kinds, *, clusters: int = 0) -> Selector:
    """The selector of a name, for these sources. What a folder holds is not read here (`prior_of`).

    Args:
        clusters: kinds of text in `SelectorParams.clusters`, which goodput and a router tell apart; 0 for none.

    Raises:
        ValueError: clusters for a bandit.
    """
    name = select.partition(":")[0]
    if name not in BANDITS:
        return (router if name == "router" else goodput)(kinds, clusters=clusters)
    if clusters:
        raise ValueError(f"select {select!r} does not look at the kind of text; give clusters to {', '.join(KINDS)}")
    return BANDITS[name](kinds)


def prior_of(select: str, kinds: Kinds, expects: Mapping[str, float] = MappingProxyType({})) -> PyTree:
    """What a selector begins with, for `SelectorParams.prior`: what the folder in its name holds for these sources, a
    `Net` or `Prior`; of a bandit, that it has seen nothing; else None, and goodput's is `no_prior`.

    Args:
        expects: by source, share of first drafts that the target is expected to take, where a `Prior` does not know.

    Raises:
        ValueError: as `jaxspec.select.trained.read_trained`.
    """
    folder = folder_of(select)
    if folder is not None:
        return read_trained(folder, select.partition(":")[0], kinds, expects)
    return arms.carry((), learned(select, kinds).init(1, len(kinds.names))) if select in BANDITS else None


__all__ = ["LEARNED", "folder_of", "learned", "prior_of", "weighs"]
