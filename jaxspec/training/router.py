"""Train a router, or a prior for goodput, on records of what every source would have drafted at every place."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint.staging import new_folder
from jaxspec.select.cost import CostTable, guess
from jaxspec.select.features import features
from jaxspec.select.goodput import Prior
from jaxspec.select.kinds import Kinds
from jaxspec.select.logistic import Model
from jaxspec.select.router import Net, log_odds, naive_net
from jaxspec.select.trained import MLP, PRIOR, RECORD, Target, write_trained
from jaxspec.training.card import CARD
from jaxspec.training.fit import Recipe, fit
from jaxspec.training.router_data import (
    Examples,
    Targets,
    Text,
    drawn_of,
    examples_of,
    kinds_of_pool,
    log_loss,
    signals_of,
    targets_of,
    trust_of,
)
from jaxspec.typing import Params

BATCH = 256
"""Places a step."""

Told = Callable[[int, int, int], None]


@dataclasses.dataclass(frozen=True)
class Options:
    """How to train. Static.

    Raises:
        ValueError: a number out of range.
    """

    kind: str = MLP  # or PRIOR
    steps: int = 2000
    hold_out: float = 0.2  # share of the texts
    rate: float = 3e-3
    draft_step: float = 0.1  # plain steps that a model's draft costs, where it stops by itself
    strength: float = 30.0  # observations that a prior counts for, when goodput learns on
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (MLP, PRIOR):
            raise ValueError(f"kind is {self.kind!r}; choose {MLP} or {PRIOR}")
        if self.steps < 1 or not 0 < self.hold_out < 1:
            raise ValueError(
                f"steps is {self.steps} and hold_out {self.hold_out}; give 1 or more, and a share between 0 and 1"
            )
        if not (self.rate > 0 and self.draft_step >= 0 and self.strength >= 0):
            raise ValueError(
                f"rate is {self.rate}, draft_step {self.draft_step}, strength {self.strength}; "
                "rate must be above 0, the others 0 or more"
            )


@dataclasses.dataclass(frozen=True)
class Trained:
    """What came of it."""

    weights: Net | Prior
    kinds: Kinds
    report: dict[str, Any]  # JSON values


def train_router(texts: Sequence[Text], options: Options, *, told: Told | None = None) -> Trained:
    """Weights fitted to a part of the texts, judged on the others.

    Args:
        texts: records of one setup, two or more (`jaxspec.bench.record`).
        told: (steps done, in all, places so far).

    Raises:
        ValueError: texts of several setups, or too few to hold one out.
    """
    kinds = _kinds(texts)
    held = hold_out(len(texts), options.hold_out, options.seed)
    examples = examples_of(texts)
    aside = held[examples.text]
    costs = guess(kinds.passes, kinds.nodes, kinds.windows)
    drafts = np.outer(kinds.passes, np.arange(kinds.lookahead + 1)) * options.draft_step
    costs = costs._replace(draft=jnp.asarray(drafts, jnp.float32))
    trust = trust_of(examples.some(~aside), kinds)
    parts = {name: _part(examples.some(which), kinds, costs, trust) for name, which in (("a", ~aside), ("b", aside))}
    start = {name: leaf for name, leaf in naive_net(kinds.free, seed=options.seed)._asdict().items() if name != "trust"}
    if options.kind == PRIOR:
        start = {"linear": start["linear"]}
    params = _fitted(start, parts["a"], kinds, options, told)
    report = {
        "texts": len(texts),
        "held_out": int(held.sum()),
        "places": len(examples.left),
        "log_loss": losses_of(params, start, parts["a"], parts["b"], kinds),
    }
    return Trained(_weights(params, trust, kinds, options), kinds, report)


def hold_out(texts: int, share: float, seed: int) -> np.ndarray:
    """Which texts are kept apart, bool; at least one, and not all.

    Raises:
        ValueError: fewer than two texts.
    """
    if texts < 2:
        raise ValueError(f"there are {texts} records, where one is trained on and another held out; give 2 or more")
    count = min(max(1, round(share * texts)), texts - 1)
    held = np.zeros(texts, bool)
    held[np.random.default_rng(seed).permutation(texts)[:count]] = True
    return held


def _kinds(texts: Sequence[Text]) -> Kinds:
    found = {kinds_of_pool(text.pool, text.confidence.shape[-1]) for text in texts}
    if len(found) > 1:
        said = " and ".join(sorted(f"{', '.join(kinds.names[1:])} ({kinds.lookahead} drafts)" for kinds in found))
        raise ValueError(f"the records are of different setups: {said}; train on those of one")
    if not found:
        raise ValueError("there are no records; make some with scripts/replay.py --record")
    return found.pop()


def _part(examples: Examples, kinds: Kinds, costs: CostTable, trust: np.ndarray) -> tuple[Any, Targets]:
    """Signals and targets of places, on the device."""
    targets = targets_of(examples, kinds, drawn_of(examples, kinds, costs, trust))
    return signals_of(examples, kinds.free), jax.tree.map(jnp.asarray, targets)


def _log_odds(params: Params, x: jax.Array) -> jax.Array:
    if len(params) == 1:
        return jnp.einsum("bnaf,nfx->bnax", x, params["linear"])
    return log_odds(Net(**params, trust=None), x)


def _fitted(start: Params, part: tuple[Any, Targets], kinds: Kinds, options: Options, told: Told | None) -> Params:
    places = len(part[0].active)

    def loss(params: Params, which: jax.Array, context: Any) -> jax.Array:
        signals, targets = jax.tree.map(lambda leaf: leaf[which], context)
        z = _log_odds(params, features(signals, kinds.lookahead, kinds.free))
        each = (
            jnp.sum(jnp.where(known, log_loss(z[..., head], said), 0.0))
            / jnp.maximum(jnp.sum(known.astype(jnp.float32)), 1)
            for head, (said, known) in enumerate((targets[:2], targets[2:]))
        )
        return sum(each, start=jnp.float32(0))

    rng = np.random.default_rng(options.seed)
    batches = (rng.integers(0, places, BATCH).astype(np.int32) for _ in range(options.steps))
    recipe = Recipe(options.steps, rate=options.rate, weight_decay=0.01, betas=(0.9, 0.999))
    on_step = None if told is None else lambda step, _: told(step, options.steps, step * BATCH)
    return fit(loss, start, batches, recipe, context=part, on_step=on_step)[0]


def losses_of(
    params: Params, naive: Params, learnt: tuple[Any, Targets], held: tuple[Any, Targets], kinds: Kinds
) -> dict[str, dict[str, float | None]]:
    """Mean log-loss of whether a draft is taken, in nats, on held-out texts, by source and over all.

    "base rate" predicts, everywhere, how often drafts of the source were taken in the texts that were learnt from.
    """
    signals, targets = held
    x = features(signals, kinds.lookahead, kinds.free)
    known, said = np.asarray(targets.takes_known), np.asarray(targets.taken)
    seen, before = np.asarray(learnt[1].takes_known), np.asarray(learnt[1].taken)
    often = (np.sum(before * seen, axis=(0, 2)) + 0.5) / (np.sum(seen, axis=(0, 2)) + 1)
    rate = jnp.asarray(np.log(often / (1 - often)), jnp.float32)[None, :, None]
    guesses = {"trained": _log_odds(params, x)[..., 0], "naive": _log_odds(naive, x)[..., 0]}
    guesses["base rate"] = jnp.broadcast_to(rate, known.shape)
    report: dict[str, dict[str, float | None]] = {}
    for name, z in guesses.items():
        each = np.where(known, np.asarray(log_loss(z, jnp.asarray(said))), 0.0)
        by = {source: _mean(each[:, n], known[:, n]) for n, source in enumerate(kinds.names) if n > 0}
        report[name] = {"all": _mean(each, known), **by}
    return report


def _mean(each: np.ndarray, known: np.ndarray) -> float | None:
    return float(each.sum() / known.sum()) if known.any() else None


def _weights(params: Params, trust: np.ndarray, kinds: Kinds, options: Options) -> Net | Prior:
    if options.kind == MLP:
        return Net(**params, trust=jnp.asarray(trust))
    size = lambda weights: jnp.full(weights.shape, 1 + options.strength / 4, jnp.float32)  # noqa: E731 - squared slopes
    models = (params["linear"][..., 0], params["linear"][..., 1], jnp.asarray(trust))
    takes, draws, trusts = (Model(weights, size(weights)) for weights in models)
    return Prior(takes, draws, trusts, jnp.full(len(kinds.names), options.strength, jnp.float32))


def make_router(
    texts: Sequence[Text],
    out: str | Path,
    options: Options,
    *,
    data: Sequence[str],
    command: str,
    target: Target | None = None,
    note: str | None = None,
    overwrite: bool = False,
    told: Told | None = None,
) -> Trained:
    """Train, and write a folder with the weights and a card, whole or not at all.

    Args:
        data, command: what the texts are, and how this was asked for; for the card.
        target: whose texts these are; a prior in checkpoints/NAME/prior is what goodput begins with on this target,
            unasked.
        note: the data and its licences, for the card.

    Raises:
        ValueError: as `train_router`; a folder that is taken, a full disk.
    """
    with new_folder(Path(out), overwrite=overwrite, marker=RECORD) as folder:
        trained = train_router(texts, options, told=told)
        card = {"options": dataclasses.asdict(options), "data": list(data), "command": command, **trained.report}
        card |= {"note": note}
        write_trained(folder, trained.weights, trained.kinds, card, target)
        (folder / CARD).write_text(render(trained, card, target), encoding="utf-8")
    return trained


def render(trained: Trained, card: Mapping[str, Any], target: Target | None = None) -> str:
    """The card's text."""
    what = "A router" if isinstance(trained.weights, Net) else "A prior for goodput"
    losses: Mapping[str, Mapping[str, float | None]] = card["log_loss"]
    names = list(losses["trained"])
    lines = [f"# {what}", "", f"For sources {', '.join(trained.kinds.names[1:])}.", ""]
    lines += ["```bash", card["command"], "```", ""]
    records = f"Records {', '.join(card['data'])}, {card['texts']} texts"
    facts = {
        "data": f"{card['note'] or 'Licences: not given.'} {records}",
        "tokens of the corpus": f"{card['places']:,}",
        "target weights (SHA-256)": "not known" if target is None else target.weights,
    }
    lines += ["| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in facts.items()), ""]
    lines += [f"Log-loss of whether a draft is taken, nats, on {card['held_out']} texts held out:", ""]
    lines += [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for kind, by in losses.items():
        cells = ("" if value is None else f"{value:.4f}" for value in by.values())
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


__all__ = ["Options", "Trained", "hold_out", "losses_of", "make_router", "render", "train_router"]
