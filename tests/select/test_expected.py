"""The arithmetic of a round: against simulation, the closed form, its limits, and hand values."""

import numpy as np
import pytest

from jaxspec.select import expected
from jaxspec.select.expected import Costs

LINEAR = Costs(verify=(1.0,) * 8, draft=tuple(0.1 * k for k in range(8)))
"""Verification for nothing, a draft at a tenth of a plain step."""

STEEP = Costs(verify=(2.0, 3.0, 3.0, 3.0, 5.0), draft=(0.0, 1.0, 2.0, 3.0, 4.0), catch_up=0.5)


def simulated(acceptance, lookahead: int, *, rounds: int = 200_000, seed: int = 0) -> float:
    """Mean tokens of rounds in which draft after draft is accepted or ends the round."""
    rates = np.resize(acceptance, lookahead) if np.ndim(acceptance) == 0 else np.asarray(acceptance)[:lookahead]
    taken = np.random.default_rng(seed).random((rounds, lookahead)) < rates
    return float(np.mean(np.cumprod(taken, axis=1).sum(1) + 1))


def agrees(acceptance, lookahead: int, *, claimed: float) -> bool:
    """Within five standard errors of the simulation, whose tokens spread by less than lookahead / 2."""
    return abs(simulated(acceptance, lookahead) - claimed) < 5 * lookahead / 2 / np.sqrt(200_000)


CASES = [(0.3, 2), (0.8, 7), (0.95, 15), ((0.9, 0.5, 0.7), 3), ((0.2, 0.99, 0.99, 0.99), 4)]


@pytest.mark.parametrize(("acceptance", "lookahead"), CASES)
def test_expected_tokens_are_what_rounds_give(acceptance, lookahead):
    assert agrees(acceptance, lookahead, claimed=expected.expected_tokens(acceptance, lookahead))


@pytest.mark.parametrize(("acceptance", "lookahead"), CASES)
def test_the_simulation_rejects_rounds_without_a_bonus_token_and_depths_in_another_order(acceptance, lookahead):
    right = expected.expected_tokens(acceptance, lookahead)
    assert not agrees(acceptance, lookahead, claimed=expected.expected_tokens(acceptance, lookahead - 1))
    assert not agrees(acceptance, lookahead, claimed=right - 0.1)
    if not isinstance(acceptance, float):
        assert not agrees(acceptance, lookahead, claimed=expected.expected_tokens(acceptance[::-1], lookahead))


@pytest.mark.parametrize("acceptance", [0.0, 0.25, 0.5, 0.9, 0.999999])
@pytest.mark.parametrize("lookahead", [0, 1, 3, 15])
def test_a_constant_acceptance_has_the_closed_form(acceptance, lookahead):
    closed = (1 - acceptance ** (lookahead + 1)) / (1 - acceptance)
    assert expected.expected_tokens(acceptance, lookahead) == pytest.approx(closed, rel=1e-9)
    assert expected.expected_tokens([acceptance] * 3, lookahead) == expected.expected_tokens(acceptance, lookahead)


def test_limits_and_hand_values():
    assert expected.expected_tokens(0.0, 7) == 1
    assert expected.expected_tokens(1.0, 7) == 8
    assert expected.expected_tokens(0.5, 2) == 1.75
    assert expected.expected_tokens((0.5, 0.2), 3) == pytest.approx(1 + 0.5 + 0.1 + 0.02)  # the last one goes on
    assert expected.round_cost(3, LINEAR) == pytest.approx(1.3)
    assert expected.round_cost(4, STEEP) == pytest.approx((0.5 + 4 + 5) / 2)
    assert expected.round_cost(0, STEEP) == 1
    assert expected.speedup(1.0, 7, LINEAR) == pytest.approx(8 / 1.7)
    assert expected.speedup(0.0, 0, STEEP) == 1


def test_tokens_and_speed_rise_with_acceptance_and_tokens_with_lookahead():
    grid = np.linspace(0, 1, 41)
    for k in range(1, 8):
        tokens = [expected.expected_tokens(float(a), k) for a in grid]
        assert np.all(np.diff(tokens) > 0)
        assert np.all(np.diff([expected.speedup(float(a), k, LINEAR) for a in grid]) > 0)
    for a in grid[1:]:
        assert np.all(np.diff([expected.expected_tokens(float(a), k) for k in range(8)]) > 0)


@pytest.mark.parametrize("costs", [LINEAR, STEEP])
def test_break_even_is_the_root(costs):
    for k in range(1, costs.most + 1):
        root = expected.break_even(k, costs)
        if root is None:
            assert expected.speedup(1.0, k, costs) <= 1
            continue
        assert expected.speedup(root, k, costs) == pytest.approx(1, abs=1e-9)
        assert expected.speedup(root - 1e-6, k, costs) < 1 < expected.speedup(root + 1e-6, k, costs)


def test_break_even_by_hand_and_never():
    assert expected.break_even(1, LINEAR) == pytest.approx(0.1, abs=1e-9)  # 1 + a = 1.1
    assert expected.break_even(2, LINEAR) == pytest.approx((-1 + 1.8**0.5) / 2, abs=1e-9)  # 1 + a + a^2 = 1.2
    even = Costs(verify=(1.0, 1.0), draft=(0.0, 1.0))
    assert expected.break_even(1, even) is None  # as fast at the best, and no faster
    assert expected.least_break_even(even) is None
    assert expected.break_even(0, LINEAR) is None
    assert expected.break_even(1, Costs(verify=(1.0, 0.5), draft=(0.0, 0.4))) == 0.0


@pytest.mark.parametrize("costs", [LINEAR, STEEP])
def test_the_least_break_even_is_where_the_best_lookahead_leaves_0(costs):
    found = expected.least_break_even(costs)
    assert found is not None
    assert expected.best_lookahead(found[0] - 1e-6, costs) == 0
    assert expected.best_lookahead(found[0] + 1e-6, costs) > 0


def test_the_best_lookahead_is_the_best_of_all_and_grows_with_acceptance():
    best = [expected.best_lookahead(a, LINEAR) for a in np.linspace(0, 1, 21).tolist()]
    assert best == sorted(best)
    assert (best[0], best[-1]) == (0, 7)
    for a in (0.3, 0.6, (0.9, 0.1, 0.9)):
        rates = [expected.speedup(a, k, LINEAR) for k in range(8)]
        assert rates[expected.best_lookahead(a, LINEAR)] == max(rates)


def test_an_equivalent_acceptance_gives_the_same_tokens():
    same = expected.equivalent((0.9, 0.5, 0.3), 3)
    assert expected.expected_tokens(same, 3) == pytest.approx(expected.expected_tokens((0.9, 0.5, 0.3), 3))
    assert 0.3 < same < 0.9


def test_a_draft_at_the_affordable_cost_breaks_even():
    most = expected.affordable_draft(0.6, LINEAR)
    for factor, pays in ((0.999, True), (1.001, False)):
        costs = Costs(LINEAR.verify, tuple(k * most * factor for k in range(8)))
        assert (expected.best_lookahead(0.6, costs) > 0) == pays


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: expected.expected_tokens(1.1, 2), "acceptance 1.1 is no probability"),
        (lambda: expected.expected_tokens((0.5, -0.1), 2), "acceptance -0.1"),
        (lambda: expected.expected_tokens(float("nan"), 2), "acceptance nan"),
        (lambda: expected.expected_tokens((), 2), "an acceptance has one number or more"),
        (lambda: expected.expected_tokens(0.5, -1), "lookahead is -1"),
        (lambda: expected.round_cost(9, LINEAR), "these costs are of 0 to 7"),
        (lambda: Costs((1.0, 1.0), (0.0,)), "2 times to verify and 1 to draft"),
        (lambda: Costs((0.0,), (0.0,)), "a plain step of none"),
        (lambda: Costs((1.0, float("inf")), (0.0, 1.0)), "not finite"),
    ],
)
def test_what_is_wrong_is_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
