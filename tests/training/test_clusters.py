"""Clusters are where the points are; points are the gists that selectors see while they decode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.select.clusters import ARRAYS, read_clusters, write_clusters
from jaxspec.select.sense import MEMORY, direction, nearest
from jaxspec.text import Case
from jaxspec.training.clusters import kmeans, points_of, tally
from tests.decode import tiny


def bundles(seed=0, each=60, width=12, spread=0.1):
    """Points around three directions, of any length, and whose each is."""
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.normal(size=(width, 3)))[0].T
    points = np.repeat(centres, each, axis=0) + spread * rng.normal(size=(3 * each, width))
    return points * rng.uniform(0.5, 3, (3 * each, 1)), np.repeat(np.arange(3), each), centres


def agreement(found, whose):
    """Share of points whose cluster is that of most of their bundle."""
    return np.mean([np.bincount(found[whose == n]).max() / np.sum(whose == n) for n in range(3)])


def test_bundles_are_found_whatever_their_lengths():
    points, whose, centres = bundles()
    clusters, found = kmeans(points, 3, seed=1)
    assert agreement(found, whose) == 1
    assert len(set(found[[0, 60, 120]])) == 3
    np.testing.assert_allclose(np.linalg.norm(clusters, axis=1), 1, rtol=1e-5)
    assert np.all(np.max(clusters @ centres.T, axis=1) > 0.98)
    np.testing.assert_array_equal(nearest(jnp.asarray(clusters), jnp.asarray(points, jnp.float32)), found)
    one = kmeans(points, 2, seed=1)[1]  # negative control: two clusters cannot tell three apart
    assert len(set(one[[0, 60, 120]])) < 3


def test_a_start_among_equal_points_still_fills_every_cluster():
    points, _, _ = bundles(spread=1e-4)
    for seed in range(5):
        assert len(set(kmeans(points, 3, seed=seed)[1].tolist())) == 3
    with pytest.raises(ValueError, match="2 points of text are too few for 3 clusters"):
        kmeans(points[:2], 3)


def test_points_are_running_means_of_directions():
    model, params = tiny.model_of(tiny.TARGET, 0, 1.6)
    prompts = [
        np.random.default_rng(n).integers(0, tiny.VOCAB, size).tolist() for n, size in enumerate((40, 7, 20, 33, 5))
    ]
    points, whose = points_of(model, params, prompts, tokens=48)
    assert whose.tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 3, 4]  # at tokens 16 and 32, and at the last
    ids = jnp.asarray([prompts[4]], jnp.int32)  # alone, where a group has four rows and is padded
    positions, mask = jnp.arange(5)[None], jnp.tril(jnp.ones((1, 5, 5), bool))
    run = jax.jit(lambda *inputs: model.forward(params, *inputs, model.init_cache(1, 1, headroom=1)).hidden[0])
    gist = np.zeros(model.config.hidden_size)
    for each in np.asarray(direction(run(ids, positions, mask))):
        gist = MEMORY * gist + (1 - MEMORY) * each
    np.testing.assert_allclose(points[whose == 4][0], gist, atol=1e-5)


def test_categories_are_counted_by_cluster():
    cases = [Case("1", "code", ""), Case("2", "chat", ""), Case("3", "code", "")]
    got = tally(cases, np.asarray([0, 0, 1, 2]), np.asarray([1, 1, 0, 2]), 3)
    assert got == {"chat": [1, 0, 0], "code": [0, 2, 1]}


def test_clusters_are_read_as_they_were_written(tmp_path):
    clusters = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    write_clusters(tmp_path, clusters, target="abc", card={})
    np.testing.assert_array_equal(read_clusters(tmp_path, "abc"), clusters)
    np.testing.assert_array_equal(read_clusters(tmp_path), clusters)
    with pytest.raises(ValueError, match="of another target"):
        read_clusters(tmp_path, "abd")
    (tmp_path / ARRAYS).write_bytes(b"short")
    with pytest.raises(ValueError, match="truncated or was changed"):
        read_clusters(tmp_path)
    with pytest.raises(ValueError, match="holds no readable clusters"):
        read_clusters(tmp_path / "nowhere")
