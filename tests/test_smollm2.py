"""SmolLM2-135M-Instruct, float32: transformers' greedy tokens, from every source, alone and in a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.contracts import Choice, Selector
from jaxspec.pipeline import Pipeline, load

pytestmark = [pytest.mark.model, pytest.mark.parity]

NEW = 96
PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that reverses a linked list.",
    "Translate to French: The cat sleeps on the warm windowsill all afternoon.",
    "A train travels 60 miles in 1.5 hours. How fast does it go? Show each step.",
    "List the planets of the solar system in order, one a line.",
    'Repeat this JSON with the age raised by one: {"name": "Ada", "age": 36, "tags": ["math", "engines"]}',
    "Summarise: The committee met on Tuesday, argued for three hours about the colour of the shed, and adjourned.",
    "What is the capital of Australia?",
    "Give three tips for baking bread at home.",
    "Fix the bug: def add(a, b): return a - b",
    "Write a haiku about the sea.",
    "Who wrote Pride and Prejudice, and when?",
    "Explain what a hash table is to a ten-year-old.",
    "Continue: one two three four one two three four one two",
    "Convert to upper case: the quick brown fox jumps over the lazy dog",
    "What is 17 times 24?",
    "Write SQL that counts the orders of each customer.",
    "Describe a rainy day in a big city.",
    "Answer yes or no: is 91 a prime number?",
    "Rewrite politely: Send me the report now.",
    "Name five animals that live in the desert and say how they find water.",
    "Complete the list: red, orange, yellow,",
    "Hello!",
    "What did the fox say to the grapes? Tell the fable in your own words.",
)
SOURCES = {"none": (0, 0), "lookup": (1, 3), "exit:20": (2, 2), "lm:self": (3, 3)}


def by_data() -> Selector:
    """Source and lookahead from `EngineParams.selector`, traced, so that one program serves every choice."""

    def choose(params, state, signals):
        rows = signals.active.shape[0]
        return Choice(jnp.broadcast_to(params[0], (rows,)), jnp.broadcast_to(params[1], (rows,)))

    return Selector("by data", lambda rows, sources: (), choose, lambda params, state, *seen: state)


@pytest.fixture(scope="module")
def pipeline(smollm2) -> Pipeline:
    return load(str(smollm2), drafts=())


@pytest.fixture(scope="module")
def setup(pipeline) -> decode.Setup:
    model = pipeline.target.model
    drafts = ("lookup", "exit:20", ("lm:self", model))
    vocab = pipeline.vocab_size
    return decode.make_setup(model, drafts=drafts, select=by_data(), lookahead=3, windows=(1, 4), vocab_size=vocab)


@pytest.fixture(scope="module")
def prompts(pipeline) -> list[list[int]]:
    return [pipeline.encode(prompt, chat=True) for prompt in PROMPTS]


def run(pipeline, setup, prompts, source) -> list[list[int]]:
    weights = pipeline.target.params
    choice = jnp.asarray(SOURCES[source], jnp.int32)
    params = decode.EngineParams(weights, {"lm:self": weights}, choice)
    return decode.generate(setup, params, prompts, max_new_tokens=NEW, capacity=256).tokens


@pytest.fixture(scope="module")
def plain(pipeline, setup, prompts) -> list[list[int]]:
    """Each prompt alone, one token a step."""
    out = []
    params = decode.EngineParams(pipeline.target.params, {}, ())
    for prompt in prompts:
        request = decode.make_request(setup, [prompt], max_new_tokens=NEW)
        state = decode.plain_loop(setup, params, decode.start(setup, params, [prompt], request, capacity=256), NEW)
        tokens = np.asarray(jax.device_get(state.tokens))[0]
        out.append([int(t) for t in tokens[len(prompt) : len(prompt) + NEW]])
    return out


def disagreements(model, prompt: list[int], output: list[int]) -> int:
    """Positions where transformers' argmax, given the tokens before, is another token: 0 is its greedy output."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt + output])).logits[0]
    wanted = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    return sum(a != b for a, b in zip(wanted, output, strict=True))


def test_plain_is_transformers_greedy(smollm2, prompts, plain):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()
    assert [disagreements(model, p, o) for p, o in zip(prompts, plain, strict=True)] == [0] * len(PROMPTS)
    spoilt = [*plain[0][:40], plain[0][40] + 1, *plain[0][41:]]
    assert disagreements(model, prompts[0], spoilt) > 0  # the control


@pytest.mark.parametrize("source", [s for s in SOURCES if s != "none"])
def test_every_source_alone_is_plain(pipeline, setup, prompts, plain, source):
    assert [run(pipeline, setup, [p], source)[0] for p in prompts[::6]] == plain[::6]


@pytest.mark.slow
@pytest.mark.parametrize("source", list(SOURCES))
def test_every_source_alone_is_plain_on_all_prompts(pipeline, setup, prompts, plain, source):
    assert [run(pipeline, setup, [p], source)[0] for p in prompts] == plain


@pytest.mark.parametrize("source", list(SOURCES))
def test_every_source_in_a_ragged_batch_is_plain(pipeline, setup, prompts, plain, source):
    batches = [prompts[i : i + 8] for i in range(0, len(prompts), 8)]
    assert len({len(p) for p in prompts[:8]}) > 1
    got = [tokens for batch in batches for tokens in run(pipeline, setup, batch, source)]
    assert got == plain
