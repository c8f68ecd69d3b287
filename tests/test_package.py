"""What holds for the package as a whole: public names are documented, torch stays out, scripts explain themselves."""

import importlib
import os
import pkgutil
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import jaxspec

ROOT = Path(__file__).parent.parent
MODULES = ["jaxspec", *(module.name for module in pkgutil.walk_packages(jaxspec.__path__, "jaxspec."))]
TORCH = {"jaxspec.bench.peer"}  # imports it
MARKED = [pytest.param(name, marks=[pytest.mark.parity] if name in TORCH else []) for name in MODULES]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))


def undocumented(module: types.ModuleType) -> list[str]:
    """List the public functions and classes of a module without a docstring of their own, and the module itself."""
    public = getattr(module, "__all__", None)
    if public is None:
        public = [n for n, v in vars(module).items() if n[0] != "_" and getattr(v, "__module__", "") == module.__name__]
    missing = [] if module.__doc__ else [module.__name__]
    for name in public:
        value = getattr(module, name)
        ours = getattr(value, "__module__", "").split(".")[0] == module.__name__.split(".")[0]
        if not callable(value) or not ours:  # constants and aliases cannot carry a docstring
            continue
        # Dataclasses and NamedTuples without a docstring are given their signature as one.
        if not (value.__doc__ or "").strip() or value.__doc__.startswith(f"{name}("):
            missing.append(f"{module.__name__}.{name}")
    return missing


@pytest.mark.parametrize("name", MARKED)
def test_public_names_are_documented(name):
    assert undocumented(importlib.import_module(name)) == []


def test_undocumented_names_are_found():
    def function():
        pass

    @dataclass
    class Record:
        field: int

    class Pair(NamedTuple):
        first: int

    class Documented:
        """Something."""

    module = types.ModuleType("bare")
    for value in (function, Record, Pair, Documented):
        value.__module__ = "bare"
        setattr(module, value.__name__, value)
    assert undocumented(module) == ["bare", "bare.function", "bare.Record", "bare.Pair"]


def imports_torch(code: str, folder: Path) -> bool:
    """Run code in a new process where a torch can be imported, whether or not the real one is installed."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    code += "\nimport sys\nprint('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1] == "True"


def test_torch_is_not_imported(tmp_path):
    assert not imports_torch("import jaxspec\nimport jaxspec.decode", tmp_path)


def test_an_import_of_torch_is_seen(tmp_path):
    assert imports_torch("import jaxspec\nimport torch", tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_explains_itself_and_is_short(script):
    run = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("usage: ")
    lines = len(script.read_text().splitlines())
    assert lines <= 80, f"{script.name} has {lines} lines; a script parses arguments, calls the library and prints"
