"""Types that the parts of a round exchange. No functions.

           choose              propose                  judge                  commit
View ──► Choice ──► Proposal(tokens, count, q) ──► Verdict(accepted, next) ──► state
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from jaxspec.models.api import LanguageModel
from jaxspec.sampling import Warpers
from jaxspec.typing import Params, PyTree, RowFloats, RowMask, Rows, Seeds, Tokens

FREE = "free"
MODEL = "model pass"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EngineParams:
    """Every array that stays the same from round to round, as one pytree."""

    target: Params
    drafts: dict[str, PyTree]  # by source name; absent for sources without parameters
    selector: PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Steering:
    """What the caller says about the choice of source and lookahead. All traced: changing a value never recompiles."""

    pinned: Rows  # int32, index of the source of every round; -1 leaves the choice to the selector
    weights: Float[Array, "B N"]  # float32, times what the selector expects to gain by a source; 0 bans it
    domain: Rows  # int32, the caller's tag for the kind of text, from 0; -1 without one
    load: RowFloats  # float32 in [0, 1], share of the device's time that others wait for
    latency_budget: RowFloats  # float32, seconds that a round may take; infinite without one
    least_width: Rows  # int32, tokens that the target's window has at the least; above 1 only to time wide windows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Request:
    """What each row was asked for. All traced: changing a value never recompiles."""

    prompt_length: Rows  # int32, tokens
    limit: Rows  # int32, known tokens at which the row ends: prompt_length + max_new_tokens
    stop_ids: Int[Array, "B E"]  # int32, -1 where unused
    seed: Seeds  # uint32; randomness is a function of (seed, absolute position)
    warpers: Warpers
    max_lookahead: Rows  # int32, drafts a round at the most
    draft_temperature: RowFloats  # float32, multiplies the row's temperature for sampled drafts; 0 drafts greedily
    draft_confidence: RowFloats  # float32 in [0, 1]; a model draft stops before a token whose largest q is below it
    steering: Steering | None = None  # None: nothing is pinned, banned or weighted


class View(NamedTuple):
    """What sources and selectors may read in a round. Nothing in it is written before the commit."""

    tokens: Int[Array, "B S"]  # prompt and output; entries at and beyond `length` mean nothing
    length: Rows  # known tokens; the last one is not in the target's cache yet
    outcome: Rows  # code of `jaxspec.outcome`
    active: RowMask  # rows still being generated
    request: Request
    cache: PyTree  # the target's
    stop: "Stop | None" = None  # as in `Choice`, for the source that drafts


class Proposal(NamedTuple):
    """Drafts of every row, padded to the largest lookahead."""

    tokens: Int[Array, "B A"]  # int32, A = largest lookahead
    count: Rows  # pyright: ignore[reportIncompatibleMethodOverride] - drafts that count; tuple.count gives way
    q_log: Float[Array, "B A V"] | None  # log-probabilities sampled drafts came from; None where no source samples
    sampled: RowMask  # False: each draft is a point mass
    match: Rows  # tokens of context that the proposal rests on; 0 where that means nothing
    confidence: Float[Array, "B A"]  # largest probability of the draft's law at each depth; 1 where it has none


class Seen(NamedTuple):
    """How the target stood where it made each row's last token; before the first round, all zero and no domain."""

    top: RowFloats  # float32, its largest probability, before any warper
    margin: RowFloats  # float32, by how much that is above the second largest
    entropy: RowFloats  # float32, nats
    domain: Rows  # int32, the cluster that the text's hidden states are nearest to; -1 unknown


class Signals(NamedTuple):
    """What a selector may base its choice on; N sources in the order of the setup, source 0 is "none"."""

    offered: Int[Array, "B N"]  # drafts each source could give this round, capped by the row's limits
    match: Int[Array, "B N"]  # context matched by each free source's proposal
    lag: Int[Array, "B N"]  # committed tokens a source's cache has not seen yet
    active: RowMask
    confidence: Float[Array, "B N"] | None = None  # of the first draft at hand; 1 without a law or a draft
    length: Rows | None = None  # known tokens
    seen: Seen | None = None
    steering: Steering | None = None
    token_class: Rows | None = None  # int32, class of the last token (`jaxspec.text.classes`); -1 unknown
    room: Rows | None = None  # int32, drafts that the row may have this round, whoever gives them


class Choice(NamedTuple):
    """Source and lookahead of every row for one round."""

    source: Rows  # int32, index into the setup's sources
    lookahead: Rows  # int32
    stop: "Stop | None" = None  # when a model draft stops by itself; None: it takes its whole lookahead
    tail: Rows | None = None  # int32, index of the FREE source that goes on where the drafts end; 0 without one
    tail_lookahead: Rows | None = None  # int32, drafts of the tail
    told: dict[str, Array] | None = None  # what the selector expected, [B] or [B, N], for people to look at


class Stop(NamedTuple):
    """When a model draft is not worth its next step (`jaxspec.sampling.confidence.goes_on`); float32."""

    intercept: RowFloats  # of the log-odds that the target takes a draft,
    slope: RowFloats  # by the log-odds of the draft's own confidence in it (`jaxspec.sampling.confidence.trusted`)
    base: RowFloats  # time of the round without drafts
    step: RowFloats  # time of each draft, its place in the window included


class Verdict(NamedTuple):
    """What verification says of a round, and what the committed tokens are."""

    accepted: Rows  # drafts accepted
    emitted: Tokens  # [B, A+1] accepted drafts, then the corrected or bonus token
    # tokens emitted: accepted + 1, fewer where the row ends; 0 for finished rows
    count: Rows  # pyright: ignore[reportIncompatibleMethodOverride]
    logprobs: Float[Array, "B T"] | None  # of the emitted tokens, under the model's own softmax


class Feedback(NamedTuple):
    """How every proposal that was at hand would have done, chosen or not, as far as the emitted tokens tell.

    known: the source gave a draft at this depth, its drafts before it are what was emitted, and the target judged the
    place. So a proposal is known up to its first miss, and one that agrees with everything emitted only so far.

        emitted  5 8 2 | source a  5 8 9 4 -> known 1 1 1 0, right 1 1 0   | source b  5 8 2 7 -> known 1 1 1 0

    Where a row samples the target says more of a draft than the one token that was drawn: its probability. That is the
    chance; where nothing is left to chance it is 1 or 0, as `right` says.
    """

    known: Bool[Array, "B N A"]
    right: Bool[Array, "B N A"]  # known, and the token that was emitted
    chance: Float[Array, "B N A"]  # float32, probability that the target takes the draft where that is known, else 0
    confidence: Float[Array, "B N A"]  # float32, the source's own
    drawn: Int[Array, "B N"]  # drafts that were at hand: as offered by free sources, drawn by the one that ran, else 0
    emitted: Rows  # tokens of the round; 0 for finished rows


Features = dict[int, jax.Array]
"""The target's residual streams [B, T, D] by how many layers have run, from 1 to all of them (before the norm)."""


class Reuse(NamedTuple):
    """Layers of the target that drafting has run over the window already."""

    hidden: Float[Array, "B T D"]  # residual stream after these layers
    window: PyTree  # their keys and values
    features: Features  # those of the setup's taps that lie below


class Propose(Protocol):
    """Drafts for the rows whose lookahead is above 0; reads only. `scratch` is handed to `observe`."""

    def __call__(self, params: EngineParams, view: View, state: PyTree, lookahead: Rows) -> tuple[Proposal, PyTree]: ...


class Observe(Protocol):
    """The source's state after the verdict; `scratch` counts only for rows in `ran`."""

    def __call__(self, state: PyTree, scratch: PyTree, view: View, ran: RowMask, verdict: Verdict) -> PyTree: ...


class CatchUp(Protocol):
    """Bring the source's cache near the committed tokens for the rows in `wanted`; returns tokens taken [B] too."""

    def __call__(self, params: EngineParams, view: View, state: PyTree, wanted: RowMask) -> tuple[PyTree, Rows]: ...


class Absorb(Protocol):
    """The source's state with the target's features of the tokens that enter the target's cache.

    They are the first `count` ones; the first stands at position `start`.
    """

    def __call__(self, state: PyTree, features: Features, start: Rows, count: Rows) -> PyTree: ...


class Learn(Protocol):
    """The source's state after a round: what the target says at the branch's nodes counts for rows in `rode` alone."""

    def __call__(
        self, state: PyTree, view: View, guesses: Int[Array, "B M"], rode: RowMask, verdict: Verdict
    ) -> PyTree: ...


class Branch(NamedTuple):
    """Extra nodes in the target's window, in rounds in which a row asks for the source that carries them.

    A tree on the pending token, beside the drafts: neither sees the other. The target's likeliest tokens at its nodes
    are all that is left of it; its keys, values, logits and features end with the pass.
    """

    parents: tuple[int, ...]  # of every node as in `jaxspec.tree`; node 0 is the pending token, the M others are extra
    tokens: Any  # (state, view) -> [B, M] int32
    learn: Learn


class DraftSource(NamedTuple):
    """A way to guess the next tokens. A NamedTuple of pure functions, made by a factory in `jaxspec.drafts`."""

    name: str
    cost: str  # FREE: proposes for every row each round. MODEL: runs only in rounds in which a row chose it
    init: Any  # (rows, capacity, dtype) -> state; capacity in tokens, dtype of a cache
    propose: Propose
    observe: Observe
    catch_up: CatchUp | None = None  # None for sources that never lag
    lag: Any = None  # (state, view) -> [B] int32; None for sources that never lag
    max_positions: int | None = None  # longest sequence the source can follow; None without limit
    samples: bool = False  # whether its drafts may be sampled (then Proposal.q_log is filled in "rejection")
    reuse: Any = None  # (scratch) -> Reuse, None where drafting runs no layer of the target
    reuse_layers: int = 0  # layers that `reuse` hands over; 0 without
    taps: tuple[int, ...] = ()  # after how many layers of the target `absorb` wants the residual stream, ascending
    absorb: Absorb | None = None  # called for every token of prompt and output, once; None without taps
    most: int | None = None  # drafts it can give a round, whatever is asked; None without limit
    branch: Branch | None = None  # nodes that ride in the target's window; one source a setup may have them


class Selector(NamedTuple):
    """Chooses source and lookahead for every row and round, from what is known before any draft is drawn."""

    name: str
    init: Any  # (rows, sources) -> state
    choose: Any  # (params, state, Signals) -> Choice
    update: Any  # (params, state, Signals, Choice, Proposal, Verdict, Feedback) -> state
    feedback: bool = False  # whether `update` reads the feedback and nothing else of the round; where not, it is None
    certainty: bool = False  # whether `choose` reads the target's certainty in Signals.seen, which costs a pass over V
    tail: Any = None  # (params, state, Signals, Choice, Proposal) -> Choice with a tail; see `jaxspec.drafts.tails`
    carry: Any = None  # (params, state) -> what the next call may begin with, in place of params.prior; None: nothing
    clusters: int = 0  # text clusters that Signals.seen.domain counts; then params.clusters holds [clusters, D] float32


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything static about an engine: hashable, the argument that a change of recompiles."""

    target: LanguageModel
    sources: tuple[DraftSource, ...]  # source 0 is "none"
    selector: Selector
    verify: str  # greedy | rejection | coupled
    windows: tuple[int, ...]  # padded window widths, ascending; largest lookahead is the last less one
    vocab_size: int  # true vocabulary; ids at or beyond it are padding
    logprobs: bool  # whether the state keeps log-probabilities of emitted tokens
    mesh: Mesh | None = None  # devices that the state is spread over; None is one device

    @property
    def lookahead(self) -> int:
        """Largest lookahead, in tokens."""
        return self.windows[-1] - 1

    @property
    def taps(self) -> tuple[int, ...]:
        """After how many layers of the target some source wants the residual stream, ascending."""
        return tuple(sorted({tap for source in self.sources for tap in source.taps}))

    @property
    def carrier(self) -> int | None:
        """Index of the source whose branch may ride in the target's window; None without one."""
        return next((index for index, source in enumerate(self.sources) if source.branch is not None), None)

    @property
    def branch(self) -> Branch | None:
        """The carrier's branch."""
        return None if self.carrier is None else self.sources[self.carrier].branch

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in order."""
        return tuple(source.name for source in self.sources)


__all__ = [
    "FREE",
    "MODEL",
    "Absorb",
    "Branch",
    "CatchUp",
    "Choice",
    "DraftSource",
    "EngineParams",
    "Features",
    "Feedback",
    "Learn",
    "Observe",
    "Proposal",
    "Propose",
    "Request",
    "Reuse",
    "Seen",
    "Selector",
    "Setup",
    "Signals",
    "Steering",
    "Stop",
    "Verdict",
    "View",
]
