"""The pair in checkpoints/tiny: small, trained, and worth drafting with; every source gives plain decoding's text."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.contracts import Choice, Selector
from jaxspec.pipeline import load_model
from jaxspec.run import Result
from jaxspec.text import from_folder
from jaxspec.training import next_token

TINY = Path(__file__).parent.parent / "checkpoints" / "tiny"
TARGET, LM = str(TINY / "target"), f"lm:{TINY / 'draft'}"
SENTENCE = "The old man took his hat from the table and went out of the room without a word to the others."
PROMPTS = [
    "It was a fine morning, and",
    "This PEP proposes a new function in the standard library",
    "KING HENRY:\nMy lord, what news",
]
NEW = 48
SOURCES = ("lookup", LM, "exit:2")


def by_data() -> Selector:
    """The source and three drafts, from `EngineParams.selector`: one program for every source."""

    def choose(params, state, signals):
        rows = len(signals.active)
        return Choice(jnp.full(rows, params, jnp.int32), jnp.full(rows, jnp.where(params == 0, 0, 3), jnp.int32))

    return Selector("by data", lambda rows, sources: (), choose, lambda params, state, *seen: state)


@pytest.fixture(scope="module")
def generate():
    """generate(source, prompts, ...) -> Answer."""
    pipeline = jaxspec.load(TARGET, drafts=SOURCES, lookahead=3)
    pipeline.select = by_data()

    def run(source: str, prompts: list[str], **options):
        chosen = jnp.int32(("none", *SOURCES).index(source))
        pipeline.params = dataclasses.replace(pipeline.params, selector=chosen)
        return pipeline.generate(prompts, max_new_tokens=NEW, **options)

    return run


@pytest.fixture(scope="module")
def plain(generate) -> list[Result]:
    return generate("none", PROMPTS).results


@pytest.mark.parametrize(
    ("source", "least"), [("lookup", 0.1), (LM, 0.3), ("exit:2", 0.3)], ids=["lookup", "lm", "exit"]
)
def test_greedy_text_is_that_of_plain_decoding_in_fewer_rounds(source, least, generate, plain):
    answer = generate(source, PROMPTS)
    assert [dataclasses.astuple(r) for r in answer.results] == [dataclasses.astuple(r) for r in plain]
    assert answer.stats["sources"][source]["acceptance_rate"] > least
    assert answer.stats["rounds"] < NEW


def test_text_is_words(plain):
    words = " ".join(result.text for result in plain).split()
    assert len(words) > 20
    assert sum(word.isascii() for word in words) > 0.9 * len(words)
    assert {"the", "of", "to", "and", "a", "in"} & set(words)


@pytest.fixture(scope="module", params=["target", "draft"])
def surprise(request):
    """The loss of the sentence by parameters, and the parameters of one of the models."""
    loaded = load_model(str(TINY / request.param))
    tokens = np.asarray([loaded.tokenizer.encode(SENTENCE)], np.int32)
    measure = jax.jit(next_token(loaded.model))
    return lambda params: float(measure(params, tokens, ())), loaded.params


def test_a_sentence_surprises_it_far_less_than_a_guess(surprise):
    loss, params = surprise
    assert loss(params) < 0.65 * np.log(512)


def test_shuffled_weights_know_nothing(surprise):
    """The control: the same numbers in another order fail the same bound."""
    loss, params = surprise
    rng = np.random.default_rng(0)
    shuffled = {n: jnp.asarray(rng.permutation(np.asarray(w).ravel()).reshape(w.shape)) for n, w in params.items()}
    assert loss(shuffled) > 0.9 * np.log(512)


def test_a_chat_is_answered(generate):
    for result in generate("none", PROMPTS, chat=True).results:
        assert result.text.strip()
        assert "<|im_end|>" not in result.text


def test_the_draft_reads_the_targets_tokens():
    assert from_folder(TINY / "draft").vocabulary() == from_folder(TINY / "target").vocabulary()


def test_it_is_small_and_of_few_files():
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000
    assert len(files) < 40
