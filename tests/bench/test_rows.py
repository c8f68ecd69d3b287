"""Many rows side by side: who runs, for how long, and what is counted."""

import dataclasses
import io
import itertools

import jax.numpy as jnp
import pytest
from rich.console import Console

from jaxspec.bench import page, show
from jaxspec.bench import rows as many
from jaxspec.bench.contenders import Engine, setups
from jaxspec.bench.rows import by_rows, dealt, spread
from jaxspec.bench.run import Options, bench
from jaxspec.pipeline import load
from jaxspec.telemetry import Counters
from tests.bench import tiny

ROUNDS = 5


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return load(str(tiny.checkpoint(tmp_path_factory.mktemp("rows") / "target", layers=2, seed=0)), lookahead=3)


PROMPTS = [[row + 1, 5, 6, 7, row + 1, 5, 6] for row in range(3)]


@pytest.fixture(scope="module")
def measured(pipeline):
    told = []
    modes = setups(pipeline, ["fixed:lookup:2", "goodput"], sampled=False)
    return by_rows(
        pipeline, modes, PROMPTS, (1, 4), rounds=ROUNDS, repeats=2, told=lambda *each: told.append(each)
    ), told


def test_every_side_runs_the_same_rounds_of_every_row(measured, monkeypatch):
    found, told = measured
    assert [each["rows"] for each in found] == [1, 4]
    for each in found:
        assert list(each["contenders"]) == ["plain", "fixed:lookup:2", "goodput"]
        plain, lookup = each["contenders"]["plain"], each["contenders"]["fixed:lookup:2"]
        assert plain["ratio_to_plain"] == 1
        assert (plain["drafts_a_round"], plain["tokens_a_round"]) == (0, 1)
        assert 0 < lookup["drafts_a_round"] <= 2
        assert lookup["tokens_a_round"] == pytest.approx(1 + lookup["drafts_a_round"] * lookup["acceptance"])
    assert [what for what, *_ in told] == [f"{n} rows: {name}" for n in (1, 4) for name in found[0]["contenders"]]


def test_no_row_ends_while_it_is_timed(pipeline, monkeypatch):
    """Rounds times rows is what is counted, and every row makes a token in every round."""
    answers = []

    def kept(engine, *args, real=Engine.answer, **options):
        answers.append((engine.name, real(engine, *args, **options)))
        return answers[-1][1]

    monkeypatch.setattr(Engine, "answer", kept)
    by_rows(pipeline, setups(pipeline, ["fixed:lookup:2"], sampled=False), PROMPTS, (4,), rounds=ROUNDS)
    assert [name for name, _ in answers] == ["plain", "fixed:lookup:2"] * 2
    for name, answer in answers:
        assert answer.rounds == ROUNDS
        assert all(ROUNDS <= len(row) <= ROUNDS * (1 if name == "plain" else 3) for row in answer.tokens)
        if name != "plain":
            assert answer.counters.rounds.sum() == 4 * ROUNDS
            assert sum(map(len, answer.tokens)) == 4 * ROUNDS + answer.counters.accepted.sum()


def test_a_table_and_a_page_show_what_was_measured(measured):
    found, _ = measured
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(show.by_rows(found))
    for text in (console.export_text(), page.side_by_side(found)):
        for each in found:
            for name, row in each["contenders"].items():
                shown = (str(each["rows"]), name, f"{row['ratio_to_plain']:.2f}", f"{row['tokens_a_round']:.2f}")
                assert all(one in text for one in shown)


def test_prompts_are_dealt_as_far_apart_as_they_can_be():
    prompts = [[n] for n in range(5)]
    assert spread(prompts, 3) == [[0], [1], [3]]
    assert spread(prompts, 9) == prompts


@pytest.mark.parametrize("rows", range(1, 12))
def test_however_many_rows_there_are_every_prompt_is_answered(rows):
    prompts = [[n] for n in range(5)]
    batches = dealt(prompts, rows)
    assert all(len(batch) == rows for batch in batches)
    assert len(batches) == -(-5 // rows)
    assert {prompt[0] for batch in batches for prompt in batch} == {0, 1, 2, 3, 4}
    if rows == 3:
        assert batches == [[[0], [2], [4]], [[1], [3], [0]]]


def test_few_rows_answer_what_many_answer(pipeline, monkeypatch):
    asked = []

    def kept(engine, batch, *args, real=Engine.answer, **options):
        asked.append((len(batch), engine.name, [prompt[0] for prompt in batch]))
        return real(engine, batch, *args, **options)

    monkeypatch.setattr(Engine, "answer", kept)
    by_rows(pipeline, setups(pipeline, ["fixed:lookup:2"], sampled=False), PROMPTS, (1, 2), rounds=2)
    for rows, batches in ((1, [[1], [2]]), (2, [[1, 2]])):
        for name in ("plain", "fixed:lookup:2"):
            assert [batch for n, who, batch in asked if (n, who) == (rows, name)] == [batches[0], *batches]


def test_ratios_are_of_the_same_repeat():
    """A machine that slows down twofold after the first repeat changes no ratio."""
    slow = itertools.cycle([1.0, 2.0])
    counts = Counters(*(jnp.asarray(n) for n in (8, 0, 4, 2, 0, 0)))
    answers = {
        name: [[many.Decoded([[0] * tokens], 9.0, seconds * next(slow), 8, counts)] for _ in range(2)]
        for name, seconds, tokens in (("plain", 1.0, 10), ("mode", 0.8, 16))
    }
    found = many._summary(answers)
    assert found["mode"]["ratio_to_plain"] == pytest.approx(2.0)
    assert found["plain"]["ratio_to_plain"] == 1


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [((), {}, "rows are"), ((0,), {}, "each 1 or more"), ((2,), {"rounds": 0}, "rounds are 0")],
)
def test_nothing_to_run_is_refused(pipeline, rows, more, words):
    with pytest.raises(ValueError, match=words):
        by_rows(pipeline, setups(pipeline, ["rule"], sampled=False), PROMPTS, rows, **more)


def test_rounds_beyond_the_targets_positions_are_refused_before_anything_is_timed(pipeline, tmp_path, monkeypatch):
    tiny.checkpoint(tmp_path / "target", layers=1, seed=0)
    tiny.prompts(tmp_path / "prompts.jsonl")
    monkeypatch.setattr("jaxspec.bench.run.measure", lambda *args, **options: pytest.fail("it was timed"))
    asked = Options(str(tmp_path / "prompts.jsonl"), target=str(tmp_path / "target"), modes=("rule",), rows=(2,))
    with pytest.raises(ValueError, match="the target has 512"):
        bench(dataclasses.replace(asked, lookahead=15))
