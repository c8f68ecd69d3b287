"""scripts/generate.py --telemetry: what every source did, by the category of the prompts, beside the usual output."""

import json

import pytest

from scripts.generate import main
from tests.scripts.tiny import FAST, OTHER, PROMPT, TARGET

ONE = [*FAST, "--prompt", PROMPT]


def test_it_says_what_the_statistics_say_and_changes_no_output(run, results, tmp_path):
    file = tmp_path / "out.json"
    printed = run(*ONE, "--json", "--telemetry", str(file))
    told, found = json.loads(printed.out), json.loads(file.read_text())
    assert told["results"] == results(*ONE)
    assert "out.json" in printed.err.replace("\n", "")
    assert list(found["domains"]) == ["all"]
    stats, mine = told["stats"], found["domains"]["all"]
    assert set(mine["sources"]) == set(stats["sources"])
    for name, row in stats["sources"].items():
        assert {key: mine["sources"][name][key] for key in row} == row
    assert 0 < mine["seconds"] <= stats["seconds"]
    assert found["seconds_from"] == "guessed costs", "the tests' costs are"


def test_a_prompt_s_category_is_its_kind_of_text(run, tmp_path):
    lines = [{"prompt": PROMPT, "category": "prose"}, {"prompt": OTHER, "category": "play"}, {"prompt": "And then,"}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out.jsonl"
    asked = [*FAST, "--prompt-file", str(tmp_path / "prompts.jsonl"), "--json", "--telemetry", str(out)]
    printed = run(*asked, "--num-samples", "2", "--seed", "0")
    told, found = json.loads(printed.out), [json.loads(line) for line in out.read_text().splitlines()]
    for index, domain in enumerate(("prose", "play", "all")):
        tokens = sum(len(result["tokens"]) for result in told["results"][2 * index : 2 * index + 2])
        assert sum(row["tokens"] for row in found if row["domain"] == domain) == tokens
    assert "prose" in printed.err, "the table too tells kinds of text apart, where there are some"


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("out.txt", "'out.txt' ends in none of .json, .jsonl, .prom"),
        ("no/such/out.prom", "there is no folder"),
        ("", "'' names no file"),
    ],
)
def test_a_wrong_place_is_refused_before_anything_is_loaded(place, sentence, capsys, monkeypatch):
    monkeypatch.setattr("jaxspec.console.load", lambda *args, **options: pytest.fail("it loaded"))
    assert main([*TARGET, "--prompt", "a", "--telemetry", place]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert sentence in err


def test_a_category_that_is_no_text_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jaxspec.console.load", lambda *args, **options: pytest.fail("it loaded"))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "category": 3}\n')
    asked = ["--prompt-file", str(tmp_path / "prompts.jsonl"), "--telemetry", str(tmp_path / "out.prom")]
    assert main([*TARGET, *asked]) == 2
    assert "has the category 3" in capsys.readouterr().err
