"""A forward pass that also hands out the residual stream between layers."""

from typing import Any

import jax

from jaxspec.cache import join, layers_of_window
from jaxspec.models.api import LanguageModel, Output
from jaxspec.typing import Params, PyTree


def tapped(
    model: LanguageModel,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    mask: jax.Array,
    cache: PyTree,
    carried: Any = None,
    *,
    taps: tuple[int, ...] = (),
    start: int = 0,
    stop: int | None = None,
    hidden: jax.Array | None = None,
    logits: bool = True,
) -> tuple[Output, dict[int, jax.Array]]:
    """Layers `start` to `stop`, and the residual stream [B, T, D] after each number of layers in `taps` among them.

    The layers run in parts that end where a tap is; the operations are those of one pass.

    Args:
        carried: a window of earlier tokens of this round, of the layers that run.
        taps: ascending, 1 to the number of layers; those above `start` and up to `stop` are handed out. Static.
        start: layers that `hidden` has been through already; with 0 the pass begins with the tokens. Static.
        stop: layers after which to end; the model's last where None. Static.

    Raises:
        ValueError: the model is not of `jaxspec.models` and cannot run in parts.
    """
    if not taps and start == 0 and stop is None:
        return model.forward(params, tokens, positions, mask, cache, carried, logits=logits), {}
    stop = layers_of(model) if stop is None else stop
    wanted = [tap for tap in taps if start < tap <= stop]
    found: dict[int, jax.Array] = {}
    window: Any = None
    ends = sorted({*wanted, stop})
    out = None
    for begin, end in zip([start, *ends], ends, strict=False):
        old = None if carried is None else layers_of_window(carried, begin - start, end - start)
        part = {"layers": (begin, end), "hidden": hidden, "logits": logits and end == stop}
        out = model.forward(params, tokens, positions, mask, cache, old, **part)
        hidden = out.hidden
        window = out.window if window is None else join(window, out.window)
        if end in wanted:
            found[end] = hidden
    assert out is not None
    return out._replace(window=window), found


def layers_of(model: LanguageModel) -> int:
    """Layers of a model that can run in parts.

    Raises:
        ValueError: a model whose config does not say.
    """
    total = getattr(model.config, "num_layers", None)
    if not isinstance(total, int):
        raise ValueError(
            f"this draft source needs a target of jaxspec.models, whose layers can be run in parts; this one's config "
            f"is a {type(model.config).__name__}, so choose another draft source"
        )
    return total
