"""Drafts as training leaves them, of a tiny target, with weights made by hand: right about half the time.

They say fewer tokens than the target does, and one that is padding.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import decode
from jaxspec.checkpoint.artifact import Artifact, attach
from jaxspec.models import LanguageModel, ModelConfig
from jaxspec.models.heads import DraftConfig, draft_body, head_shapes
from jaxspec.training.ngram import count_sequences, fill
from tests.decode import tiny
from tests.decode.engines import Engine, look_up, plain_setup
from tests.decode.schedule import scheduled, script

NAMES = ("medusa", "feature", "lm", "exit")
HEADS = 3
LOOKAHEAD = 4
IDS = np.sort(np.append(np.random.default_rng(11).choice(tiny.VOCAB, 23, replace=False), 30)).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Draft:
    """A trained draft, and its parameters with what it shares with the target."""

    config: DraftConfig
    params: dict[str, jax.Array]


@functools.cache
def trained(kind: str, target: ModelConfig = tiny.TARGET, taps: tuple[int, ...] = (), layers: int = 1) -> Draft:
    """The draft of `tiny.model_of(target, 0, 1.6)`. `layers` is for an exit, `taps` for a feature head."""
    _, params = tiny.model_of(target, 0, 1.6)
    sizes: dict[str, Any] = {
        "medusa": {"heads": HEADS, "own_output": True},
        "feature": {"taps": taps or (1, target.num_layers)},
        "lm": {},
        "exit": {"layers": layers, "rank": 4},
    }
    config = DraftConfig(kind, draft_body(target, 1), len(IDS), **sizes[kind])
    tensors = {name: np.asarray(leaf) for name, leaf in WEIGHTS[kind](config, params).items()}
    temperature = {"lm": 1.3, "medusa": 0.8}.get(kind, 1.0)
    artifact = Artifact(Path("nowhere"), config, "", temperature, {}, tensors | {"output.ids": IDS})
    return Draft(config, attach(artifact, target, params, ""))


def random_head(config: DraftConfig, scale: float) -> dict[str, np.ndarray]:
    """Norms near one, everything else small."""
    rng = np.random.default_rng(5)
    drawn = {name: rng.standard_normal(s.shape) for name, s in head_shapes(config).items()}
    return {
        name: (1 + 0.1 * leaf) if name.endswith("norm.weight") else scale * leaf * leaf.shape[-1] ** -0.5
        for name, leaf in drawn.items()
    }


def _medusa(config: DraftConfig, target: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Head i says of a token's hidden state what the target would say of it after i + 1 tokens more."""
    output, following, own = np.asarray(target["lm_head.weight"]), tiny.successors(), random_head(config, 0.3)
    for head in range(HEADS):
        moved = np.zeros_like(output)
        source = np.arange(tiny.VOCAB)
        for _ in range(head + 1):
            source = following[source]
        moved[source] = output[: tiny.VOCAB]
        own[f"output.{head}.weight"] = moved[IDS]
    return own


def _feature(config: DraftConfig, target: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """The last tap's feature is taken for the token that it predicts; the layer adds noise."""
    own, size = random_head(config, 0.4), config.body.hidden_size
    tokens = np.asarray(target["embed_tokens.weight"])[: tiny.VOCAB] / size**0.5
    own["fc.weight"][:, -size:] += tokens[tiny.successors()].T @ np.linalg.pinv(tokens.T)
    return own


def _lm(config: DraftConfig, target: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """The target's first layer; its final norm and output are shared."""
    return {name: np.asarray(leaf) for name, leaf in target.items() if name.startswith("layers.0.")}


def _exit(config: DraftConfig, target: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    own = random_head(config, 0.5)
    del own["norm.weight"]  # the target's
    return own


WEIGHTS = {"medusa": _medusa, "feature": _feature, "lm": _lm, "exit": _exit}


@functools.cache
def table() -> dict[str, jax.Array]:
    """An n-gram table of texts in which each token has its successor."""
    rng, following = np.random.default_rng(3), tiny.successors()
    texts = np.full((30, 13), -1, np.int32)
    texts[:, 0] = rng.integers(0, tiny.VOCAB, 30)
    for at in range(1, 12):
        texts[:, at] = following[texts[:, at - 1]]
    found = count_sequences(texts.ravel(), orders=(2, 4), min_count=1)
    return {name: jnp.asarray(leaf) for name, leaf in fill(found, budget=10**4, vocab_size=tiny.VOCAB).items()}


@functools.cache
def trained_engine(verify: str, *, version: int = 0) -> Engine:
    """Every source there is, the trained ones last."""
    model, params = tiny.model_of(tiny.TARGET, 0, 1.6)
    draft, draft_params = tiny.model_of(tiny.DRAFT, 1, 0.5)
    drafts = {name: trained(name) for name in NAMES}
    given = (
        *(look_up(LOOKAHEAD), "suffix", "ngram", "jacobi:2:3:2", "exit:1"),
        *(("lm:d", draft), script(LOOKAHEAD)),
        *((name, each.config) for name, each in drafts.items()),
    )
    own = {"lm:d": draft_params, "ngram": table()} | {name: each.params for name, each in drafts.items()}
    return engine_of(verify, model, params, given, own, version=version)


def engine_of(
    verify: str, model: LanguageModel, params: Any, drafts: Any, own: dict[str, Any], *, version: int = 0
) -> Engine:
    """An engine of the given sources, by a plan."""
    setup = decode.make_setup(
        model,
        drafts=drafts,
        select=scheduled(LOOKAHEAD, model.config.vocab_size if verify == "rejection" else 0, version),
        verify=verify,
        lookahead=LOOKAHEAD,
        windows=(1, 1 + LOOKAHEAD),
        vocab_size=tiny.VOCAB,
        logprobs=True,
    )
    return Engine(setup, plain_setup(model, tiny.VOCAB), decode.EngineParams(params, own, ()), 256)
