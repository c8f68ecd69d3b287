"""What a record says of a source is what the engine does with it: drafts accepted in a round from the same prefix."""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.bench.prices import curve_prices
from jaxspec.bench.record import Record, load, pool_of, run_length, save, stack
from jaxspec.bench.recorder import record, record_cases
from jaxspec.bench.replay import replay
from jaxspec.decode.step import step
from jaxspec.pipeline import load as load_pipeline
from jaxspec.select import rule
from jaxspec.text import Case
from tests.bench.made import made

TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "tiny"
LM = f"lm:{TINY / 'draft'}"
SOURCES = ("lookup", "suffix", "exit:2", LM)
JACOBI = "jacobi:3:3:4"
PLACES = (0, 1, 5, 9, 14, 20, 27, 34)
NEW = 40
LOOKAHEAD = 4
PROMPT = "The old man took his hat from the table. The old man took"


@functools.cache
def engine() -> SimpleNamespace:
    """The tiny target with every source, a record of it, and the engine's rounds from the record's places.

    Rows of the one batch: every source pinned at every place, then plain decoding, jacobi, and the selector's choice.
    """
    pipeline = load_pipeline(str(TINY / "target"), drafts=(*SOURCES, JACOBI), lookahead=LOOKAHEAD)
    chosen = rule((1, 2), (4,), free_lookahead=LOOKAHEAD, model_lookahead=3)._replace(certainty=True)
    setup = dataclasses.replace(pipeline.setup(sampled=False, logprobs=False), selector=chosen)
    prompt = pipeline.encode(PROMPT, chat=False)
    one = record(setup, pipeline.params, prompt, max_new_tokens=NEW, name="tiny")
    pins = [*((name, at) for name in SOURCES for at in PLACES), ("none", 0), (JACOBI, 0), (None, 0)]
    prompts = [[*prompt, *one.ids[:at].tolist()] for _, at in pins]
    # the row that chooses ends where the record does; of the others no draft is cut short
    limits = [NEW - at if name is None else NEW + LOOKAHEAD + 1 for name, at in pins]
    request = decode.make_request(setup, prompts, max_new_tokens=limits, source=[name for name, _ in pins])
    state = decode.start(setup, pipeline.params, prompts, request)
    run = jax.jit(step, static_argnums=0)
    infos = []
    for _ in range(NEW):
        state, info = run(setup, pipeline.params, state)
        infos.append(jax.device_get((info.choice, info.proposal, info.verdict, info.signals)))
    return SimpleNamespace(pipeline=pipeline, setup=setup, prompt=prompt, record=one, pins=pins, infos=infos)


def test_what_is_right_is_what_the_engine_accepts():
    on, (_, proposal, verdict, signals) = engine(), engine().infos[0]
    right = {name: [] for name in SOURCES}
    for row, (name, at) in enumerate(on.pins[: len(SOURCES) * len(PLACES)]):
        source = on.setup.names.index(name)
        assert on.record.offered[at, source] == signals.offered[row, source] == proposal.count[row], (name, at)
        if proposal.count[row] and at + verdict.accepted[row] < NEW:
            assert on.record.right[at, source] == verdict.accepted[row], (name, at)
        assert on.record.match[at, source] == signals.match[row, source]
        count = proposal.count[row]
        np.testing.assert_allclose(
            on.record.confidence[at, source, :count], proposal.confidence[row, :count], rtol=1e-3
        )
        right[name].append(int(on.record.right[at, source]))
    for name in SOURCES:  # negative control: another place's runs are not this one's
        assert len(set(right[name])) > 1, (name, right[name])


def test_the_text_is_plain_decoding_and_the_target_was_as_sure_as_it_says():
    on = engine()
    row = on.pins.index(("none", 0))
    plain = [int(verdict.emitted[row, 0]) for _, _, verdict, _ in on.infos]
    assert on.record.ids.tolist() == plain
    for name in ("top", "margin", "entropy"):
        seen = [float(getattr(signals.seen, name)[row]) for _, _, _, signals in on.infos]
        np.testing.assert_allclose(getattr(on.record, name), seen, rtol=1e-3, atol=1e-5)
    assert on.record.top[0] == 0 < on.record.top[1]
    assert not np.allclose(on.record.top[1:], on.record.top[:-1])  # negative control: one place off would show


def test_a_branch_rides_and_learns_as_in_the_engine():
    """Up to the first draft that the engine accepts; then its rounds are fewer than the record's places."""
    on = engine()
    row, source = on.pins.index((JACOBI, 0)), on.setup.names.index(JACOBI)
    compared = 0
    for at, (_, proposal, verdict, _) in enumerate(on.infos):
        assert on.record.offered[at, source] == proposal.count[row]
        assert on.record.right[at, source] == verdict.accepted[row]
        compared += int(proposal.count[row])
        if verdict.accepted[row]:
            break
    assert compared > 0


def test_a_replay_is_the_engines_own_run():
    on = engine()
    row = on.pins.index((None, 0))
    prices = curve_prices("flat", on.record.pool, LOOKAHEAD, 0.1)
    series = replay(on.setup.selector, (), [on.record], prices).text(0)
    rounds = [each for each in on.infos if each[2].count[row] > 0]
    assert len(rounds) == len(series.source)
    for turn, (choice, _, verdict, signals) in enumerate(rounds):
        assert (choice.source[row], choice.lookahead[row]) == (series.source[turn], series.lookahead[turn])
        assert verdict.count[row] == series.emitted[turn]
        assert signals.length[row] == len(on.prompt) + series.position[turn]
    assert len(set(series.source.tolist())) > 1
    assert series.emitted.sum() == NEW
    wrong = dataclasses.replace(on.record, right=np.minimum(on.record.right, 1))  # negative control
    assert len(replay(on.setup.selector, (), [wrong], prices).text(0).source) > len(rounds)


def test_a_text_ends_at_its_stop_id():
    on = engine()
    stop = int(on.record.ids[10])
    short = record(on.setup, on.pipeline.params, on.prompt, max_new_tokens=NEW, stop_ids=[stop])
    assert short.ids.tolist() == on.record.ids[: on.record.ids.tolist().index(stop) + 1].tolist()
    assert short.limit == NEW > len(short)
    left = np.arange(len(short), 0, -1)[:, None]
    np.testing.assert_array_equal(short.right, np.minimum(on.record.right[: len(short)], left))
    np.testing.assert_array_equal(short.offered, on.record.offered[: len(short)])


def test_prompts_of_a_run_are_recorded_with_their_settings():
    on = engine()
    records, settings = record_cases(
        on.pipeline, [Case("a", "chat", "hello"), Case("b", "code", "x")], max_new_tokens=3
    )
    assert [(each.name, each.category, each.limit) for each in records] == [("a", "chat", 3), ("b", "code", 3)]
    assert settings["windows"] == list(on.setup.windows)
    assert settings["drafts"] == [*SOURCES, JACOBI]


def test_rejection_is_refused():
    on = engine()
    with pytest.raises(ValueError, match="use coupled"):
        record(dataclasses.replace(on.setup, verify="rejection"), on.pipeline.params, [1], max_new_tokens=2)


def test_a_run_ends_at_the_first_wrong_draft_or_the_texts_end():
    text = np.asarray([5, 8, 2, 7])
    assert run_length(np.asarray([5, 8, 9, 7]), 4, text) == 2
    assert run_length(np.asarray([5, 8, 2, 7]), 3, text) == 3
    assert run_length(np.asarray([5, 8, 2, 7, 1]), 5, text) == 4
    assert run_length(np.asarray([1]), 1, text) == 0
    assert run_length(np.asarray([5]), 0, text) == 0


def test_records_come_back_as_they_were_written(tmp_path):
    records = [made(seed, tokens, category=name).record for seed, tokens, name in ((1, 12, "code"), (2, 5, "chat"))]
    save(records, tmp_path / "here", {"target": "tiny"})
    back, settings = load(tmp_path / "here")
    assert settings == {"target": "tiny"}
    for before, after in zip(records, back, strict=True):
        for field in dataclasses.fields(Record):
            np.testing.assert_array_equal(getattr(before, field.name), getattr(after, field.name))
    (tmp_path / "here" / "00001.npz").write_bytes((tmp_path / "here" / "00001.npz").read_bytes()[:100])
    with pytest.raises(ValueError, match="holds no readable records"):
        load(tmp_path / "here")
    with pytest.raises(ValueError, match="holds no readable records"):
        load(tmp_path / "nowhere")


def test_a_record_that_cannot_be_is_refused():
    good = made(1, 12).record
    for changes, said in (
        ({"right": good.offered + 1}, "does not hold"),
        ({"top": good.top[:-1]}, "has 12 tokens"),
        ({"limit": 5}, "limit 5"),
        ({"offered": good.offered * 0 + 5, "right": good.right * 0 + 5}, "past the end"),
    ):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(good, **changes)
    with pytest.raises(ValueError, match="none first"):
        dataclasses.replace(good.pool, names=("lookup", "none", "jacobi", "lm"))


def test_records_of_one_setup_are_stacked_and_others_refused():
    records = [made(1, 12).record, made(2, 5).record]
    tape = stack(records)
    assert tape.right.shape == (2, 12, 4)
    np.testing.assert_array_equal(tape.right[1, :5], records[1].right)
    assert tape.length.tolist() == [12, 5]
    other = dataclasses.replace(records[0], pool=dataclasses.replace(records[0].pool, carrier=None))
    with pytest.raises(ValueError, match="different sources"):
        pool_of([records[0], other])
    with pytest.raises(ValueError, match="no records"):
        pool_of([])
