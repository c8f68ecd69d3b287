"""What a round of speculation gives and what it costs, as plain arithmetic: no model, no arrays, no device.

    tokens of a round with k drafts   E(a, k) = 1 + a1 + a1 a2 + .. + a1 a2 .. ak       a plain step gives 1
    its cost in plain steps           c(k)    = (catch-up + draft[k] + verify[k]) / verify[0]
    speed-up                          E(a, k) / c(k)

ai is the acceptance at depth i: the probability that draft i is accepted once those before it were. For one a at every
depth, E = (1 - a^(k+1)) / (1 - a), and k + 1 at a = 1.

Source: Leviathan et al. 2023 (arXiv:2211.17192), whose cost is k c + 1 with c a draft step's.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

Acceptance = float | Sequence[float]
"""One for every depth, or one a depth; depths beyond the last one given have the last one's."""

ROUNDS = 60
"""Bisections of an interval of length 1, which leave less than a float can tell apart."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """Time by lookahead k = 0, 1, .., in any unit that is the same for all.

    Raises:
        ValueError: no entries, entries that are no pair, or times that are negative or not finite.
    """

    verify: tuple[float, ...]  # the target's pass over k + 1 tokens; verify[0] is a plain step
    draft: tuple[float, ...]  # drafting k tokens; draft[0] is 0
    catch_up: float = 0.0  # of a round with drafts, besides

    def __post_init__(self) -> None:
        if not self.verify or len(self.verify) != len(self.draft):
            raise ValueError(
                f"costs have {len(self.verify)} times to verify and {len(self.draft)} to draft; "
                "give one of each for every lookahead from 0"
            )
        times = (*self.verify, *self.draft, self.catch_up)
        if not all(math.isfinite(time) and time >= 0 for time in times) or self.verify[0] <= 0:
            raise ValueError("costs hold a time that is negative, not finite, or a plain step of none; measure again")

    @property
    def most(self) -> int:
        """The largest lookahead."""
        return len(self.verify) - 1


def expected_tokens(acceptance: Acceptance, lookahead: int) -> float:
    """Tokens that a round of `lookahead` drafts emits on average, the corrected or bonus token included.

    Raises:
        ValueError: an acceptance outside 0 to 1, or none; a negative lookahead.
    """
    rates = check_acceptance(acceptance)
    if lookahead < 0:
        raise ValueError(f"lookahead is {lookahead}; it must be 0 or more")
    total = reached = 1.0
    for depth in range(lookahead):
        reached *= rates[min(depth, len(rates) - 1)]
        total += reached
    return total


def check_acceptance(acceptance: Acceptance) -> tuple[float, ...]:
    """The acceptance by depth.

    Raises:
        ValueError: one outside 0 to 1, or none.
    """
    rates = (acceptance,) if isinstance(acceptance, int | float) else tuple(acceptance)
    if not rates:
        raise ValueError("an acceptance has one number or more, one for every depth; none was given")
    wrong = [rate for rate in rates if not 0.0 <= rate <= 1.0]
    if wrong:
        raise ValueError(f"acceptance {wrong[0]!r} is no probability; give 0 to 1")
    return tuple(float(rate) for rate in rates)


def round_cost(lookahead: int, costs: Costs) -> float:
    """Plain steps that a round takes; 1 without drafts."""
    if not 0 <= lookahead <= costs.most:
        raise ValueError(f"lookahead is {lookahead}; these costs are of 0 to {costs.most}")
    if lookahead == 0:
        return 1.0
    return (costs.catch_up + costs.draft[lookahead] + costs.verify[lookahead]) / costs.verify[0]


def speedup(acceptance: Acceptance, lookahead: int, costs: Costs) -> float:
    """Tokens a second over plain decoding's."""
    return expected_tokens(acceptance, lookahead) / round_cost(lookahead, costs)


def best_lookahead(acceptance: Acceptance, costs: Costs) -> int:
    """The lookahead of the largest speed-up, the smallest of equal ones; 0 where none is above 1."""
    return max(range(costs.most + 1), key=lambda k: speedup(acceptance, k, costs))


def break_even(lookahead: int, costs: Costs) -> float | None:
    """The acceptance, the same at every depth, above which rounds of `lookahead` drafts beat plain decoding.

    None where they never do: every draft accepted does not make up for the round. 0 where they always do.
    """
    wanted = round_cost(lookahead, costs)
    if lookahead < 1 or lookahead + 1 <= wanted:
        return None
    return _root(lambda a: expected_tokens(a, lookahead) - wanted)


def least_break_even(costs: Costs) -> tuple[float, int] | None:
    """The least acceptance above which some lookahead beats plain decoding, and that lookahead; None where none can."""
    found = [(a, k) for k in range(1, costs.most + 1) if (a := break_even(k, costs)) is not None]
    return min(found, default=None)


def equivalent(acceptance: Acceptance, lookahead: int) -> float:
    """The acceptance, the same at every depth, that gives as many tokens with `lookahead` drafts, 1 or more."""
    wanted = expected_tokens(acceptance, lookahead)
    return _root(lambda a: expected_tokens(a, lookahead) - wanted)


def affordable_draft(acceptance: Acceptance, costs: Costs) -> float:
    """Plain steps that one draft may cost at most for some lookahead to beat plain decoding; below 0 where none may."""
    spare = (
        (expected_tokens(acceptance, k) - (costs.catch_up + costs.verify[k]) / costs.verify[0]) / k
        for k in range(1, costs.most + 1)
    )
    return max(spare, default=-math.inf)


def _root(rising: Callable[[float], float]) -> float:
    """Where a function that rises with the acceptance passes 0; an end where it does not inside."""
    low, high = 0.0, 1.0
    if rising(low) >= 0:
        return low
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return high
