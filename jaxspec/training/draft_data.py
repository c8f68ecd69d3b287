"""Batches for drafts: stretches of the teacher's documents, the same for the same seed and step."""

from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np

from jaxspec.training.teacher import Part


class Batch(NamedTuple):
    """Stretches of text with what the target makes of them; entry t belongs to the text up to and with token t."""

    tokens: jax.Array | np.ndarray  # int32 [B, T]
    positions: jax.Array | np.ndarray  # int32 [B, T], in their documents
    valid: jax.Array | np.ndarray  # bool [B, T], false past a document's end
    ids: jax.Array | np.ndarray  # int32 [B, T, K], the target's likeliest next tokens
    log_p: jax.Array | np.ndarray  # float16 [B, T, K]
    features: dict[int, jax.Array | np.ndarray]  # bfloat16 [B, T, D]


class Sampler:
    """Documents in a new random order every epoch, a random stretch of each; `batch(step)` depends on nothing else."""

    def __init__(
        self, parts: tuple[Part, ...], *, rows: int, width: int, taps: tuple[int, ...], seed: int, answers: bool = True
    ):
        self.parts, self.rows, self.width, self.taps, self.seed = parts, rows, width, taps, seed
        self.answers = answers
        counts = [len(part.starts) - 1 for part in parts]
        self.documents = [(p, d) for p, count in enumerate(counts) for d in range(count)]
        if not self.documents:
            raise ValueError("the teacher holds no document; make it from a corpus first")

    def batch(self, step: int) -> Batch:
        """The batch of a step, from 0."""
        chosen = [self._document(step * self.rows + row) for row in range(self.rows)]
        rng = np.random.default_rng((self.seed, 1, step))
        spans = []
        for p, d in chosen:
            part = self.parts[p]
            begin, end = int(part.starts[d]), int(part.starts[d + 1])
            # the answer is what a draft will have to guess: a stretch begins no later than its last `width` tokens
            latest = max(0, end - begin - self.width)
            earliest = min(latest, max(0, int(part.prompts[d]) - self.width // 2)) if self.answers else 0
            start = begin + int(rng.integers(earliest, latest + 1))
            spans.append((part, begin, start, min(end, start + self.width)))
        return self._gather(spans)

    def _document(self, number: int) -> tuple[int, int]:
        epoch, place = divmod(number, len(self.documents))
        order = np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.documents))
        return self.documents[order[place]]

    def _gather(self, spans: list[tuple[Part, int, int, int]]) -> Batch:
        rows, width, top = self.rows, self.width, self.parts[0].law.ids.shape[1]
        size = {tap: self.parts[0].features[tap].shape[1] for tap in self.taps}
        batch = Batch(
            tokens=np.zeros((rows, width), np.int32),
            positions=np.zeros((rows, width), np.int32),
            valid=np.zeros((rows, width), bool),
            ids=np.zeros((rows, width, top), np.int32),
            log_p=np.zeros((rows, width, top), np.float16),
            features={tap: np.zeros((rows, width, size[tap]), ml_dtypes.bfloat16) for tap in self.taps},
        )
        for row, (part, begin, start, end) in enumerate(spans):
            n = end - start
            batch.tokens[row, :n] = part.tokens[start:end]
            batch.positions[row] = np.arange(start - begin, start - begin + width)
            batch.valid[row, :n] = True
            batch.ids[row, :n] = part.law.ids[start:end]
            batch.log_p[row, :n] = part.law.log_p[start:end]
            for tap in self.taps:
                batch.features[tap][row, :n] = part.features[tap][start:end]
        return batch


def split_parts(parts: tuple[Part, ...], held: int) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """(what to train on, the last `held` documents of the last part): no document is in both."""
    last = parts[-1]
    cut = len(last.starts) - 1 - held
    if cut < 1:
        raise ValueError(f"{held} documents cannot be held out of the last part's {len(last.starts) - 1}; give fewer")
    return (*parts[:-1], _documents(last, 0, cut)), (_documents(last, cut, cut + held),)


def _documents(part: Part, start: int, stop: int) -> Part:
    a, b = int(part.starts[start]), int(part.starts[stop])
    law = part.law.__class__(part.law.ids[a:b], part.law.log_p[a:b])
    features = {tap: leaf[a:b] for tap, leaf in part.features.items()}
    return Part(part.tokens[a:b], part.starts[start : stop + 1] - a, part.prompts[start:stop], law, features)


def frequent_tokens(parts: tuple[Part, ...], size: int, *, always: tuple[int, ...] = ()) -> np.ndarray:
    """The `size` tokens that the target is likeliest to say, int32, ascending: by its summed probability.

    Args:
        always: ids that are kept whatever their frequency: end tokens.
    """
    top = max(int(part.law.ids.max()) for part in parts) + 1
    mass = np.zeros(max(top, *(i + 1 for i in always), 1), np.float64)
    for part in parts:
        np.add.at(mass, part.law.ids.ravel(), np.exp(part.law.log_p.astype(np.float32)).ravel())
    mass[list(always)] = np.inf
    order = np.argsort(-mass, kind="stable")[:size]
    if len(order) < size or mass[order[-1]] == 0:
        order = order[mass[order] > 0]
    return np.sort(order).astype(np.int32)


def coverage(parts: tuple[Part, ...], ids: np.ndarray) -> float:
    """Share of the target's likeliest next tokens that lie among `ids`."""
    likeliest = np.concatenate([np.asarray(part.law.ids[:, 0]) for part in parts])
    return float(np.isin(likeliest, ids).mean())
