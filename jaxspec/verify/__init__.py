"""How drafts are judged: `VERIFIERS` maps each mode to a function of one signature, `Verify`."""

from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float, Int

from jaxspec.sampling import Cut, Warpers
from jaxspec.typing import Logits, Positions, RowMask, Rows, Seeds
from jaxspec.verify import coupled, greedy, rejection


@runtime_checkable
class Verify(Protocol):
    """Judge a chain of drafts: how many of each row are accepted, and the token that follows them."""

    def __call__(
        self,
        logits: Logits,
        drafts: Int[Array, "B T-1"],
        count: Rows,
        q_log: Float[Array, "B T-1 V"] | None,
        sampled: RowMask,
        warpers: Warpers,
        seed: Seeds,
        positions: Positions,
        law: Cut | None = None,
    ) -> tuple[Rows, Rows]:
        """Return (accepted, next token), both int32 [B].

        Args:
            logits: penalised, float32; node t judges draft t+1, and gives the bonus after the last one.
            drafts: the drafted tokens, window tokens 1 to T-1.
            count: how many drafts of each row are valid, 0 to T-1; the others are never accepted.
            q_log: log-probabilities that sampled drafts were drawn from, normalised; None if no row has any.
            sampled: whether a row's drafts were drawn from `q_log`; the others are point masses (argmax, lookup).
            warpers: settings of every row.
            seed: row seeds, uint32.
            positions: absolute position of the token that each node judges.
            law: `jaxspec.sampling.cut` of the logits where somebody has it already; any, where no row samples.
        """
        ...


VERIFIERS: dict[str, Verify] = {"greedy": greedy.verify, "rejection": rejection.verify, "coupled": coupled.verify}


def verifier(mode: str) -> Verify:
    """Function of a mode.

    Raises:
        ValueError: an unknown mode.
    """
    if mode not in VERIFIERS:
        raise ValueError(f"verify mode {mode!r} is unknown; choose one of {', '.join(VERIFIERS)}")
    return VERIFIERS[mode]


__all__ = ["VERIFIERS", "Verify", "verifier"]
