"""Every test runs on eight CPU devices, with shapes, dtypes and types checked more strictly than in use.

Most of the suite's time is compilation of programs that run for a moment, so XLA is asked for little optimisation, but
for tests that run a real model or read what the compiler of another device makes.
"""

import gc
import importlib.metadata
import os
import random
from collections.abc import Callable
from pathlib import Path

# Read when jax is imported, and inherited by the scripts that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAXSPEC_COSTS", "guess")  # measuring them is what tests of that do
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "jaxspec" / "test-compilations"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
if importlib.metadata.version("jaxlib").startswith("0.10."):  # the older emitters, gone later: half the time to compile
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

import beartype
import jax
import jaxtyping
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

gc.set_threshold(700, 10, 100)  # a full collection walks every trace there is and finds little; each tenth will do


def check_function(function: Callable, *args, **kwargs) -> Callable:
    """Beartype, but for constructors: jax rebuilds dataclass pytrees with batches, shardings or None as leaves."""
    return function if function.__name__ == "__init__" else beartype.beartype(function, *args, **kwargs)


jaxtyping.install_import_hook("jaxspec", f"{__name__}.check_function")


WORKERS = 4
"""Processes of a run of the whole suite at the most: each may take some 4 GB, and compiles what others compile too."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are cores for the whole suite; none beside this process for files that were named."""
    whole = config.args == config.getini("testpaths")
    return min(os.cpu_count() or 1, WORKERS) if whole else 0


OPTIMISED = ("model", "qwen", "aot")
"""Marks of tests for which XLA optimises as it does in use."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item):
    """Before fixtures of any scope; a test's own children go by the environment."""
    quick = all(item.get_closest_marker(mark) is None for mark in OPTIMISED)
    jax.config.update("jax_disable_most_optimizations", quick)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quick))


@pytest.fixture(autouse=True)
def _seeds():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - for the libraries that still draw from it


MAPS = 30_000
"""Memory maps of the process above which compiled programs are let go of; Linux allows 65,530, XLA dies of more."""


@pytest.fixture(autouse=True, scope="module")
def _few_maps():
    """Each compiled program takes some hundred maps. Those that are needed again come from the persistent cache."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return where SmolLM2-135M-Instruct lies; a test that was asked for and lacks it fails, it does not skip."""
    path = os.environ.get("JAXSPEC_TEST_SMOLLM2", "")
    if not path or not Path(path).exists():
        pytest.fail(f"JAXSPEC_TEST_SMOLLM2 is {path!r}; set it to the folder or .gguf file of SmolLM2-135M-Instruct")
    return Path(path)
