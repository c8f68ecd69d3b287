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
    valid: jax.Array | np.ndarray  # bool [B, T], false in a prompt and past a document's end
    ids: jax.Array | np.ndarray  # int32 [B, T, K], the target's likeliest next tokens
    log_p: jax.Array | np.ndarray  # float16 [B, T, K]
    features: dict[int, jax.Array | np.ndarray]  # bfloat16 [B, T, D]


class Sampler:
    """Documents in a new random order every epoch, a random stretch of each; `batch(step)` depends on nothing else."""

    def __init__(self, parts: tuple[Part, ...], *, rows: int, width: int, taps: tuple[int, ...], seed: int):
        self.parts, self.rows, self.width, self.taps, self.seed = parts, rows, width, taps, seed
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
            earliest = min(latest, max(0, int(part.prompts[d]) - self.width // 2))
            start = begin + int(rng.integers(earliest, latest + 1))
            # the law that the prompt's last token has is the answer's first token's
            answer = begin + int(part.prompts[d]) - 1
            spans.append((part, begin, start, min(end, start + self.width), max(0, min(answer, end - 1) - start)))
        return self._gather(spans)

    def _document(self, number: int) -> tuple[int, int]:
        epoch, place = divmod(number, len(self.documents))
        order = np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.documents))
        return self.documents[order[place]]

    def _gather(self, spans: list[tuple[Part, int, int, int, int]]) -> Batch:
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
        for row, (part, begin, start, end, first) in enumerate(spans):
            n = end - start
            batch.tokens[row, :n] = part.tokens[start:end]
            batch.positions[row] = np.arange(start - begin, start - begin + width)
            batch.valid[row, first:n] = True
            batch.ids[row, :n] = part.law.ids[start:end]
            batch.log_p[row, :n] = part.law.log_p[start:end]
            for tap in self.taps:
                batch.features[tap][row, :n] = part.features[tap][start:end]
        return batch


def split_parts(parts: tuple[Part, ...], held: int) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """(what to train on, the last `held` documents): no document is in both.

    documents 5 2, held 3   ->   4 | 1 2

    Raises:
        ValueError: no document would be left to train on.
    """
    total = sum(len(part.starts) - 1 for part in parts)
    if not 0 < held < total:
        raise ValueError(f"{held} documents cannot be held out of {total}; give a corpus of at least 4 documents")
    kept, last = list(parts), []
    while held:
        part = kept.pop()
        count = len(part.starts) - 1
        taken = min(held, count)
        last.insert(0, _documents(part, count - taken, count))
        if taken < count:
            kept.append(_documents(part, 0, count - taken))
        held -= taken
    return tuple(kept), tuple(last)


def _documents(part: Part, start: int, stop: int) -> Part:
    a, b = int(part.starts[start]), int(part.starts[stop])
    law = part.law.__class__(part.law.ids[a:b], part.law.log_p[a:b])
    features = {tap: leaf[a:b] for tap, leaf in part.features.items()}
    return Part(part.tokens[a:b], part.starts[start : stop + 1] - a, part.prompts[start:stop], law, features)


def frequent_tokens(parts: tuple[Part, ...], size: int, *, always: tuple[int, ...] = ()) -> np.ndarray:
    """The `size` tokens that the target is likeliest to say, int32, ascending: by its summed probability.

    Where its laws were not kept, by how often the text says them.

    Args:
        always: ids that are kept whatever their frequency: end tokens.
    """
    seen = [_weights(part) for part in parts]
    top = max(int(ids.max()) for ids, _ in seen) + 1
    mass = np.zeros(max(top, *(i + 1 for i in always), 1), np.float64)
    for ids, weights in seen:
        np.add.at(mass, ids, weights)
    mass[list(always)] = np.inf
    order = np.argsort(-mass, kind="stable")[:size]
    if len(order) < size or mass[order[-1]] == 0:
        order = order[mass[order] > 0]
    return np.sort(order).astype(np.int32)


def _weights(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that were said, or might have been, and how likely."""
    if not part.law.ids.shape[1]:
        return part.tokens, np.ones(len(part.tokens))
    return part.law.ids.ravel(), np.exp(part.law.log_p.astype(np.float32)).ravel()


def coverage(parts: tuple[Part, ...], ids: np.ndarray) -> float:
    """Share of the target's likeliest next tokens, or of the text's own, that lie among `ids`."""
    said = [part.law.ids[:, 0] if part.law.ids.shape[1] else part.tokens for part in parts]
    return float(np.isin(np.concatenate([np.asarray(each) for each in said]), ids).mean())
