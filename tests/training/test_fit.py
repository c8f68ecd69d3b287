"""A fit is AdamW as written down, leaves its caller's arrays alone, and teaches a model a text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.models import Decoder, ModelConfig, bind
from jaxspec.training import Recipe, fit, next_token

START = {"matrix": np.asarray([[3.0, -2.0]], np.float32), "vector": np.asarray([4.0], np.float32)}
BATCHES = np.arange(40, dtype=np.int32).reshape(20, 1, 2)


def quadratic(params, tokens, context):
    """Half the squared distance to the context; the tokens do not matter."""
    del tokens
    return 0.5 * sum(jnp.sum(jnp.square(params[name] - context[name])) for name in params)


def by_hand(params, goal, recipe: Recipe):
    """The same, from the papers' formulas, in numpy."""
    params = {name: leaf.astype(np.float64) for name, leaf in params.items()}
    m, v = ({name: 0.0 * leaf for name, leaf in params.items()} for _ in range(2))
    b1, b2 = recipe.betas
    warm = round(recipe.steps * recipe.warm_up)
    for step in range(recipe.steps):
        slope = {name: params[name] - goal[name] for name in params}
        norm = np.sqrt(sum(np.sum(leaf**2) for leaf in slope.values()))
        turn = (step - warm) / (recipe.steps - warm)
        rate = recipe.rate * (step / warm if step < warm else 0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * turn)))
        for name, leaf in params.items():
            g = slope[name] * min(1, recipe.clip / norm)
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g**2
            change = m[name] / (1 - b1 ** (step + 1)) / (np.sqrt(v[name] / (1 - b2 ** (step + 1))) + 1e-8)
            params[name] = leaf - rate * (change + recipe.weight_decay * leaf * (leaf.ndim > 1))
    return params


def fit_quadratic(recipe: Recipe, batches=BATCHES, goal=None):
    start = jax.tree.map(jnp.asarray, START)
    goal = jax.tree.map(jnp.ones_like, start) if goal is None else goal
    found, losses = fit(quadratic, start, batches, recipe, context=goal)
    return start, found, losses


@pytest.mark.parametrize("warm_up", [0.0, 0.25])
def test_it_is_adamw_with_warm_up_cosine_and_clipping(warm_up):
    recipe = Recipe(20, rate=0.3, warm_up=warm_up, weight_decay=0.2, clip=0.5)
    start, found, losses = fit_quadratic(recipe)
    expected = by_hand(START, jax.tree.map(np.ones_like, START), recipe)
    for name, leaf in expected.items():
        np.testing.assert_allclose(found[name], leaf, rtol=1e-4)
        assert np.array_equal(start[name], START[name])  # neither changed nor donated
    assert losses.shape == (20,)
    assert losses[-1] < losses[0] / 4


def test_the_formulas_tell_a_wrong_recipe():
    """The control: without decay of the matrix the same comparison fails."""
    _, found, _ = fit_quadratic(Recipe(20, rate=0.3, weight_decay=0.0))
    expected = by_hand(START, jax.tree.map(np.ones_like, START), Recipe(20, rate=0.3, weight_decay=0.2))
    assert not np.allclose(found["matrix"], expected["matrix"], rtol=1e-4)


def test_too_few_batches_are_refused():
    with pytest.raises(ValueError, match="20 batches for 30 steps"):
        fit_quadratic(Recipe(30))


def test_a_loss_that_is_no_number_names_its_step():
    goal = {"matrix": jnp.full((1, 2), jnp.nan), "vector": jnp.ones(1)}
    with pytest.raises(ValueError, match="no number from step 1 on"):
        fit_quadratic(Recipe(3), goal=goal)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"rate": 0.0}, {"warm_up": 1.0}, {"clip": -1.0}, {"weight_decay": -0.1}]
)
def test_a_recipe_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Recipe(**({"steps": 5} | wrong))


def test_a_model_learns_a_text():
    """A repeated phrase, learnt to far below a guess; untrained it is no better than one."""
    model, params = bind(
        Decoder(ModelConfig("llama", 16, 16, 24, 1, 2, 1, 8, 64, tie_embeddings=True), rngs=nnx.Rngs(0))
    )
    phrase = np.tile(np.asarray([3, 1, 4, 1, 5, 9, 2, 6], np.int32), 8)
    batches = [np.stack([phrase[i : i + 17] for i in (step % 8, (step + 3) % 8)]) for step in range(40)]
    seen = []
    _, losses = fit(
        next_token(model), params, batches, Recipe(40, rate=0.03), on_step=lambda step, loss: seen.append(step)
    )
    assert losses[0] == pytest.approx(np.log(16), abs=0.3)
    assert losses[-1] < 0.5
    assert seen == list(range(1, 41))
