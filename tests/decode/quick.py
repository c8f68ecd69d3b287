"""A fixture for folders whose tests compile many engines and time none."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def compile_quickly():
    """Let XLA skip its costly optimisations; halves these tests' time and changes no meaning."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
