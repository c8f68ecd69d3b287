"""A row's verdict depends on its seed, positions, drafts and logits, not on batch mates, slot or padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sampling import warpers
from jaxspec.verify import VERIFIERS

ROWS, WIDTH, VOCAB = 8, 4, 6
SEEDS = jnp.array([5, 5, 9, 2**32 - 1, 0, 5, 7, 7], jnp.uint32)
SETTINGS = {
    "temperature": [1.0, 0.0, 0.7, 1.5, 1.0, 1.0, 2.0, 0.0],
    "top_k": [0, 2, 3, 0, 0, 0, 4, 0],
    "top_p": [1.0, 1.0, 0.8, 1.0, 0.9, 1.0, 0.95, 1.0],
}
MODES = ["greedy", "rejection", "coupled"]


def batch(width=WIDTH):
    keys = jax.random.split(jax.random.key(0), 3)
    pad = ((0, 0), (0, width - WIDTH))
    logits = jnp.pad(jax.random.normal(keys[0], (ROWS, WIDTH, VOCAB)), (*pad, (0, 0)), constant_values=3.0)
    q_log = jax.nn.log_softmax(jax.random.normal(keys[1], (ROWS, WIDTH - 1, VOCAB)))
    q_log = jnp.pad(q_log, (*pad, (0, 0)), constant_values=-1.0)
    drafts = jnp.argmax(logits[:, : WIDTH - 1], -1).astype(jnp.int32)
    drafts = jnp.pad(drafts, pad, constant_values=1)
    count = jnp.array([3, 3, 2, 3, 1, 0, 3, 2], jnp.int32)
    sampled = jnp.arange(ROWS) % 3 == 0
    start = jax.random.randint(keys[2], (ROWS, 1), 0, 1000)
    return logits, drafts, count, q_log, sampled, warpers(ROWS, **SETTINGS), SEEDS, start + jnp.arange(width)[None, :]


@pytest.fixture(scope="module", params=MODES)
def run(request):
    return jax.jit(VERIFIERS[request.param])


def test_alone_in_another_slot_and_in_a_wider_window_a_row_gets_the_same_verdict(run):
    together = np.stack(run(*batch()), 1)
    order = jnp.array([3, 1, 7, 0, 2, 6, 5, 4])
    shuffled = np.stack(run(*jax.tree.map(lambda leaf: leaf[order], batch())), 1)
    np.testing.assert_array_equal(shuffled, together[order])
    np.testing.assert_array_equal(np.stack(run(*batch(width=7)), 1), together)
    for row in range(ROWS):
        alone = run(*jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], batch()))
        np.testing.assert_array_equal(np.stack(alone, 1), together[row : row + 1])


@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_another_seed_or_position_gives_other_tokens(mode):
    *inputs, seeds, positions = batch()
    verify = jax.jit(VERIFIERS[mode])
    verdict = np.stack(verify(*inputs, seeds, positions), 1)
    assert (np.stack(verify(*inputs, seeds + jnp.uint32(1), positions), 1) != verdict).any()
    assert (np.stack(verify(*inputs, seeds, positions + 1), 1) != verdict).any()
