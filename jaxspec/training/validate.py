"""A draft in the real engine, on prompts that training never saw: what is accepted, by depth and by category."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxspec import decode
from jaxspec.checkpoint import open_checkpoint
from jaxspec.contracts import EngineParams, Setup
from jaxspec.drafts.ngram import NAME as TABLE
from jaxspec.models.heads import DraftConfig
from jaxspec.pipeline import Loaded, load_model
from jaxspec.telemetry import Counters
from jaxspec.text import Tokenizer, from_folder, from_gguf, read_cases
from jaxspec.training.corpus import answer
from jaxspec.typing import Params

NAME = "draft"
ROWS = 8
"""Prompts answered side by side."""


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
        ValueError: what `read_cases` refuses, counts below 1, or no prompt that fits.
    """
    if per_category < 1 or max_new_tokens < 1:
        raise ValueError(
            f"validation has {per_category} prompts of each category and {max_new_tokens} tokens of an answer; "
            "both must be 1 or more"
        )
    held: list[Held] = []
    taken: dict[str, int] = {}
    most = target.model.config.max_positions - max_new_tokens
    chat = bool(target.tokenizer.chat_template)
    for case in read_cases(path):
        wanted = taken.get(case.category, 0) < per_category
        tokens = target.tokenizer.prompt(case.prompt, chat=chat) if wanted else []
        if 0 < len(tokens) <= most:
            taken[case.category] = taken.get(case.category, 0) + 1
            held.append(Held(case.category, tokens))
    if not held:
        raise ValueError(
            f"{path} has no prompt of at most {most} tokens, what the target has room for; give shorter ones"
        )
    return held


class Validator:
    """Decodes held-out prompts with a draft; compiled at the first call, whatever the weights of the next.

    Args:
        draft: the configuration of a trained one, or the name of a source that reads a table ("ngram").
        lookahead: drafts a round; at most as many as Medusa heads.
        temperature: 0 is greedy; above, drafts are sampled and judged by rejection.

    Raises:
        ValueError: a lookahead below 1, or what `make_setup` refuses.
    """

    def __init__(
        self,
        target: Loaded,
        draft: DraftConfig | str,
        prompts: Sequence[Held],
        *,
        lookahead: int = 4,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
    ):
        self.target, self.prompts, self.seed = target, list(prompts), seed
        self.max_new_tokens, self.temperature = max_new_tokens, temperature
        if lookahead < 1:
            raise ValueError(f"lookahead of validation is {lookahead}; it must be 1 or more")
        if isinstance(draft, DraftConfig) and draft.kind == "medusa":
            lookahead = min(lookahead, draft.heads)
        self.name = draft if isinstance(draft, str) else NAME
        self.setup: Setup = decode.make_setup(
            target.model,
            drafts=(draft if isinstance(draft, str) else (NAME, draft),),
            select=f"fixed:{self.name}:{lookahead}",
            verify="rejection" if temperature > 0 else "greedy",
            lookahead=lookahead,
            vocab_size=min(len(target.tokenizer.vocabulary()), target.model.config.vocab_size),
        )

    def __call__(self, own: Params) -> dict[str, Any]:
        """Overall and by category: prompts, tokens, rounds, mean_accepted_tokens (a round), acceptance (by depth).

        Args:
            own: the draft's parameters, attached (`jaxspec.checkpoint.attach`), or the table's arrays.
        """
        params = EngineParams(self.target.params, {self.name: own}, ())
        found: list[tuple[str, Counters, int]] = []
        for start in range(0, len(self.prompts), ROWS):
            batch = self.prompts[start : start + ROWS]
            counters = self._answer(params, batch)
            found += [(each.category, counters, row) for row, each in enumerate(batch)]
        categories = sorted({category for category, *_ in found})
        by = {name: _sums([each for each in found if each[0] == name]) for name in categories}
        return {"overall": _sums(found), "categories": by}

    def _answer(self, params: EngineParams, batch: list[Held]) -> Counters:
        """One batch."""
        return answer(
            self.setup,
            params,
            [each.tokens for each in batch],
            rows=min(ROWS, len(self.prompts)),
            max_new_tokens=self.max_new_tokens,
            stop_ids=self.target.tokenizer.eos_ids,
            seed=self.seed,
            temperature=self.temperature,
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


def reader(
    target: str, prompts: str | Path | None, *, per_category: int, max_new_tokens: int, lookahead: int, dtype: str
) -> tuple[Tokenizer, Validator | None]:
    """The tokenizer of a target, and what decodes held-out prompts with a table of n-grams, where prompts are given.

    None of the target's weights are read unless they are.

    Raises:
        ValueError: what `read_held` and `Validator` refuse.
    """
    if prompts is None:
        where = open_checkpoint(target).tokenizer
        return from_gguf(where) if isinstance(where, Mapping) else from_folder(where), None
    loaded = load_model(target, dtype=dtype)
    held = read_held(prompts, loaded, per_category=per_category, max_new_tokens=max_new_tokens)
    return loaded.tokenizer, Validator(loaded, TABLE, held, lookahead=lookahead, max_new_tokens=max_new_tokens)
