"""Tables on disk: found by what they were measured for, measured again where they are broken or of other versions."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxspec.costs import every, find, look_up, make_key, save
from jaxspec.select.cost import guess
from tests.decode import tiny

NAMES, WINDOWS = ("none", "lookup", "lm:d"), (1, 4, 8)
TABLE = guess((False, False, True), 0, WINDOWS)


def key_of(**changes):
    sizes = {"dtype": "float32", "rows": 2, "sources": NAMES, "windows": WINDOWS, "capacity": 128} | changes
    return make_key(sizes.pop("config", tiny.TARGET), **sizes)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_saved_is_found():
    assert find(key_of()) is None
    save(key_of(), TABLE, 12.5)
    found = look_up(key_of())
    assert found.seconds_taken == 12.5
    for mine, theirs in zip(TABLE, found.table, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    save(key_of(), TABLE._replace(verify=2 * TABLE.verify), 1.0)
    np.testing.assert_allclose(find(key_of()).verify, 2 * TABLE.verify, rtol=1e-6)


OTHERS = {
    "rows": 3,
    "dtype": "bfloat16",
    "sources": ("none", "suffix", "lm:d"),
    "windows": (1, 8),
    "capacity": 600,
    "mesh": "data=1,model=8",
    "config": dataclasses.replace(tiny.TARGET, num_layers=3),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_engine_has_another_table(name):
    save(key_of(), TABLE, 1.0)
    assert find(key_of(**{name: OTHERS[name]})) is None


@pytest.mark.parametrize("name", ["device", "platform", "cores"])
def test_another_machine_has_another_table(name):
    save(key_of(), TABLE, 1.0)
    other = 99 if name == "cores" else "another"
    assert find(dataclasses.replace(key_of(), **{name: other})) is None


def test_what_costs_alike_shares_a_table():
    save(key_of(), TABLE, 1.0)
    assert find(key_of(capacity=512)) is not None
    alike = dataclasses.replace(tiny.TARGET, fused=True, eos_ids=(2,))
    assert find(key_of(config=alike)) is not None


@pytest.mark.parametrize("version", ["jaxspec", "jax"])
def test_a_table_of_another_version_is_stale_and_a_line_says_so(version):
    save(dataclasses.replace(key_of(), **{version: "0.0.1"}), TABLE, 1.0)
    notes = []
    assert find(key_of(), note=notes.append) is None
    assert len(notes) == 1
    assert f"{version} 0.0.1, now " in notes[0]
    assert notes[0].endswith("they are measured again")
    assert list(every()) == []


def broken(content: dict) -> list[str]:
    """What may become of a file."""
    text = json.dumps(content)
    other = content | {"key": content["key"] | {"rows": 7}}
    without = {part: value for part, value in content.items() if part != "draft"}
    wrong = content | {"verify": {"1": -1}}
    return [text[: len(text) // 2], "", "[]", "null", "{}", *(json.dumps(each) for each in (other, without, wrong))]


def test_a_broken_table_is_told_of_and_not_used():
    path = save(key_of(), TABLE, 1.0)
    for text in broken(json.loads(path.read_text())):
        path.write_text(text)
        notes = []
        assert find(key_of(), note=notes.append) is None
        assert len(notes) == 1
        assert "are broken" in notes[0]
        assert "\n" not in notes[0]


def test_a_file_is_whole_or_not_there(cache, monkeypatch):
    save(key_of(), TABLE, 1.0)

    def full(self, *args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(ValueError, match="No space left"):
        save(key_of(), TABLE._replace(verify=3 * TABLE.verify), 1.0)
    monkeypatch.undo()
    monkeypatch.setenv("JAXSPEC_CACHE", str(cache))
    np.testing.assert_allclose(find(key_of()).verify, TABLE.verify, rtol=1e-6)
    assert [path.suffix for path in (cache / "costs").iterdir()] == [".json"]


def test_all_tables_of_this_version_can_be_looked_through(cache):
    for rows in (1, 2):
        save(key_of(rows=rows), TABLE, 1.0)
    save(dataclasses.replace(key_of(rows=3), jax="0.0.1"), TABLE, 1.0)
    (cache / "costs" / "other.json").write_text("{")
    assert {stored.key["rows"] for stored in every()} == {1, 2}
    assert {stored.key["device"] for stored in every()} == {jax.devices()[0].device_kind}
