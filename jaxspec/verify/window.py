"""One target pass over (pending token, drafts), judged where the logits are: only small arrays leave an arm.

A draft source may let a branch of its own ride in the same pass, a tree on the pending token:

    window     pending d1 d2 d3  b1 b2 b3 b4        the drafts' keys, values and logits are those of a pass without
    committed  pending d1 ..                        the branch: no draft sees it, and it sees no draft
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxspec.cache import first_tokens, join
from jaxspec.contracts import EngineParams, Features, Proposal, Reuse, Setup, View
from jaxspec.models.api import Output
from jaxspec.models.tapped import tapped
from jaxspec.models.windows import cut, pad, token_axes
from jaxspec.sampling import Cut, History, penalise, probability, token_logprobs
from jaxspec.sampling import cut as cut_law
from jaxspec.tree import ancestors, chain, depths, graft
from jaxspec.typing import Logits, PyTree, RowFloats, Rows, Tokens
from jaxspec.verify import verifier


class Judged(NamedTuple):
    """What a target pass leaves for the commit, padded to the widest window."""

    accepted: Rows
    emitted: Tokens  # [B, A+1] accepted drafts, then the corrected or bonus token; what follows means nothing
    logprobs: jax.Array | None  # [B, A+1] of the emitted tokens, under the model's own softmax
    window: PyTree
    features: Features  # [B, A+1, D] of the window's tokens at the setup's taps
    guesses: Int[Array, "B M"]  # the target's likeliest tokens at the nodes of the setup's branch; zeros if none rode
    certainty: (
        tuple[RowFloats, RowFloats, RowFloats] | None
    )  # as in `Seen`; None where the selector does not ask for it
    hidden: Float[Array, "B D"] | None  # where the last token was made; None where the selector has no clusters
    chances: Float[Array, "B N A"] | None  # probabilities of the tokens asked about, where a row samples, else 0


def judge(
    setup: Setup,
    params: EngineParams,
    view: View,
    proposal: Proposal,
    *,
    width: int,
    reuse: Reuse | None = None,
    layers: int = 0,
    carrier: PyTree | None = None,
    asked: Int[Array, "B N A"] | None = None,
) -> Judged:
    """Run the target over the first `width` window tokens and verify the drafts among them.

    Args:
        width: padded window width; every row's proposal.count is below it. Static.
        reuse: layers that drafting has run over the window already, or None.
        layers: how many layers `reuse` holds. Static.
        carrier: state of the source whose branch rides in the window; where None the window has no such nodes.
        asked: tokens whose probabilities are wanted at every place of the window; None: the chances are None.
    """
    pending = jnp.take_along_axis(view.tokens, view.length[:, None] - 1, axis=1)
    drafts = proposal.tokens[:, : width - 1]
    window = jnp.concatenate([pending, drafts], axis=1)
    if carrier is None:
        out, features = _forward(setup, params, view, window, reuse, layers)
        guesses = jnp.zeros((len(pending), nodes(setup)), jnp.int32)
    else:
        out, features, guesses = _with_branch(setup, params, view, window, carrier)
    raw = out.logits
    history = History(view.tokens, view.length, view.request.prompt_length)
    causal = jnp.asarray(ancestors(chain(width)))
    logits = penalise(raw, view.request.warpers, history, window, causal, view.request.stop_ids, setup.vocab_size)
    judged = view.length[:, None] + jnp.arange(width, dtype=jnp.int32)[None, :]
    q_log = None if proposal.q_log is None else proposal.q_log[:, : width - 1]
    law, chances = (None, None) if asked is None else _chances(setup, view, logits, asked)
    settings = view.request.warpers, view.request.seed, judged
    accepted, following = verifier(setup.verify)(
        logits, drafts, proposal.count, q_log, proposal.sampled, *settings, law
    )
    index = jnp.arange(width, dtype=jnp.int32)[None, :]
    shifted = jnp.concatenate([drafts, jnp.zeros_like(pending)], axis=1)
    emitted = jnp.where(index == accepted[:, None], following[:, None], shifted)
    spare = ((0, 0), (0, setup.windows[-1] - width))
    logprobs = token_logprobs(raw, emitted, setup.vocab_size) if setup.logprobs else None
    return Judged(
        accepted=accepted,
        emitted=jnp.pad(emitted, spare),
        logprobs=None if logprobs is None else jnp.pad(logprobs, spare),
        window=pad(out.window, _axes(setup, params, view), setup.windows[-1]),
        features={tap: jnp.pad(leaf, (*spare, (0, 0))) for tap, leaf in features.items()},
        guesses=guesses,
        certainty=certainty(_at(raw, accepted)[..., : setup.vocab_size]) if setup.selector.certainty else None,
        hidden=_at(out.hidden, accepted).astype(jnp.float32) if setup.selector.clusters else None,
        chances=chances,
    )


def _chances(
    setup: Setup, view: View, logits: Logits, asked: Int[Array, "B N A"]
) -> tuple[Cut | None, Float[Array, "B N A"]]:
    """The law at every node, where any row draws from one, and what it gives to tokens; 0 beyond the window."""
    nothing = jnp.zeros(asked.shape, jnp.float32)
    if setup.verify == "greedy":
        return None, nothing
    warpers, inside = view.request.warpers, min(asked.shape[2], logits.shape[1])
    sampling = jnp.any(warpers.temperature > 0)
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(cut_law, logits, warpers))
    law = lax.cond(sampling, lambda: cut_law(logits, warpers), lambda: empty)
    places = Cut(*(leaf[:, :inside] for leaf in law))
    ids = jnp.swapaxes(asked[..., :inside], 1, 2)
    chances = lax.cond(
        sampling,
        lambda: probability(logits[:, :inside], ids, places, warpers.temperature),
        lambda: jnp.zeros(ids.shape, jnp.float32),
    )
    chances = jnp.swapaxes(jnp.where(chances >= 0, chances, 0.0), 1, 2)  # a row whose every token is banned has no law
    return law, nothing.at[..., :inside].set(chances)


def certainty(logits: Float[Array, "B V"]) -> tuple[RowFloats, RowFloats, RowFloats]:
    """Largest probability, its margin over the second largest, and entropy in nats, of each row's softmax; float32.

    With e = exp(logit - largest), Z = sum e:   top = 1 / Z,  entropy = log Z - sum e (logit - largest) / Z
    """
    shifted = logits.astype(jnp.float32) - jnp.max(logits, axis=-1, keepdims=True).astype(jnp.float32)
    ties = jnp.sum(shifted == 0, axis=-1)
    second = jnp.max(jnp.where(shifted < 0, shifted, -jnp.inf), axis=-1)
    each = jnp.exp(shifted)
    mass = jnp.sum(each, axis=-1)
    # a logit of -inf has no part in the entropy: e = 0 there
    weighed = jnp.sum(each * jnp.maximum(shifted, -1e4), axis=-1)
    margin = jnp.where(ties > 1, 0.0, (1 - jnp.exp(second)) / mass)
    return 1 / mass, margin, jnp.log(mass) - weighed / mass


def _at(leaf: Float[Array, "B T X"], node: Rows) -> Float[Array, "B X"]:
    return jnp.take_along_axis(leaf, node[:, None, None], axis=1)[:, 0]


def nodes(setup: Setup) -> int:
    """Nodes of the setup's branch, its root left out."""
    return 0 if setup.branch is None else len(setup.branch.parents) - 1


def _forward(
    setup: Setup, params: EngineParams, view: View, window: Tokens, reuse: Reuse | None, layers: int
) -> tuple[Output, Features]:
    rows, width = window.shape
    positions = view.length[:, None] - 1 + jnp.arange(width, dtype=jnp.int32)[None, :]
    mask = jnp.broadcast_to(ancestors(chain(width))[None], (rows, width, width))
    inputs = (setup.target, params.target, window, positions, mask, view.cache)
    if reuse is None:
        return tapped(*inputs, taps=setup.taps)
    out, features = tapped(*inputs, taps=setup.taps, start=layers, hidden=reuse.hidden[:, :width])
    features |= {tap: leaf[:, :width] for tap, leaf in reuse.features.items()}
    return out._replace(window=join(first_tokens(reuse.window, width), out.window)), features


def _with_branch(
    setup: Setup, params: EngineParams, view: View, window: Tokens, carrier: PyTree
) -> tuple[Output, Features, Int[Array, "B M"]]:
    """One pass over the chain and the branch; all that is left of the branch is what the target says at its nodes."""
    assert setup.branch is not None
    rows, width = window.shape
    parents = graft(chain(width), np.asarray(setup.branch.parents, np.int32))
    positions = view.length[:, None] - 1 + jnp.asarray(depths(parents))[None, :]
    # A row near the end rides along with others; what is said there counts for nothing, but must be a number.
    positions = jnp.minimum(positions, setup.target.config.max_positions - 1)
    mask = jnp.broadcast_to(ancestors(parents)[None], (rows, len(parents), len(parents)))
    tokens = jnp.concatenate([window, setup.branch.tokens(carrier, view)], axis=1)
    out, features = tapped(setup.target, params.target, tokens, positions, mask, view.cache, taps=setup.taps)
    guesses = jnp.argmax(out.logits[:, width:, : setup.vocab_size], axis=-1).astype(jnp.int32)
    kept = cut(out.window, _axes(setup, params, view), width)
    chain_alone = Output(out.logits[:, :width], out.hidden[:, :width], kept)
    return chain_alone, {tap: leaf[:, :width] for tap, leaf in features.items()}, guesses


def _axes(setup: Setup, params: EngineParams, view: View) -> PyTree:
    def shapes(width: int) -> PyTree:
        window = jnp.zeros((len(view.length), width), jnp.int32)
        return jax.eval_shape(lambda p: _forward(setup, p, view, window, None, 0)[0].window, params)

    return token_axes(shapes(1), shapes(2))
