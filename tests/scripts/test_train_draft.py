"""scripts/train_draft.py trains drafts of every kind from a corpus, and says in one sentence what is wrong."""

import json
import shlex

import numpy as np
import pytest

from jaxspec.checkpoint import open_draft
from jaxspec.training.corpus import write_shard
from scripts.train_draft import main
from tests.scripts.tiny import TARGET

SIZES = ["--steps", "4", "--rows", "4", "--width", "16", "--vocab", "64", "--save-every", "2", "--top", "8"]
SIZES += ["--rank", "4", "--heads", "2", "--depths", "2"]
ROWS = [np.random.default_rng(i).integers(3, 500, 20 + i).tolist() for i in range(16)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "greedy"
    folder.mkdir()
    write_shard(folder / "shard-00000.npz", ROWS, [5] * len(ROWS), list(range(len(ROWS))))
    return folder


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["exit", "lm", "medusa", "feature"])
def test_it_trains_every_kind_from_one_teacher(kind, corpus, tmp_path, capsys):
    command = ["--kind", kind, "--corpus", str(corpus), "--out", str(tmp_path / kind), *TARGET, *SIZES]
    assert main(command) == 0, capsys.readouterr().err
    artifact = open_draft(tmp_path / kind)
    assert artifact.config.kind == kind
    assert artifact.card["command"] == shlex.join(["python", "scripts/train_draft.py", *command])
    assert len(artifact.card["validation"]["agreement"]) == {"medusa": 2, "feature": 2}.get(kind, 1)
    assert (corpus.parent / "greedy-teacher" / "shard-00000").is_dir()
    lines = (tmp_path / f"{kind}-run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]
    if kind == "exit":
        again = ["--calibrate", str(tmp_path / kind), "--corpus", str(corpus), *TARGET, *SIZES]
        assert main(again) == 0, capsys.readouterr().err
        assert capsys.readouterr().out.startswith("temperature ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind", "exit", "--out", "x"], "error: give the text to train on"),
        (["--kind", "exit", "--out", "x", "--corpus", "nowhere"], "error: nowhere holds no shards"),
        (["--calibrate", "nowhere", "--corpus", "nowhere"], "error: nowhere has no draft.json"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, said, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_a_corpus_of_another_vocabulary_is_refused(tmp_path, capsys):
    write_shard(tmp_path / "shard-00000.npz", [[1, 2, 60000]] * 8, [1] * 8, list(range(8)))
    assert main(["--kind", "exit", "--corpus", str(tmp_path), "--out", str(tmp_path / "out"), *TARGET]) == 2
    assert "has token id 60000; this target's ids are 0 to 511" in capsys.readouterr().err
