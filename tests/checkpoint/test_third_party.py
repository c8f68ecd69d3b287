"""Published drafts say after conversion what their authors' forward passes say, and bad ones are refused by name."""

import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.checkpoint.published as published
import tests.checkpoint.tiny as tiny
from jaxspec.checkpoint import CheckpointError, attach, fingerprint, open_draft
from jaxspec.checkpoint.artifact import IDS
from jaxspec.checkpoint.third_party import convert_draft
from jaxspec.contracts import EngineParams, Request, View
from jaxspec.drafts.feature import feature
from jaxspec.drafts.medusa import medusa
from jaxspec.models import config_from_hf, parameter_shapes
from jaxspec.sampling import warpers
from tests.checkpoint.published import LAYERS, VOCAB, WIDTH, Draft

pytestmark = pytest.mark.heavy

SCRIPT = Path(__file__).parents[2] / "scripts" / "convert_draft.py"
CONFIG = config_from_hf(published.TARGET)
WEIGHTS = published.random({name: shape.shape for name, shape in parameter_shapes(CONFIG).items()}, seed=9)
LENGTHS, LOOKAHEAD = (9, 5), 3
OPTIONS = {"lookahead": LOOKAHEAD, "vocab_size": VOCAB, "vocab_width": VOCAB, "verify": "rejection"}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    tensors = {name if name.startswith("lm_head") else f"model.{name}": t for name, t in WEIGHTS.items()}
    return tiny.write_hf(tmp_path_factory.mktemp("target"), published.TARGET, tensors)


def attached(folder: Path):
    params = {name: jnp.asarray(tensor) for name, tensor in WEIGHTS.items()}
    artifact = open_draft(folder)
    own = attach(artifact, CONFIG, params, fingerprint(CONFIG, params))
    return artifact.config, EngineParams(target=params, drafts={"draft": own}, selector=())


def view_of(tokens: np.ndarray) -> View:
    rows = len(LENGTHS)
    ones, length = jnp.ones(rows, jnp.int32), jnp.asarray(LENGTHS, jnp.int32)
    settings = warpers(rows, temperature=1.0)
    heat, none = jnp.ones(rows), jnp.zeros(rows)
    request = Request(length, length + 9, -ones[:, None], ones.astype(jnp.uint32), settings, ones * 9, heat, none)
    return View(jnp.asarray(tokens), length, 0 * ones, jnp.ones(rows, bool), request, None)


def drawn(source, params: EngineParams, tokens: np.ndarray, features: dict[int, np.ndarray]):
    """What a source drafts of texts, and the laws it draws from."""
    state = source.init(len(LENGTHS), 32, jnp.float32)
    given, start = {tap: jnp.asarray(f) for tap, f in features.items()}, jnp.zeros(len(LENGTHS), jnp.int32)
    state = source.absorb(state, given, start, jnp.asarray(LENGTHS) - 1)
    lookahead = jnp.full(len(LENGTHS), LOOKAHEAD, jnp.int32)
    proposal, _ = jax.jit(source.propose)(params, view_of(tokens), state, lookahead)
    return np.asarray(proposal.tokens), np.exp(np.asarray(proposal.q_log, np.float64))


def random_text() -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and a residual stream for each of three taps."""
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, VOCAB, (len(LENGTHS), 16)).astype(np.int32)
    return tokens, rng.standard_normal((3, len(LENGTHS), 16, WIDTH)).astype(np.float32)


def laws(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def published_laws(draft: Draft, tokens: np.ndarray, streams: np.ndarray, drafts: np.ndarray) -> list[np.ndarray]:
    """The reference's laws for each row's drafts."""
    found = []
    for row, length in enumerate(LENGTHS):
        known = streams[:, row, : length - 1]
        if "norm.weight" in draft.tensors:
            read = np.concatenate(list(known), axis=-1)
        else:
            read = published.rms(known[0], WEIGHTS["norm.weight"])
        found.append(laws(published.eagle_logits(draft, WEIGHTS, tokens[row, :length], read, drafts[row])))
    return found


EAGLES = {
    "eagle": (published.eagle(embedding=WEIGHTS["embed_tokens.weight"]), (LAYERS,)),
    "eagle3": (published.eagle3(), (2, 4, 5)),
    "speculators": (published.speculators(), (1, 4, 7)),
}


@pytest.mark.parametrize("name", EAGLES)
def test_an_eagle_draft_says_what_its_published_forward_says(name, target, tmp_path):
    draft, taps = EAGLES[name]
    made = convert_draft(draft.write(tmp_path / "there"), tmp_path / "here", target=target)
    assert (made.taps, made.vocab) == (taps, VOCAB if name == "eagle" else 10)
    config, params = attached(tmp_path / "here")
    assert config == made
    tokens, streams = random_text()
    source = feature("draft", config, headroom=16, **OPTIONS)
    drafts, got = drawn(source, params, tokens, dict(zip(taps, streams, strict=False)))
    for row, expected in enumerate(published_laws(draft, tokens, streams, drafts)):
        np.testing.assert_allclose(got[row], expected, atol=2e-5)
    wrong = draft.having({"norm_before_residual": name != "speculators", "rope_theta": 100.0})
    if name == "speculators":
        wrong = draft.having({"norm_before_residual": False})
    other = published_laws(wrong, tokens, streams, drafts)
    assert max(np.abs(g - o).max() for g, o in zip(got, other, strict=True)) > 1e-2  # the comparison can fail


@pytest.mark.parametrize("form", [{"prefix": "medusa_head."}, {"own": False, "blocks": 2}])
def test_medusa_heads_say_what_their_published_forward_says(form, target, tmp_path):
    draft = published.medusa(**form)
    more = {"lm_head.weight": WEIGHTS["lm_head.weight"]} if "prefix" in form else {}  # the target beside its heads
    folder = Draft(draft.fields, draft.tensors | more).write(tmp_path / "there", "medusa_lm_head.safetensors")
    made = convert_draft(folder, tmp_path / "here", target=target)
    assert (made.kind, made.heads, made.taps) == ("medusa", 3, (LAYERS,))
    config, params = attached(tmp_path / "here")
    source = medusa("draft", config, layers=LAYERS, hidden_size=WIDTH, **OPTIONS)
    tokens, streams = random_text()
    _, got = drawn(source, params, tokens, {LAYERS: streams[0]})
    for row, length in enumerate(LENGTHS):
        hidden = published.rms(streams[0, row, length - 2], WEIGHTS["norm.weight"])
        expected = laws(published.medusa_logits(draft, hidden, WEIGHTS["lm_head.weight"]))
        np.testing.assert_allclose(got[row], expected, atol=1e-5)
        assert np.abs(got[row] - expected[::-1]).max() > 1e-2


def test_a_vocabulary_is_stored_in_ascending_order(tmp_path):
    draft = published.eagle3(ids=published.SHUFFLED)
    convert_draft(draft.write(tmp_path / "there"), tmp_path / "here", taps=[1, 2, 3])
    tensors = open_draft(tmp_path / "here").tensors
    assert tensors[IDS].tolist() == sorted(published.SHUFFLED)
    for place, token in enumerate(published.SHUFFLED):
        at = tensors[IDS].tolist().index(token)
        assert np.array_equal(tensors["output.weight"][at], draft.tensors["lm_head.weight"][place])


def test_the_targets_embedding_is_shared_and_another_kept(target, tmp_path):
    same = published.eagle(embedding=WEIGHTS["embed_tokens.weight"]).write(tmp_path / "same")
    other = published.eagle(bias=False, embedding=WEIGHTS["embed_tokens.weight"] + 1).write(tmp_path / "other")
    shared = convert_draft(same, tmp_path / "a", target=target)
    kept = convert_draft(other, tmp_path / "b", target=target)
    assert (shared.own_embedding, shared.fc_bias) == (False, True)
    assert (kept.own_embedding, kept.fc_bias) == (True, False)
    assert "embed_tokens.weight" not in open_draft(tmp_path / "a").tensors
    _, params = attached(tmp_path / "b")
    assert np.array_equal(params.drafts["draft"]["embed_tokens.weight"], WEIGHTS["embed_tokens.weight"] + 1)


def test_a_whole_vocabulary_needs_no_map_and_may_share_the_output(tmp_path):
    whole = published.eagle3(ids=tuple(range(VOCAB))).without("d2t", "t2d").having({"draft_vocab_size": None})
    own = convert_draft(whole.write(tmp_path / "own"), tmp_path / "a", taps=[1, 2, 3])
    shared = convert_draft(whole.without("lm_head.weight").write(tmp_path / "no"), tmp_path / "b", taps=[1, 2, 3])
    assert (own.vocab, own.own_output, shared.own_output) == (VOCAB, True, False)
    tied = whole.without("lm_head.weight").having({"tie_word_embeddings": True})
    tied.tensors["embed_tokens.weight"] = WEIGHTS["embed_tokens.weight"]
    assert convert_draft(tied.write(tmp_path / "tied"), tmp_path / "c", taps=[1, 2, 3]).own_output
    assert np.array_equal(open_draft(tmp_path / "c").tensors["output.weight"], WEIGHTS["embed_tokens.weight"])


@pytest.mark.parametrize(
    ("fields", "taps", "expected"),
    [
        ({}, None, (2, 4, 5)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}, None, (2, 4, 6)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}, None, (1, 3, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}, [2, 3, 8], (2, 3, 8)),
    ],
)
def test_where_a_draft_reads(fields, taps, expected, target, tmp_path):
    source = published.eagle3().having(fields).write(tmp_path / "there")
    assert convert_draft(source, tmp_path / "here", target=target, taps=taps).taps == expected


def test_the_record_names_the_target_where_it_is_known(target, tmp_path):
    source = published.medusa().write(tmp_path / "there")
    convert_draft(source, tmp_path / "open")
    convert_draft(source, tmp_path / "tied", target=target)
    params = {name: jnp.asarray(tensor) for name, tensor in WEIGHTS.items()}
    assert open_draft(tmp_path / "open").target == ""
    assert open_draft(tmp_path / "tied").target == fingerprint(CONFIG, params)
    assert open_draft(tmp_path / "tied").card["base"] == "lmsys/vicuna"
    attach(open_draft(tmp_path / "open"), CONFIG, params, "any")
    with pytest.raises(CheckpointError, match="another target"):
        attach(open_draft(tmp_path / "tied"), CONFIG, params, "any")


def test_weights_keep_their_precision(tmp_path):
    draft = published.medusa()
    half = Draft(draft.fields, {name: tensor.astype(np.float16) for name, tensor in draft.tensors.items()})
    convert_draft(half.write(tmp_path / "there"), tmp_path / "here")
    stored = open_draft(tmp_path / "here").tensors["output.2.weight"]
    assert stored.dtype == np.float16
    assert np.array_equal(stored, half.tensors["2.1.weight"])


def test_every_tensor_that_does_not_fit_is_named_at_once(tmp_path):
    stray = np.zeros(3, np.float32)
    draft = published.eagle3().without("midlayer.mlp.up_proj.weight", "d2t").having(stray=stray, norm__weight=stray)
    draft.tensors["fc.weight"] = draft.tensors["fc.weight"].astype(np.int8)
    with pytest.raises(CheckpointError) as caught:
        convert_draft(draft.write(tmp_path / "there"), tmp_path / "here", taps=[1, 2, 3])
    for line in (
        "5 tensors do not match",
        "missing: midlayer.mlp.up_proj.weight [24, 16]",
        "missing: d2t [10]",
        "unexpected: stray [3]",
        "misshapen: norm.weight is [3], the config asks for [16]",
        "not floating: fc.weight is int8",
    ):
        assert line in str(caught.value)
    assert not (tmp_path / "here").exists()


def twice() -> np.ndarray:
    return np.asarray((3, *published.IDS[1:-1], 3), np.int64) - np.arange(10)


def beyond() -> np.ndarray:
    return np.asarray((*published.IDS[:-1], VOCAB), np.int64) - np.arange(10)


REFUSED = {
    "two layers": (published.eagle().having({"num_hidden_layers": 2}), "num_hidden_layers 2 is not supported"),
    "family": (published.eagle3().having({"model_type": "gemma2"}), "model_type 'gemma2' is not supported"),
    "quantised": (published.eagle3().having({"quantization_config": {"bits": 4}}), "quantised weights"),
    "last state": (published.eagle3().having({"eagle_config": {"use_aux_hidden_state": False}}), "use_aux_hidden"),
    "parallel": (published.eagle3().having(mask_hidden=np.zeros(3, np.float32)), "parallel drafting"),
    "scaled": (published.eagle3().having({"logit_scale": 0.5}), "scaled logits"),
    "map twice": (published.eagle3().having(d2t=twice()), "to one of them twice"),
    "map beyond": (published.eagle3().having(d2t=beyond()), "outside of 0 to 39"),
    "maps differ": (published.eagle3().having(t2d=np.arange(VOCAB) < 10), "d2t and t2d name different"),
    "nothing known": (Draft({}, {"some.weight": np.zeros(3, np.float32)}), "none of a Medusa, EAGLE or EAGLE-3"),
    "heads": (published.medusa().having({"medusa_num_heads": 5}), "missing: 4.0.linear.weight"),
    "blocks": (published.medusa().having({"medusa_num_layers": "1"}), "medusa_num_layers is '1'"),
    "no size": (published.medusa(own=False), "give --target"),
    "no taps": (published.eagle3(), "give --target or --taps"),
    "no numbers": (published.medusa().having({}, **{"0__0__linear__bias": np.full(16, np.nan, np.float32)}), "NaN"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_in_a_sentence(name, tmp_path):
    draft, sentence = REFUSED[name]
    taps = [1, 2, 3] if "norm.weight" in draft.tensors and name != "no taps" else None
    with pytest.raises(CheckpointError, match=re.escape(sentence)):
        convert_draft(draft.write(tmp_path / "there"), tmp_path / "here", taps=taps)
    assert not (tmp_path / "here").exists()


def test_pickles_and_broken_files_are_refused(tmp_path):
    folder = published.medusa().write(tmp_path / "pickled", "medusa_lm_head.safetensors")
    whole = (folder / "medusa_lm_head.safetensors").read_bytes()
    (folder / "medusa_lm_head.safetensors").unlink()
    (folder / "medusa_lm_head.pt").write_bytes(b"\x80\x02.")
    for source in (folder, folder / "medusa_lm_head.pt"):
        with pytest.raises(CheckpointError, match=r"medusa_lm_head\.pt: pickled weights can run code.*save_file"):
            convert_draft(source, tmp_path / "here")
    (folder / "model.safetensors").write_bytes(whole[:-7])
    with pytest.raises(CheckpointError, match="not a usable safetensors file"):
        convert_draft(folder, tmp_path / "here")
    (folder / "model.safetensors").write_bytes(whole)
    assert convert_draft(folder, tmp_path / "here").heads == 3
    with pytest.raises(CheckpointError, match="already exists"):
        convert_draft(folder, tmp_path / "here")


def test_a_draft_of_another_target_is_refused(target, tmp_path):
    wide = published.eagle3().having({"target_hidden_size": 32}).write(tmp_path / "wide")
    with pytest.raises(CheckpointError, match="for a target of width 32 and 40 tokens; this one has 16 and 40"):
        convert_draft(wide, tmp_path / "here", target=target)
    deep = published.eagle3().write(tmp_path / "deep")
    with pytest.raises(CheckpointError, match="reads after layer 9 of a target; this one has 8 layers"):
        convert_draft(deep, tmp_path / "here", target=target, taps=[2, 4, 9])
    with pytest.raises(CheckpointError, match="reads after layer 7 of a target"):
        convert_draft(published.eagle().write(tmp_path / "early"), tmp_path / "here", target=target, taps=[7])
    larger = {name: np.zeros((VOCAB + 8, WIDTH), np.float32) for name in ("0.1.weight", "1.1.weight", "2.1.weight")}
    heads = Draft(published.medusa().fields, published.medusa().tensors | larger).write(tmp_path / "larger")
    with pytest.raises(CheckpointError, match="48 tokens; this one has 16 and 40"):
        convert_draft(heads, tmp_path / "here", target=target)


def test_the_script(target, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("convert_draft", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    source, here = str(published.eagle3().write(tmp_path / "there")), str(tmp_path / "here")
    assert script.main([source, here, "--target", str(target), "--kind", "eagle3", "--taps", "1", "4", "8"]) == 0
    assert capsys.readouterr().err == f"{here}: feature, 10 of 40 tokens, reads after layers 1 4 8\n"
    assert open_draft(here).config.taps == (1, 4, 8)
    assert script.main([source, here, "--target", str(target)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert script.main([source, here, "--target", str(target), "--overwrite"]) == 0
    assert script.main([source, str(tmp_path / "other"), "--kind", "medusa", "--taps", "1"]) == 2
    assert "--taps is for EAGLE drafts" in capsys.readouterr().err
