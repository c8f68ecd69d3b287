import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.sampling import gumbel, pick, warpers
from jaxspec.verify import coupled, rejection
from tests.verify.law import FAILS, HOLDS, ROWS, SEEDS, p_value, rows_of

P = np.array([0.5, 0.3, 0.15, 0.05, 0.0])
Q = np.array([0.4, 0.2, 0.2, 0.1, 0.1])
AT = jnp.broadcast_to(jnp.array([8, 9], jnp.int32), (ROWS, 2))
LOGITS = jnp.log(rows_of([P, P]))
DRAFTS = {
    "none": None,
    "always 2": jnp.full((ROWS, 1), 2, jnp.int32),
    "impossible": jnp.full((ROWS, 1), 4, jnp.int32),
    "own noise": jax.random.categorical(jax.random.key(0), jnp.log(rows_of(Q)))[:, None].astype(jnp.int32),
    "same noise": pick(jnp.log(rows_of(Q)), gumbel(SEEDS, AT[:, :1], 5)[:, 0])[:, None],
}


RUN = {"coupled": jax.jit(coupled.verify), "rejection": jax.jit(rejection.verify)}


def emit(mode, drafts):
    count = jnp.full(ROWS, drafts is not None, jnp.int32)
    drafts = jnp.zeros((ROWS, 1), jnp.int32) if drafts is None else drafts
    settings = warpers(ROWS, temperature=1.0)
    accepted, follows = RUN[mode](LOGITS, drafts, count, None, jnp.zeros(ROWS, bool), settings, SEEDS, AT)
    return np.asarray(jnp.where(accepted > 0, drafts[:, 0], follows)), np.asarray(accepted), np.asarray(follows)


def test_the_output_of_a_seed_does_not_depend_on_the_drafts():
    tokens, *_ = emit("coupled", None)
    assert p_value(tokens, P) > HOLDS
    for drafts in DRAFTS.values():
        np.testing.assert_array_equal(emit("coupled", drafts)[0], tokens)
    control = emit("rejection", DRAFTS["always 2"])[0]
    assert p_value(control, P) > HOLDS
    assert (control != tokens).any()


def test_without_drafts_coupled_and_rejection_draw_the_same_tokens():
    np.testing.assert_array_equal(emit("coupled", None)[0], emit("rejection", None)[0])


def test_the_bonus_after_an_accepted_draft_has_the_law_of_the_target():
    _, accepted, follows = emit("coupled", DRAFTS["same noise"])
    assert p_value(follows[accepted == 1], P) > HOLDS
    assert p_value(follows[accepted == 0], P) < FAILS  # what replaces a miss is what the noise wanted, not a fresh draw


def test_drafts_drawn_with_the_same_noise_match_more_often():
    own, same = (emit("coupled", DRAFTS[name])[1].mean() for name in ("own noise", "same noise"))
    assert own < (P * Q).sum() + 0.02
    assert same > own + 0.2
    assert emit("coupled", DRAFTS["impossible"])[1].max() == 0
