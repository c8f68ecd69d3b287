"""What names of draft sources stand for, and which artifact is found for a target."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxspec import sources
from jaxspec.checkpoint import CheckpointError, fingerprint, save_draft
from jaxspec.models import for_length, unfuse
from jaxspec.models.heads import KINDS, DraftConfig, draft_body, head_shapes
from jaxspec.pipeline import load, load_model
from jaxspec.sources import PREFERRED, Wanted, check_draft, wanted
from jaxspec.training.ngram import build_ngram
from tests.test_pipeline import CONFIG, LONG

TINY = str(Path(__file__).parents[1] / "checkpoints" / "tiny" / "target")
OTHER = str(Path(__file__).parents[1] / "checkpoints" / "tiny" / "draft")
HEADS, VOCAB = 3, 40


@pytest.fixture(scope="module")
def target():
    """The tiny target with the matrices of its layers together, as it is loaded."""
    return load_model(TINY)


@pytest.fixture(scope="module")
def shelf(target, tmp_path_factory):
    """A folder with one artifact of each kind for the tiny target, and a feature head of another one."""
    root, body = tmp_path_factory.mktemp("shelf"), draft_body(target.model.config, 1)
    rng = np.random.default_rng(0)
    ids = np.sort(rng.choice(body.vocab_size, VOCAB, replace=False)).astype(np.int32)
    sizes = {"medusa": {"heads": HEADS}, "feature": {"taps": (1, 3)}, "exit": {"layers": 2, "rank": 8}, "lm": {}}
    for kind, more in sizes.items():
        config = DraftConfig(kind, body, VOCAB, **more)
        if kind == "lm":
            apart = unfuse(target.model.config, target.params)[1]
            params = {n: np.asarray(p) for n, p in apart.items() if n.startswith("layers.0.")}
        else:
            params = {n: 0.1 * rng.standard_normal(s.shape) for n, s in head_shapes(config).items()}
        folders = [("tiny", fingerprint(target.model.config, target.params))]
        folders = [("aaa", "0" * 64), *folders] if kind == "feature" else folders
        for name, print_ in folders:
            save_draft(root / name / kind, config, params | {"output.ids": ids}, target=print_)
    text = root / "text.txt"
    text.write_text("the old man and the sea and the old man and the boy\n" * 20)
    build_ngram([str(text)], target.tokenizer, str(root / "tiny" / "ngram"))
    return root


@pytest.fixture
def on_shelf(shelf, monkeypatch):
    monkeypatch.setenv("JAXSPEC_ARTIFACTS", str(shelf))
    return shelf / "tiny"


def names_of(pipeline):
    return pipeline.setup(sampled=False, logprobs=False).names


@pytest.mark.parametrize(
    ("draft", "asked"),
    [
        ("lookup", None),
        ("suffix", None),
        ("jacobi", None),
        ("jacobi:5:3:4", None),
        ("exit:8", None),
        ("lm:some/model", None),
        ("feature", Wanted("feature", None)),
        ("exit", Wanted("exit", None)),
        ("lm", Wanted("lm", None)),
        ("ngram", Wanted("ngram", None)),
        ("medusa:a/b", Wanted("medusa", Path("a/b"))),
        ("exit:a/b", Wanted("exit", Path("a/b"))),
    ],
)
def test_a_name_asks_for_an_artifact_or_for_none(draft, asked):
    assert wanted(draft) == asked


def test_a_folder_of_a_distilled_draft_is_no_model(on_shelf):
    assert wanted(f"lm:{on_shelf / 'lm'}") == Wanted("lm", on_shelf / "lm")
    assert wanted(f"lm:{OTHER}") is None


@pytest.mark.parametrize("draft", ["", "oracle", "lookup:3", "suffix:a", "lm:", "medusa:", "jacobi:1", "jacobi:1:2:x"])
def test_a_name_that_stands_for_nothing_is_refused_with_those_there_are(draft):
    with pytest.raises(ValueError, match="is unknown; choose among lookup, suffix, ngram") as caught:
        check_draft(draft)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [*KINDS, "ngram"])
def test_what_nobody_made_is_refused_with_the_command_that_makes_it(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SHELF", tmp_path)
    monkeypatch.delenv("JAXSPEC_ARTIFACTS", raising=False)
    script = "scripts/build_ngram.py" if kind == "ngram" else f"scripts/train_draft.py --kind {kind}"
    (tmp_path / "empty").mkdir()
    for draft in (kind, f"{kind}:{tmp_path / 'empty'}"):
        if draft.startswith("lm:"):
            continue  # the name of a model
        with pytest.raises(ValueError, match=f"(one|it) with {script}") as caught:
            check_draft(draft)
        assert draft in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_folder_of_another_kind_is_refused(on_shelf):
    with pytest.raises(ValueError, match=r"holds a draft of kind medusa; give it as medusa:PATH"):
        check_draft(f"feature:{on_shelf / 'medusa'}")
    with pytest.raises(ValueError, match=r"holds a draft of kind ngram; give it as ngram:PATH"):
        check_draft(f"exit:{on_shelf / 'ngram'}")


def test_the_artifact_of_a_target_is_found_by_its_weights(on_shelf, target):
    own = sources.Shelf(target.model.config, target.params, target.tokenizer, dtype="float32", mesh=None)
    for kind in (*KINDS, "ngram"):
        assert own.find(kind) == on_shelf / kind
    params = dict(target.params, **{"norm.weight": target.params["norm.weight"] + 1})
    other = sources.Shelf(target.model.config, params, target.tokenizer, dtype="float32", mesh=None)
    assert [other.find(kind) for kind in KINDS] == [None] * len(KINDS)
    assert other.best(PREFERRED) == ()


def test_nothing_is_computed_from_the_weights_where_nothing_is_looked_for(on_shelf, monkeypatch):
    monkeypatch.setattr(sources, "fingerprint", lambda *args: pytest.fail("it was computed"))
    assert names_of(load(TINY, drafts=["lookup", "exit:1"])) == ("none", "lookup", "exit:1")
    assert names_of(load(TINY, drafts=["ngram"])) == ("none", "ngram")
    monkeypatch.delenv("JAXSPEC_ARTIFACTS")
    monkeypatch.setattr(sources, "SHELF", on_shelf / "nowhere")
    assert names_of(load(TINY)) == ("none", "lookup", "suffix")
    assert names_of(load(TINY, select="rule")) == ("none", "lookup")


def test_without_a_name_lookup_and_the_best_draft_of_the_target_are_used(on_shelf):
    assert load(TINY).drafts == ("lookup", "suffix", "ngram", PREFERRED[0])
    assert load(OTHER).drafts[:2] == ("lookup", "suffix")
    assert PREFERRED[0] not in load(OTHER).drafts, "of another target there is none"
    assert load(TINY, select="rule").drafts == ("lookup", PREFERRED[0]), "what the rule would take, whatever it costs"
    assert load(TINY, drafts=()).drafts == ()


def test_what_does_not_pay_by_its_card_is_left_to_selectors_that_weigh_costs(on_shelf, monkeypatch):
    monkeypatch.setattr(sources, "pays", lambda record: False)
    assert load(TINY, select="rule").drafts == ("lookup",)
    assert PREFERRED[0] in load(TINY).drafts


@pytest.mark.parametrize(("tokens", "used"), [(sources.WORTH, True), (sources.WORTH - 0.01, False)])
def test_a_draft_that_does_not_pay_by_its_card_is_used_only_when_named(tokens, used):
    engine = {"overall": {"mean_accepted_tokens": tokens}}
    assert sources.pays({"card": {"validation": {"engine": engine}}}) is used
    assert sources.pays({"card": {}}), "a card that says nothing"
    assert sources.pays({"card": {"validation": None}})


def test_a_draft_that_a_fixed_choice_names_is_there_unasked(on_shelf, monkeypatch):
    monkeypatch.setattr(sources, "pays", lambda record: False)
    assert load(TINY, select="fixed:medusa:2").drafts == ("lookup", "medusa")
    assert load(TINY, select="fixed:lookup").drafts == ("lookup",)
    with pytest.raises(ValueError, match=r"train_draft\.py --kind lm"):
        load(OTHER, select="fixed:lm:2")


def test_every_name_is_a_source_under_that_name(on_shelf):
    path = f"exit:{on_shelf / 'exit'}"
    table = f"ngram:{on_shelf / 'ngram'}"
    given = ["lookup", "suffix", table, "medusa", "feature", "lm", "exit", path, "exit:1"]
    pipeline = load(TINY, drafts=given, note=lambda line: None)
    assert names_of(pipeline) == ("none", *given)
    assert set(pipeline.params.drafts) == {table, "medusa", "feature", "lm", "exit", path}
    assert pipeline.made["lm"].config.body.fused, "on one device, as models are"
    assert not pipeline.made["feature"].config.body.fused
    embedding = pipeline.target.params["embed_tokens.weight"]
    assert pipeline.params.drafts["lm"]["embed_tokens.weight"] is embedding


def test_on_several_devices_drafts_are_whole_on_each(on_shelf):
    pipeline = load(TINY, drafts=["feature", "lm", "ngram"], mesh="data=1,model=8")
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(pipeline.params.drafts))
    assert {len(leaf.devices()) for leaf in jax.tree.leaves(pipeline.params.drafts)} == {8}
    assert not pipeline.made["lm"].config.body.fused


def test_heads_fewer_than_drafts_are_said_once(on_shelf, capsys):
    said = []
    load(TINY, drafts=["medusa"], lookahead=HEADS, note=said.append)
    assert said == []
    load(TINY, drafts=["medusa"], lookahead=HEADS + 1, note=said.append)
    assert said == [f"medusa has {HEADS} heads, so it drafts {HEADS} tokens a round at the most, not {HEADS + 1}"]
    assert capsys.readouterr().err == ""
    load(TINY, drafts=["medusa"])
    assert capsys.readouterr().err.count("medusa has 3 heads") == 1


def test_what_cannot_serve_is_refused_before_the_target_is_loaded(on_shelf, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in (on_shelf / "medusa").iterdir():
        content = file.read_bytes()
        (broken / file.name).write_bytes(content if file.suffix == ".json" else content[: len(content) // 2])
    monkeypatch.setattr("jaxspec.pipeline.load_model", lambda *args, **options: pytest.fail("it was loaded"))
    with pytest.raises(CheckpointError, match=str(broken)):
        load(TINY, drafts=[f"medusa:{broken}"])
    record = json.loads((broken / "draft.json").read_text())
    (broken / "draft.json").write_text(json.dumps(record | {"format": 99}))
    with pytest.raises(CheckpointError, match="of no format this version reads"):
        load(TINY, drafts=[f"medusa:{broken}"])


def test_a_draft_of_another_target_is_refused(on_shelf):
    with pytest.raises(ValueError, match=r"was trained for another target .* train one for this target with scripts"):
        load(TINY, drafts=[f"feature:{on_shelf.parent / 'aaa' / 'feature'}"])
    with pytest.raises(ValueError, match=r"there is no trained medusa draft of this target in checkpoints or"):
        load(OTHER, drafts=["medusa"])


@pytest.mark.heavy
def test_trained_drafts_leave_the_text_as_it_is(on_shelf):
    """One program, in which every source is compiled; what each drafts is tested on tiny models (tests/decode)."""
    prompts, options = ["The old man", "It was the"], {"max_new_tokens": 24, "seed": 3, "temperature": [0.0, 0.8]}
    plain = load(TINY, drafts=(), verify="coupled").generate(prompts, **options)
    given = ["lookup", "suffix", "ngram", "medusa", "feature", "lm", "exit"]
    got = load(TINY, drafts=given, verify="coupled", lookahead=3, select="fixed:feature:2").generate(prompts, **options)
    assert [result.tokens for result in got.results] == [result.tokens for result in plain.results]
    assert got.stats["sources"]["feature"]["proposed"] > 0


def test_a_longrope_draft_turns_as_its_target_does():
    short = DraftConfig("lm", CONFIG, 8)
    assert sources.config_for(short, 10_000) is short
    long = DraftConfig("lm", dataclasses.replace(CONFIG, rope_scaling=LONG), 8)
    within, beyond = sources.config_for(long, 64), sources.config_for(long, 65)
    assert within.body == for_length(long.body, 64)
    assert beyond.body == for_length(long.body, 65)
    assert within != beyond
