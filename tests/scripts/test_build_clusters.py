"""scripts/build_clusters.py from prompts to clusters that selectors read, and what it refuses."""

import json

import numpy as np
import pytest

from jaxspec import load
from jaxspec.select.clusters import RECORD, read_clusters
from jaxspec.training.card import CARD
from scripts import generate
from scripts.build_clusters import main
from tests.scripts.tiny import TARGET

PROMPTS = [
    {"category": "prose", "prompt": "It was a fine morning, and the rain had gone, and the sun was on the hill."},
    {"category": "numbers", "prompt": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"},
] * 3


@pytest.fixture
def build(tmp_path, capsys):
    """build(*arguments) -> status, output, errors."""
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))

    def build(*arguments):
        where = ["--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path / "out")]
        return main([*where, *TARGET, "--tokens", "32", *arguments]), *capsys.readouterr()

    return build


def test_it_finds_clusters_of_the_target(build, tmp_path):
    status, out, err = build("--clusters", "3", "--seed", "1")
    assert status == 0, err
    assert "prose" in out
    assert "numbers" in out
    clusters, record = read_clusters(tmp_path / "out"), json.loads((tmp_path / "out" / RECORD).read_text())
    assert clusters.shape == (record["clusters"], record["width"]) == (3, record["width"])
    counts = record["card"]["by_category"]
    assert sum(map(sum, counts.values())) == record["card"]["points"]
    assert record["card"]["seed"] == 1
    assert "python scripts/build_clusters.py" in (tmp_path / "out" / CARD).read_text()
    status, _, err = build("--clusters", "3")
    assert (status, "already exists" in err) == (2, True)
    assert build("--clusters", "2", "--overwrite")[0] == 0
    assert read_clusters(tmp_path / "out").shape[0] == 2
    status, _, err = build("--clusters", "1", "--overwrite")
    assert (status, "clusters is 1" in err) == (2, True)
    status, _, err = build("--clusters", "99", "--overwrite")
    assert (status, "too few for 99 clusters" in err) == (2, True)
    assert read_clusters(tmp_path / "out").shape[0] == 2  # what was there is whole


def test_generate_tells_the_kinds_of_text_apart_and_says_the_same(build, tmp_path, capsys):
    assert build("--clusters", "3")[0] == 0
    ask = [*TARGET, "--draft", "lookup", "--prompt", "It was the 1 2 3 1 2 3", "--max-new-tokens", "12", "--quiet"]
    clusters = ["--clusters", str(tmp_path / "out")]
    said = []
    for more in ([], clusters):
        assert generate.main([*ask, *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
    assert generate.main([*ask, *clusters, "--telemetry", str(tmp_path / "told.json")]) == 0
    assert capsys.readouterr().out == said[0]
    domains = json.loads((tmp_path / "told.json").read_text())["domains"]
    assert set(domains) <= {"cluster 0", "cluster 1", "cluster 2"}
    assert sum(each["tokens"] for each in domains.values()) == 12
    for select in ("rule", "ucb"):
        assert generate.main([*ask, *clusters, "--select", select]) == 2
        assert "does not look at the kind of text" in capsys.readouterr().err
    assert generate.main([*ask, "--clusters", str(tmp_path)]) == 2
    assert "build_clusters.py" in capsys.readouterr().err


def test_kinds_of_text_reach_the_selector(build, tmp_path):
    assert build("--clusters", "3")[0] == 0
    pipeline = load(TARGET[1], drafts=["lookup"], costs="guess", clusters=str(tmp_path / "out"))
    setup = pipeline.setup(sampled=False, logprobs=False)
    assert setup.selector.clusters == 3
    given = pipeline.priced(setup, rows=1, capacity=128, prompt_ids=[1])[0].selector
    np.testing.assert_array_equal(given.clusters, read_clusters(tmp_path / "out"))
    assert load(TARGET[1], drafts=["lookup"], costs="guess").setup(sampled=False, logprobs=False).selector.clusters == 0
