"""What stands where a folder goes is kept, whatever goes wrong, unless its owner gave it up."""

import os
from pathlib import Path

import pytest

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import CheckpointError, convert, staging
from jaxspec.checkpoint.staging import new_folder

DEAD = 2**22 + 1
"""No process has this number."""


def checkpoint(path: Path, text: str) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(text)
    return path


def content(path: Path) -> str:
    return (path / "config.json").read_text()


def write(path: Path, *, overwrite: bool = False, meanwhile=lambda: None) -> None:
    with new_folder(path, overwrite=overwrite) as folder:
        (folder / "config.json").write_text("new")
        meanwhile()


def test_what_came_meanwhile_is_kept(tmp_path):
    place = tmp_path / "c"
    with pytest.raises(CheckpointError, match="already exists"):
        write(place, meanwhile=lambda: checkpoint(place, "somebody else's"))
    assert content(place) == "somebody else's"
    assert os.listdir(tmp_path) == ["c"]
    write(place, overwrite=True)
    assert content(place) == "new", "the control: asked to, it is replaced"


def test_the_old_one_comes_back_where_the_new_one_cannot_be_put(tmp_path, monkeypatch):
    place = checkpoint(tmp_path / "c", "old")
    rename = Path.rename

    def fails(self, target):
        if ".partial-" in self.name and not self.name.endswith("-old"):
            raise OSError(5, "broken")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(CheckpointError, match="cannot be written"):
        write(place, overwrite=True)
    assert content(place) == "old"
    assert os.listdir(tmp_path) == ["c"]


def test_what_a_killed_process_had_moved_away_comes_back(tmp_path):
    checkpoint(tmp_path / f".c.partial-{DEAD}-old", "old")
    checkpoint(tmp_path / f".c.partial-{DEAD}", "half")
    staging._sweep(tmp_path / "c")
    assert content(tmp_path / "c") == "old"
    assert os.listdir(tmp_path) == ["c"]
    checkpoint(tmp_path / f".c.partial-{DEAD}-old", "older")
    staging._sweep(tmp_path / "c")
    assert content(tmp_path / "c") == "old", "what was replaced stays replaced"


def test_only_a_checkpoint_is_overwritten(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    with pytest.raises(CheckpointError, match="no checkpoint, and only those"):
        write(tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "cat"


def test_a_source_is_not_overwritten_by_what_is_made_of_it(tmp_path):
    source = tiny.write_hf(tmp_path / "c", tiny.hf_config("smollm2"), tiny.hf_tensors("smollm2"))
    for destination in (source, tmp_path):
        with pytest.raises(CheckpointError, match="the source lies in it"):
            convert(source, destination, overwrite=True)
    convert(source, tmp_path / "c" / "inside")


def test_a_name_too_long_is_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be written"):
        write(tmp_path / ("x" * 300))
