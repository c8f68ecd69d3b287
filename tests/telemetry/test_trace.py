"""A trace is what the run did: its tokens, its counters, its choices."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

import jaxspec
from jaxspec.decode import make_request
from jaxspec.run import Row, begin_trace
from jaxspec.telemetry import Recorder, as_dict
from tests.scripts.tiny import OTHER, PROMPT, TINY
from tests.telemetry.traces import a_trace

NEW = 24
OPTIONS = {"max_new_tokens": NEW, "ignore_end": True}


@pytest.fixture(scope="module")
def pipeline():
    return jaxspec.load(str(TINY / "target"), drafts=["lookup", "exit:2"], lookahead=3)


@pytest.fixture(scope="module")
def traced(pipeline):
    return pipeline.generate([PROMPT, OTHER], trace=True, **OPTIONS)


@pytest.fixture(scope="module")
def untraced(pipeline):
    return pipeline.generate([PROMPT, OTHER], **OPTIONS)


def tokens_of(rounds):
    return [mark for each in rounds for mark in each.marks]


def test_looking_changes_nothing(traced, untraced):
    assert [dataclasses.astuple(r) for r in traced.results] == [dataclasses.astuple(r) for r in untraced.results]
    assert untraced.trace is None
    same = ("rounds", "tokens", "passes_by_window")
    assert [traced.stats[name] for name in same] == [untraced.stats[name] for name in same]


def test_marks_are_the_answers_tokens_and_text(traced):
    for rounds, result in zip(traced.trace.rows, traced.results, strict=True):
        marks = tokens_of(rounds)
        assert [mark.id for mark in marks] == result.tokens
        assert "".join(mark.text for mark in marks) == result.text


def test_marks_sum_to_the_counters(traced):
    assert sum(counts["accepted"] for counts in traced.stats["sources"].values()) > 0
    rounds = [each for row in traced.trace.rows for each in row]
    taken = [mark.source for mark in tokens_of(rounds) if mark.mark == "accepted"]
    sources = traced.stats["sources"]
    for source, counts in sources.items():
        mine = [each for each in rounds if each.source == source]
        assert len(mine) == counts["rounds"]
        assert len(tokens_of(mine)) == counts["tokens"]
        assert taken.count(source) == counts["accepted"], "a tail's drafts are its own source's"
        heads = [each for each in mine if not each.tail]
        assert {mark.source for mark in tokens_of(heads)} <= {source}
    for what in ("proposed", "accepted"):
        assert sum(getattr(each, what) for each in rounds) == sum(counts[what] for counts in sources.values())


def test_the_targets_own_token_ends_a_round_and_says_why_it_is_its_own(traced):
    seen = set()
    for rounds in traced.trace.rows:
        for each in rounds:
            kinds = [mark.mark for mark in each.marks]
            assert kinds[: each.accepted] == ["accepted"] * each.accepted
            own = kinds[each.accepted :]
            expected = "plain" if each.proposed == 0 else "corrected" if each.accepted < each.proposed else "bonus"
            assert own in ([expected], []), "a row may end within its drafts"
            assert own or each is rounds[-1]
            seen.update(own)
    assert {"corrected", "bonus"} <= seen


def test_probabilities_are_those_of_the_tokens(pipeline, traced):
    results = pipeline.generate([PROMPT, OTHER], logprobs=True, **OPTIONS).results
    for rounds, result in zip(traced.trace.rows, results, strict=True):
        found = [mark.probability for mark in tokens_of(rounds)]
        np.testing.assert_allclose(found, np.exp(result.logprobs), rtol=1e-4)
    assert traced.results[0].logprobs is None, "they were not asked for"


def test_seconds_are_those_of_the_rounds(traced):
    numbers = [[each.number for each in rounds] for rounds in traced.trace.rows]
    assert all(found == list(range(1, len(found) + 1)) for found in numbers)
    longest = max(traced.trace.rows, key=len)
    assert len(longest) == traced.stats["rounds"]
    assert 0 < sum(each.seconds for each in longest) <= traced.stats["seconds"]


def test_a_stop_string_is_not_in_the_text(pipeline, traced):
    whole = traced.results[0].text
    stop = whole[15:18]
    answer = pipeline.generate([PROMPT, OTHER], trace=True, stop=[stop], **OPTIONS)
    (rounds, _), (result, _) = answer.trace.rows, answer.results
    marks = tokens_of(rounds)
    assert [mark.id for mark in marks] == result.tokens
    assert "".join(mark.text for mark in marks) == result.text == whole[: whole.index(stop)]
    assert answer.trace.finish_reasons[0] == "stop"


def test_pieces_are_the_text_a_special_token_has_a_name_and_half_a_character_waits(pipeline):
    tokenizer = pipeline.target.tokenizer
    end = tokenizer.eos_ids[0]
    ids = [*tokenizer.encode("caf\u00e9 \U0001f600 a", special=False), end]
    row = Row(tokenizer, [], 0, 0, None, None)
    row.read(np.asarray(ids), len(ids))
    row.close()
    *pieces, last = row.pieces()
    assert last == ("", tokenizer.decode([end], skip_special=False))
    assert "".join(text for text, _ in pieces) == row.text == "caf\u00e9 \U0001f600 a"
    assert any(text == "" for text, _ in pieces), "a face is several tokens"
    assert not any(name for _, name in pieces)


def test_an_interrupted_run_keeps_what_there_is(pipeline, traced):
    shown = []

    def interrupt(row, text):
        shown.append(text)
        if len(shown) == 4:
            raise KeyboardInterrupt

    answer = pipeline.generate([PROMPT, OTHER], trace=True, on_text=interrupt, **OPTIONS)
    assert "interrupted" in answer.trace.finish_reasons
    for rounds, result, whole in zip(answer.trace.rows, answer.results, traced.results, strict=True):
        marks = tokens_of(rounds)
        assert 0 < len(marks) < NEW
        assert [mark.id for mark in marks] == result.tokens == whole.tokens[: len(marks)]
        assert "".join(mark.text for mark in marks) == result.text


def looks(*lengths: int, told=None):
    """Looks at one row of two sources, a round of the second between two of them."""
    for rounds, length in enumerate(lengths):
        counts = {"proposed": [[[0, 0], [rounds, rounds]]], "accepted": [[[0, 0], [rounds, 0]]]}
        counters = {name: np.asarray(value) for name, value in {"rounds": [[0, rounds]], **counts}.items()}
        known = {"tokens": np.arange(50)[None], "length": np.asarray([length]), "logprobs": None, "rounds": rounds}
        yield SimpleNamespace(**known, counters=SimpleNamespace(**counters), told=told)


def test_what_the_selector_told_is_kept_by_name_and_source():
    told = {
        "signal margin": np.asarray([0.5]),
        "signal match": np.asarray([[1, 2]]),
        "tokens": np.asarray([[1.0, np.nan]]),
        "lookahead": np.asarray([4]),
    }
    recorder = Recorder(["none", "lookup"], 1)
    recorder.record(*looks(3, 5, told=told), 0.5)
    ((found,),) = recorder.rows
    assert (found.lookahead, found.source, found.proposed, found.accepted) == (4, "lookup", 2, 1)
    assert found.signals == {"margin": 0.5, "match@none": 1.0, "match@lookup": 2.0}
    assert found.estimates == {"tokens@none": 1.0}, "what is not finite says nothing"
    assert [mark.mark for mark in found.marks] == ["accepted", "corrected"]


@pytest.mark.parametrize(
    ("accepted", "marks"),
    [
        ([0, 0], ["corrected lm"]),
        ([1, 0], ["accepted lm", "corrected lm"]),
        ([2, 0], ["accepted lm", "accepted lm", "corrected lookup"]),
        ([2, 1], ["accepted lm", "accepted lm", "accepted lookup", "corrected lookup"]),
        ([2, 2], ["accepted lm", "accepted lm", "accepted lookup", "accepted lookup", "bonus lookup"]),
    ],
)
def test_a_chain_of_two_sources_has_the_marks_of_each(accepted, marks):
    """The lm's two drafts, then two of lookup's; sources none, lookup, lm."""
    first, second = looks(3, 3 + len(marks))
    for counters, at in ((first.counters, 0), (second.counters, 1)):
        counters.rounds = np.asarray([[0, 0, at]])
        counters.proposed = at * np.asarray([[[0, 0], [1, 1], [1, 1]]])
        reached = [[int(depth < count) for depth in range(2)] for count in accepted]
        counters.accepted = at * np.asarray([[[0, 0], reached[1], reached[0]]])
    recorder = Recorder(["none", "lookup", "lm"], 1)
    recorder.record(first, second, 0.5)
    ((found,),) = recorder.rows
    assert (found.source, found.tail, found.proposed, found.accepted) == ("lm", "lookup", 4, sum(accepted))
    assert [f"{mark.mark} {mark.source}" for mark in found.marks] == marks


def test_a_skipped_look_is_refused():
    first, _, third = looks(3, 5, 7)
    with pytest.raises(AssertionError, match="more than one round"):
        Recorder(["none", "lookup"], 1).record(first, third, 0.5)


def test_tokens_behind_a_stop_string_are_left_out():
    recorder = Recorder(["none", "lookup"], 1)
    first, second, third = looks(3, 5, 7)
    recorder.record(first, second, 0.5)
    recorder.record(second, third, 0.5)
    (rounds,) = recorder.written([[("x", "")]])
    assert [[mark.text for mark in each.marks] for each in rounds] == [["x"]]


def test_it_is_json():
    trace = a_trace(["a", "b", "c"])
    strange = dataclasses.replace(trace.rows[0][0], signals={"margin": float("inf")})
    found = as_dict(dataclasses.replace(trace, rows=[[strange, trace.rows[0][1]]]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["rows"][0][0]["signals"] == {"margin": None}
    assert found["rows"][0][1]["marks"][0]["text"] == "b"


def test_the_settings_are_those_that_were_asked_for(traced, pipeline):
    settings = traced.trace.settings
    assert traced.trace.title == "target, token by token", "a path is not for everyone"
    assert (settings["drafts"], settings["select"], settings["verify"]) == ("lookup, exit:2", "goodput", "greedy")
    assert settings["max new tokens"] == str(NEW)
    assert not {"top p", "temperature", "first seed"} & set(settings), "what is as usual is left out"
    assert traced.trace.prompts == (PROMPT, OTHER)
    setup = pipeline.setup(sampled=True, logprobs=True)
    request = make_request(setup, [[1], [2]], max_new_tokens=3, seed=5)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    sampled = begin_trace(setup, request, [chat, "Ho"], {"top_p": 0.5, "top_k": 0}, target="a/b.gguf", select="rule")
    assert (sampled.settings["first seed"], sampled.settings["top p"], "top k" in sampled.settings) == (
        "5",
        "0.5",
        False,
    )
    assert (sampled.prompts, sampled.title) == (("Hi", "Ho"), "b.gguf, token by token")
