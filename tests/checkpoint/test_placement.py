"""Gathered parameters are the same bytes, side by side."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint import gather


def some() -> dict:
    values = {"a": ((3, 5), jnp.float32), "b": ((), jnp.bfloat16), "c": ((7, 2, 2), jnp.float16), "d": ((0,), jnp.int8)}
    keys = jax.random.split(jax.random.key(0), len(values))
    return {
        name: jax.random.normal(key, shape).astype(dtype)
        for key, (name, (shape, dtype)) in zip(keys, values.items(), strict=True)
    }


def test_gathered_parameters_are_the_same_bit_for_bit():
    wanted, given = some(), some()
    got = gather(given)
    assert list(got) == list(wanted)
    for name, leaf in wanted.items():
        assert (got[name].shape, got[name].dtype) == (leaf.shape, leaf.dtype)
        assert np.asarray(got[name]).tobytes() == np.asarray(leaf).tobytes()


def test_they_lie_side_by_side_and_nothing_is_held_twice():
    given = some()
    got = gather(given)
    assert not given, "emptied as it went"
    assert max(places(got)) - min(places(got)) <= 4096 * len(got)
    assert sorted(places(got)) == places(got), "in their order"


def places(params: dict) -> list[int]:
    return [leaf.unsafe_buffer_pointer() for leaf in params.values() if leaf.size]
