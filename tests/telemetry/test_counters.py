import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.telemetry import count, init_counters
from tests.decode.engines import plain, run, scripted, tiny_engine
from tests.decode.schedule import shuffled
from tests.decode.test_greedy import LIMITS, PROMPTS, wrong
from tests.decode.tiny import VOCAB


def ints(*values):
    return jnp.asarray(values, jnp.int32)


def test_a_round_is_counted_by_row_source_and_depth():
    counters = init_counters(3, 2, 4, 3)
    counters = count(
        counters,
        active=jnp.asarray([True, True, False]),
        source=ints(1, 0, 1),
        proposed=ints(3, 0, 2),
        accepted=ints(2, 0, 1),
        tail=ints(0, 1, 1),
        tail_proposed=ints(0, 2, 2),
        tail_accepted=ints(0, 1, 1),
        emitted=ints(3, 1, 2),
        catch_up=jnp.asarray([[0, 5], [0, 0], [0, 0]], jnp.int32),
        width=jnp.int32(2),
    )
    assert counters.rounds.tolist() == [[0, 1], [1, 0], [0, 0]], "a finished row counts nothing"
    assert counters.emitted.tolist() == [[0, 3], [1, 0], [0, 0]]
    assert counters.proposed[0].tolist() == [[0, 0, 0, 0], [1, 1, 1, 0]]
    assert counters.accepted[0].tolist() == [[0, 0, 0, 0], [1, 1, 0, 0]]
    assert counters.proposed[1].tolist() == [[0, 0, 0, 0], [1, 1, 0, 0]], "a tail is its own source's, from depth 0"
    assert counters.accepted[1].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert not counters.proposed[2].any()
    assert counters.catch_up.tolist() == [[0, 5], [0, 0], [0, 0]]
    assert counters.widths.tolist() == [0, 0, 1]


@pytest.mark.parametrize("stops", [[], [3, 7]])
def test_the_sums_are_those_of_the_run(stops):
    engine = tiny_engine("greedy")
    guess = plain(engine, PROMPTS, **LIMITS).tokens
    drafts = scripted(engine, PROMPTS, wrong(guess, VOCAB, share=0.2))
    got = run(engine, PROMPTS, shuffled(4, [0, 1, 2, 3, 4], 4, 5), drafts, stop_ids=stops, **LIMITS)
    counters, log = got.state.counters, got.log
    assert counters.emitted.sum(1).tolist() == [len(row) for row in got.tokens]
    running = counters.rounds.sum(1)
    assert running.max() == got.rounds == counters.widths.sum()
    accepted = counters.accepted.sum((1, 2))
    lost = accepted + running - counters.emitted.sum(1)  # a stop id may end a run before its corrected token
    assert (lost == 0).all() if not stops else (lost >= 0).all()
    assert (lost <= 1).all()
    for name in ("proposed", "accepted"):
        assert (np.diff(getattr(counters, name), axis=2) <= 0).all(), "no depth without the one before"
    assert (counters.accepted <= counters.proposed).all()
    for source in range(5):
        mine = (log.source == source) & (log.emitted > 0)
        assert counters.rounds[:, source].tolist() == mine.sum(0).tolist()
        for name, logged in (("proposed", log.count), ("accepted", log.accepted)):
            assert getattr(counters, name)[:, source].sum(1).tolist() == (logged * mine).sum(0).tolist()
    assert not counters.proposed[:, 0].any(), "no source proposes nothing"
    widest = np.asarray(engine.setup.windows)[np.searchsorted(engine.setup.windows, log.count.max(1)[: got.rounds] + 1)]
    assert counters.widths.tolist() == [int((widest == width).sum()) for width in engine.setup.windows]
