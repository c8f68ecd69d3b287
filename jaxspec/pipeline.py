"""Strings in, strings out: a target, its drafts and their tokenizer behind `load(...)` and `.generate(...)`."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxspec import costs as pricing
from jaxspec import decode
from jaxspec.buckets import capacity_bucket
from jaxspec.contracts import EngineParams, Setup
from jaxspec.decode.config import LEARNED
from jaxspec.decode.request import needed_capacity
from jaxspec.drafts.ngram import ngram
from jaxspec.loading import DTYPES, Loaded, LoadProgress, load_model
from jaxspec.run import CALIBRATING, Answer, OnEnd, OnStage, OnText, Row, Run, begin_trace, domains_of
from jaxspec.sampling import warpers
from jaxspec.select import SelectorParams, kinds_of, no_prior, prior_of, weighs
from jaxspec.select.clusters import read_clusters
from jaxspec.select.cost import CostTable
from jaxspec.sharding import make_mesh
from jaxspec.sources import Made, Shelf, config_for, few_heads, model_for, opened, wanted
from jaxspec.text import compare_vocabularies
from jaxspec.text.classes import token_classes
from jaxspec.typing import PyTree

TEXT = "What a round costs does not depend on what is said, so any text serves. "

Messages = Sequence[Mapping[str, object]]


def load(
    target: str = "smollm2-135m-instruct",
    *,
    drafts: Sequence[str] | None = None,
    select: str = "goodput",
    lookahead: int = decode.DEFAULT_LOOKAHEAD,
    verify: str | None = None,
    dtype: str = "float32",
    mesh: str | None = None,
    costs: str | CostTable | None = None,
    clusters: str | None = None,
    progress: LoadProgress | None = None,
    note: Callable[[str], None] | None = None,
) -> "Pipeline":
    """A target and its draft sources, ready to generate.

    Args:
        target: local folder or file, "smollm2-135m-instruct", or a hub id.
        drafts: "lookup", "suffix", "jacobi[:W:N:G]", "exit:LAYERS", "lm:MODEL"; trained for this target: "ngram",
            "medusa", "feature", "exit" and "lm", or any of these with the folder, "feature:PATH". Empty for plain
            decoding. Where None, "lookup" and the one that `select` names; with a selector that weighs costs also
            "suffix" and, of what was made for the target, "ngram" and the first of "feature", "lm", "exit" and
            "medusa"; with others the first of these that pays by its card (`jaxspec.sources.pays`), if any.
        select: "rule", "fixed:SOURCE:K", or one that weighs costs and learns: `jaxspec.decode.config.LEARNED`.
            "goodput" begins with a prior that was made for the target, if any, "goodput:FOLDER" with that one.
        lookahead: drafts a round at the most.
        verify: "greedy", "coupled" or "rejection"; where None, greedy at temperature 0 and coupled above.
        dtype: of weights and caches: "float32", "bfloat16" or "float16". In the last two, logits that are as good as
            equal may order differently in windows of different width; float32 is exact.
        mesh: devices by axis, "data=1,model=4": rows over data, the target over model, drafts on every device.
        costs: a table for selectors that weigh costs, or a file of one (`jaxspec.costs.read`), used as it is; "guess"
            for rough ones. Where None, what JAXSPEC_COSTS says; where that is not set, they are measured by the first
            call of so many rows, stored, and refined.
        clusters: folder of scripts/build_clusters.py, made of this target: kinds of text for goodput or a router.
        progress: told (name, bytes done, bytes in all) while weights load.
        note: told a line that a user should know; written to standard error where None.

    Raises:
        ValueError: a name that is unknown, a checkpoint that is broken, drafts of another vocabulary or target.
    """
    if costs is None and weighs(select):
        costs = os.environ.get("JAXSPEC_COSTS") or None
    if costs is not None and not weighs(select):
        raise ValueError(f"costs are given, which select {select!r} does not weigh; choose {', '.join(LEARNED)}")
    pricing.check_given(costs)
    artifacts = {draft: opened(draft) for draft in drafts or ()}
    devices = None if mesh is None else make_mesh(mesh)
    if devices is not None and devices.size == 1:
        devices = None  # one device is no mesh
    main = load_model(target, dtype=dtype, mesh=devices, split=True, progress=progress)
    shelf = Shelf(main.model.config, main.params, main.tokenizer, dtype=DTYPES[dtype], mesh=devices)
    names = shelf.usual(select) if drafts is None else tuple(drafts)
    made = {draft: shelf.take(draft, artifacts.get(draft)) for draft in names if wanted(draft) is not None}
    small = [draft for draft in names if draft.startswith("lm:") and draft not in made]
    models = {d: load_model(d.removeprefix("lm:"), dtype=dtype, mesh=devices, progress=progress) for d in small}
    pipeline = Pipeline(main, names, models, select, lookahead, verify, dtype, devices, made, note)
    if clusters is not None:
        pipeline.clusters = read_clusters(clusters, shelf.fingerprint)
    setup = pipeline.setup(sampled=False, logprobs=False)  # refuses bad names now
    pipeline.prices.given = pricing.given(costs, setup)
    pipeline.published = shelf.prior(setup.names) if select == "goodput" else None
    pipeline.prior = pipeline.begin(select, setup)
    for line in few_heads(made, lookahead):
        pipeline.prices.note(line)
    return pipeline


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
        made: Mapping[str, Made] | None = None,
        note: Callable[[str], None] | None = None,
    ):
        self.target, self.drafts, self.models, self.mesh = target, drafts, dict(models), mesh
        self.made = dict(made or {})
        self.select, self.lookahead, self.verify, self.dtype = select, lookahead, verify, DTYPES[dtype]
        vocabulary = target.tokenizer.vocabulary()
        self.vocab_size = min(len(vocabulary), target.model.config.vocab_size)
        self._shared = {d: compare_vocabularies(vocabulary, m.tokenizer.vocabulary()) for d, m in models.items()}
        drafted = {name: loaded.params for name, loaded in models.items()}
        drafted |= {name: each.params for name, each in self.made.items()}
        self.params = EngineParams(target.params, drafted, ())
        self.pending: Callable[[], object] | None = None  # measures what a call deferred; None: nothing is to be
        self.clusters: jax.Array | None = None  # [C, D] float32, kinds of text; None: they are not told apart
        self.prior: PyTree = None  # of a selector that learns; nothing known where None
        self.published: Path | None = None  # folder of a prior that was made for the target, which goodput begins with
        self.prices = pricing.Prices(None, note or pricing.say)

    @functools.cached_property
    def _classes(self) -> jax.Array:
        """Class of every id of the target's vocabulary, padding included."""
        return jnp.asarray(token_classes(self.target.tokenizer, self.target.model.config.vocab_size))

    def setup(self, *, sampled: bool, logprobs: bool, length: int = 1) -> Setup:
        """The static engine for greedy or sampled rows of at most `length` tokens, prompt and output together."""
        verify = self.verify or ("coupled" if sampled else "greedy")
        drafts = [self._source(draft, length) for draft in self.drafts]
        return decode.make_setup(
            model_for(self.target.model, length),
            drafts=drafts,
            select=self.select,
            verify=verify,
            lookahead=self.lookahead if self.drafts else 0,
            vocab_size=self.vocab_size,
            logprobs=logprobs,
            mesh=self.mesh,
            clusters=0 if self.clusters is None else len(self.clusters),
        )

    def begin(self, select: str, setup: Setup) -> PyTree:
        """What a selector knows before its first call, `SelectorParams.prior`; None for nothing.

        Raises:
            ValueError: a folder in its name, or a published one, that holds no such thing.
        """
        if select == "goodput" and self.published is not None:
            select = f"{select}:{self.published}"
        return prior_of(select, kinds_of(setup.sources, setup.windows), self._expects)

    @property
    def _expects(self) -> dict[str, float]:
        """Share of a source's first drafts that the target took on held-out prompts, by the cards."""
        return {draft: each.accepts for draft, each in self.made.items() if each.accepts is not None}

    def priced(self, setup: Setup, **options: Any) -> tuple[EngineParams, pricing.Priced]:
        """The parameters with what a selector that learns is given; costs are measured where none are known.

        Args:
            options: of `jaxspec.costs.Prices.of`.
        """
        prior = self.prior or no_prior(kinds_of(setup.sources, setup.windows), self._expects)
        selector = SelectorParams(pricing.guessed(setup), prior, self.clusters, self._classes)
        params = dataclasses.replace(self.params, selector=selector)
        return self.prices.of(setup, params, dtype=self.dtype, **options)

    def measure(
        self, rows: int, length: int, told: Callable[[int, int], None] | None = None
    ) -> tuple[Setup, pricing.Priced]:
        """Measure and store what greedy rounds cost of so many rows of `length` tokens, whatever is stored.

        Raises:
            ValueError: nothing to measure, where nothing is drafted or rows are too short.
        """
        length = min(length, self.target.model.config.max_positions)
        setup, text = self.setup(sampled=False, logprobs=False, length=length), self.encode(TEXT, chat=False)
        capacity = capacity_bucket(length)
        priced = self.priced(setup, rows=rows, capacity=capacity, prompt_ids=text, told=told, anew=True)[1]
        if priced.key is None:
            raise ValueError("nothing was measured; give a draft, a lookahead above 0, and rows long enough for it")
        return setup, priced

    def _source(self, draft: str, length: int) -> Any:
        """A source as `make_setup` takes it."""
        if draft in self.models:
            return draft, model_for(self.models[draft].model, length), self._shared[draft]
        if draft not in self.made:
            return draft
        config = self.made[draft].config
        if config is None:
            return ngram(name=draft, lookahead=self.lookahead)
        return draft, config_for(config, length)

    def encode(self, prompt: str | Messages, *, chat: bool) -> list[int]:
        """Token ids of a prompt: of its chat where `chat` (a string is the user's turn) or where it is messages."""
        return self.target.tokenizer.prompt(prompt, chat=chat)

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
        trace: bool = False,
        domain: str | Sequence[str | None] | None = None,
        ignore_end: bool = False,
        on_text: OnText | None = None,
        on_end: OnEnd | None = None,
        on_stage: OnStage = lambda stage: None,
        on_progress: Callable[[int, int], None] | None = None,
        defer: bool = False,
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
            trace: keep what every round did, for `jaxspec.telemetry.page`; the host then looks after each one.
            domain: what telemetry calls the kind of text, one for all prompts or one a prompt; where None, the cluster
                that a text is in, or "all". It changes no choice.
            ignore_end: go on after the target's end ids.
            on_text: called with (row, text) as text becomes certain.
            on_end: called with the row when all of its text was shown.
            on_stage: called with "calibrating" before costs are measured, where that has to be; "preparing" before
                prefill and compilation, "decoding" after, "ending" at last.
            on_progress: called with (measurements done, in all) while costs are measured.
            defer: answer first where costs would have to be measured; `pending` then measures them.
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
        domains = [name for name in domains_of(domain, len(each)) for _ in range(num_samples)]
        encoded = [self.encode(p, chat=chat) for p in each for _ in range(num_samples)]
        warp = warpers(len(encoded), vocab_size=self.vocab_size, **settings)
        sampled = bool(np.any(np.asarray(warp.temperature) > 0))
        length = max(map(len, encoded)) + max(1, max_new_tokens)
        setup = self.setup(sampled=sampled, logprobs=logprobs or trace, length=length)
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
        blank = None
        if trace:
            told = [prompt for prompt in each for _ in range(num_samples)]
            blank = begin_trace(setup, request, told, settings, target=self.target.name, select=self.select)
        params, priced = self.params, None
        if isinstance(self.select, str) and weighs(self.select):
            capacity = max(needed_capacity(setup, len(ids), max_new_tokens) for ids in encoded)
            told = {"begin": lambda: on_stage(CALIBRATING), "told": on_progress}
            sizes = {"rows": len(rows), "capacity": capacity, "prompt_ids": encoded[0]}
            params, priced = self.priced(setup, **sizes, **told, defer=defer)
            self.pending = functools.partial(self.priced, setup, **sizes, **told) if priced.deferred else None
        weighed = {} if priced is None else {"refiner": priced.refiner, "costs": priced.table}
        options = {"dtype": self.dtype, "on_stage": on_stage, "trace": blank, "domains": domains, **weighed}
        run = Run(setup, params, request, encoded, rows, **options)
        answer = run.finish(logprobs=logprobs)
        self.prior = run.learnt or self.prior
        if priced is not None:
            self.prices.settle(priced, self.target.name, self.drafts)
        return answer
