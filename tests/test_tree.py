import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.tree import ancestors, chain, depths, graft

DRAWN = np.array([-1, 0, 0, 1], np.int32)


def walk(parents):
    """Ancestors found by walking from each node to the root."""
    found = np.zeros((len(parents), len(parents)), bool)
    for node in range(len(parents)):
        at = node
        while at >= 0:
            found[node, at] = True
            at = parents[at]
    return found


def random_trees(rows, width):
    rng = np.random.default_rng(0)
    return np.stack([[-1, *(rng.integers(0, node) for node in range(1, width))] for _ in range(rows)]).astype(np.int32)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 9])
def test_a_chain_is_the_tree_whose_parent_is_the_node_before(width):
    parents = chain(width)
    np.testing.assert_array_equal(parents, np.arange(width) - 1)
    np.testing.assert_array_equal(ancestors(parents), np.tri(width, dtype=bool))
    np.testing.assert_array_equal(depths(parents), np.arange(width))


def test_the_tree_in_the_drawing():
    np.testing.assert_array_equal(
        ancestors(DRAWN), np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)
    )
    np.testing.assert_array_equal(depths(DRAWN), [0, 1, 1, 2])


@pytest.mark.parametrize("width", [2, 5, 8, 17])
def test_ancestors_are_those_met_on_the_way_to_the_root(width):
    trees = random_trees(6, width)
    np.testing.assert_array_equal(ancestors(trees), [walk(parents) for parents in trees])
    np.testing.assert_array_equal(depths(trees), [walk(parents).sum(1) - 1 for parents in trees])


def test_traced_parents_give_what_static_ones_give():
    trees = random_trees(4, 9)
    within, depth = jax.jit(lambda parents: (ancestors(parents), depths(parents)))(jnp.asarray(trees))
    np.testing.assert_array_equal(within, ancestors(trees))
    np.testing.assert_array_equal(depth, depths(trees))
    assert within.dtype == bool
    assert depth.dtype == jnp.int32


def test_static_parents_stay_numpy():
    assert isinstance(ancestors(DRAWN), np.ndarray)
    assert isinstance(depths(DRAWN), np.ndarray)


def test_padding_sees_and_is_seen_by_itself_alone():
    padded = np.array([-1, 0, -1, -1], np.int32)
    within = ancestors(padded)
    np.testing.assert_array_equal(within[:2, :2], ancestors(chain(2)))
    np.testing.assert_array_equal(within[2:], np.eye(4, dtype=bool)[2:])
    assert not within[:2, 2:].any()
    np.testing.assert_array_equal(depths(padded), [0, 1, 0, 0])


def test_a_grafted_branch_keeps_its_ancestors_and_neither_part_sees_the_other():
    np.testing.assert_array_equal(graft(np.array([-1, 0, 1], np.int32), np.array([-1, 0, 0, 2])), [-1, 0, 1, 0, 0, 4])
    for stem, branch in zip(random_trees(6, 5), random_trees(6, 8)[::-1], strict=True):
        whole = graft(stem, branch)
        assert whole.dtype == np.int32
        within, grown = ancestors(whole), ancestors(branch)
        np.testing.assert_array_equal(within[:5, :5], ancestors(stem))
        assert not within[:5, 5:].any()
        np.testing.assert_array_equal(within[5:, 5:], grown[1:, 1:])
        assert within[5:, 0].all()
        assert not within[5:, 1:5].any()
