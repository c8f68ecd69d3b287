"""scripts/train_tiny.py makes a pair that loads, from any text."""

from pathlib import Path

import jaxspec
from scripts.train_tiny import main

ROOT = Path(__file__).parent.parent.parent


def train(tmp_path: Path) -> Path:
    files = sorted((ROOT / "jaxspec" / "models").glob("*.py"))
    (tmp_path / "corpus.txt").write_text("\n".join(file.read_text() for file in files))
    assert main(["--corpus", str(tmp_path / "corpus.txt"), "--out", str(tmp_path / "pair"), "--steps", "2"]) == 0
    return tmp_path / "pair"


def test_it_trains_a_pair_that_loads(tmp_path, capsys):
    made = train(tmp_path)
    assert "held-out text" in capsys.readouterr().out
    pipeline = jaxspec.load(str(made / "target"), drafts=[f"lm:{made / 'draft'}"])
    assert pipeline.target.params["embed_tokens.weight"].shape == (512, 64)
    assert pipeline.encode("a text", chat=True)


def test_a_text_that_is_too_short_is_refused(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("short " * 100)
    assert main(["--corpus", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "give more text" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["--corpus", str(tmp_path / "missing.txt")]) == 2
    assert "cannot read" in capsys.readouterr().err
