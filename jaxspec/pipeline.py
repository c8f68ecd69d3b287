"""Strings in, strings out: a target, its drafts and their tokenizer behind `load(...)` and `.generate(...)`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxspec import decode
from jaxspec.checkpoint import gather, load_params, open_checkpoint
from jaxspec.contracts import EngineParams, Setup
from jaxspec.models import LanguageModel, ModelConfig, for_length, fuse, language_model, parameter_shapes
from jaxspec.run import Answer, OnEnd, OnStage, OnText, Row, Run
from jaxspec.sampling import warpers
from jaxspec.sharding import make_mesh, param_shardings, replicated
from jaxspec.text import Tokenizer, compare_vocabularies, from_folder, from_gguf
from jaxspec.typing import Params

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}

Messages = Sequence[Mapping[str, object]]
LoadProgress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory."""

    name: str
    model: LanguageModel
    params: Params
    tokenizer: Tokenizer


def load_model(
    name: str,
    *,
    dtype: str = "float32",
    mesh: Mesh | None = None,
    split: bool = False,
    progress: LoadProgress | None = None,
) -> Loaded:
    """A checkpoint by folder, file, hub id or the default target's name, with its tokenizer.

    Args:
        dtype: of the weights: "float32", "bfloat16" or "float16".
        mesh: devices to load onto, straight from the file; the default device where None.
        split: tensor-parallel over the mesh's model axis; on every device whole where False.
        progress: told (name, bytes done, bytes in all).

    Raises:
        ValueError: an unknown dtype or family, a broken or missing checkpoint, a folder without a tokenizer.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; choose {', '.join(DTYPES)}")
    source = open_checkpoint(name)
    config = ModelConfig.from_hf(source.config)
    where = source.tokenizer
    tokenizer = from_gguf(where) if isinstance(where, Mapping) else from_folder(where)
    told = None if progress is None else lambda done, total: progress(name, done, total)
    shardings = None if mesh is None else _shardings(config, mesh, split=split)
    params = load_params(source, dtype=DTYPES[dtype], shardings=shardings, progress=told)
    if mesh is None:
        config, params = fuse(config, params)
        params = gather(params)
    return Loaded(name, language_model(config), params, tokenizer)


def _shardings(config: ModelConfig, mesh: Mesh, *, split: bool) -> dict[str, jax.sharding.NamedSharding]:
    shapes = parameter_shapes(config)
    return param_shardings(shapes, mesh, head_dim=config.head_dim) if split else replicated(shapes, mesh)


def load(
    target: str = "smollm2-135m-instruct",
    *,
    drafts: Sequence[str] = ("lookup",),
    select: str = "rule",
    lookahead: int = decode.DEFAULT_LOOKAHEAD,
    verify: str | None = None,
    dtype: str = "float32",
    mesh: str | None = None,
    progress: LoadProgress | None = None,
) -> "Pipeline":
    """A target and its draft sources, ready to generate.

    Args:
        target: local folder or file, "smollm2-135m-instruct", or a hub id.
        drafts: "lookup", "lm:NAME_OR_PATH", "exit:LAYERS"; none for plain decoding.
        select: "rule" or "fixed:SOURCE:K".
        lookahead: drafts a round at the most.
        verify: "greedy", "coupled" or "rejection"; where None, greedy at temperature 0 and coupled above.
        dtype: of weights and caches: "float32", "bfloat16" or "float16". In the last two, logits that are as good as
            equal may order differently in windows of different width; float32 is exact.
        mesh: devices by axis, "data=1,model=4": rows over data, the target over model, drafts on every device.
        progress: told (name, bytes done, bytes in all) while weights load.

    Raises:
        ValueError: a name that is unknown, a checkpoint that is broken, drafts of another vocabulary.
    """
    for draft in drafts:
        check_draft(draft)
    devices = None if mesh is None else make_mesh(mesh)
    if devices is not None and devices.size == 1:
        devices = None  # one device is no mesh
    main = load_model(target, dtype=dtype, mesh=devices, split=True, progress=progress)
    small = [draft for draft in drafts if draft.startswith("lm:")]
    models = {d: load_model(d.removeprefix("lm:"), dtype=dtype, mesh=devices, progress=progress) for d in small}
    pipeline = Pipeline(main, tuple(drafts), models, select, lookahead, verify, dtype, devices)
    pipeline.setup(sampled=False, logprobs=False)  # refuses bad names now
    return pipeline


def model_for(model: LanguageModel, length: int) -> LanguageModel:
    """The model for rows of `length` tokens: a longrope model turns by other frequencies beyond its trained context.

    All rows of a call turn alike; other scalings do not depend on the length here (`jaxspec.models.rope`).
    """
    longrope = model.config.rope_scaling.kind == "longrope"
    return language_model(for_length(model.config, length)) if longrope else model


def check_draft(draft: str) -> None:
    """Refuse a source that no name stands for, before anything is loaded."""
    kind, _, rest = draft.partition(":")
    if not (draft == "lookup" or (kind == "lm" and rest) or (kind == "exit" and rest.isdecimal())):
        raise ValueError(f"draft source {draft!r} is unknown; choose among lookup, lm:NAME_OR_PATH and exit:LAYERS")


class Pipeline:
    """A loaded target with its drafts. Setups are made once for each (verify, logprobs) and kept."""

    def __init__(
        self,
        target: Loaded,
        drafts: tuple[str, ...],
        models: Mapping[str, Loaded],
        select: str,
        lookahead: int,
        verify: str | None,
        dtype: str,
        mesh: Mesh | None = None,
    ):
        self.target, self.drafts, self.models, self.mesh = target, drafts, dict(models), mesh
        self.select, self.lookahead, self.verify, self.dtype = select, lookahead, verify, DTYPES[dtype]
        vocabulary = target.tokenizer.vocabulary()
        self.vocab_size = min(len(vocabulary), target.model.config.vocab_size)
        self._shared = {d: compare_vocabularies(vocabulary, m.tokenizer.vocabulary()) for d, m in models.items()}
        drafted = {name: loaded.params for name, loaded in models.items()}
        self.params = EngineParams(target.params, drafted, ())

    def setup(self, *, sampled: bool, logprobs: bool, length: int = 1) -> Setup:
        """The static engine for greedy or sampled rows of at most `length` tokens, prompt and output together."""
        verify = self.verify or ("coupled" if sampled else "greedy")
        drafts = [
            (d, model_for(self.models[d].model, length), self._shared[d]) if d in self.models else d
            for d in self.drafts
        ]
        return decode.make_setup(
            model_for(self.target.model, length),
            drafts=drafts,
            select=self.select,
            verify=verify,
            lookahead=self.lookahead if self.drafts else 0,
            vocab_size=self.vocab_size,
            logprobs=logprobs,
            mesh=self.mesh,
        )

    def encode(self, prompt: str | Messages, *, chat: bool) -> list[int]:
        """Token ids of a prompt: of its chat where `chat` (a string is the user's turn) or where it is messages."""
        if not isinstance(prompt, str):
            return self.target.tokenizer.chat(prompt)
        if not prompt:
            raise ValueError("the prompt is empty; give at least one character")
        return (
            self.target.tokenizer.chat([{"role": "user", "content": prompt}])
            if chat
            else self.target.tokenizer.encode(prompt)
        )

    def generate(
        self,
        prompts: str | Sequence[str | Messages],
        *,
        chat: bool = False,
        max_new_tokens: int = 128,
        stop: Sequence[str] = (),
        num_samples: int = 1,
        seed: int | None = None,
        logprobs: bool = False,
        ignore_end: bool = False,
        on_text: OnText | None = None,
        on_end: OnEnd | None = None,
        on_stage: OnStage = lambda stage: None,
        draft_confidence: float = 0.0,
        draft_temperature: float = 1.0,
        **settings: Any,
    ) -> Answer:
        """Answers to one prompt or several, in their order.

        Args:
            prompts: strings, or lists of {"role", "content"} messages.
            chat: wrap each string as a user's turn in the target's chat template.
            max_new_tokens: tokens to generate at the most, exact.
            stop: strings that end a row; they are left out of its text.
            num_samples: rows a prompt, with different seeds.
            seed: row r gets seed + r; None draws fresh ones.
            logprobs: keep the log-probability of every output token.
            ignore_end: go on after the target's end ids.
            on_text: called with (row, text) as text becomes certain.
            on_end: called with the row when all of its text was shown.
            on_stage: called with "preparing" before prefill and compilation, "decoding" after, "ending" at last.
            draft_confidence, draft_temperature: as in `decode.make_request`.
            settings: sampling settings of `jaxspec.sampling.warpers`: temperature, top_k, top_p, min_p, ...

        Raises:
            ValueError: bad input, before anything is compiled. KeyboardInterrupt does not raise: rows that were still
                running end as "interrupted" with what they have.
        """
        each = [prompts] if isinstance(prompts, str) else list(prompts)
        if not each:
            raise ValueError("there are no prompts; give at least one")
        if not isinstance(max_new_tokens, Integral):
            raise ValueError(f"max_new_tokens is {max_new_tokens!r}; give a whole number, 1 or more")
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; it must be 1 or more")
        encoded = [self.encode(p, chat=chat) for p in each for _ in range(num_samples)]
        warp = warpers(len(encoded), vocab_size=self.vocab_size, **settings)
        sampled = bool(np.any(np.asarray(warp.temperature) > 0))
        length = max(map(len, encoded)) + max(1, max_new_tokens)
        setup = self.setup(sampled=sampled, logprobs=logprobs, length=length)
        request = decode.make_request(
            setup,
            encoded,
            max_new_tokens=max_new_tokens,
            stop_ids=() if ignore_end else self.target.tokenizer.eos_ids,
            seed=seed,
            warp=warp,
            draft_confidence=draft_confidence,
            draft_temperature=draft_temperature,
        )
        rows = [Row(self.target.tokenizer, stop, len(p), i, on_text, on_end) for i, p in enumerate(encoded)]
        return Run(setup, self.params, request, encoded, rows, dtype=self.dtype, on_stage=on_stage).finish()
