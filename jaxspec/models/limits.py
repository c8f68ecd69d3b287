"""Bounds of a model's config, so that a damaged or hostile one fails in one sentence and not in an allocation."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxspec.models.config import ModelConfig, RopeScaling

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")

SIZES = {
    "vocab_size": 2**24,
    "hidden_size": 2**18,
    "intermediate_size": 2**20,
    "num_layers": 1024,
    "num_heads": 4096,
    "num_kv_heads": 4096,
    "head_dim": 4096,
    "max_positions": 2**30,
}
"""Largest value of each size, far above any model that exists."""

SCALING_FIELDS = {
    "none": (),
    "linear": ("factor",),
    "dynamic": ("factor", "length"),
    "yarn": (
        "factor",
        "original_max_positions",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
    "llama3": ("factor", "original_max_positions", "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", "original_max_positions", "attention_factor", "short_factor", "long_factor", "length"),
}
"""Each kind of rotary scaling and the fields that it reads."""


def check_integer(name: str, value: Any, low: int, high: int) -> None:
    """Raise a ValueError unless `value` is an int in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; a whole number from {low} to {high} is needed")


def check_number(name: str, value: Any, low: int | float, high: int | float, *, open_low: bool = False) -> None:
    """Raise a ValueError unless `value` is a finite number in [low, high], or in (low, high] with `open_low`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not -math.inf < value < math.inf:  # math.isfinite fails on integers that no float holds
        raise ValueError(f"{name} is {value!r}; a finite number is needed")
    if not low <= value <= high or (open_low and value == low):
        least = "more than" if open_low else "at least"
        raise ValueError(f"{name} is {value!r}; {least} {low:g} and at most {high:g} is needed")


def check_numbers(name: str, values: Any, count: int) -> None:
    """Raise a ValueError unless `values` are `count` finite numbers above 0."""
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != count:
        got = f"{len(values)} values" if isinstance(values, Sequence) else repr(values)
        raise ValueError(f"{name} has {got}; one for each of the {count} rotary frequencies is needed")
    for value in values:
        check_number(f"an entry of {name}", value, 0.0, 1e30, open_low=True)


def check_activation(name: str) -> None:
    """Raise a ValueError unless the feed-forward's non-linearity is a known one."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is not supported; supported are {', '.join(ACTIVATIONS)}")


def check_windows(windows: Any, layers: int) -> None:
    """Raise a ValueError unless there is no window, or one entry a layer, each None or at least 1 token."""
    if windows and len(windows) != layers:
        raise ValueError(f"windows has {len(windows)} entries for {layers} layers; give one a layer, or none at all")
    for window in windows:
        if window is not None:
            check_integer("a layer's sliding window", window, 1, 2**30)


def check_sizes(config: "ModelConfig") -> None:
    """Raise a ValueError unless the sizes are sane, heads divide into groups, and the rotary part of a head is even."""
    for name, high in SIZES.items():
        check_integer(name, getattr(config, name), 1, high)
    if config.num_heads % config.num_kv_heads:
        raise ValueError(f"num_heads is {config.num_heads}; a multiple of num_kv_heads {config.num_kv_heads} is needed")
    check_number("rotary_fraction", config.rotary_fraction, 0.0, 1.0, open_low=True)
    scaling, rotary = config.rope_scaling, config.rotary_dim
    if rotary % 2 or rotary < (4 if scaling.kind == "dynamic" else 2):
        raise ValueError(f"{rotary} features of a head of {config.head_dim} would rotate; an even number is needed")
    for name in ("short_factor", "long_factor"):
        if name in SCALING_FIELDS[scaling.kind]:
            check_numbers(name, getattr(scaling, name), rotary // 2)


def check_scaling(scaling: "RopeScaling") -> None:
    """Raise a ValueError unless the kind exists and every field is in range and read by the kind."""
    kind = scaling.kind
    if kind not in SCALING_FIELDS:
        raise ValueError(f"rotary scaling {kind!r} is not supported; supported are {', '.join(SCALING_FIELDS)}")
    reads = SCALING_FIELDS[kind]
    for name, field in type(scaling).__dataclass_fields__.items():
        if name != "kind" and name not in reads and getattr(scaling, name) != field.default:
            value = getattr(scaling, name)
            raise ValueError(f"rotary scaling {kind!r} does not read {name}, which is {value!r}; leave it out")
    check_number("factor", scaling.factor, 0.0, 1e9, open_low=True)
    check_number("beta_slow", scaling.beta_slow, 0.0, 1e9, open_low=True)
    check_number("beta_fast", scaling.beta_fast, scaling.beta_slow, 1e9)
    check_number("low_freq_factor", scaling.low_freq_factor, 0.0, 1e9, open_low=True)
    check_number("high_freq_factor", scaling.high_freq_factor, scaling.low_freq_factor, 1e9, open_low=True)
    check_number("mscale", scaling.mscale, 0.0, 1e3)
    check_number("mscale_all_dim", scaling.mscale_all_dim, 0.0, 1e3)
    check_integer("length", scaling.length, 0, 2**30)
    if scaling.attention_factor is not None:
        check_number("attention_factor", scaling.attention_factor, 0.0, 1e3, open_low=True)
    if not isinstance(scaling.truncate, bool):
        raise ValueError(f"truncate is {scaling.truncate!r}; true or false is needed")
    check_integer("original_max_positions", scaling.original_max_positions, 0, 2**30)
    if "original_max_positions" in reads and scaling.original_max_positions < 2:
        raise ValueError(f"rotary scaling {kind!r} needs original_max_positions, the trained context in tokens")
