"""A run from text to an artifact: what it leaves, what it goes on from, and what it refuses before it begins."""

import dataclasses
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoint import CheckpointError, open_draft, save_draft
from jaxspec.training import draft_run
from jaxspec.training.card import write_card
from jaxspec.training.draft_run import calibrate_draft, train_draft
from jaxspec.training.options import Options
from jaxspec.training.plot import plot_run
from jaxspec.training.run import TrainingError
from tests.test_tiny import TARGET, TINY

pytestmark = pytest.mark.heavy

TEXT = "The old man took his hat from the table and went out of the room without a word to the others. "
CODE = "def f(x):\n    return x + 1\n\n\nclass Thing:\n    def g(self):\n        return f(2)\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with texts, and what the runs of this module leave."""
    folder = tmp_path_factory.mktemp("runs")
    lines = [{"text": TEXT[i:] + TEXT} for i in range(16)]
    (folder / "books.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    (folder / "code.jsonl").write_text("\n".join(json.dumps({"text": CODE[i:] + CODE}) for i in range(16)))
    (folder / "held.jsonl").write_text(json.dumps({"prompt": "It was", "category": "books"}))
    return folder


def options(place, name: str, **changed) -> Options:
    sizes = {"steps": 6, "rows": 4, "width": 16, "vocab": 48, "save_every": 2, "top": 8, "rank": 4, "heads": 2}
    base = {"kind": "exit", "target": TARGET, "text": [str(place / "books.jsonl")], "out": str(place / name)}
    return Options(**(base | sizes | changed))


@pytest.fixture(scope="module")
def trained(place):
    """A run with everything."""
    given = options(place, "exit", validate=str(place / "held.jsonl"), validate_tokens=8, data_note="Books, CC0.")
    train_draft(given)
    return given


def test_it_leaves_a_draft_with_its_card_and_a_plot(place, trained):
    artifact = open_draft(place / "exit")
    card, run = artifact.card, place / "exit-run"
    assert (card["steps"], card["tokens"]) == (6, 6 * 4 * 16)
    assert card["validation"]["engine"]["categories"].keys() == {"books"}
    assert artifact.temperature == card["calibration"]["temperature"]
    text = (place / "exit" / "README.md").read_text()
    for said in (artifact.target, "Books, CC0.", "books.jsonl", "| books | 1 |", "tokens a second", "MB (host)"):
        assert said in text
    assert (run / "training.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((run / "run.json").read_text())["target_weights"] == artifact.target
    assert list((run / "checkpoints").iterdir())


def test_stopped_it_goes_on_to_the_same_draft(place, trained, monkeypatch):
    class Stop(Exception):
        pass

    batch = draft_run.Sampler.batch

    def stopping(self, step):
        if step == 4 and self.seed == 0:
            raise Stop
        return batch(self, step)

    given = dataclasses.replace(trained, out=str(place / "again"))
    with monkeypatch.context() as patch:
        patch.setattr(draft_run.Sampler, "batch", stopping)
        with pytest.raises(Stop):
            train_draft(given)
    assert not (place / "again").exists()
    train_draft(given)
    mine, other = (place / out / "model.safetensors" for out in ("again", "exit"))
    assert mine.read_bytes() == other.read_bytes()


def test_with_other_settings_it_does_not_go_on(place, trained):
    changed = dataclasses.replace(trained, overwrite=True, tokens_share=0.5)
    with pytest.raises(TrainingError, match=r"holds a run with tokens_share 0.0, asked for is 0.5"):
        train_draft(changed)


def test_a_draft_is_tuned_to_other_text(place, trained):
    """From an artifact, on code: the loss on code falls below what the artifact has there."""
    given = options(
        place, "code", text=[str(place / "code.jsonl")], init_from=str(place / "exit"), steps=30, rate=0.02, live=True
    )
    train_draft(given)
    tuned, before = open_draft(place / "code"), open_draft(place / "exit")
    assert np.array_equal(tuned.tensors["output.ids"], before.tensors["output.ids"])
    lines = [json.loads(line) for line in (place / "code-run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    assert not (place / "code-run" / "corpus-teacher").exists()  # live: nothing was kept


def test_its_temperature_can_be_fitted_anew(place, trained):
    artifact = open_draft(place / "exit")
    hot = place / "hot"
    about = {"target": artifact.target, "card": artifact.card}
    save_draft(hot, artifact.config, artifact.tensors, temperature=50.0, **about)
    fit = calibrate_draft(options(place, "", calibrate=str(hot), work=str(place / "calibration")))
    after = open_draft(hot)
    assert after.temperature == fit.temperature == artifact.temperature
    for name, tensor in artifact.tensors.items():
        assert np.array_equal(after.tensors[name], tensor)
    assert f"| temperature | {fit.temperature} |" in (hot / "README.md").read_text()


def spoilt(place, name: str, **changed):
    """A copy of the trained draft with another record."""
    artifact = open_draft(place / "exit")
    save_draft(place / name, artifact.config, artifact.tensors, **({"target": artifact.target} | changed))
    return place / name


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kind": ""}, "no kind of draft is given"),
        ({"out": ""}, "no place for the draft is given"),
        ({"text": None}, "give the text to train on"),
        ({"corpus": "x"}, "give the text to train on"),
        ({"text": None, "corpus": "missing"}, "missing holds no shards; make them with scripts/generate_corpus.py"),
        ({"steps": 0}, "steps is 0; give 1 or more"),
        ({"width": 3}, "width is 3; give more tokens"),
        ({"rate": 0.0}, "rate is 0.0"),
        ({"loss": "hinge"}, "loss 'hinge' is unknown"),
        ({"tokens_share": 2.0}, "tokens_share 2.0"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"mesh": "data=8"}, "4 rows cannot be split over 8 devices"),
        ({"exit_layer": 4}, "exit_layer names 4; the target has 4 layers, give 1 to 3"),
        ({"taps": [5]}, "taps names 5; the target has 4 layers, give 1 to 4"),
        ({"layers": [4]}, "layers names 4; the target has 4 layers, give 0 to 3"),
        ({"validate": "missing.jsonl"}, "cannot read missing.jsonl"),
        ({"init_from": "nowhere"}, "nowhere has no draft.json"),
    ],
)
def test_bad_options_are_refused(changed, said, place):
    with pytest.raises(ValueError, match=said):
        train_draft(options(place, "refused", **changed))
    assert not (place / "refused").exists()


def test_a_draft_of_another_kind_or_target_is_not_gone_on_with(place, trained):
    with pytest.raises(ValueError, match=r"is a draft of kind exit, asked for is lm; give --kind exit"):
        train_draft(options(place, "refused", kind="lm", init_from=str(place / "exit")))
    other = spoilt(place, "other-target", target="0" * 64)
    with pytest.raises(CheckpointError, match=r"was trained for another target \(weights 000000000000"):
        train_draft(options(place, "refused", init_from=str(other)))
    given = options(place, "refused", init_from=str(spoilt(place, "any", target="")), target=str(TINY / "draft"))
    with pytest.raises(CheckpointError, match="for a target of width 64"):
        train_draft(given)


def test_a_truncated_draft_is_refused(place, trained):
    cut = spoilt(place, "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model.safetensors"):
        train_draft(options(place, "refused", init_from=str(cut)))


def test_what_lies_at_out_is_not_overwritten_unasked(place, trained, tmp_path):
    with pytest.raises(ValueError, match="exists already; give --overwrite"):
        train_draft(options(place, "exit"))
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds no draft, and only those are overwritten"):
        train_draft(options(place, "", out=str(tmp_path), overwrite=True))


def test_too_little_text_is_refused(place, tmp_path):
    (tmp_path / "short.txt").write_text("A word.")
    with pytest.raises(ValueError, match="0 documents cannot be held out of 1; give a corpus of at least 4"):
        train_draft(options(place, "refused", text=[str(tmp_path / "short.txt")]))


def test_without_matplotlib_that_is_said_once(place, trained, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("jaxspec.training.plot._said", set())
    assert not plot_run(place / "exit-run" / "metrics.jsonl", tmp_path / "a.png")
    assert not plot_run(place / "exit-run" / "metrics.jsonl", tmp_path / "a.png")
    assert capsys.readouterr().err.count("matplotlib is missing") == 1
    assert not (tmp_path / "a.png").exists()


def test_a_card_of_a_draft_that_says_little_is_short(place, trained):
    bare = spoilt(place, "bare", target="")
    text = write_card(bare).read_text()
    assert "not known" in text
    assert "None" not in text
    assert "tokens a second" not in text


@pytest.mark.parametrize("kind", ["lm", "feature", "medusa"])
def test_every_kind_computes_in_bfloat16_on_eight_devices(kind, place):
    given = options(
        place, f"mixed-{kind}", kind=kind, layers=[3], dtype="bfloat16", mesh="data=8", rows=8, steps=2, live=True
    )
    train_draft(given)
    artifact = open_draft(place / f"mixed-{kind}")
    assert artifact.config.kind == kind
    assert all(np.isfinite(leaf.astype(np.float32)).all() for leaf in artifact.tensors.values())
    assert {leaf.dtype for name, leaf in artifact.tensors.items() if name != "output.ids"} == {jnp.dtype(jnp.bfloat16)}
