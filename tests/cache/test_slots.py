"""Where a token lies in a cache: what a window may see is its prefix, inside the sliding window, and nothing else."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.cache import Cache, LayerCache, Window, commit, first_tokens, init_cache, join, visible

ROWS, HEADROOM, CAPACITY = 3, 4, 40
WINDOWS = (None, 1, 2, 5, 33)


def empty(*, windows=WINDOWS, capacity: int = CAPACITY, rows: int = ROWS) -> Cache:
    return init_cache(
        rows, capacity, kv_heads=2, head_dim=2, windows=windows, headroom=HEADROOM, dtype=jnp.dtype(jnp.float32)
    )


def window_of(values: np.ndarray, layers: int = len(WINDOWS)) -> Window:
    """A window whose keys are these numbers [B, T] and whose values are their negatives, plus 0.25 for head 1."""
    keys = np.zeros((*values.shape, 2, 2), np.float32)
    keys += values[..., None, None] + np.asarray([0.0, 0.25], np.float32)[:, None]
    k = jnp.asarray(keys.transpose(0, 2, 1, 3))
    return Window((k,) * layers, (-k,) * layers, jnp.asarray(values, jnp.int32))


masks = jax.jit(visible, static_argnums=(2, 3, 4))


def seen(cache: Cache, layer: int, window: int | None, ahead: int = 0) -> list[list[float]]:
    """What each row's token `ahead` of its first uncommitted one may attend to in a layer."""
    past, keys = cache.layers[layer], []
    positions = cache.length[:, None] + ahead
    mask = np.asarray(masks(cache.length, positions, past.k.shape[2], window, cache.rings[layer]))
    np.testing.assert_array_equal(np.asarray(past.k), -np.asarray(past.v))
    for row, slots in enumerate(np.asarray(past.k)):
        found = slots[:, mask[row, 0], 0]
        np.testing.assert_array_equal(found[1], found[0] + 0.25)
        keys.append(sorted(found[0].tolist()))
    return keys


@functools.partial(jax.jit, donate_argnums=0)
def append(cache: Cache, window: Window, path: jax.Array, count: jax.Array) -> Cache:
    return commit(cache, window, path, count)


def play(cache: Cache, windows=WINDOWS, rounds: int = 24, seed: int = 0) -> None:
    """Random accepted paths through random windows; what every layer sees is checked after every commit.

    A token's key is 100 * row + its position; a rejected token's is negative.
    """
    rng = np.random.default_rng(seed)
    length = np.zeros(ROWS, int)
    for _ in range(rounds):
        count = np.minimum(rng.integers(0, HEADROOM + 1, ROWS), CAPACITY - HEADROOM - length)
        path = np.stack([rng.permutation(HEADROOM) for _ in range(ROWS)])
        values = -1.0 - rng.random((ROWS, HEADROOM))
        for row in range(ROWS):
            values[row, path[row, : count[row]]] = 100 * row + length[row] + np.arange(count[row])
        window = window_of(values, len(windows))
        cache = append(cache, window, jnp.asarray(path, jnp.int32), jnp.asarray(count, jnp.int32))
        length += count
        for layer, size in enumerate(windows):
            for ahead in (0, 3):
                first = [0 if size is None else max(0, at + ahead - size + 1) for at in length]
                expected = [[100.0 * row + p for p in range(first[row], length[row])] for row in range(ROWS)]
                assert seen(cache, layer, size, ahead) == expected, (layer, ahead)
    np.testing.assert_array_equal(np.asarray(cache.length), length)
    assert length.min() > 25, "every ring has wrapped"


def test_a_token_sees_its_prefix_inside_its_window_and_no_rejected_token():
    """Global layers, rings of several sizes, a window too wide for a ring; rows of their own length (P19, P21)."""
    cache = empty()
    assert cache.rings == (None, 5, 6, 9, None)
    play(cache)


@pytest.mark.parametrize("missing", [3, 4])
def test_too_few_slots_lose_tokens(missing: int):
    """Negative control: rings so short that rejected tokens overwrite what the window still needs."""
    cache = empty(windows=(5,))
    ring = cache.rings[0]
    assert ring == 5 + HEADROOM
    with pytest.raises(AssertionError):
        play(dataclasses.replace(cache, rings=(ring - missing,)), windows=(5,))


def test_a_row_that_accepts_nothing_stays():
    cache = empty(windows=(None, 5))
    start = window_of(np.arange(4.0)[None] + 100 * np.arange(3)[:, None], 2)
    cache = append(cache, start, jnp.tile(jnp.arange(4), (3, 1)), jnp.asarray([4, 2, 3]))
    again = append(cache, window_of(-np.ones((3, 4)), 2), jnp.zeros((3, 4), jnp.int32), jnp.asarray([0, 0, 0]))
    np.testing.assert_array_equal(np.asarray(again.length), [4, 2, 3])
    for layer, window in ((0, None), (1, 5)):
        assert seen(again, layer, window) == [[0.0, 1.0, 2.0, 3.0], [100.0, 101.0], [200.0, 201.0, 202.0]]


def test_no_path_is_the_windows_own_order():
    values = np.arange(4.0)[None] + 100 * np.arange(3)[:, None]
    count, identity = jnp.asarray([1, 4, 2]), jnp.tile(jnp.arange(4), (3, 1))
    chain = commit(empty(), window_of(values), None, count)
    path = commit(empty(), window_of(values), identity, count)
    for a, b in zip(jax.tree.leaves(chain), jax.tree.leaves(path), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_the_last_slots_are_written_and_nothing_before_them():
    """The widest window ends at the last of 12 slots (P15)."""
    cache = filled(12, 8)
    cache = commit(cache, window_of(8.0 + np.arange(4.0)[None], 1), None, jnp.asarray([4]))
    assert seen(cache, 0, None) == [[float(p) for p in range(12)]]


def test_one_slot_too_few_would_overwrite_committed_tokens():
    """Negative control: `dynamic_update_slice` moves a write that does not fit, so capacity counts a window in."""
    cache = filled(12, 9)
    cache = commit(cache, window_of(9.0 + np.arange(4.0)[None], 1), None, jnp.asarray([3]))
    assert seen(cache, 0, None) != [[float(p) for p in range(12)]]


def filled(capacity: int, length: int) -> Cache:
    cache = empty(windows=(None,), capacity=capacity, rows=1)
    for at in range(0, length, 4):
        count = jnp.asarray([min(4, length - at)])
        cache = commit(cache, window_of(at + np.arange(4.0)[None], 1), None, count)
    assert seen(cache, 0, None) == [[float(p) for p in range(length)]]
    return cache


def test_a_ring_is_used_where_it_saves_slots():
    cache = empty(windows=(None, 5, 31, 32, 40))
    assert cache.rings == (None, 9, 35, None, None)
    assert [layer.k.shape[2] for layer in cache.layers] == [40, 13, 39, 40, 40]


def test_a_window_wider_than_the_headroom_is_refused():
    values = np.arange(5.0)[None] + 100 * np.arange(3)[:, None]
    with pytest.raises(ValueError, match="5 tokens are committed at once to a cache made for 4"):
        commit(empty(windows=(5,)), window_of(values, 1), None, jnp.asarray([5, 5, 5]))


def test_windows_are_cut_and_joined():
    window = window_of(np.arange(4.0)[None], 3)
    short = first_tokens(window, 2)
    assert short.k[0].shape == (1, 2, 2, 2)
    np.testing.assert_array_equal(np.asarray(short.positions), [[0, 1]])
    lower, upper = (
        Window(window.k[:1], window.v[:1], window.positions),
        Window(window.k[1:], window.v[1:], window.positions),
    )
    whole = join(lower, upper)
    assert len(whole.k) == len(whole.v) == 3


def test_two_byte_floats_are_written_bit_for_bit():
    """As integers on a CPU: no bit of a NaN, of an infinity or of a number changes."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, (ROWS, 2, HEADROOM, 2)).astype(np.uint16)
    for dtype in (jnp.bfloat16, jnp.float16):
        cache = init_cache(ROWS, CAPACITY, kv_heads=2, head_dim=2, windows=WINDOWS, headroom=HEADROOM, dtype=dtype)
        keys = jax.lax.bitcast_convert_type(jnp.asarray(bits), dtype)
        window = Window((keys,) * len(WINDOWS), (keys,) * len(WINDOWS), jnp.zeros((ROWS, HEADROOM), jnp.int32))
        start = [0, 3, 7]
        kept = append(
            dataclasses.replace(cache, length=jnp.asarray(start, jnp.int32)),
            window,
            None,
            jnp.full(ROWS, HEADROOM, jnp.int32),
        )
        for layer, ring in zip(kept.layers, kept.rings, strict=True):
            found = np.asarray(jax.lax.bitcast_convert_type(layer.k, jnp.uint16))
            for row, at in enumerate(start):
                slots = [at + t if ring is None else (at + t) % ring for t in range(HEADROOM)]
                np.testing.assert_array_equal(found[row][:, slots], bits[row])
                if row:
                    with pytest.raises(AssertionError):
                        np.testing.assert_array_equal(found[row][:, [s - 1 for s in slots]], bits[row])


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the writes are of a form of their own on CPUs")
def test_a_commit_on_a_cpu_turns_no_cache_of_two_byte_floats_into_float32():
    shape = (ROWS, 2, CAPACITY, 2)

    def turned(write) -> bool:
        slots, fresh = jnp.zeros(shape, jnp.bfloat16), jnp.ones((ROWS, 2, HEADROOM, 2), jnp.bfloat16)
        text = jax.jit(write, donate_argnums=0).lower(slots, fresh).compile().as_text()
        return f"f32[{','.join(map(str, shape))}]" in text

    def ours(slots, fresh):
        cache = Cache((LayerCache(slots, slots),), jnp.zeros(ROWS, jnp.int32), (None,))
        window = Window((fresh,), (fresh,), jnp.zeros((ROWS, HEADROOM), jnp.int32))
        return commit(cache, window, None, jnp.full(ROWS, HEADROOM, jnp.int32)).layers[0].k

    assert not turned(ours)
    assert turned(lambda slots, fresh: jnp.sin(slots.astype(jnp.float32)).astype(jnp.bfloat16))
