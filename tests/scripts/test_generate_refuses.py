"""Wrong input of scripts/generate.py is refused in one clear sentence, before anything is compiled."""

import sys

import pytest

from scripts.generate import main
from tests.scripts.tiny import TARGET


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a", "--prompt", ""], "the prompt is empty"),
        (["--prompt", "a", "--prompt-file", "b.txt"], "give one of them"),
        (["--prompt-file", "missing.txt"], "cannot read missing.txt"),
        (["--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens of row 0 is 0; it must be 1 or more"),
        (["--prompt", "a", "--max-new-tokens", "3000"], "the target has 2048"),
        (["--prompt", "a b c " * 3000], "the target has 2048"),
        (["--prompt", "a", "--temperature", "-1"], "temperature of row 0 is -1"),
        (["--prompt", "a", "--temperature", "nan"], "temperature of row 0 is nan"),
        (["--prompt", "a", "--top-p", "0"], "top_p of row 0 is 0"),
        (["--prompt", "a", "--top-p", "1.1"], "top_p of row 0 is 1.1"),
        (["--prompt", "a", "--top-k", "-1"], "top_k of row 0 is -1"),
        (["--prompt", "a", "--min-p", "2"], "min_p of row 0 is 2"),
        (["--prompt", "a", "--min-tokens", "-1"], "min_tokens of row 0 is -1"),
        (["--prompt", "a", "--repetition-penalty", "0"], "repetition_penalty of row 0 is 0"),
        (["--prompt", "a", "--seed", "-1"], "seed"),
        (["--prompt", "a", "--num-samples", "0"], "num_samples is 0"),
        (["--prompt", "a", "--stop", ""], "stop strings"),
        (["--prompt", "a", "--draft", "oracle"], "draft source 'oracle' is unknown; choose among lookup"),
        (["--prompt", "a", "--draft", "lm:"], "draft source 'lm:' is unknown"),
        (["--prompt", "a", "--draft", "medusa"], "train one with scripts/train_draft.py --kind medusa"),
        (["--prompt", "a", "--draft", "feature:no/such"], "no/such has no draft.json; train one with scripts"),
        (["--prompt", "a", "--draft", "ngram:no/such"], "make one with scripts/build_ngram.py"),
        (["--prompt", "a", "--draft", "exit:4"], "the target has 4, so give exit:1 to exit:3"),
        (["--prompt", "a", "--draft", "exit:0"], "exit:0"),
        (["--prompt", "a", "--draft", "lookup", "--draft", "lookup"], "name twice"),
        (["--prompt", "a", "--select", "best"], "select 'best' is unknown; choose goodput"),
        (["--prompt", "a", "--select", "fixed:exit:2:3"], "is unknown"),
        (["--prompt", "a", "--select", "fixed:lookup:9"], "the largest is 7"),
        (["--prompt", "a", "--lookahead", "99"], "lookahead 99"),
        (["--prompt", "a", "--lookahead", "-1"], "lookahead -1"),
        (["--prompt", "a", "--verify", "greedy", "--temperature", "1"], "verify is 'greedy'"),
        (["--prompt", "a", "--draft-confidence", "2"], "draft_confidence"),
        (["--prompt", "a", "--draft-temperature", "-1"], "draft_temperature"),
        (["--prompt", "a", "--dtype", "int8"], "dtype 'int8' is unknown"),
        (["--prompt", "a", "--mesh", "rows=2"], "rows"),
        (["--prompt", "a", "--mesh", "model=1000"], "1000"),
        (["--prompt", "a\udcff"], "valid Unicode"),
        (["--prompt", "a", "--target", "no/such/folder"], "no/such/folder"),
        (["--prompt", "a", "--draft", "lm:no/such/folder"], "no/such/folder"),
    ],
)
def test_wrong_input_is_one_sentence_before_anything_is_compiled(arguments, sentence, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    started = lambda *args, **options: pytest.fail("it started")  # noqa: E731
    monkeypatch.setattr(sys.modules["jaxspec.decode.generate"], "prefill", started)
    target = [] if "--target" in arguments else TARGET
    assert main([*target, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sentence in err


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"good\nbad \xff\n", r"a.txt is not UTF-8: byte 9 is 0xff"),
        ("a.txt", b" \n\n", "a.txt holds no prompt"),
        ("a.jsonl", b'{"prompt": "a"}\n\n{"prompt": \n', "a.jsonl, line 3 is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n', "a.jsonl, line 1 has no prompt"),
        ("a.jsonl", b'{"prompt": ""}\n', "a.jsonl, line 1 has no prompt"),
        ("a.jsonl", b'["a"]\n', "a.jsonl, line 1 has no prompt"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl, line 1 is not JSON"),
        ("a.jsonl", b'{"messages": ["a"]}\n', "a.jsonl, line 1 has no prompt"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(name, content, sentence, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert main([*TARGET, "--prompt-file", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "sentence"), [(b"", "empty"), (b"\n", "empty"), (b"\xff", "standard input is not UTF-8")]
)
def test_wrong_standard_input_is_one_sentence(content, sentence, pipe, capsys):
    pipe(content)
    assert main(TARGET) == 2
    assert sentence in capsys.readouterr().err


def test_an_unknown_verify_is_refused_by_the_parser(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*TARGET, "--prompt", "a", "--verify", "luck"])
    assert stopped.value.code == 2
    assert "luck" in capsys.readouterr().err
