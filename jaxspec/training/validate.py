"""A draft in the real engine, on prompts that training never saw: what is accepted, by depth and by category."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxspec import decode
from jaxspec.contracts import EngineParams, Setup
from jaxspec.models.heads import DraftConfig
from jaxspec.pipeline import Loaded
from jaxspec.sampling import warpers
from jaxspec.telemetry import Counters
from jaxspec.text import decode_utf8, read_prompts
from jaxspec.typing import Params

NAME = "draft"
ROWS = 8
"""Prompts answered side by side."""

UNSORTED = "all"


class Held(NamedTuple):
    """A held-out prompt."""

    category: str
    tokens: list[int]


def read_held(path: str | Path, target: Loaded, *, per_category: int, max_new_tokens: int) -> list[Held]:
    """The first `per_category` prompts of every category of a file that the target has room to answer.

    Args:
        path: .jsonl with "prompt" or "messages", and "category"; or .txt, all of one category. A target with a chat
            template is asked through it.

    Raises:
        ValueError: what `read_prompts` refuses, or no prompt that fits.
    """
    prompts = read_prompts(path)
    lines = decode_utf8(Path(path).read_bytes(), str(path)).replace("\r\n", "\n").split("\n")
    labels = [
        json.loads(line).get("category", UNSORTED) if Path(path).suffix == ".jsonl" else UNSORTED
        for line in lines
        if line.strip()
    ]
    held: list[Held] = []
    taken: dict[str, int] = {}
    most = target.model.config.max_positions - max_new_tokens
    for category, prompt in zip(map(str, labels), prompts, strict=True):
        tokens = _encode(target, prompt) if taken.get(category, 0) < per_category else []
        if 0 < len(tokens) <= most:
            taken[category] = taken.get(category, 0) + 1
            held.append(Held(category, tokens))
    if not held:
        raise ValueError(
            f"{path} has no prompt of at most {most} tokens, what the target has room for; give shorter ones"
        )
    return held


def _encode(target: Loaded, prompt: str | list[dict[str, Any]]) -> list[int]:
    if not isinstance(prompt, str):
        return target.tokenizer.chat(prompt)
    if target.tokenizer.chat_template:
        return target.tokenizer.chat([{"role": "user", "content": prompt}])
    return target.tokenizer.encode(prompt)


class Validator:
    """Decodes held-out prompts with a draft; compiled at the first call, whatever the weights of the next.

    Args:
        config: of the draft.
        lookahead: drafts a round; at most as many as Medusa heads.
        temperature: 0 is greedy; above, drafts are sampled and judged by rejection.
    """

    def __init__(
        self,
        target: Loaded,
        config: DraftConfig,
        prompts: Sequence[Held],
        *,
        lookahead: int = 4,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
    ):
        self.target, self.prompts, self.seed = target, list(prompts), seed
        self.max_new_tokens, self.temperature = max_new_tokens, temperature
        lookahead = min(lookahead, config.heads) if config.kind == "medusa" else lookahead
        self.setup: Setup = decode.make_setup(
            target.model,
            drafts=((NAME, config),),
            select=f"fixed:{NAME}:{lookahead}",
            verify="rejection" if temperature > 0 else "greedy",
            lookahead=lookahead,
            vocab_size=min(len(target.tokenizer.vocabulary()), target.model.config.vocab_size),
        )

    def __call__(self, own: Params) -> dict[str, Any]:
        """Overall and by category: prompts, tokens, rounds, mean_accepted_tokens (a round), acceptance (by depth).

        Args:
            own: the draft's parameters, attached (`jaxspec.checkpoint.attach`).
        """
        params = EngineParams(self.target.params, {NAME: own}, ())
        found: list[tuple[str, Counters, int]] = []
        for start in range(0, len(self.prompts), ROWS):
            batch = self.prompts[start : start + ROWS]
            counters = self._answer(params, batch)
            found += [(each.category, counters, row) for row, each in enumerate(batch)]
        categories = sorted({category for category, *_ in found})
        by = {name: _sums([each for each in found if each[0] == name]) for name in categories}
        return {"overall": _sums(found), "categories": by}

    def _answer(self, params: EngineParams, batch: list[Held]) -> Counters:
        """One batch, filled up with copies that answer one token, so that few shapes compile."""
        missing = min(ROWS, len(self.prompts)) - len(batch)
        rows = [each.tokens for each in batch] + [batch[0].tokens] * missing
        return decode.generate(
            self.setup,
            params,
            rows,
            max_new_tokens=[self.max_new_tokens] * len(batch) + [1] * missing,
            stop_ids=tuple(self.target.tokenizer.eos_ids),
            seed=self.seed,
            warp=warpers(len(rows), temperature=self.temperature, vocab_size=self.setup.vocab_size),
        ).counters


def _sums(found: Sequence[tuple[str, Counters, int]]) -> dict[str, Any]:
    """Of these rows together; ratios of nothing are 0."""
    proposed, accepted = (
        np.sum([np.asarray(getattr(counters, name))[row].sum(0) for _, counters, row in found], axis=0)
        for name in ("proposed", "accepted")
    )
    emitted, rounds = (
        int(sum(np.asarray(getattr(counters, name))[row].sum() for _, counters, row in found))
        for name in ("emitted", "rounds")
    )
    return {
        "prompts": len(found),
        "tokens": emitted,
        "rounds": rounds,
        "mean_accepted_tokens": round(emitted / max(rounds, 1), 3),
        "acceptance": np.round(accepted / np.maximum(proposed, 1), 4).tolist(),
    }
