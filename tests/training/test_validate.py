"""Validation counts what the engine accepted of a draft on held-out prompts, by depth and by category."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.checkpoint.artifact import IDS, shared
from jaxspec.contracts import EngineParams
from jaxspec.models import unfuse
from jaxspec.models.heads import DraftConfig, draft_body
from jaxspec.pipeline import load_model
from jaxspec.training.draft_start import start
from jaxspec.training.validate import Validator, read_held
from tests.test_tiny import TARGET

pytestmark = pytest.mark.heavy

NEW = 16
RECORDS = [
    {"prompt": "It was a fine morning, and", "category": "books"},
    {"prompt": "KING HENRY: My lord", "category": "plays"},
    {"prompt": "The old man took his hat", "category": "books"},
    {"messages": [{"role": "user", "content": "What news?"}], "category": "plays"},
    {"prompt": "This PEP proposes a new function", "category": "books"},
]


@pytest.fixture(scope="module")
def target():
    return load_model(TARGET)


@pytest.fixture
def held(tmp_path, target):
    (tmp_path / "held.jsonl").write_text("\n".join(json.dumps(record) for record in RECORDS) + "\n")
    return read_held(tmp_path / "held.jsonl", target, per_category=2, max_new_tokens=NEW)


@pytest.fixture(scope="module")
def draft(target):
    """An exit whose adapter has learnt nothing: what the source exit:2 drafts."""
    config, params = unfuse(target.model.config, target.params)
    draft = DraftConfig("exit", draft_body(config, 1), config.vocab_size, layers=2, rank=4)
    own = start(draft, params, seed=0) | {IDS: jnp.arange(config.vocab_size, dtype=jnp.int32)}
    return draft, own | shared(draft, own, params) | {"temperature": jnp.float32(1)}


def test_prompts_are_the_first_of_each_category_as_chats(held, target):
    assert [each.category for each in held] == ["books", "plays", "books", "plays"]
    assert held[0].tokens == target.tokenizer.chat([{"role": "user", "content": RECORDS[0]["prompt"]}])
    assert held[3].tokens == target.tokenizer.chat(RECORDS[3]["messages"])


@pytest.mark.parametrize("counts", [{"per_category": 0}, {"max_new_tokens": 0}])
def test_counts_below_one_are_refused(tmp_path, target, counts):
    with pytest.raises(ValueError, match="both must be 1 or more"):
        read_held(tmp_path / "held.jsonl", target, **({"per_category": 2, "max_new_tokens": NEW} | counts))


def test_a_lookahead_below_one_is_refused(held, target):
    with pytest.raises(ValueError, match="lookahead of validation is 0"):
        Validator(target, "ngram", held, lookahead=0)


def test_what_it_counts_is_what_the_engine_did(held, draft, target):
    config, own = draft
    check = Validator(target, config, held, lookahead=3, max_new_tokens=NEW)
    found = check(own)
    plain = decode.make_setup(
        target.model, drafts=("exit:2",), select="fixed:exit:2:3", lookahead=3, vocab_size=check.setup.vocab_size
    )
    counters = decode.generate(
        plain,
        EngineParams(target.params, {}, ()),
        [each.tokens for each in held],
        max_new_tokens=NEW,
        stop_ids=tuple(target.tokenizer.eos_ids),
    ).counters
    for name, rows in {"books": [0, 2], "plays": [1, 3], "overall": [0, 1, 2, 3]}.items():
        seen = found["overall"] if name == "overall" else found["categories"][name]
        proposed, accepted = (np.asarray(each)[rows, 1].sum(0) for each in (counters.proposed, counters.accepted))
        np.testing.assert_allclose(seen["acceptance"], accepted / proposed, atol=1e-4)
        assert (seen["prompts"], seen["tokens"]) == (len(rows), np.asarray(counters.emitted)[rows].sum())
        assert seen["rounds"] == np.asarray(counters.rounds)[rows].sum()
        assert seen["mean_accepted_tokens"] == pytest.approx(seen["tokens"] / seen["rounds"], abs=1e-3)
    assert found["overall"]["acceptance"][0] > 0.3
    spoilt = check(own | {"norm.weight": -own["norm.weight"]})  # the control; and nothing compiles anew
    assert spoilt["overall"]["acceptance"][0] < 0.1
    assert spoilt["overall"]["tokens"] == found["overall"]["tokens"]  # the text is the target's own all the same


def test_a_file_without_a_prompt_that_fits_is_refused(tmp_path, target):
    (tmp_path / "held.txt").write_text("a word " * 3000)
    with pytest.raises(ValueError, match=r"has no prompt of at most 2032 tokens"):
        read_held(tmp_path / "held.txt", target, per_category=2, max_new_tokens=NEW)
