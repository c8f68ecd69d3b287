"""scripts/train_router.py from records to weights that scripts/replay.py plays, and what it refuses."""

import json

import pytest

from jaxspec.bench.record import save
from jaxspec.checkpoint import fingerprint
from jaxspec.pipeline import load_model
from jaxspec.select.trained import RECORD
from scripts import replay
from scripts import train_router as script
from tests.bench.made import made
from tests.scripts.tiny import TARGET

QUICK = ["--steps", "30", "--hold-out", "0.4", "--rate", "0.01", "--seed", "3"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folders = []
    for number in range(2):
        folder = tmp_path_factory.mktemp("records") / str(number)
        save([made(seed, 30).record for seed in range(3 * number, 3 * number + 3)], folder)
        folders.append(str(folder))
    return folders


@pytest.mark.parametrize(("kind", "name"), [("mlp", "router"), ("prior", "goodput")])
def test_it_trains_what_a_replay_plays(records, tmp_path, capsys, kind, name):
    out = str(tmp_path / "out")
    more = ["--kind", kind, "--draft-step", "0.3", "--strength", "7", *(TARGET if kind == "prior" else [])]
    assert script.main(["--record", *records, "--out", out, *QUICK, *more]) == 0
    said = capsys.readouterr().out
    assert "log-loss on 2 of 6 texts" in said
    assert "base rate" in said
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    target = load_model(TARGET[1])
    assert record["target"] == (fingerprint(target.model.config, target.params) if kind == "prior" else None)
    card = record["card"]
    assert card["options"] == {
        "kind": kind, "steps": 30, "hold_out": 0.4, "rate": 0.01, "draft_step": 0.3, "strength": 7.0, "seed": 3,
    }  # fmt: skip
    assert card["data"] == records
    assert replay.main(["--traces", records[0], "--select", f"{name}:{out}", "--draft-step", "0.1"]) == 0
    assert f"{name}:" in capsys.readouterr().out
    assert script.main(["--record", *records, "--out", out, *QUICK]) == 2
    assert "already exists" in capsys.readouterr().err
    if kind == "mlp":
        assert script.main(["--record", records[0], "--out", out, *QUICK, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kind", "forest"], "kind is 'forest'; choose mlp or prior"),
        (["--steps", "0"], "give 1 or more"),
        (["--record", "/nowhere.jsonl"], "cannot read the traces"),
        (["--target", "/no/such/model"], "/no/such/model"),
    ],
)
def test_bad_input_is_one_sentence(records, tmp_path, capsys, options, said):
    assert script.main(["--record", records[0], "--out", str(tmp_path / "out"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
