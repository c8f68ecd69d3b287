"""Run scripts/generate.py in this process."""

import io
import json
import sys
import types

import pytest

from scripts.generate import main


@pytest.fixture
def run(capsys):
    """run(*arguments) -> what was printed; the exit status must be 0."""

    def run(*arguments: str) -> types.SimpleNamespace:
        status = main(list(arguments))
        out, err = capsys.readouterr()
        assert status == 0, err
        return types.SimpleNamespace(out=out, err=err)

    return run


@pytest.fixture
def results(run):
    """results(*arguments) -> the results of --json."""
    return lambda *arguments: json.loads(run(*arguments, "--json", "--quiet").out)["results"]


@pytest.fixture
def pipe(monkeypatch):
    """Give bytes to standard input."""

    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return give
