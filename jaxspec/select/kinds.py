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


def kinds_of(sources: tuple[DraftSource, ...], windows: tuple[int, ...]) -> Kinds:
    """Of a setup's sources."""
    branches = [index for index, source in enumerate(sources) if source.branch is not None]
    branch = sources[branches[0]].branch if branches else None
    return Kinds(
        names=tuple(source.name for source in sources),
        passes=tuple(source.cost != FREE for source in sources),
        carrier=branches[0] if branches else 0,
        nodes=0 if branch is None else len(branch.parents) - 1,
        windows=windows,
    )


__all__ = ["Kinds", "kinds_of"]
