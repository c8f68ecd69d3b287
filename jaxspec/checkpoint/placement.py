"""Where tensors go: one sharding for all, a mapping by name, or a function of name and shape."""

from collections.abc import Callable, Mapping

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from jaxspec.checkpoint.tensors import Shape

Shardings = Sharding | Mapping[str, Sharding] | Callable[[str, Shape], Sharding]


def sharding_of(shardings: Shardings | None, name: str, shape: Shape) -> Sharding:
    """The sharding of one tensor; the default device where nothing is said."""
    if shardings is None:
        return SingleDeviceSharding(jax.devices()[0])
    if isinstance(shardings, Sharding):
        return shardings
    return shardings(name, shape) if callable(shardings) else shardings[name]
