"""scripts/calibrate.py from the command line to a table on the screen, in the store, and in a file."""

import json

import pytest

from scripts import generate
from scripts.calibrate import main
from tests.scripts.tiny import PROMPT, TARGET

DRAFTS = ["--draft", "lookup", "--draft", "exit:2", "--lookahead", "3"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "costs"


def test_it_measures_stores_and_writes_what_generate_reads(cache, tmp_path, capsys):
    out = tmp_path / "costs-{rows}.json"
    sizes = ["--rows", "1", "--rows", "2", "--max-length", "128", "--dtype", "float32"]
    assert main([*TARGET, *DRAFTS, *sizes, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("measured in") == 2
    assert "exit:2" in shown
    assert "1.00" in shown  # a plain step to itself
    assert len(list(cache.iterdir())) == 2
    table = json.loads((tmp_path / "costs-2.json").read_text())
    assert set(table) == {"verify", "draft", "lag", "ride"}
    assert set(table["verify"]) == {"1", "4"}
    assert set(table["draft"]["exit:2"]) == {"1", "2", "3"}
    given = ["--select", "goodput", "--costs", str(tmp_path / "costs-1.json"), "--max-new-tokens", "8", "--quiet"]
    assert generate.main([*TARGET, *DRAFTS, *given, "--prompt", PROMPT]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rows", "0"], "--rows is 0; it must be 1 or more"),
        (["--max-length", "0"], "--max-length is 0; it must be 1 or more"),
        (["--draft", "oracle"], "draft source 'oracle' is unknown"),
        (["--rows", "1", "--rows", "2", "--out", "a.json"], "names one file for several --rows; write {rows} in its"),
        (["--out", "no/such/folder/a.json"], "there is no folder"),
        (["--target", "no/such"], "no/such"),
        (["--lookahead", "0"], "nothing was measured"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, sentence, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    target = [] if "--target" in arguments else TARGET
    assert main([*target, *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--select", "goodput", "--costs", "no/such.json"], "cannot read the cost table no/such.json"),
        (["--select", "rule", "--costs", "guess"], "costs are given, which select 'rule' does not weigh"),
    ],
)
def test_generate_refuses_costs_that_it_cannot_use(arguments, sentence, capsys):
    assert generate.main([*TARGET, *arguments, "--prompt", PROMPT]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
