"""The drafts that come with the default target: small, each with a card, made for it, and exact in the engine."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import pytest

from jaxspec import decode
from jaxspec.checkpoint import fingerprint, open_draft
from jaxspec.pipeline import Pipeline, load
from tests.test_smollm2 import PROMPTS, by_data

SHELF = Path(__file__).parent.parent / "checkpoints" / "smollm2-135m-instruct"
TRAINED = sorted(folder.name for folder in SHELF.iterdir() if (folder / "model.safetensors").exists())
EVERY = sorted(folder.name for folder in SHELF.iterdir() if (folder / "draft.json").exists())
FOLDERS = sorted(folder.name for folder in SHELF.iterdir() if folder.is_dir())
LIMIT = 48 << 20
NEW = 64


def weight(shelf: Path) -> int:
    return sum(file.stat().st_size for file in shelf.rglob("*") if file.is_file())


def test_together_they_are_small(tmp_path):
    assert TRAINED
    assert weight(SHELF) <= LIMIT
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(LIMIT + 1)
    assert weight(tmp_path) > LIMIT


def lacks(card: str) -> list[str]:
    """What a card should say and does not, and what it should not say."""
    needed = ("```bash\npython scripts/", "| data |", "(SHA-256) |", "| tokens of the corpus |")
    return [word for word in needed if word not in card] + [
        word for word in (" /", "Licences: not given") if word in card
    ]


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_card_says_command_and_data_and_no_path_of_a_machine(kind):
    assert lacks((SHELF / kind / "README.md").read_text(encoding="utf-8")) == []
    assert lacks("python scripts/train_draft.py --out /home/me/draft") != []


@pytest.mark.parametrize("kind", TRAINED)
def test_a_draft_is_whole_and_of_the_kind_of_its_folder(kind):
    artifact = open_draft(SHELF / kind)
    assert artifact.config.kind == kind
    assert artifact.card["validation"]["engine"]["overall"]["acceptance"][0] > 0


# all of them alive in one program, each in turn in a ragged batch, against plain decoding


@pytest.fixture(scope="module")
def pipeline(smollm2) -> Pipeline:
    return load(str(smollm2), drafts=EVERY, lookahead=3)


@pytest.fixture(scope="module")
def setup(pipeline) -> decode.Setup:
    made = pipeline.setup(sampled=False, logprobs=False)
    return dataclasses.replace(made, selector=by_data())


@pytest.fixture(scope="module")
def plain(pipeline, setup) -> list[list[int]]:
    return answers(pipeline, setup, 0, lookahead=0)[0]


def answers(pipeline, setup, source: int, *, lookahead: int) -> tuple[list[list[int]], int, int]:
    """Outputs, and how many drafts of the source were proposed and accepted."""
    params = dataclasses.replace(pipeline.params, selector=jnp.asarray([source, lookahead], jnp.int32))
    prompts = [pipeline.encode(prompt, chat=True) for prompt in PROMPTS[::6]]
    found = decode.generate(setup, params, prompts, max_new_tokens=NEW, capacity=256)
    proposed, accepted = (int(each[:, source].sum()) for each in (found.counters.proposed, found.counters.accepted))
    return found.tokens, proposed, accepted


@pytest.mark.model
def test_the_target_is_theirs(pipeline):
    weights = fingerprint(pipeline.target.model.config, pipeline.target.params)
    assert {open_draft(SHELF / kind).target for kind in TRAINED} == {weights}
    assert load(pipeline.target.name, costs="guess").published == SHELF / "prior"


@pytest.mark.model
@pytest.mark.parametrize("kind", EVERY)
def test_tokens_are_plain_decoding_s(pipeline, setup, plain, kind):
    tokens, proposed, accepted = answers(pipeline, setup, setup.names.index(kind), lookahead=3)
    assert tokens == plain
    assert 0 < accepted < proposed  # drafts that were used, and wrong ones that left no trace
