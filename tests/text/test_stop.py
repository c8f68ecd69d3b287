"""Stop strings: found wherever they straddle pieces and tokens, and nothing of them or after them is shown."""

import itertools
import random

import pytest

from jaxspec.text import StopMatcher, StopStream


def run(stops, pieces):
    matcher = StopMatcher(stops)
    shown = [matcher.push(piece) for piece in pieces]
    return "".join([*shown, matcher.finish()]), matcher


def splits(text):
    """Every way to cut a text into pieces."""
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [len(text)]
        yield [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def reference(stops, text):
    """The definition: of all matches the one that ends first, then the one that starts first."""
    ends = [(i + len(s), i, s) for s in stops for i in range(len(text)) if text.startswith(s, i)]
    end, start, stop = min(ends, default=(None, len(text), None))
    return text[:start], stop, end


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["END"], "say END now"),
        (["END"], "ENENEND"),
        (["ab", "abc"], "xxabcx"),
        (["abcd", "c"], "xabcd"),
        (["bc", "abc"], "xabcx"),
        (["aab"], "aaaab"),
        (["\n\n"], "a\nb\n\nc"),
        (["nope"], "nonopnop"),
        ([], "anything"),
    ],
)
def test_the_cut_does_not_depend_on_the_pieces(stops, text):
    shown, stop, end = reference(stops, text)
    for pieces in splits(text):
        got, matcher = run(stops, pieces)
        assert (got, matcher.matched) == (shown, stop), pieces
        if end is None:
            assert matcher.pieces is None
        else:
            lengths = list(itertools.accumulate(map(len, pieces)))
            assert matcher.pieces == 1 + next(i for i, length in enumerate(lengths) if length >= end)


def test_only_what_may_become_a_stop_string_is_held_back():
    matcher = StopMatcher(["###", "\nUser:"])
    assert matcher.push("one#") == "one"
    assert matcher.push("#two\n") == "##two"
    assert matcher.push("Us") == ""
    assert matcher.push("ed") == "\nUsed"
    assert matcher.finish() == ""


def test_nothing_leaks_after_a_match():
    matcher = StopMatcher(["stop"])
    assert matcher.push("a stop b") == "a "
    assert matcher.push(" more") + matcher.finish() == ""
    assert (matcher.matched, matcher.pieces) == ("stop", 1)


@pytest.mark.parametrize("stops", [[""], ["fine", ""]])
def test_an_empty_stop_string_is_refused(stops):
    with pytest.raises(ValueError, match="not empty"):
        StopMatcher(stops)


def test_looking_at_single_pieces_is_rejected():
    """Negative control: the straddling property must fail for the naive way."""
    pieces = ["say E", "ND now"]
    assert "".join(pieces) == "".join(piece.split("END")[0] for piece in pieces)
    assert run(["END"], pieces)[0] == "say "


@pytest.mark.parametrize("stop", ["days", "radius: float", "\n\n", "😀", "नमस्ते", "कानहीं", "<tool>"])
def test_a_stream_of_ids_stops_at_the_token_that_completes_it(tokenizer, sample, stop):
    ids = tokenizer.encode(sample + "<tool>tail")
    whole = tokenizer.decode(ids)
    rng = random.Random(4)
    for _ in range(10):
        stream, at, shown = StopStream(tokenizer, [stop]), 0, []
        while at < len(ids):
            size = rng.randint(1, 5)
            shown.append(stream.push(ids[at : at + size]))
            at += size
        shown.append(stream.finish())
        assert "".join(shown) == whole.split(stop)[0]
        if stop not in whole:
            assert (stream.matched, stream.tokens) == (None, None)
            continue
        assert stream.matched == stop
        assert stop in tokenizer.decode(ids[: stream.tokens])
        early = StopStream(tokenizer, [stop])
        assert "".join(shown).startswith(early.push(ids[: stream.tokens - 1]))
        assert early.matched is None, "one token earlier it is not complete"


def test_a_stop_string_completed_by_the_last_held_bytes_counts_with_the_last_id(spm):
    ids = spm.encode("x 😀", special=False)
    stream = StopStream(spm, ["😀"])
    assert stream.push(ids) + stream.finish() == "x "
    assert (stream.matched, stream.tokens) == ("😀", len(ids))
