"""From names to a `Setup`: the sources, the selector, the window widths, checked before anything is compiled."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxspec.buckets import PREFILL, WINDOWS
from jaxspec.contracts import FREE, MODEL, DraftSource, Selector, Setup
from jaxspec.drafts import early_exit, feature, jacobi, lm, lookup, medusa, none
from jaxspec.drafts.ngram import ngram
from jaxspec.drafts.suffix import suffix
from jaxspec.models.api import LanguageModel
from jaxspec.models.heads import KINDS, DraftConfig, small_model
from jaxspec.models.tapped import layers_of
from jaxspec.select import LEARNED, fixed, kinds_of, learned, rule, weighs
from jaxspec.verify import verifier

DEFAULT_LOOKAHEAD = 7

Draft = str | tuple[str, LanguageModel] | tuple[str, LanguageModel, int] | tuple[str, DraftConfig] | DraftSource


def make_setup(
    target: LanguageModel,
    *,
    drafts: Sequence[Draft] = ("lookup",),
    select: str | Selector = "rule",
    verify: str = "greedy",
    lookahead: int = DEFAULT_LOOKAHEAD,
    model_lookahead: int | None = None,
    windows: Sequence[int] = WINDOWS,
    vocab_size: int | None = None,
    logprobs: bool = False,
    mesh: Mesh | None = None,
    clusters: int = 0,
) -> Setup:
    """Everything static about an engine. All arguments are static: another value is another compiled program.

    Args:
        target: a bound model (`jaxspec.models.bind`), or anyone's `LanguageModel`.
        drafts: sources besides "none", each "lookup", "suffix", "ngram" (its table is `EngineParams.drafts["ngram"]`,
            from `jaxspec.drafts.ngram.load_ngram`), "jacobi" or "jacobi:W:N:G" (`jaxspec.drafts.jacobi`), "exit:K",
            (NAME, LanguageModel) for a model draft whose parameters are `EngineParams.drafts[NAME]` (a third entry
            counts the ids that it shares with the target), (NAME, DraftConfig) for a draft trained for this target
            (`jaxspec.checkpoint.open_draft`, `attach`), or a `DraftSource` of your own.
        select: one of `LEARNED`, "router:FOLDER" or "goodput:FOLDER" with what was trained in
            `EngineParams.selector` (`jaxspec.select.trained`), "rule", "fixed:SOURCE:K", "fixed:none", or a `Selector`.
        verify: "greedy", "rejection" or "coupled".
        lookahead: drafts a round at the most; at most the widest window less one.
        model_lookahead: drafts `rule` asks of a source that costs a model pass; min(lookahead, 3) where None.
        windows: padded window widths to compile, ascending, starting at 1; those above lookahead + 1 are left out.
        vocab_size: true vocabulary; the model's padded one where None.
        logprobs: keep log-probabilities of the emitted tokens.
        mesh: devices to run on (`jaxspec.sharding.make_mesh`), where the parameters lie already; one device where None.
        clusters: kinds of text in `SelectorParams.clusters` (`jaxspec.select.clusters`), for "goodput" and a router.

    Raises:
        ValueError: an unknown name, a lookahead that no window holds, or a source that this target cannot serve.
    """
    widths = windows_for(lookahead, windows)
    verifier(verify)
    width = target.config.vocab_size
    given = width if vocab_size is None else vocab_size
    if not isinstance(given, int | np.integer) or not 1 <= given <= width:
        raise ValueError(f"vocab_size is {given}; the target's output has {width} entries, so give 1 to {width}")
    vocab, largest = int(given), widths[-1] - 1
    sources = [none(lookahead=largest)]
    taps = _taps(target, drafts)
    for draft in drafts:
        sources.append(_source(draft, target, largest, vocab, width, verify, taps))
    if largest == 0:  # nothing is ever drafted, and a model's loop over depths needs a depth
        sources = [none(lookahead=0)._replace(name=source.name) for source in sources]
    names = [source.name for source in sources]
    if len(set(names)) != len(names):
        raise ValueError(f"draft sources {names[1:]} have a name twice; give each source once")
    if len(carriers := [source.name for source in sources if source.branch is not None]) > 1:
        raise ValueError(f"draft sources {carriers} each ride in the target's window, where one fits; give one of them")
    asked = min(lookahead, 3) if model_lookahead is None else model_lookahead
    if not 0 <= asked <= lookahead:
        raise ValueError(f"model_lookahead is {asked}; give 0 to {lookahead}, the setup's lookahead")
    if mesh is not None and not isinstance(mesh, Mesh):
        raise ValueError(f"mesh is {mesh!r}; make one with jaxspec.sharding.make_mesh('data=1,model=4')")
    chosen = select if isinstance(select, Selector) else _selector(select, tuple(sources), widths, asked, clusters)
    return Setup(target, tuple(sources), chosen, verify, widths, vocab, logprobs, mesh)


def windows_for(lookahead: int, windows: Sequence[int] = WINDOWS) -> tuple[int, ...]:
    """Widths that are needed for a lookahead: those below lookahead + 1, and lookahead + 1 itself.

    lookahead 5, windows 1 4 8 16   ->   1 4 6

    Raises:
        ValueError: a lookahead that the widest window does not hold, or windows that do not ascend from 1.
    """
    widths = tuple(windows)
    if not widths or widths[0] != 1 or list(widths) != sorted(set(widths)):
        raise ValueError(f"windows are {widths}; give ascending widths that start at 1, for example {WINDOWS}")
    if not 0 <= lookahead <= widths[-1] - 1:
        raise ValueError(
            f"lookahead {lookahead} is not in 0 to {widths[-1] - 1}, what the widest window of {widths[-1]} holds; "
            "give a smaller lookahead, or wider windows to make_setup"
        )
    return (*(w for w in widths if w < lookahead + 1), lookahead + 1)


def _taps(target: LanguageModel, drafts: Sequence[Draft]) -> tuple[int, ...]:
    """After how many layers of the target some draft wants the residual stream, ascending."""
    wanted: set[int] = set()
    for draft in drafts:
        if isinstance(draft, DraftSource):
            wanted |= set(draft.taps)
        elif not isinstance(draft, str) and isinstance(draft[1], DraftConfig):
            wanted |= {layers_of(target)} if draft[1].kind == "medusa" else set(draft[1].taps)
    return tuple(sorted(wanted))


def _source(
    draft: Draft,
    target: LanguageModel,
    lookahead: int,
    vocab: int,
    width: int,
    verify: str,
    taps: tuple[int, ...],
) -> DraftSource:
    if isinstance(draft, DraftSource):
        return draft
    sizes = {"lookahead": lookahead, "vocab_width": width, "verify": verify}
    if not isinstance(draft, str):
        if isinstance(draft[1], DraftConfig):
            return _trained(draft[0], draft[1], target, taps, {**sizes, "vocab_size": vocab})
        shared = min(vocab, draft[2] if len(draft) == 3 else draft[1].config.vocab_size)
        return lm(draft[0], draft[1], vocab_size=shared, **sizes)
    kind, _, rest = draft.partition(":")
    free = {"lookup": lookup, "suffix": suffix, "ngram": ngram}
    if draft in free:
        return free[draft](lookahead=lookahead)
    if kind == "jacobi":
        return _jacobi(draft, rest, lookahead)
    if kind == "exit" and rest.isdecimal():
        return early_exit(target, int(rest), vocab_size=vocab, taps=taps, **sizes)
    if kind == "lm" and rest:
        raise ValueError(f"draft source {draft!r} is a name without a model; give ({draft!r}, LanguageModel)")
    if draft in KINDS:
        raise ValueError(
            f"draft source {draft!r} is a name without a trained draft; give ({draft!r}, DraftConfig), "
            "which jaxspec.checkpoint.open_draft reads"
        )
    raise ValueError(
        f"draft source {draft!r} is unknown; choose among lookup, suffix, ngram, jacobi, exit:LAYERS, "
        "(NAME, LanguageModel) and (NAME, DraftConfig)"
    )


def _jacobi(draft: str, rest: str, lookahead: int) -> DraftSource:
    """Of "jacobi", or of "jacobi:W:N:G" with sizes of its own."""
    sizes = rest.split(":") if rest else []
    if draft != "jacobi" and not (len(sizes) == 3 and all(size.isdecimal() for size in sizes)):
        raise ValueError(f"draft source {draft!r} has no sizes; give jacobi or jacobi:W:N:G, for example jacobi:5:4:7")
    return jacobi(*map(int, sizes), lookahead=lookahead, name=draft)


def _trained(
    name: str, config: DraftConfig, target: LanguageModel, taps: tuple[int, ...], sizes: dict[str, Any]
) -> DraftSource:
    """The source of a draft that was trained for the target."""
    layers = layers_of(target)
    if config.kind == "lm":
        return lm(name, small_model(config), **sizes)
    if config.kind == "exit":
        return early_exit(target, config.layers, head=config, name=name, taps=taps, **sizes)
    if config.kind == "medusa":
        return medusa(name, config, layers=layers, hidden_size=config.body.hidden_size, **sizes)
    if config.taps[-1] > layers:
        raise ValueError(
            f"draft {name!r} reads after {config.taps[-1]} layers; the target has {layers}, so give a draft of it"
        )
    return feature(name, config, headroom=max(PREFILL[-1], sizes["lookahead"] + 1), **sizes)


def _selector(
    select: str, sources: tuple[DraftSource, ...], windows: tuple[int, ...], model_lookahead: int, clusters: int
) -> Selector:
    lookahead = windows[-1] - 1
    choice = check_select(select, [source.name for source in sources[1:]], lookahead)
    if choice is not None:
        return fixed(*choice)
    if weighs(select):
        return learned(select, kinds_of(sources, windows), clusters=clusters)
    if clusters:
        raise ValueError(f"select {select!r} does not look at the kind of text; give clusters to goodput or a router")
    free = tuple(i for i, s in enumerate(sources) if s.cost == FREE and i > 0)
    models = tuple(i for i, s in enumerate(sources) if s.cost == MODEL)
    learns = next((i for i, s in enumerate(sources) if s.branch is not None), 0)
    return rule(free, models, free_lookahead=lookahead, model_lookahead=model_lookahead, learns=learns)


def check_select(select: str, drafts: Sequence[str], lookahead: int) -> tuple[int, int] | None:
    """Index of the source (0 is "none") and lookahead of a fixed choice; None for a selector that chooses.

    Args:
        drafts: names of the sources besides "none".
        lookahead: drafts a round at the most, which a fixed choice without a number takes.

    Raises:
        ValueError: a choice that does not exist, or more drafts than there may be.
    """
    if weighs(select) or select == "rule":
        return None
    names = ["none", *drafts]
    kind, _, rest = select.partition(":")
    if kind == "fixed" and rest:
        name, _, tail = rest.rpartition(":")
        if rest in names:
            return names.index(rest), lookahead if rest != "none" else 0
        if name in names and tail.isdecimal():
            if int(tail) > lookahead:
                raise ValueError(
                    f"select {select!r} asks for lookahead {tail}; the largest is {lookahead}, raise --lookahead"
                )
            return names.index(name), int(tail)
    raise ValueError(
        f"select {select!r} is unknown; choose {', '.join(LEARNED)}, router:FOLDER, goodput:FOLDER, rule or "
        f"fixed:SOURCE:K with SOURCE among {', '.join(names)}"
    )
