"""From logits to tokens: the warpers' settings, their one pipeline, and noise that is fixed by seed and position.

penalise (bias, penalties, min_tokens) -> warp (temperature, top-k, top-p, min-p) -> pick (argmax of log p + Gumbel)
"""

from jaxspec.sampling.law import Cut, argmax, cut, log_prob, pick, probability, token_logprobs, warp
from jaxspec.sampling.noise import Purpose, gumbel, uniform
from jaxspec.sampling.penalties import History, penalise
from jaxspec.sampling.warpers import Warpers, warpers

__all__ = [
    "Cut",
    "History",
    "Purpose",
    "Warpers",
    "argmax",
    "cut",
    "gumbel",
    "log_prob",
    "penalise",
    "pick",
    "probability",
    "token_logprobs",
    "uniform",
    "warp",
    "warpers",
]
