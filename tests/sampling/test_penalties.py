import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sampling import History, penalise, warpers
from jaxspec.tree import ancestors, chain

VOCAB, PADDED, SLOTS = 10, 12, 16
TREE = np.array([-1, 0, 0, 1, 3], np.int32)
NO_STOP = -1
# One row each: something alone, everything at once, and nothing.
SETTINGS = [
    {"repetition_penalty": 1.7},
    {"presence_penalty": 0.8},
    {"frequency_penalty": -0.6},
    {"bias": {2: 3.0, 9: -math.inf}},
    {"min_tokens": 6},
    {
        "repetition_penalty": 0.6,
        "presence_penalty": -0.4,
        "frequency_penalty": 0.5,
        "bias": {1: -2.0, 4: 2.5},
        "min_tokens": 5,
    },
    {},
]
ROWS = len(SETTINGS)
OFF = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "bias": {},
    "min_tokens": 0,
}
run_penalise = jax.jit(penalise, static_argnames="vocab_size")


def settings_of(rows):
    full = [OFF | row for row in rows]
    return warpers(len(rows), **{name: [row[name] for row in full] for name in OFF})


def batch(width):
    """Logits, history (garbage beyond each length), window (its first token known) and stop ids of every row."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (ROWS, SLOTS)).astype(np.int32)
    length = rng.integers(4, SLOTS, ROWS).astype(np.int32)
    prompt_length = np.minimum(length, 3).astype(np.int32)
    prompt_length[1] = length[1]  # a row that has put out nothing yet
    length[4], length[5] = prompt_length[4] + 4, prompt_length[5] + 3
    window = rng.integers(0, VOCAB, (ROWS, width)).astype(np.int32)
    window[:, 0] = tokens[np.arange(ROWS), length - 1]
    if width > 3:
        window[:, 3] = window[:, 1]  # one token twice on a path
    logits = rng.normal(size=(ROWS, width, PADDED)).astype(np.float32) * 2
    stops = np.full((ROWS, 3), -1, np.int32)
    stops[:, 0], stops[4:, 1] = 7, 0
    history = History(jnp.asarray(tokens), jnp.asarray(length), jnp.asarray(prompt_length))
    return jnp.asarray(logits), history, jnp.asarray(window), jnp.asarray(stops)


def reference(logits, prompt, output, stops, row):
    """What plain decoding makes of one node's logits, by the definitions, in float64."""
    settings, values = OFF | row, np.asarray(logits, np.float64).copy()
    values[VOCAB:] = -np.inf
    for token, value in settings["bias"].items():
        values[token] += value
    for token in set(prompt) | set(output):
        factor = settings["repetition_penalty"]
        values[token] = values[token] * factor if values[token] < 0 else values[token] / factor
    for token in set(output):
        values[token] -= settings["presence_penalty"] + settings["frequency_penalty"] * output.count(token)
    if len(output) < settings["min_tokens"]:
        values[[token for token in stops if token >= 0]] = -np.inf
    return values


def references(logits, history, window, stops, within, drafts_count=True):
    nodes = np.empty(logits.shape)
    for row, node in np.ndindex(logits.shape[:2]):
        known = history.tokens[row, : history.length[row]].tolist()
        path = [int(window[row, j]) for j in range(1, window.shape[1]) if within[node, j] and drafts_count]
        start = int(history.prompt_length[row])
        stop_ids = stops[row].tolist()
        nodes[row, node] = reference(logits[row, node], known[:start], known[start:] + path, stop_ids, SETTINGS[row])
    return nodes


@pytest.mark.parametrize("parents", [chain(1), chain(2), chain(5), TREE], ids=["plain", "one draft", "chain", "tree"])
def test_every_node_is_judged_as_plain_decoding_would_after_the_drafts_on_its_path(parents):
    within = ancestors(parents)
    logits, history, window, stops = batch(len(parents))
    found = run_penalise(logits, settings_of(SETTINGS), history, window, within, stops, vocab_size=VOCAB)
    wanted = references(logits, history, window, stops, within)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    if len(parents) > 2:
        control = references(logits, history, window, stops, within, drafts_count=False)
        for row in (0, 1, 2, 4, 5):
            assert not np.allclose(found[row], control[row], rtol=1e-5, atol=1e-6)


def test_a_tree_of_each_row_may_differ():
    logits, history, window, stops = batch(len(TREE))
    settings = settings_of(SETTINGS)
    trees = np.stack([TREE if row % 2 else chain(len(TREE)) for row in range(ROWS)])
    mixed = run_penalise(logits, settings, history, window, ancestors(trees), stops, vocab_size=VOCAB)
    for parents, rows in ((chain(len(TREE)), slice(0, None, 2)), (TREE, slice(1, None, 2))):
        same = run_penalise(logits, settings, history, window, ancestors(parents), stops, vocab_size=VOCAB)
        np.testing.assert_array_equal(mixed[rows], same[rows])


@pytest.mark.parametrize("others", [SETTINGS, [{}] * ROWS], ids=["others penalised", "nobody penalised"])
def test_a_row_with_everything_off_passes_unchanged(others):
    logits, history, window, stops = batch(3)
    within = ancestors(chain(3))
    found = run_penalise(logits, settings_of(others), history, window, within, stops, vocab_size=VOCAB)
    np.testing.assert_array_equal(found[-1, :, :VOCAB], logits[-1, :, :VOCAB])


def test_ids_beyond_the_vocabulary_never_come_back():
    logits, history, window, stops = batch(3)
    raised = logits.at[:, :, VOCAB:].set(99.0)
    found = run_penalise(raised, settings_of(SETTINGS), history, window, ancestors(chain(3)), stops, vocab_size=VOCAB)
    assert np.isneginf(found[:, :, VOCAB:]).all()
    assert np.isfinite(found[:, :, 0][:4]).all()


def test_padding_ids_touch_no_token():
    """-1 means nothing, not the last token, in bias, stop ids and window alike."""
    logits, history, window, _ = batch(3)
    settings = warpers(ROWS, frequency_penalty=5.0, bias={0: 1.0}, min_tokens=100)
    stops = jnp.full((ROWS, 2), NO_STOP, jnp.int32)
    unseen = History(jnp.zeros_like(history.tokens), history.length, history.prompt_length)
    drafts = window.at[:, 0].set(0).at[:, 1:].set(-1)
    found = run_penalise(logits, settings, unseen, drafts, ancestors(chain(3)), stops, vocab_size=PADDED)
    np.testing.assert_array_equal(found[:, :, 1:], logits[:, :, 1:])


def test_what_lies_beyond_the_known_tokens_means_nothing():
    logits, history, window, stops = batch(3)
    settings, within = settings_of(SETTINGS), ancestors(chain(3))
    slots = jnp.arange(SLOTS)[None, :] < history.length[:, None]
    other = History(jnp.where(slots, history.tokens, -5), history.length, history.prompt_length)
    np.testing.assert_array_equal(
        run_penalise(logits, settings, history, window, within, stops, vocab_size=VOCAB),
        run_penalise(logits, settings, other, window, within, stops, vocab_size=VOCAB),
    )


def test_min_tokens_counts_the_drafts_and_then_lets_go():
    logits, history, window, stops = batch(5)
    settings = warpers(ROWS, min_tokens=jnp.asarray(history.length - history.prompt_length + 2).tolist())
    found = run_penalise(logits, settings, history, window, ancestors(chain(5)), stops, vocab_size=VOCAB)
    np.testing.assert_array_equal(np.isneginf(found[:, :, 7]), [[True, True, False, False, False]] * ROWS)


@pytest.mark.parity
def test_penalties_before_the_output_are_those_of_transformers():
    import torch
    from transformers.generation import logits_process as hf

    logits, history, window, stops = batch(1)
    settings = [{"repetition_penalty": 1.7, "bias": {2: 3.0, 5: -1.0}}] * ROWS
    found = run_penalise(logits, settings_of(settings), history, window, ancestors(chain(1)), stops, vocab_size=PADDED)
    for row in range(ROWS):
        known = torch.tensor(np.asarray(history.tokens[row : row + 1, : history.length[row]]), dtype=torch.long)
        scores = torch.tensor(np.asarray(logits[row]))
        scores = hf.SequenceBiasLogitsProcessor({(2,): 3.0, (5,): -1.0})(known, scores)
        scores = hf.RepetitionPenaltyLogitsProcessor(1.7)(known, scores)
        np.testing.assert_allclose(found[row], scores, rtol=1e-5)
