"""What a caller says of the choice is done, row by row, whoever chooses, and changing it compiles nothing."""

import dataclasses
import math

import numpy as np
import pytest

from jaxspec import decode, telemetry
from jaxspec.sampling import warpers
from tests.decode.automata import automaton
from tests.decode.engines import every_engine, plain, run
from tests.decode.priced import priced
from tests.decode.schedule import always, plan_of, shuffled
from tests.decode.test_bad_input import refused
from tests.decode.test_greedy import PROMPTS

pytestmark = pytest.mark.heavy

OPTIONS = {"max_new_tokens": [40, 17, 30, 25], "seed": 3, "warp": warpers(4, temperature=[0.7, 0.0, 1.0, 1.3])}
NAMES = ("none", "lookup", "suffix", "exit:1", "lm:d", "jacobi:3:3:4")
FOUR = 4


def chosen(costs=None, **options):
    """Under goodput."""
    engine = every_engine("coupled")
    return run(engine, PROMPTS, priced(engine.setup) if costs is None else costs, **OPTIONS, **options)


def planned(plan, **options):
    """Under a plan."""
    return run(every_engine("coupled", chosen=False), PROMPTS, plan, **OPTIONS, **options)


def anything(seed=0):
    """A plan that asks for every source in turn."""
    return shuffled(4, list(range(6)), FOUR, seed)


def counts(got):
    """All that was counted, but for padding of the window, and the tokens."""
    fields = dataclasses.asdict(got.state.counters)
    return {name: value.tolist() for name, value in fields.items()}, got.tokens, got.rounds


def rode(got):
    """Rounds of each row in which the branch was in the window."""
    return got.state.sources[NAMES.index("jacobi:3:3:4")].rounds


def rounds(got, name):
    return int(got.state.counters.rounds[:, NAMES.index(name)].sum())


def drafts(got, name):
    """Those of tails too."""
    return int(got.state.counters.proposed[:, NAMES.index(name)].sum())


@pytest.mark.parametrize("name", NAMES)
def test_a_pin_is_a_fixed_choice_whoever_chooses(name):
    fixed = planned(always(4, NAMES.index(name), FOUR))
    assert rounds(fixed, name) > 20 or name in ("lookup", "suffix", "jacobi:3:3:4")
    for got in (chosen(source=name), planned(anything(), source=name)):
        assert counts(got) == counts(fixed)
        assert (rode(got) == rode(fixed)).all()
    assert (rode(fixed) > 0).all() == (name == "jacobi:3:3:4")
    assert counts(planned(anything())) != counts(fixed)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_pinned_row_takes_as_many_drafts_as_it_may_have(most):
    for name in ("exit:1", "suffix"):
        fixed = planned(always(4, NAMES.index(name), most))
        assert counts(chosen(source=name, max_lookahead=most)) == counts(fixed)


def test_rows_are_pinned_each_for_itself():
    pins = ["lm:d", None, "none", "suffix"]
    plan = anything(1)
    source, lookahead = np.array(plan.source), np.array(plan.lookahead)
    for row, pin in enumerate(pins):
        if pin is not None:
            source[row], lookahead[row] = NAMES.index(pin), FOUR
    assert counts(planned(plan, source=pins)) == counts(planned(plan_of(source, lookahead)))
    got = chosen(source=pins)
    ran = got.state.counters.rounds
    for row, pin in enumerate(pins):
        if pin is not None:
            assert set(np.flatnonzero(ran[row])) <= {0, NAMES.index(pin)}
    assert got.tokens == plain(every_engine("coupled"), PROMPTS, **OPTIONS).tokens


TEMPTING = {  # costs under which goodput takes the source
    "lookup": {"width": 0.001, "draft": 9.0, "ride": 9.0},
    "suffix": {"width": 0.001, "draft": 9.0, "ride": 9.0},
    "exit:1": {"width": 0.001, "draft": {"exit:1": 0.001}, "ride": 9.0},
    "lm:d": {"width": 0.001, "draft": {"lm:d": 0.001}, "ride": 9.0},
    "jacobi:3:3:4": {"width": 0.001, "draft": 9.0, "ride": 0.0},
}


@pytest.mark.parametrize("name", NAMES[1:])
def test_what_is_banned_is_never_chosen_nor_drafts_nor_rides(name):
    engine = every_engine("coupled")
    tempting = priced(engine.setup, **TEMPTING[name])
    wanted = plain(engine, PROMPTS, **OPTIONS).tokens
    index = NAMES.index(name)
    plan = shuffled(4, [index, index, 0], FOUR, 0)
    for free, banned in (
        (chosen(tempting), chosen(tempting, weights={name: 0.0})),
        (planned(plan), planned(plan, weights={name: 0.0})),
    ):
        assert rounds(banned, name) == drafts(banned, name) == 0
        assert drafts(free, name) > 0, "it is what would have been taken"
        if name == "jacobi:3:3:4":
            assert rode(free).max() > 0
            assert rode(banned).max() == 0
        assert banned.tokens == free.tokens == wanted


def test_a_ban_is_of_its_own_row():
    tempting = priced(every_engine("coupled").setup, **TEMPTING["lm:d"])
    got = chosen(tempting, weights=[{"lm:d": 0.0}, {}, {"lm:d": 0.0, "exit:1": 0.0}, {"lm:d": 1.0}])
    ran = got.state.counters.rounds[:, NAMES.index("lm:d")] > 0
    assert ran.tolist() == [False, True, False, True]


def test_a_weight_of_one_changes_nothing_and_others_do_as_they_say():
    base = chosen()
    same = chosen(weights=dict.fromkeys(NAMES, 1.0))
    assert counts(base) == counts(same)
    np.testing.assert_array_equal(base.log.takes.weights, same.log.takes.weights)
    much = chosen(weights={"exit:1": 50.0})
    assert rounds(much, "exit:1") > rounds(base, "exit:1")
    assert rounds(much, "exit:1") > 0.6 * sum(rounds(much, name) for name in NAMES)
    little = chosen(weights=dict.fromkeys(NAMES[1:], 0.01))
    assert rounds(little, "none") == sum(rounds(little, name) for name in NAMES) > rounds(base, "none")
    assert base.tokens == much.tokens == little.tokens


def test_load_and_budget_reach_the_choice():
    base, busy = chosen(), chosen(load=1.0)
    assert rounds(base, "none") < sum(rounds(base, name) for name in NAMES)
    assert rounds(busy, "none") == sum(rounds(busy, name) for name in NAMES)
    hurried = chosen(latency_budget=1.05)
    assert hurried.state.counters.widths[1:].sum() == 0
    assert base.tokens == busy.tokens == hurried.tokens


def test_a_window_is_as_wide_as_it_is_asked_to_be():
    plan = always(4, 0, 0)
    for least, width in ((1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (99, 2)):
        got = planned(plan, least_width=least)
        assert np.flatnonzero(got.state.counters.widths).tolist() == [width]
        assert got.tokens == planned(plan).tokens
    mixed = planned(plan, least_width=[1, 1, 3, 1])
    assert mixed.state.counters.widths[1] == 30, "as long as the row is there"


def test_changing_any_of_it_compiles_nothing():
    other = priced(every_engine("coupled").setup, width=0.3, draft=0.01, beliefs=1)
    chosen(other)
    planned(anything())
    before = telemetry.compilations()
    for options in (
        {"source": "lm:d"},
        {"source": [None, "suffix", "exit:1", "none"]},
        {"weights": [{"lookup": 0.0}, {"lm:d": 3.5}, {}, dict.fromkeys(NAMES[1:], 0.0)]},
        {"domain": [0, 7, -1, 12345], "load": [0.0, 0.5, 1.0, 0.1], "latency_budget": [math.inf, 0.5, 3.0, 1.2]},
        {"least_width": [1, 2, 5, 1]},
    ):
        chosen(other, **options)
        planned(anything(2), **options)
    assert telemetry.compilations() == before


PLAIN = decode.make_setup(automaton(10), drafts=("lookup",), vocab_size=8)
REFUSED = {
    "an unknown pin": ({"source": "oracle"}, "source 'oracle' is not of this setup; choose among none, lookup"),
    "an unknown pin of a row": ({"source": [None, "lm"]}, "source 'lm' is not of this setup"),
    "too few pins": ({"source": ["none"]}, "source has 1 entries for 2 rows; give one for all, or one a row"),
    "an unknown weight": ({"weights": {"lm": 1.0}}, "source 'lm' is not of this setup"),
    "a negative weight": ({"weights": {"lookup": -1.0}}, "the weight of lookup in row 0 is -1.0; it must be 0 or more"),
    "a weight that is none": ({"weights": [{}, {"lookup": math.nan}]}, "the weight of lookup in row 1 is nan"),
    "an infinite weight": ({"weights": {"lookup": math.inf}}, "the weight of lookup in row 0 is inf"),
    "a weight beyond float32": (
        {"weights": {"lookup": 1e300}},
        "the weight of lookup in row 0 is inf; it must be",
    ),
    "too many weights": ({"weights": [{}] * 3}, "weights has 3 entries for 2 rows"),
    "a weight of plain decoding": ({"weights": {"none": 0.0}}, "'none' is plain decoding and has no weight; pin it"),
    "a pin that is banned": (
        {"source": "lookup", "weights": {"lookup": 0.0}},
        "'lookup' is pinned and banned in row",
    ),
    "a negative domain": ({"domain": [0, -2]}, "domain of row 1 is -2; it must be a tag from 0, or -1 for none"),
    "a domain beyond int32": ({"domain": 2**31}, "domain of row 0 is 2147483648; it must be a tag"),
    "a load above 1": ({"load": [0.5, 1.5]}, "load of row 1 is 1.5; it must be from 0 to 1"),
    "a load that is none": ({"load": math.nan}, "load of row 0 is nan"),
    "no time": ({"latency_budget": 0.0}, "latency_budget of row 0 is 0.0; it must be above 0 seconds"),
    "time that is none": ({"latency_budget": [1.0, math.nan]}, "latency_budget of row 1 is nan"),
    "budgets for three": ({"latency_budget": [1.0, 2.0, 3.0]}, r"latency_budget is \[1.0, 2.0, 3.0\] for 2 rows"),
    "no width": ({"least_width": 0}, "least_width of row 0 is 0; it must be 1 or more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_steering_is_refused_in_one_sentence(name):
    options, message = REFUSED[name]
    decode.make_request(PLAIN, [[1]] * 2, max_new_tokens=1, seed=0)
    refused(message, decode.make_request, PLAIN, [[1]] * 2, max_new_tokens=1, seed=0, **options)
