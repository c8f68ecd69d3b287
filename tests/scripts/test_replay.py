"""scripts/replay.py from prompts to records to a table."""

import json

import numpy as np
import pytest

from jaxspec.bench.record import load
from scripts.replay import main
from tests.scripts.tiny import TARGET

PROMPTS = [
    {"id": "a", "category": "chat", "prompt": "It was a fine morning, and it was"},
    {"id": "b", "category": "code", "prompt": "one two three one two three one two"},
    {"id": "c", "category": "code", "prompt": "left out by --per-category"},
]
SIZES = ["--draft", "lookup", "--draft", "exit:2", "--lookahead", "3", "--max-new-tokens", "12", "--per-category", "1"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return str(file)


@pytest.fixture(scope="module")
def folder(prompts, tmp_path_factory):
    out = tmp_path_factory.mktemp("records") / "tiny"
    assert main(["--record", prompts, *TARGET, *SIZES, "--out", str(out)]) == 0
    return str(out)


def test_records_are_made_with_the_options_given(folder):
    records, settings = load(folder)
    assert [(record.name, record.category, record.limit) for record in records] == [
        ("a", "chat", 12),
        ("b", "code", 12),
    ]
    assert records[0].pool.names == ("none", "lookup", "exit:2")
    assert records[0].depth == 3
    assert settings["verify"] == "greedy"
    assert settings["prompts"] == "prompts.jsonl"


def test_sampled_records_differ_by_seed(prompts, tmp_path):
    texts = []
    for seed in ("1", "2"):
        sampled = ["--temperature", "1.0", "--seed", seed, "--out", str(tmp_path / seed)]
        assert main(["--record", prompts, *TARGET, *SIZES, *sampled]) == 0
        records, settings = load(tmp_path / seed)
        assert settings["verify"] == "coupled"
        texts.append(np.concatenate([record.ids for record in records]).tolist())
    assert texts[0] != texts[1]


def test_selectors_are_replayed_on_them(folder, tmp_path, capsys):
    out = tmp_path / "report.json"
    asked = ["--traces", folder, "--draft-step", "0.2", "--costs", "cpu", "--select", "field", "fixed:exit:2:3"]
    assert main([*asked, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    report = json.loads(out.read_text())
    (table,) = report["tables"]
    assert set(table["selectors"]) == {"field", "fixed:exit:2:3"}
    assert f"{table['selectors']['field']['rate']:.2f} (0%)" in printed
    assert table["bounds"]["optimum"]["rate"] >= table["bounds"]["oracle"]["rate"] >= 1
    assert main([*asked, "--fresh", "--order", "code", "chat", "--part", "8", "--sabotage", "exit:2:4"]) == 0
    assert "code>chat" in capsys.readouterr().out


def test_regret_is_drawn(tmp_path, capsys):
    assert main(["--regret", str(tmp_path / "out.png"), "--draft-step", "0.1", "--tokens", "100"]) == 0
    assert (tmp_path / "out.png").stat().st_size > 1000
    assert "adversarial" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--record", "prompts.jsonl"], "give --out"),
        (["--record", "nowhere.jsonl", "--out", "new"], "nowhere.jsonl"),
        (["--record", "x.jsonl", "--out", "new", "--draft", "magic"], "'magic' is unknown"),
        (["--record", "x.jsonl", "--out", ".", "--max-new-tokens", "1"], "no empty folder"),
        (["--record", "x.jsonl", "--out", "new", "--max-new-tokens", "0"], "1 or more"),
        (["--traces", "nowhere.jsonl"], "cannot read the traces"),
        (["--traces", "nowhere.jsonl", "--json", "no/folder/out.json"], "there is no folder"),
    ],
)
def test_bad_input_is_one_sentence(arguments, said, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
