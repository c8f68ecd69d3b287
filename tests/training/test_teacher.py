"""What is kept of the target's view of a corpus is what the target says, and a live view is no other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from jaxspec.training.corpus import write_shard
from jaxspec.training.draft_data import Sampler
from jaxspec.training.draft_loss import draft_loss
from jaxspec.training.live import for_context, live, seen_by, text_parts
from jaxspec.training.teacher import build_teacher, open_teacher
from tests.decode import tiny
from tests.drafts.oracle import empty_pass
from tests.training import small

ROWS = [np.random.default_rng(i).integers(0, tiny.VOCAB, 9 + 5 * i).tolist() for i in range(9)]
OPTIONS = {"target": "weights", "taps": (1, 2, 3), "vocab_size": tiny.VOCAB}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    files = [folder / "shard-00000.npz", folder / "shard-00001.npz"]
    for file, rows in zip(files, (ROWS[:5], ROWS[5:]), strict=True):
        write_shard(file, rows, [3] * len(rows), list(range(len(rows))))
    return files


@pytest.fixture(scope="module")
def whole(shards, tmp_path_factory):
    """A teacher that keeps every token of the laws."""
    folder = tmp_path_factory.mktemp("teacher")
    build_teacher(*small.target(), shards, folder, top=tiny.VOCAB, **OPTIONS)
    return folder


def test_laws_and_features_are_the_targets(whole):
    parts = open_teacher(whole)
    model, params = small.target()
    part = parts[0]
    assert sum(len(each.tokens) for each in parts) == sum(map(len, ROWS))
    for number, row in enumerate(ROWS[:5]):
        span = slice(int(part.starts[number]), int(part.starts[number + 1]))
        assert part.tokens[span].tolist() == row
        padded = jnp.asarray([row + [0] * (64 - len(row))], jnp.int32)
        logits = np.asarray(empty_pass(model, params, padded).logits)[0, : len(row), : tiny.VOCAB]
        law = log_softmax(logits, -1)
        np.testing.assert_array_equal(part.law.ids[span][:, 0], law.argmax(-1))
        np.testing.assert_allclose(part.law.log_p[span], np.take_along_axis(law, part.law.ids[span], -1), atol=0.02)
        for tap in (1, 2, 3):
            hidden = np.asarray(empty_pass(model, params, padded, (0, tap)).hidden)[0, : len(row)]
            np.testing.assert_allclose(part.features[tap][span].astype(np.float32), hidden, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("kind", ["feature", "lm"])
def test_a_live_view_gives_the_loss_of_a_kept_one(kind, whole, shards):
    config, own = small.draft_of(kind)
    context, loss = small.context_of(config, own), draft_loss(config, depths=2)
    sizes = {"rows": 9, "width": 56, "seed": 0}  # every document whole, so that both views see it from its beginning
    taps = config.taps if kind == "feature" else ()
    kept = Sampler(open_teacher(whole), taps=taps, **sizes).batch(0)
    bare = Sampler(text_parts(shards, vocab_size=tiny.VOCAB), taps=(), **sizes).batch(0)
    see = live(small.target()[0], taps=taps, vocab_size=tiny.VOCAB)
    context |= for_context(small.target()[1])
    as_arrays = lambda batch: jax.tree.map(jnp.asarray, batch)  # noqa: E731
    params = small.trainable(own)
    value, seen = jax.jit(loss)(params, as_arrays(kept), context)
    again, seen_live = jax.jit(seen_by(see, loss))(params, as_arrays(bare), context)
    np.testing.assert_allclose(value, again, rtol=5e-3)
    np.testing.assert_allclose(seen.acceptance, seen_live.acceptance, atol=5e-3)
    np.testing.assert_allclose(seen.agreement, seen_live.agreement, atol=0.02)
    other = jax.jit(seen_by(see, loss))(params, as_arrays(bare._replace(tokens=bare.tokens[::-1])), context)[0]
    assert abs(other - value) > 0.01  # the control


def test_it_goes_on_where_it_was_interrupted(tmp_path, shards):
    build_teacher(*small.target(), shards[:1], tmp_path, top=4, **OPTIONS)
    (tmp_path / "shard-00001.part").mkdir()  # of a write that was killed
    before = (tmp_path / "shard-00000" / "ids.npy").stat().st_mtime_ns
    assert len(open_teacher(tmp_path)) == 1
    build_teacher(*small.target(), shards, tmp_path, top=4, **OPTIONS)
    assert len(open_teacher(tmp_path)) == 2
    assert (tmp_path / "shard-00000" / "ids.npy").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"top": 5}, "holds a teacher with top 29, asked for is 5; give the same settings"),
        ({"taps": (1, 3)}, r"holds a teacher with taps \[1, 2, 3\], asked for is \[1, 3\]"),
        ({"target": "other"}, "holds a teacher with target 'weights', asked for is 'other'"),
    ],
)
def test_a_teacher_of_other_settings_is_refused(changed, said, whole, shards):
    with pytest.raises(ValueError, match=said):
        build_teacher(*small.target(), shards, whole, **({"top": tiny.VOCAB} | OPTIONS | changed))


def test_a_teacher_of_another_corpus_is_refused(tmp_path, shards):
    build_teacher(*small.target(), shards[:1], tmp_path, top=4, corpus="a", **OPTIONS)
    with pytest.raises(ValueError, match="holds a teacher with corpus 'a', asked for is 'b'"):
        build_teacher(*small.target(), shards, tmp_path, top=4, corpus="b", **OPTIONS)


def test_shards_of_another_vocabulary_are_refused(tmp_path):
    file = tmp_path / "shard-00000.npz"
    write_shard(file, [[1, 2, 31]], [1], [0])
    said = r"has token id 31; this target's ids are 0 to 28, so it was tokenised with another vocabulary"
    with pytest.raises(ValueError, match=said):
        build_teacher(*small.target(), [file], tmp_path / "teacher", top=4, **OPTIONS)
    with pytest.raises(ValueError, match=said):
        text_parts([file], vocab_size=tiny.VOCAB)


def test_a_broken_part_or_folder_is_named(tmp_path, shards):
    with pytest.raises(ValueError, match="holds no teacher"):
        open_teacher(tmp_path)
    build_teacher(*small.target(), shards[:1], tmp_path, top=4, **OPTIONS)
    ids = tmp_path / "shard-00000" / "ids.npy"
    ids.write_bytes(ids.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"shard-00000 is broken .*; delete it and make it again"):
        open_teacher(tmp_path)
