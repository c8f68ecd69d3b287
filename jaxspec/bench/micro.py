"""What a step is made of: target passes by window width, and the speed at which this machine reads memory."""

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec import decode
from jaxspec.bench.measure import Told
from jaxspec.contracts import EngineParams, Setup
from jaxspec.models.windows import in_branch
from jaxspec.tree import ancestors, chain
from jaxspec.typing import Params, PyTree

READ_BYTES = 1 << 29
"""Size of the array whose reading is timed: larger than any cache."""

PASSES = 3
"""Target passes in one timed call, so that the call itself does not count."""


def step_costs(
    setup: Setup,
    params: EngineParams,
    prompt: Sequence[int],
    *,
    widths: Sequence[int],
    capacity: int,
    dtype: Any,
    rounds: int = 9,
    read_bytes: int = READ_BYTES,
    told: Told | None = None,
) -> dict[str, Any]:
    """Median seconds of a target pass with its commit at each window width, interleaved with reads of memory.

    Args:
        setup: of the plain loop.
        prompt: token ids that fill the cache.
        widths: window widths, in tokens; 1 is always timed.
        capacity: tokens the cache holds.
        rounds: times that each is measured.
        read_bytes: size of the array that is read.
        told: called after every round.
    """
    request = decode.make_request(setup, [prompt], max_new_tokens=1, seed=0)
    state = decode.start(setup, params, [prompt], request, capacity=capacity, dtype=dtype)
    each = {f"window:{width}": _passes(setup, params, state, len(prompt), width) for width in sorted({1, *widths})}
    each |= {f"read:{name}": read for name, read in readers(read_bytes).items()}
    seconds = interleaved_medians(each, rounds, told=told)
    bandwidth = {name.removeprefix("read:"): read_bytes / s for name, s in seconds.items() if name.startswith("read:")}
    steps = {int(name.removeprefix("window:")): s / PASSES for name, s in seconds.items() if name.startswith("window:")}
    return costs(steps, bandwidth, weight_bytes(params.target))


def costs(steps: Mapping[int, float], bandwidth: Mapping[str, float], weights: int) -> dict[str, Any]:
    """The report: seconds by width, and how near width 1 is to the time that reading the weights alone takes.

    Args:
        steps: width in tokens to seconds.
        bandwidth: way of reading to bytes a second; the best is what the machine can do.
        weights: bytes of weights that a step reads.
    """
    best = max(bandwidth.values())
    floor = weights / best
    return {
        "windows": {str(width): {"seconds": s, "ratio": s / steps[1]} for width, s in sorted(steps.items())},
        "bandwidth": dict(bandwidth),
        "read_bytes_per_second": best,
        "weight_bytes": weights,
        "floor_seconds": floor,
        "step_to_floor": steps[1] / floor,
    }


def weight_bytes(params: Params) -> int:
    """Bytes of the parameters that a step reads whole: all but an embedding of which it takes a row."""
    gathered = "embed_tokens.weight" if "lm_head.weight" in params else ""
    return sum(array.nbytes for name, array in params.items() if name != gathered)


def interleaved_medians(
    each: Mapping[str, Callable[[], Any]], rounds: int, *, told: Told | None = None
) -> dict[str, float]:
    """Median seconds of each call, run in turn with the order turning; once before, untimed."""
    for call in each.values():
        call()
    names = list(each)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for index in range(len(names)):
            name = names[(turn + index) % len(names)]
            began = time.perf_counter()
            each[name]()
            seconds[name].append(time.perf_counter() - began)
        if told is not None:
            told("timing steps", turn + 1, rounds)
    return {name: statistics.median(found) for name, found in seconds.items()}


def readers(size: int) -> dict[str, Callable[[], Any]]:
    """Ways to read `size` bytes once with all cores: XLA's row sums, and its product with a vector.

    Not numpy's: after a product its threads spin for a while, which slows what is timed next by a sixth.
    """
    columns = 4096
    table = jnp.ones((size // (4 * columns), columns), jnp.float32)
    vector = jnp.ones(columns, jnp.float32)
    sums = jax.jit(lambda x: jnp.sum(x, axis=1))
    product = jax.jit(lambda x, v: jnp.dot(x, v, precision=jax.lax.Precision.HIGHEST))
    return {
        "xla sums": lambda: jax.block_until_ready(sums(table)),
        "xla product": lambda: jax.block_until_ready(product(table, vector)),
    }


def _passes(setup: Setup, params: EngineParams, state: decode.State, length: int, width: int) -> Callable[[], Any]:
    cache = [jax.tree.map(jnp.copy, state.cache)]  # donated to every call, which gives it back
    tokens = jnp.full((1, width), state.tokens[0, length - 1], jnp.int32)

    def call() -> None:
        last, cache[0] = passes(setup, params, cache[0], tokens, jnp.int32(length - 1), PASSES)
        jax.block_until_ready(last)

    return call


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def passes(
    setup: Setup, params: EngineParams, cache: PyTree, tokens: jax.Array, length: jax.Array, times: jax.Array | int
) -> tuple[jax.Array, PyTree]:
    """Greedy target passes over windows of one width, each committed with no token accepted, so that all are alike."""
    width = tokens.shape[1]
    positions = length + jnp.arange(width, dtype=jnp.int32)[None, :]
    mask = jnp.asarray(ancestors(chain(width)))[None]

    def body(_: jax.Array, carry: tuple[jax.Array, PyTree]) -> tuple[jax.Array, PyTree]:
        tokens, cache = carry
        forward = functools.partial(setup.target.forward, params.target, tokens, positions, mask, cache)
        out = in_branch(forward, length > 0)  # as the loops do, or the commit copies the caches
        chosen = jnp.argmax(out.logits[..., : setup.vocab_size], axis=-1).astype(jnp.int32)
        return chosen, setup.target.commit(cache, out.window, None, jnp.zeros(1, jnp.int32))

    return jax.lax.fori_loop(0, times, body, (tokens, cache))
