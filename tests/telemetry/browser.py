"""A page in a headless browser."""

import shutil
import subprocess
from pathlib import Path

import pytest


def opened(folder: Path, text: str, part: str = "", *flags: str) -> str:
    """The page as chromium has it after its script ran, at `part` of it; or what other flags print."""
    chromium = shutil.which("chromium") or pytest.fail("chromium is missing; apt-get install chromium")
    (folder / "page.html").write_text(text, encoding="utf-8", newline="\n")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", *(flags or ["--dump-dom"])]
    address = f"{(folder / 'page.html').as_uri()}{part}"
    return subprocess.run([*command, address], capture_output=True, timeout=120, check=True).stdout.decode()
