"""A state is donated to every call that goes on from it; what it was made from is not."""

import jax
import numpy as np

from jaxspec import decode
from tests.decode.engines import began, tiny_engine
from tests.decode.test_greedy import PROMPTS


def test_the_state_is_donated_and_the_parameters_are_not():
    engine = tiny_engine("greedy")
    params, state = began(engine, PROMPTS, max_new_tokens=2)
    decode.loop(engine.setup, params, state, 1, np.zeros(4, bool))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_a_request_survives_the_state_made_from_it():
    engine = tiny_engine("greedy")
    request = decode.make_request(engine.setup, PROMPTS, max_new_tokens=2)
    params, _ = began(engine, PROMPTS, max_new_tokens=2)
    for _ in range(2):
        state = decode.start(engine.setup, engine.params, PROMPTS, request, capacity=engine.capacity)
        decode.loop(engine.setup, params, state, 8, np.zeros(4, bool))
