"""scripts/advise.py from the command line to JSON, tables and a picture."""

import json
import subprocess
import sys

import pytest

from scripts.advise import main
from tests.scripts.tiny import ROOT, TARGET, TINY

SPEED = ["--bandwidth", "20", "--flops", "0.1", "--memory", "1"]


def test_it_answers_for_two_checkpoints_on_this_disk(tmp_path):
    out, png = tmp_path / "advice.json", tmp_path / "advice.png"
    drafts = ["--draft", str(TINY / "draft"), "--draft", "exit:2", "--draft", "lookup", "--acceptance", "0.8,0.7"]
    command = [sys.executable, str(ROOT / "scripts" / "advise.py"), *TARGET, *drafts, *SPEED, "--chip", "cpu"]
    ran = subprocess.run(
        [*command, "--json", str(out), "--plot", str(png)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    report = json.loads(out.read_text())
    assert [draft["vocabulary"]["verdict"] for draft in report["drafts"]] == ["same", "own", "own"]
    assert all(draft["memory"]["fits"] for draft in report["drafts"])
    assert f"{report['drafts'][0]['best']['speedup']:.2f} times plain" in " ".join(ran.stdout.split())
    assert png.read_bytes().startswith(b"\x89PNG")


def test_json_alone_goes_to_standard_output(capsys):
    assert main(["--target", "70b", "--draft", "8b", "--bandwidth", "819", "--overhead", "50", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"]["plain_seconds"] == pytest.approx(140 / 819 + 50e-6)
    assert report["device"]["flops"] is None


def test_what_is_wrong_is_one_sentence(capsys):
    assert main(["--target", "8b", "--draft", "exit:3", "--bandwidth", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: draft 'exit:3' is made of its target's layers")
    assert err.count("\n") == 1
