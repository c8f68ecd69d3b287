"""scripts/generate_corpus.py writes the target's answers, and after a kill goes on to the same shards."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from jaxspec.training import read_shard
from scripts.generate_corpus import main
from tests.scripts.tiny import ROOT, TARGET

SIZES = ["--max-new-tokens", "8", "--rows", "2", "--shard", "2", "--seed", "1"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": "It was a fine morning, " * (1 + i % 3)}) for i in range(8)))
    return file


@pytest.fixture(scope="module")
def whole(prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "whole"
    assert main(["--prompts", str(prompts), "--out", str(folder), *TARGET, *SIZES]) == 0
    return folder


def content(folder) -> list:
    shards = [read_shard(file) for file in sorted(folder.glob("shard-*.npz"))]
    return [(s.tokens.tolist(), s.lengths.tolist(), s.prompts.tolist(), s.index.tolist()) for s in shards]


def test_killed_it_goes_on_to_the_same_shards(prompts, whole, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "scripts/generate_corpus.py", "--prompts", str(prompts), "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([*command, *TARGET, *SIZES], cwd=ROOT, stderr=subprocess.PIPE, env=environment)
    while child.poll() is None and not (out / "shard-00000.npz").exists():
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    error = child.communicate()[1].decode()
    assert child.returncode == -signal.SIGKILL, error
    assert main([*command[2:], *TARGET, *SIZES]) == 0
    assert content(out) == content(whole)
    assert len(content(out)) == 4


def test_other_settings_are_one_sentence(prompts, whole, capsys):
    changed = [*SIZES[:-1], "2"]
    assert main(["--prompts", str(prompts), "--out", str(whole), *TARGET, *changed]) == 2
    assert "holds a corpus with seed 1, asked for is 2" in capsys.readouterr().err


def test_sampled_answers_differ_from_greedy_ones(prompts, whole, tmp_path):
    arguments = ["--prompts", str(prompts), "--out", str(tmp_path / "out"), *TARGET, *SIZES, "--temperature", "1"]
    assert main(arguments) == 0
    assert content(tmp_path / "out") != content(whole)
