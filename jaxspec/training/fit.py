"""AdamW with warm-up, cosine decay and clipped gradients, over batches of tokens."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxspec.training.losses import Loss
from jaxspec.typing import Params


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train. Static.

    Raises:
        ValueError: a number out of range.
    """

    steps: int
    rate: float = 4e-3  # peak learning rate, reached after the warm-up; falls to a twentieth on a cosine
    warm_up: float = 0.05  # share of the steps
    weight_decay: float = 0.05  # of matrices; vectors are norms and biases
    clip: float = 1.0  # largest norm of all gradients together
    betas: tuple[float, float] = (0.9, 0.98)

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.warm_up < 1:
            raise ValueError(
                f"steps is {self.steps} and warm_up {self.warm_up}; allowed are 1 or more and a share from 0 to below 1"
            )
        if not (self.rate > 0 and self.clip > 0 and self.weight_decay >= 0):
            raise ValueError(
                f"rate is {self.rate}, clip {self.clip}, weight_decay {self.weight_decay}; "
                "rate and clip must be above 0, weight_decay 0 or more"
            )

    def optimizer(self) -> optax.GradientTransformation:
        """The optax transformation (Loshchilov and Hutter 2019)."""
        warm = round(self.steps * self.warm_up)
        schedule = optax.warmup_cosine_decay_schedule(
            0.0 if warm else self.rate, self.rate, warm, max(self.steps, warm + 1), end_value=self.rate / 20
        )
        b1, b2 = self.betas
        matrices = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)  # noqa: E731
        adamw = optax.adamw(schedule, b1=b1, b2=b2, weight_decay=self.weight_decay, mask=matrices)
        return optax.chain(optax.clip_by_global_norm(self.clip), adamw)


def fit(
    loss: Loss,
    params: Params,
    batches: Iterable[np.ndarray],
    recipe: Recipe,
    *,
    context: Any = (),
    on_step: Callable[[int, jax.Array], None] | None = None,
) -> tuple[Params, np.ndarray]:
    """Trained parameters and the loss of every step, float32 [steps].

    Args:
        loss: of `jaxspec.training.losses`.
        params: float32; copied, so the caller's stay whole.
        batches: int32 [B, T+1], all of one shape; `recipe.steps` of them are taken.
        context: what the loss reads and training leaves alone.
        on_step: told (steps done, loss on the device) after every step.

    Raises:
        ValueError: too few batches, or a loss that is no longer finite (the step is named).
    """
    optimizer = recipe.optimizer()

    def update(params: Any, memory: Any, tokens: jax.Array, context: Any) -> tuple[Any, Any, jax.Array]:
        value, slope = jax.value_and_grad(loss)(params, tokens, context)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
            change, memory = optimizer.update(slope, memory, params)
        return optax.apply_updates(params, change), memory, value

    step = jax.jit(update, donate_argnums=(0, 1))
    params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
    memory, losses = optimizer.init(params), []
    for batch in batches:
        params, memory, value = step(params, memory, jnp.asarray(batch), context)
        losses.append(value)
        if on_step is not None:
            on_step(len(losses), value)
        if len(losses) == recipe.steps:
            break
    if len(losses) < recipe.steps:
        raise ValueError(f"there were {len(losses)} batches for {recipe.steps} steps; give as many batches as steps")
    values = np.asarray(jax.device_get(losses), np.float32)
    if not np.isfinite(values).all():
        first = int(np.argmin(np.isfinite(values))) + 1
        raise ValueError(f"the loss is no number from step {first} on; lower the rate, which is {recipe.rate}")
    return params, values
