"""scripts/generate.py as a person runs it: every flag, both kinds of output, interruption."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scripts.generate import main
from tests.scripts.tiny import FAST, LM, OTHER, PAIR, PLAIN, PROMPT, ROOT, TARGET

# Output


def test_text_goes_to_standard_output_and_the_table_to_standard_error(run):
    printed = run(*FAST, "--prompt", PROMPT)
    assert printed.out.endswith("\n")
    assert "tok/s" in printed.err
    assert all(name in printed.err for name in ("none", "lookup", "exit:2"))


def test_quiet_leaves_only_the_text_and_every_output_says_the_same(run, results):
    quiet = run(*FAST, "--prompt", PROMPT, "--quiet")
    assert quiet.err == ""
    (fast,), (plain,) = results(*FAST, "--prompt", PROMPT), results(*PLAIN, "--prompt", PROMPT)
    assert quiet.out == fast["text"] + "\n"
    assert (fast["tokens"], fast["text"]) == (plain["tokens"], plain["text"])


def test_json_is_one_object_of_the_documented_fields(run):
    printed = run(*FAST, "--prompt", PROMPT, "--json")
    assert printed.out.count("\n") == 1
    found = json.loads(printed.out, parse_constant=pytest.fail)
    assert set(found) == {"results", "stats"}
    (result,), stats = found["results"], found["stats"]
    assert {name: type(value) for name, value in result.items()} == {
        "prompt_tokens": int,
        "tokens": list,
        "text": str,
        "finish_reason": str,
    }
    assert result["finish_reason"] in ("stop", "length")
    assert len(result["tokens"]) == stats["tokens"] == 24
    numbers = ("rounds", "seconds", "tokens_per_second", "mean_accepted_tokens", "acceptance_rate")
    assert all(isinstance(stats[name], int | float) for name in numbers)
    assert stats["tokens_per_second"] == pytest.approx(stats["tokens"] / stats["seconds"])
    assert stats["compilations_after_warmup"] == 0
    assert list(stats["sources"]) == ["none", "lookup", "exit:2"]
    for source in stats["sources"].values():
        assert 0 <= source["accepted"] <= source["proposed"]
        assert source["rounds"] >= 0
    assert sum(source["accepted"] for source in stats["sources"].values()) > 0


def test_logprobs_are_those_of_the_tokens(run, results):
    (result,) = results(*PLAIN, "--prompt", PROMPT)
    assert len(result["logprobs"]) == len(result["tokens"])
    assert all(-20 < value <= 0 for value in result["logprobs"])
    assert np.exp(result["logprobs"]).min() > 1 / 512  # a greedy token is at least as likely as a guess
    shown = run(*PLAIN, "--prompt", PROMPT)
    assert f"{result['logprobs'][0]:.4f}" in shown.err
    assert shown.out == result["text"] + "\n"


def test_devices_do_not_change_the_tokens(results):
    one, many = (results(*PLAIN, "--prompt", PROMPT, *mesh)[0] for mesh in ([], ["--mesh", "data=1,model=8"]))
    assert many["tokens"] == one["tokens"]


# Prompts


def test_a_batch_is_answered_in_its_order(run, results):
    alone = [results(*PLAIN, "--prompt", prompt)[0]["tokens"] for prompt in (PROMPT, OTHER)]
    together = results(*PAIR, "--prompt", PROMPT, "--prompt", OTHER)
    assert [result["tokens"] for result in together] == alone
    printed = run(*PAIR, "--prompt", PROMPT, "--prompt", OTHER, "--quiet")
    assert printed.out == "{}\n\n{}\n".format(*(result["text"] for result in together))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("prompts.txt", f"{PROMPT}\n\n   \nMy lord, what news\n"),
        ("prompts.txt", f"\ufeff{PROMPT}\r\nMy lord, what news"),
        ("prompts.jsonl", "\n".join(json.dumps({"id": 1, "prompt": p}) for p in (PROMPT, "My lord, what news"))),
    ],
)
def test_a_file_gives_a_prompt_a_line(name, content, tmp_path, results):
    (tmp_path / name).write_text(content, encoding="utf-8")
    expected = results(*PAIR, "--prompt", PROMPT, "--prompt", "My lord, what news")
    assert results(*PAIR, "--prompt-file", str(tmp_path / name)) == expected


def test_a_json_line_may_hold_a_chat_and_any_character(tmp_path, results):
    chat = {"messages": [{"role": "user", "content": "Speak, my lord"}]}
    lines = [chat, {"prompt": "two\u2028lines\u0085and\x0cmore"}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(x, ensure_ascii=False) for x in lines), encoding="utf-8")
    first, second = results(*PAIR, "--prompt-file", str(tmp_path / "a.jsonl"))
    (as_chat,) = results(*PLAIN, "--chat", "--prompt", "Speak, my lord")
    assert first["tokens"] == as_chat["tokens"]
    assert second["prompt_tokens"] > len("twolinesandmore") / 3


def test_without_a_prompt_standard_input_is_the_prompt(pipe, results):
    expected = results(*PLAIN, "--prompt", OTHER)
    pipe(OTHER.encode() + b"\n")
    assert results(*PLAIN) == expected


def test_a_chat_is_longer_than_its_prompt(results):
    (chat,), (bare,) = results(*PLAIN, "--chat", "--prompt", PROMPT), results(*PLAIN, "--prompt", PROMPT)
    assert chat["prompt_tokens"] > bare["prompt_tokens"]
    assert chat["tokens"] != bare["tokens"]


# Where a row ends


def test_max_new_tokens_is_exact(results):
    (whole,) = results(*PLAIN, "--prompt", PROMPT)
    for count in (1, 5):
        (result,) = results(*PLAIN, "--prompt", PROMPT, "--max-new-tokens", str(count))
        assert result["tokens"] == whole["tokens"][:count]
        assert result["finish_reason"] == "length"


def test_a_stop_string_ends_the_text_before_it(run, results):
    (whole,) = results(*PLAIN, "--prompt", PROMPT)
    stop = whole["text"][11:14]
    cut = whole["text"].index(stop)
    (result,) = results(*PLAIN, "--prompt", PROMPT, "--stop", "not in there", "--stop", stop)
    assert result["text"] == whole["text"][:cut]
    assert result["finish_reason"] == "stop"
    assert result["tokens"] == whole["tokens"][: len(result["tokens"])]
    assert len(result["logprobs"]) == len(result["tokens"]) < len(whole["tokens"])
    assert run(*PLAIN, "--prompt", PROMPT, "--stop", stop, "--quiet").out == whole["text"][:cut] + "\n"


# Sampling


def test_a_seed_repeats_the_text_and_samples_differ(results):
    sampled = [*PAIR, "--prompt", PROMPT, "--num-samples", "2", "--temperature", "1"]
    first, second = results(*sampled, "--seed", "7")
    assert first["tokens"] != second["tokens"]
    assert results(*sampled, "--seed", "7") == [first, second]
    assert results(*sampled, "--seed", "8") == [second, results(*sampled, "--seed", "9")[0]]
    assert results(*sampled) != results(*sampled)


@pytest.mark.parametrize("flags", [["--top-k", "1"], ["--top-p", "1e-6"], ["--min-p", "1"], ["--temperature", "1e-4"]])
def test_a_law_cut_to_its_peak_is_greedy(flags, results):
    greedy = results(*PAIR, "--prompt", PROMPT, "--prompt", OTHER)
    assert results(*PAIR, "--prompt", PROMPT, "--prompt", OTHER, "--temperature", "1", "--seed", "3", *flags) == greedy


def distinct(tokens: list[int]) -> float:
    return len(set(tokens)) / len(tokens)


@pytest.mark.parametrize("flag", ["--repetition-penalty", "--presence-penalty", "--frequency-penalty"])
def test_a_penalty_makes_text_repeat_less(flag, results):
    both = [*PAIR, "--prompt", PROMPT, "--prompt", OTHER]
    usual, unlike = results(*both), results(*both, flag, "1000")
    for before, after in zip(usual, unlike, strict=True):
        assert distinct(after["tokens"]) > distinct(before["tokens"])


def test_min_tokens_puts_the_end_off(results, tmp_path):
    """A chat whose answer is at its end ends at once, unless it must not."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "Speak."}] * 2}))
    bare = [*PLAIN, "--prompt-file", str(tmp_path / "a.jsonl"), "--max-new-tokens", "64"]
    ended = results(*bare)[0]
    longer = results(*bare, "--min-tokens", "64")[0]
    assert len(longer["tokens"]) == 64
    if ended["finish_reason"] == "stop":
        assert len(ended["tokens"]) < 64
        assert longer["tokens"][: len(ended["tokens"]) - 1] == ended["tokens"][:-1]


def test_rejection_drafts_by_a_fixed_source_in_bfloat16(run):
    flags = ["--verify", "rejection", "--draft", LM, "--select", f"fixed:{LM}:1", "--lookahead", "1"]
    sampled = ["--temperature", "0.9", "--draft-temperature", "0.5", "--draft-confidence", "0.05", "--seed", "1"]
    found = json.loads(run(*TARGET, *flags, *sampled, "--dtype", "bfloat16", "--prompt", PROMPT, "--json").out)
    source = found["stats"]["sources"][LM]
    assert list(found["stats"]["sources"]) == ["none", LM]
    assert 0 < source["accepted"] <= source["proposed"] <= source["rounds"]


# Interruption


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_has_left_ends_it_quietly(flags, capsys, monkeypatch):
    end, start = os.pipe()
    os.close(end)
    with os.fdopen(start, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main([*PLAIN, "--quiet", "--prompt", PROMPT, *flags]) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_said(capsys, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([*PLAIN, "--quiet", "--prompt", PROMPT]) == 1
    assert capsys.readouterr().err.endswith("No space left on device\n")


def test_interruption_before_the_first_token_is_one_sentence(capsys, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxspec.decode.start", interrupt)
    assert main([*PLAIN, "--prompt", PROMPT]) == 130
    assert capsys.readouterr() == ("", "error: interrupted before the first token\n")


def test_interruption_leaves_the_text_so_far(results):
    """SIGINT once text has come: the text stays, the status is 130; the text is the beginning of the whole."""
    (begun,) = results(*PLAIN, "--prompt", PROMPT)
    many = ["--max-new-tokens", "1900", "--min-tokens", "1900"]
    # A shell lets its background jobs ignore SIGINT, and children inherit that.
    heed = "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    heed += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    script = str(ROOT / "scripts" / "generate.py")
    command = [sys.executable, "-c", heed, script, *TARGET, "--no-speculation", *many]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    # Unbuffered: `communicate` reads past what a buffered `read(1)` has taken from the pipe.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen([*command, "--prompt", PROMPT], env=environment, **pipes) as process:
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=120)
    text = (first + rest).decode()
    assert process.returncode == 130, err.decode()
    assert b"Traceback" not in err
    assert b"tok/s" in err
    assert text.endswith("\n")
    shared = min(len(text) - 1, len(begun["text"]))
    assert shared > 0
    assert text[:shared] == begun["text"][:shared]
