"""Key-value caches: append-only, read-only inside a round, written once by a commit."""

from jaxspec.cache.slots import (
    Cache,
    LayerCache,
    Window,
    append,
    commit,
    first_tokens,
    for_reading,
    init_cache,
    join,
    layers_of_window,
    visible,
)

__all__ = [
    "Cache",
    "LayerCache",
    "Window",
    "append",
    "commit",
    "first_tokens",
    "for_reading",
    "init_cache",
    "join",
    "layers_of_window",
    "visible",
]
