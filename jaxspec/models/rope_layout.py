"""The rotary part of Hugging Face's config.json, in both its layouts.

Before transformers 5: `rope_theta`, `rope_scaling` {type or rope_type, ...}, and in Gemma 3 `rope_local_base_freq`.
Since: `rope_parameters` {rope_type, rope_theta, partial_rotary_factor, ...}, in Gemma 3 one such object for each of
full_attention and sliding_attention.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxspec.models.config import RopeScaling
from jaxspec.models.families import FULL, SLIDING, Family, Fields
from jaxspec.models.limits import SCALING_FIELDS, check_integer, check_number

if TYPE_CHECKING:
    from jaxspec.models.config import ModelConfig

ORIGINAL = "original_max_position_embeddings"

KINDS = {"default": "none"}

SHARED = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def rope_from_hf(name: str, family: Family, fields: Fields) -> dict[str, Any]:
    """Base, local base, scaling and rotating share, as the fields of `ModelConfig`.

    Raises:
        ValueError: a kind of scaling, or a setting of it, that is not supported.
    """
    stated, local = _parameters(family, fields)
    theta = _agreed("rope_theta", stated, fields, 1e6 if name == "gemma3_text" else 1e4)
    fraction = _agreed("partial_rotary_factor", stated, fields, 1.0)
    if "partial_rotary_factor" not in family.reads and fraction != 1.0:
        raise ValueError(f"partial_rotary_factor is {fraction!r}, which family {name} does not support; 1.0 is")
    kind = _kind(name, stated)
    if kind not in family.scalings:
        allowed = ", ".join(family.scalings)
        raise ValueError(f"rotary scaling {kind!r} is not supported in family {name}; supported are {allowed}")
    for what, value in (("rope_theta", theta), ("partial_rotary_factor", fraction)):
        check_number(what, value, 0.0, 1e30, open_low=True)
    return {
        "rope_theta": float(theta),
        "rope_local_theta": _local_theta(fields, local) if "rope_local_base_freq" in family.defaults else None,
        "rope_scaling": _scaling(kind, stated, fields),
        "rotary_fraction": float(fraction),
    }


def rope_to_hf(family: Family, config: "ModelConfig") -> dict[str, Any]:
    """The older layout, which every version of transformers reads."""
    scaling = config.rope_scaling
    said: dict[str, Any] = {"rope_theta": config.rope_theta, "rope_scaling": None}
    if config.rope_local_theta is not None:
        said["rope_local_base_freq"] = config.rope_local_theta
    if "partial_rotary_factor" in family.reads:
        said["partial_rotary_factor"] = config.rotary_fraction
    if scaling.kind == "none":
        return said
    rope: dict[str, Any] = {"rope_type": scaling.kind}
    for ours in SCALING_FIELDS[scaling.kind]:
        value = getattr(scaling, ours)
        if ours == "length" or value is None or (ours.startswith("mscale") and not value):
            continue
        rope[_theirs(ours)] = list(value) if isinstance(value, tuple) else value
    if ORIGINAL in family.defaults:
        said[ORIGINAL] = scaling.original_max_positions
    return said | {"rope_scaling": rope}


def _theirs(ours: str) -> str:
    """Hugging Face's name of a field of `RopeScaling`."""
    return ORIGINAL if ours == "original_max_positions" else ours


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _agreed(name: str, stated: Mapping[str, Any], fields: Fields, default: int | float) -> Any:
    """A field that the rotary settings and the config itself may both have."""
    inner, outer = stated.get(name), fields.get(name)
    if inner is not None and outer is not None and inner != outer:
        raise ValueError(
            f"{name} is {outer!r} in the config and {inner!r} in its rotary settings; leave one of them out"
        )
    return _first(inner, outer, default)


def _parameters(family: Family, fields: Fields) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What is said of global and of sliding-window layers."""
    old, new = fields["rope_scaling"] or {}, fields["rope_parameters"] or {}
    for what, value in (("rope_scaling", old), ("rope_parameters", new)):
        if not isinstance(value, Mapping):
            raise ValueError(f"{what} is {value!r}; an object of settings is needed")
    local: Mapping[str, Any] = {}
    if FULL in new or SLIDING in new:
        if "rope_local_base_freq" not in family.defaults:
            raise ValueError(
                "rope_parameters for each layer type are supported in gemma3_text only; give one for all layers"
            )
        new, local = new.get(FULL) or {}, new.get(SLIDING) or {}
        if not isinstance(new, Mapping) or not isinstance(local, Mapping):
            raise ValueError(
                f"rope_parameters of a layer type are {new!r} and {local!r}; objects of settings are needed"
            )
        new = {**new, **old}
    elif old and new and dict(old) != dict(new):
        raise ValueError("rope_scaling and rope_parameters say different things; leave one of them out")
    return new or old, local


def _kind(name: str, stated: Mapping[str, Any]) -> str:
    aliases = KINDS | {"su": "longrope", "yarn": "longrope"} if name == "phi3" else KINDS
    old, new = stated.get("type"), stated.get("rope_type")
    kinds = {aliases.get(str(kind), str(kind)) for kind in (old, new) if kind is not None} or {"none"}
    if len(kinds) > 1:
        raise ValueError(f"the rotary scaling's type is {old!r} and its rope_type {new!r}; leave one of them out")
    return kinds.pop()


def _local_theta(fields: Fields, local: Mapping[str, Any]) -> float:
    """Base of Gemma 3's sliding-window layers, which no scaling touches."""
    if local.get("rope_type", "default") != "default" or set(local) - SHARED:
        raise ValueError(
            f"rope_parameters of sliding_attention are {dict(local)}; only a rope_theta is supported there"
        )
    theta = _first(local.get("rope_theta"), fields["rope_local_base_freq"], 1e4)
    check_number("rope_local_base_freq", theta, 0.0, 1e30, open_low=True)
    return float(theta)


def _scaling(kind: str, stated: Mapping[str, Any], fields: Fields) -> RopeScaling:
    """Defaults and derived values are those of transformers' modeling_rope_utils."""
    reads = [name for name in SCALING_FIELDS[kind] if name != "length"]
    harmless = {ORIGINAL} if kind in ("none", "linear") else set()
    known = SHARED | harmless | {_theirs(ours) for ours in reads}
    if other := sorted(key for key in set(stated) - known if stated[key] is not None):
        raise ValueError(f"rotary scaling {kind!r} does not support {', '.join(other)}; leave it out")
    given = {ours: stated.get(_theirs(ours)) for ours in reads}
    trained = fields["max_position_embeddings"]
    if "original_max_positions" in reads:
        given["original_max_positions"] = _agreed(ORIGINAL, stated, fields, trained)
        check_integer(ORIGINAL, given["original_max_positions"], 1, 2**30)
        if given["factor"] is None and kind != "llama3":
            given["factor"] = trained / given["original_max_positions"]
    for name in ("beta_fast", "beta_slow"):
        given[name] = given.get(name) or None  # transformers reads 0 as absent
    for name in ("factor", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor"):
        if name in reads and given[name] is None:
            raise ValueError(f"rotary scaling {kind!r} needs {name}; it is missing from the config")
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if v is not None}
    return RopeScaling(kind, **settings)
