"""Chips that programs can be compiled for on a machine without them, and how to ask their compilers.

Memory, bandwidth and peak are the makers': Google Cloud's TPU system architecture pages (v5e 197, v5p 459, v6e 918
TFLOP/s in bfloat16) and NVIDIA's H200 data sheet (989 TFLOP/s in bfloat16, dense). This machine's are measured.
"""

import dataclasses
import math
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.typing import DTypeLike

from jaxspec.bench.micro import READ_BYTES, interleaved_medians, readers
from jaxspec.bench.provenance import memory_bytes

GB = 10**9
GPU = "h200"


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a program is held against; the makers' numbers."""

    name: str
    memory: int  # bytes
    bandwidth: float  # bytes a second, of its main memory
    flops: float  # operations a second, a product of matrices in bfloat16


CHIPS = {
    "v5e": Chip("TPU v5e", 16 * GB, 819e9, 197e12),
    "v5p": Chip("TPU v5p", 95 * GB, 2765e9, 459e12),
    "v6e": Chip("TPU v6e", 32 * GB, 1638e9, 918e12),
    GPU: Chip("NVIDIA H200", 141 * GB, 4800e9, 989e12),
}

EXAMPLES = "v5e:2x2, v5e:2x4, v5e:4x4, v5p:2x2x1, v6e:2x2, v6e:2x4 and h200"

H200_CONFIG = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 150754820096
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H200"
"""
"""XLA's `GpuTargetConfigProto` of the card."""

_TPU = r"(v5e|v5p|v6e):\d+x\d+(x\d+)?"

# libtpu looks for a TPU's machine before it compiles for one; these keep it from waiting for an answer.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def devices(topology: str, count: int | None = None) -> tuple[Chip, list[Any]]:
    """The chip of a topology and its devices, which exist for the compiler alone.

    Args:
        topology: "v5e:2x4" and the like, or "h200".
        count: how many GPUs; one where None. A TPU's topology says it already.

    Raises:
        ValueError: an unknown topology, or a compiler that is not installed.
    """
    kind = topology.partition(":")[0]
    if not re.fullmatch(rf"{GPU}|{_TPU}", topology):
        raise ValueError(f"topology {topology!r} is unknown; examples are {EXAMPLES}")
    jax.config.update("jax_platforms", "cpu")
    os.environ.update({name: os.environ.get(name, value) for name, value in _NO_TPU.items()})
    try:
        if kind == GPU:
            found = topologies.get_topology_desc(
                platform="cuda", topology_name="", topology=f"1x1x{count or 1}", target_config=H200_CONFIG
            )
        else:
            found = topologies.get_topology_desc(topology, platform="tpu")
    except (RuntimeError, ValueError, ImportError, NotImplementedError, AttributeError) as error:
        wanted = "jax-cuda12-plugin, jax-cuda12-pjrt and nvidia-cuda-nvcc-cu12" if kind == GPU else "libtpu"
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ValueError(
            f"no compiler for {topology!r} ({reason}); install {wanted} of the versions for jax {jax.__version__}, "
            f"or give another topology, such as {EXAMPLES}"
        ) from error
    return CHIPS[kind], list(found.devices)


def named(text: str) -> tuple[Chip, int | None]:
    """The chip of a name, and how many where a topology says it.   v5e -> one, unsaid; v5e:4x4 -> 16

    Raises:
        ValueError: an unknown chip.
    """
    kind = text.partition(":")[0]
    if kind not in CHIPS or not (text in CHIPS or re.fullmatch(_TPU, text)):
        raise ValueError(f"chip {text!r} is unknown; choose cpu, {', '.join(CHIPS)}, or a topology such as v5e:4x4")
    sizes = [int(size) for size in text.partition(":")[2].split("x") if size]
    if 0 in sizes:
        raise ValueError(f"chip {text!r} has no devices; give a topology such as v5e:4x4")
    return CHIPS[kind], math.prod(sizes) if sizes else None


SIDE = 1024
"""Rows and columns of the matrices whose product is timed."""


def host(dtype: DTypeLike = jnp.float32, *, read_bytes: int = READ_BYTES, rounds: int = 5) -> Chip:
    """This machine's processor: the memory it has, and how fast it reads it and multiplies, measured in a few seconds.

    Args:
        dtype: of the product.
        read_bytes: size of the array that is read.
        rounds: times that each is measured; medians count.
    """
    square = jnp.ones((SIDE, SIDE), dtype)
    product = jax.jit(lambda x, y: x @ y)
    calls = readers(read_bytes) | {"product": lambda: jax.block_until_ready(product(square, square))}
    seconds = interleaved_medians(calls, rounds)
    bandwidth = read_bytes / min(taken for name, taken in seconds.items() if name != "product")
    return Chip("this machine", memory_bytes() or 0, bandwidth, 2 * SIDE**3 / seconds["product"])
