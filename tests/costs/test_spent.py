"""Rounds cost by source what the table says that they cost together."""

import numpy as np
import pytest

from jaxspec import decode
from jaxspec.costs import guessed, price_of, spent
from jaxspec.costs.refine import said, used
from jaxspec.models import ModelConfig, language_model
from tests.costs.test_refine import KINDS, chunk, nothing, table_of

MIXED = [(0, 0), (1, 3), (1, 0), (2, 7), (3, 2), (3, 3), (4, 7), (4, 1)]


def test_sources_of_a_row_add_up_to_what_its_rounds_cost():
    table = table_of()
    done = chunk(MIXED, caught=30)
    assert spent(table, KINDS, done).sum() == pytest.approx(said(table, used(KINDS, nothing(), done)))


@pytest.mark.parametrize(
    ("source", "drafts", "caught", "cost"),
    [
        (0, 0, 0, 0.03),
        (1, 3, 0, 0.044),
        (1, 4, 0, 0.046),
        (2, 0, 0, 0.03 + 0.005),
        (3, 3, 0, 0.044 + 3 * 0.004),
        (4, 1, 100, 0.044 + 0.004 + 100 * 0.0005),
    ],
)
def test_each_source_pays_for_its_own_rounds(source, drafts, caught, cost):
    price = spent(table_of(), KINDS, chunk([(source, drafts)] * 5, caught=caught and 5 * caught))[0]
    assert price[source] == pytest.approx(5 * cost, rel=1e-5)
    assert not np.delete(price, source).any()


def test_a_tail_is_charged_for_its_width_and_the_head_for_the_round():
    done = chunk([(3, 3)])
    done.proposed[:, 1, :4] += 1
    price = spent(table_of(), KINDS, done)[0]
    assert price[3] == pytest.approx(0.044 + 3 * 0.004)
    assert price[1] == pytest.approx(0.046 - 0.03)


def test_a_narrower_window_that_was_timed_dearer_makes_no_negative_seconds():
    table = table_of()._replace(verify=np.asarray([0.05, 0.03, 0.03]))
    done = nothing()
    done.proposed[:, 1, :2] += 1
    assert (spent(table, KINDS, done) >= 0).all()


def test_rows_are_priced_one_by_one():
    done = chunk(MIXED, rows=2)
    done.rounds[1] = done.proposed[1] = 0
    price = spent(table_of(), KINDS, done)
    assert price[0].sum() > 0
    assert not price[1].any()


def test_a_plain_round_is_the_unit_and_a_guess_is_called_one():
    config = ModelConfig("llama", vocab_size=32, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1,
                         num_kv_heads=1, head_dim=8, max_positions=64)  # fmt: skip
    setup = decode.make_setup(language_model(config), drafts=["lookup"], lookahead=3)
    rough = guessed(setup)
    done = chunk([(0, 0)] * 3)
    done = type(done)(done.rounds[:, :2], *(np.zeros((1, 2, *more), int) for more in ((), (3,), (3,), ())), done.widths)
    prices = [price_of(table, setup) for table in (rough, rough._replace(verify=2 * rough.verify))]
    assert [price.name for price in prices] == ["guessed costs", "calibrated costs"]
    for price in prices:
        assert price.of(done).tolist() == [[3.0, 0.0]]
