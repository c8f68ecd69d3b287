"""scripts/build_ngram.py makes a table that loads and drafts, and says in a sentence why it did not."""

import json

import pytest

from jaxspec import decode
from jaxspec.contracts import EngineParams
from jaxspec.drafts.ngram import RECORD, load_ngram
from jaxspec.pipeline import load_model
from jaxspec.text import from_folder
from jaxspec.training.card import CARD
from scripts import build_ngram as script
from tests.scripts.tiny import TARGET, TINY

TEXT = "It was a fine morning, and the rain had gone.\n\nIt was a fine evening, and the rain came back.\n" * 30


@pytest.fixture
def build(tmp_path, capsys):
    """build(*arguments) -> status, output, errors; of a.txt, for the tiny target, into out."""

    def build(*arguments, corpus="a.txt"):
        out = ["--out", str(tmp_path / "out")]
        status = script.main(["--corpus", str(tmp_path / corpus), *TARGET, *out, *arguments])
        return status, *capsys.readouterr()

    (tmp_path / "a.txt").write_text(TEXT)
    return build


def test_it_builds_a_table_that_loads(build, tmp_path):
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "What was it?", "answer": TEXT}))
    options = [
        "--corpus",
        str(tmp_path / "b.jsonl"),
        "--budget-mb",
        "0.5",
        "--min-count",
        "3",
        "--orders",
        "2",
        "4",
        "--min-probability",
        "0.3",
    ]
    status, out, _ = build(*options)
    assert status == 0
    assert "sequences kept" in out
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert record["options"] == {"budget_mb": 0.5, "min_count": 3, "min_probability": 0.3, "orders": [2, 4]}
    assert [each["name"] for each in record["corpus"]] == ["a.txt", "b.jsonl"]
    card = (tmp_path / "out" / CARD).read_text()
    assert f"python scripts/build_ngram.py --corpus {tmp_path / 'a.txt'} " in card
    assert "Licences: not given. a.txt, b.jsonl" in card
    assert f"| tokens of the corpus | {record['tokens']:,} |" in card
    table = load_ngram(tmp_path / "out", from_folder(TINY / "target"))
    assert table["entries"].shape == (3,)
    assert (table["entries"] > 0).all()


def test_what_the_engine_accepts_on_held_out_prompts_goes_into_record_and_card(build, tmp_path):
    """A table of the very words that are asked for fares better than one of other words."""
    (tmp_path / "held.txt").write_text("It was a fine morning, and the rain\n")
    options = ["--validate", str(tmp_path / "held.txt"), "--validate-tokens", "24", "--per-category", "1"]
    options += ["--lookahead", "2", "--min-count", "1"]
    target = load_model(str(TINY / "target"))
    prompt = target.tokenizer.prompt("It was a fine morning, and the rain", chat=bool(target.tokenizer.chat_template))
    setup = decode.make_setup(target.model, vocab_size=len(target.tokenizer.vocabulary()))
    said = decode.generate(setup, EngineParams(target.params, {}, ()), [prompt], max_new_tokens=24).tokens[0]
    (tmp_path / "said.txt").write_text(target.tokenizer.decode(said))
    accepted = {}
    for corpus in ("said.txt", "a.txt"):
        assert build(*options, "--overwrite", corpus=corpus)[0] == 0
        record = json.loads((tmp_path / "out" / RECORD).read_text())
        seen = record["validation"]["engine"]["overall"]
        assert (seen["prompts"], seen["tokens"], len(seen["acceptance"])) == (1, 24, 2)
        accepted[corpus] = seen["mean_accepted_tokens"]
        assert f"| overall | 1 | 24 | {accepted[corpus]:.2f} |" in (tmp_path / "out" / CARD).read_text()
        load_ngram(tmp_path / "out", target.tokenizer)
    assert accepted["said.txt"] > 1.2 > accepted["a.txt"]


def test_a_table_that_is_there_is_replaced_only_where_asked(build):
    assert build()[0] == 0
    status, _, err = build()
    assert status == 2
    assert "already exists; choose another name, or give --overwrite" in err
    assert build("--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget-mb", "0.001"], "a budget of 0.001 MB is too small"),
        (["--orders", "5", "2"], "orders are 5 to 2"),
        (["--min-count", "0"], "min_count is 0"),
        (["--min-probability", "1.5"], "min_probability is 1.5"),
        (["--target", "no/such/folder/at/all"], "no/such/folder/at/all"),
        (["--corpus", "no-such-file.txt"], "cannot read no-such-file.txt"),
        (["--validate", "no-such-prompts.jsonl"], "no-such-prompts.jsonl"),
        (["--validate", "no-such-prompts.jsonl", "--per-category", "0"], "both must be 1 or more"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(build, tmp_path, arguments, message):
    status, out, err = build(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "out").exists()


def test_ctrl_c_leaves_nothing(build, tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "build_ngram", interrupted)
    status, _, err = build()
    assert (status, err) == (130, "error: interrupted; nothing was left\n")
