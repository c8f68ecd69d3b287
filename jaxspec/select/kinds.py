"""What a selector knows of the sources of its setup; static."""

import dataclasses

from jaxspec.contracts import FREE, DraftSource


@dataclasses.dataclass(frozen=True)
class Kinds:
    """N sources in the order of the setup, source 0 being "none"."""

    names: tuple[str, ...]
    passes: tuple[bool, ...]  # costs a pass of its own
    carrier: int  # index of the source whose branch rides in the window; 0 without one
    nodes: int  # of that branch
    windows: tuple[int, ...]  # padded window widths

    @property
    def lookahead(self) -> int:
        """Drafts a round at the most."""
        return self.windows[-1] - 1

    @property
    def free(self) -> tuple[bool, ...]:
        """Sources whose proposals are at hand in every round."""
        return tuple(not each for each in self.passes)

    @property
    def models(self) -> tuple[int, ...]:
        """Indices of the sources that cost a pass."""
        return tuple(index for index, each in enumerate(self.passes) if each)


def kinds_from(
    names: tuple[str, ...], costs: tuple[str, ...], carrier: int | None, nodes: int, windows: tuple[int, ...]
) -> Kinds:
    """Of sources by what they are called and what they cost.

    Args:
        costs: FREE or MODEL each.
        carrier: index of the source whose branch rides; None without one.
        nodes: of that branch.
    """
    return Kinds(names, tuple(cost != FREE for cost in costs), carrier or 0, nodes, windows)


def kinds_of(sources: tuple[DraftSource, ...], windows: tuple[int, ...]) -> Kinds:
    """Of a setup's sources."""
    carrier = next((index for index, source in enumerate(sources) if source.branch is not None), None)
    branch = None if carrier is None else sources[carrier].branch
    nodes = 0 if branch is None else len(branch.parents) - 1
    names, costs = tuple(source.name for source in sources), tuple(source.cost for source in sources)
    return kinds_from(names, costs, carrier, nodes, windows)


__all__ = ["Kinds", "kinds_from", "kinds_of"]
