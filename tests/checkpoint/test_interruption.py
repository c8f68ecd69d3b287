"""A conversion that is killed, or that the disk stops, leaves nothing that loads."""

import errno
import os
import signal
from types import SimpleNamespace

import pytest

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import CheckpointError, convert, open_checkpoint

TARGETS = ("orbax", "hf")

KILLED = """
    import os, signal, sys
    from jaxspec.checkpoint import convert
    source, destination, to, share = sys.argv[1:]
    def progress(done, total):
        if done >= float(share) * total:
            os.kill(os.getpid(), signal.SIGKILL)
    convert(source, destination, to=to, progress=progress)
"""


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_killed_conversion_leaves_nothing_that_loads(to, share, tmp_path):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("smollm2"), tiny.hf_tensors("smollm2"))
    folder = tmp_path / "out"
    folder.mkdir()
    done = tiny.run(KILLED, source, folder / "model", to, share)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (folder / "model").exists()
    left = list(folder.iterdir())
    assert left  # it was killed midway: the control of this test
    for path in left:
        with pytest.raises(CheckpointError):
            open_checkpoint(path)
    convert(source, folder / "model", to=to)
    assert [path.name for path in folder.iterdir()] == ["model"]  # and what was left is gone
    open_checkpoint(folder / "model")


FULL_DISK = """
    import resource, sys
    from jaxspec.checkpoint import convert
    for to in ("orbax", "hf"):
        for limit in (100, 5_000, 10**9):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                convert(sys.argv[1], f"{sys.argv[2]}/{to}-{limit}", to=to)
                print("done")
            except ValueError as error:
                print(error)
"""


def test_disk_that_fills_is_one_error_and_nothing_is_left(tmp_path):
    """A limit on file sizes stands for the full disk; the largest one is the control."""
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))
    (tmp_path / "out").mkdir()
    done = tiny.run(FULL_DISK, source, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert [lines[2], lines[5]] == ["done", "done"]
    for line in (lines[0], lines[1], lines[3], lines[4]):
        assert "cannot be written (File too large), nothing" in line
        assert line.endswith("nothing was left there; free space or choose another place")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["hf-1000000000", "orbax-1000000000"]


def test_too_little_space_is_told_before_writing(tmp_path, monkeypatch):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match=r"bytes are needed and 1,000 are free"):
        convert(source, tmp_path / "model", to="hf")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("to", TARGETS)
def test_read_only_disk_is_one_error(to, tmp_path, monkeypatch):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), tiny.hf_tensors("llama"))

    def refuse(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        with pytest.raises(CheckpointError, match=r"cannot be written \(Read-only file system\)"):
            convert(source, tmp_path / "model", to=to)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written"):
        convert(source, tmp_path / "file" / "model", to=to)
