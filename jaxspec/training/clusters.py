"""Kinds of text from a target's hidden states over prompts: k-means on their directions.

prompt ──► hidden states ──► direction of each ──► running mean, as selectors see it ──► every 16th ──► k-means
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxspec.checkpoint import fingerprint
from jaxspec.checkpoint.staging import new_folder
from jaxspec.models import LanguageModel
from jaxspec.pipeline import load_model
from jaxspec.select.clusters import RECORD, write_clusters
from jaxspec.select.sense import MEMORY, direction
from jaxspec.text import Case, read_cases
from jaxspec.training.card import CARD
from jaxspec.typing import Params

EVERY, ROWS, PASSES = 16, 4, 50
"""Tokens between two points of a prompt, prompts at once, and passes of k-means at the most."""

Told = Callable[[int, int, int], None]


def build_clusters(
    prompts: str | Path,
    out: str | Path,
    *,
    target: str,
    clusters: int = 8,
    tokens: int = 256,
    seed: int = 0,
    command: str,
    overwrite: bool = False,
    told: Told | None = None,
) -> dict[str, Any]:
    """Clusters of a target on prompts, written whole or not at all; how many points of each category went where.

    Args:
        prompts: .jsonl or .txt, as scripts/bench.py takes them.
        target: as in `jaxspec.load`.
        clusters: kinds of text, 2 or more; 8 have features of their own.
        tokens: of a prompt at the most.
        told: (prompts done, in all, tokens so far).

    Raises:
        ValueError: bad input, or fewer points than clusters.
    """
    if clusters < 2 or tokens < EVERY:
        raise ValueError(f"clusters is {clusters} and tokens {tokens}; give 2 or more, and {EVERY} or more")
    cases = read_cases(prompts)
    with new_folder(Path(out), overwrite=overwrite, marker=RECORD) as folder:
        loaded = load_model(target)
        ids = [loaded.tokenizer.prompt(case.prompt, chat=loaded.tokenizer.chat_template is not None) for case in cases]
        points, whose = points_of(loaded.model, loaded.params, ids, tokens=tokens, told=told)
        found, nearest = kmeans(points, clusters, seed=seed)
        card = {"command": command, "prompts": Path(prompts).name, "points": len(points), "seed": seed}
        card |= {"by_category": tally(cases, whose, nearest, clusters)}
        write_clusters(folder, found, target=fingerprint(loaded.model.config, loaded.params), card=card)
        (folder / CARD).write_text(render(card, target), encoding="utf-8")
    return card


def points_of(
    model: LanguageModel, params: Params, prompts: Sequence[Sequence[int]], *, tokens: int, told: Told | None = None
) -> tuple[Float[np.ndarray, "P D"], Int[np.ndarray, "P"]]:
    """Running means of hidden states' directions, every 16th and each prompt's last, and which prompt each is of."""
    points, whose, done = [], [], 0
    for start in range(0, len(prompts), ROWS):
        group = [list(ids[-tokens:]) for ids in prompts[start : start + ROWS]]
        window = np.zeros((ROWS, tokens), np.int32)
        for row, ids in enumerate(group):
            window[row, : len(ids)] = ids
        means = np.asarray(_gists(model, params, jnp.asarray(window)))
        for row, ids in enumerate(group):
            at = sorted({*range(EVERY - 1, len(ids), EVERY), len(ids) - 1})
            points.append(means[row, at])
            whose.append(np.full(len(at), start + row))
            done += len(ids)
        if told is not None:
            told(min(start + ROWS, len(prompts)), len(prompts), done)
    return np.concatenate(points), np.concatenate(whose)


@functools.partial(jax.jit, static_argnums=0)
def _gists(model: LanguageModel, params: Params, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """The gist of `jaxspec.select.sense` after every token, had a round been made of each."""
    rows, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], (rows, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool))[None], (rows, length, length))
    cache = model.init_cache(rows, 1, headroom=1)
    hidden = model.forward(params, tokens, positions, mask, cache, logits=False).hidden.astype(jnp.float32)

    def one(gist: Array, each: Array) -> tuple[Array, Array]:
        gist = MEMORY * gist + (1 - MEMORY) * direction(each)
        return gist, gist

    _, gists = jax.lax.scan(one, jnp.zeros_like(hidden[:, 0]), hidden.transpose(1, 0, 2))
    return gists.transpose(1, 0, 2)


def kmeans(
    points: Float[np.ndarray, "P D"], clusters: int, *, seed: int = 0
) -> tuple[Float[np.ndarray, "C D"], Int[np.ndarray, "P"]]:
    """Directions of length 1, and the nearest one of each point: the one of the largest product with it.

    Starts at points far from one another (k-means++); a cluster that is left alone moves to the worst placed point.

    Source: Dhillon and Modha 2001, "Concept decompositions for large sparse text data using clustering".

    Raises:
        ValueError: fewer points than clusters.
    """
    if len(points) < clusters:
        raise ValueError(f"{len(points)} points of text are too few for {clusters} clusters; give more prompts")
    rng = np.random.default_rng(seed)
    units = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-9)
    centres = units[rng.integers(len(units))][None]
    while len(centres) < clusters:
        far = np.maximum(1 - np.max(units @ centres.T, axis=1), 0) + 1e-12
        centres = np.concatenate([centres, units[rng.choice(len(units), p=far / far.sum())][None]])
    nearest = np.full(len(units), -1)
    for _ in range(PASSES):
        like = units @ centres.T
        before, nearest = nearest, np.argmax(like, axis=1)
        if np.array_equal(before, nearest):
            break
        for cluster in range(clusters):
            mine = units[nearest == cluster]
            mean = mine.sum(0) if len(mine) else units[np.argmin(np.max(like, axis=1))]
            centres[cluster] = mean / max(np.linalg.norm(mean), 1e-9)
    return centres.astype(np.float32), np.argmax(units @ centres.T, axis=1)


def tally(
    cases: Sequence[Case], whose: Int[np.ndarray, "P"], nearest: Int[np.ndarray, "P"], clusters: int
) -> dict[str, list[int]]:
    """Points of each category's prompts in each cluster."""
    names = np.asarray([case.category for case in cases])[whose]
    return {str(name): np.bincount(nearest[names == name], minlength=clusters).tolist() for name in np.unique(names)}


def render(card: dict[str, Any], target: str) -> str:
    """The card's text."""
    by: dict[str, list[int]] = card["by_category"]
    width = len(next(iter(by.values())))
    lines = [f"# Kinds of text of `{Path(target).name}`", "", "```bash", card["command"], "```", ""]
    lines += [f"{card['points']:,} points of {card['prompts']}; those of each category by cluster:", ""]
    lines += [f"| | {' | '.join(map(str, range(width)))} |", f"|---|{'---|' * width}"]
    lines += [f"| {name or 'all'} | {' | '.join(map(str, counts))} |" for name, counts in by.items()]
    return "\n".join([*lines, ""])


__all__ = ["build_clusters", "kmeans", "points_of", "render", "tally"]
