"""Traces become records: runs, confidences and lookups are those of the text, and lookups those of the engine."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import decode
from jaxspec.bench.traces import LM, LOOKUP, as_record, lookups, read_traces
from jaxspec.contracts import EngineParams, View
from jaxspec.drafts import lookup

TRACE = {
    "id": "a",
    "category": "code",
    "prompt_ids": [5, 6, 7, 8, 9],
    "out_ids": [5, 6, 7, 8, 1, 6, 7, 8],
    "match": [0, 1, 1, 0, 1, 1, 1, 1],
    "conf": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
    "top1": [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2],
}


def test_a_trace_by_hand():
    record = as_record(TRACE)
    assert record.right[:, LM].tolist() == [0, 2, 1, 0, 4, 3, 2, 1]
    assert record.match[:, LOOKUP].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    # before token 1 the text ends in 5, seen at the beginning: 6 7 8 9 5 follow, of which 6 7 8 come
    assert record.offered[:3, LOOKUP].tolist() == [0, 5, 5]
    assert record.right[:, LOOKUP].tolist() == [0, 3, 2, 1, 0, 0, 2, 1]
    np.testing.assert_allclose(record.confidence[2, LM, :6], [0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    np.testing.assert_allclose(record.top, [0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])
    np.testing.assert_allclose(record.margin[1:3], [0.8, 0.6], rtol=1e-6)
    assert record.limit > 10**6
    assert as_record(TRACE, limit=96).limit == 96


def test_traces_are_read_and_broken_ones_are_named(tmp_path):
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps(TRACE) + "\n\n" + json.dumps(TRACE | {"id": "b"}) + "\n")
    assert [record.name for record in read_traces(file)] == ["a", "b"]
    file.write_text(json.dumps(TRACE) + "\n{}\n")
    with pytest.raises(ValueError, match="line 2 is no trace"):
        read_traces(file)
    file.write_text("\n")
    with pytest.raises(ValueError, match="holds no traces"):
        read_traces(file)
    with pytest.raises(ValueError, match="cannot read the traces"):
        read_traces(tmp_path / "nothing")


def test_lookups_are_the_engines():
    rng = np.random.default_rng(3)
    prompt, ids = rng.integers(0, 5, 12).astype(np.int32), rng.integers(0, 5, 40).astype(np.int32)
    source = lookup(lookahead=6)
    text = np.concatenate([prompt, ids])
    rows = np.arange(len(prompt), len(text), dtype=np.int32)
    view = View(
        jnp.broadcast_to(jnp.asarray(text)[None], (len(rows), len(text))),
        jnp.asarray(rows),
        jnp.zeros(len(rows), jnp.int32),
        jnp.ones(len(rows), bool),
        None,  # pyright: ignore[reportArgumentType] - lookups do not read the request
        (),
    )
    proposal, _ = source.propose(EngineParams({}, {}, ()), view, (), jnp.full(len(rows), 6, jnp.int32))
    ours = lookups(prompt, ids, most=6, min_match=2, loops=True)
    assert sum(len(drafts) > 0 for drafts, _, _ in ours) > 10
    for row, (drafts, matched, share) in enumerate(ours):
        assert matched == proposal.match[row]
        assert not len(drafts) or np.float32(share) == proposal.confidence[row, 0]
        assert len(drafts) == proposal.count[row]
        np.testing.assert_array_equal(drafts, np.asarray(proposal.tokens)[row, : len(drafts)])
    ending = lookups(prompt, ids, most=6, min_match=2)  # negative control: drafts that end with the text are fewer
    assert any(len(drafts) < proposal.count[row] for row, (drafts, _, _) in enumerate(ending))
    assert decode.DEFAULT_LOOKAHEAD >= 6
