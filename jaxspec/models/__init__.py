"""Models: Flax NNX inside, pure functions outside."""

from jaxspec.models.api import Forward, LanguageModel, Output, bind, language_model, parameter_shapes
from jaxspec.models.config import ModelConfig, RopeScaling
from jaxspec.models.decoder import Decoder
from jaxspec.models.families import FAMILIES
from jaxspec.models.fuse import fuse, unfuse
from jaxspec.models.rope import for_length
from jaxspec.models.zoo import config_from_hf, config_to_hf

__all__ = [
    "FAMILIES",
    "Decoder",
    "Forward",
    "LanguageModel",
    "ModelConfig",
    "Output",
    "RopeScaling",
    "bind",
    "config_from_hf",
    "config_to_hf",
    "for_length",
    "fuse",
    "language_model",
    "parameter_shapes",
    "unfuse",
]
