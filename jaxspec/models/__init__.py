"""Models: Flax NNX inside, pure functions outside."""

from jaxspec.models.api import Forward, LanguageModel, Output, bind, language_model, parameter_shapes
from jaxspec.models.config import ModelConfig, RopeScaling
from jaxspec.models.decoder import Decoder

__all__ = [
    "Decoder",
    "Forward",
    "LanguageModel",
    "ModelConfig",
    "Output",
    "RopeScaling",
    "bind",
    "language_model",
    "parameter_shapes",
]
