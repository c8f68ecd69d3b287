"""Telemetry by kind of text and source: nothing is lost or made up on the way from counters to text."""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from jaxspec.telemetry import ALL, Counters, Price, Tally, check_form, since, stats

NAMES = ("none", "lookup", "lm:small")
HOSTILE = 'a "b"\\n\n\\'
LINE = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>(?:[a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)+)\} (?P<value>\S+)')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\[\\n"])*)"')


def counters(rounds, emitted=None, proposed=(), accepted=()) -> Counters:
    """Of rows by rounds [B][N]; proposed and accepted as {(row, source): by depth}."""
    rounds = np.asarray(rounds)
    by_depth = []
    for given in (proposed, accepted):
        by_depth.append(np.zeros((*rounds.shape, 3), int))
        for place, counts in dict(given).items():
            by_depth[-1][place][: len(counts)] = counts
    emitted = rounds if emitted is None else np.asarray(emitted)
    return Counters(rounds, emitted, *by_depth, np.zeros_like(rounds), np.zeros(2, int))


def two_kinds() -> Tally:
    """A batch of a row of code and one of chat, then one more row of code."""
    tally = Tally(NAMES)
    both = counters([[1, 4, 0], [5, 0, 0]], [[1, 12, 0], [5, 0, 0]], {(0, 1): [4, 3, 1]}, {(0, 1): [4, 3]})
    tally.take(both, 3.0, ["code", "chat"])
    tally.take(
        counters([[0, 2, 1]], [[0, 3, 2]], {(0, 1): [2], (0, 2): [1]}, {(0, 1): [1], (0, 2): [1]}), 1.0, ["code"]
    )
    return tally


def test_what_was_counted_is_there_by_domain_and_source():
    domains = two_kinds().by_domain().as_dict()["domains"]
    assert list(domains) == ["code", "chat"]
    lookup = domains["code"]["sources"]["lookup"]
    assert (lookup["rounds"], lookup["tokens"], lookup["proposed"], lookup["accepted"]) == (6, 15, 10, 8)
    assert (lookup["proposed_by_depth"], lookup["accepted_by_depth"]) == ([6, 3, 1], [5, 3])
    assert lookup["mean_accepted_tokens"] == 15 / 6
    assert domains["code"]["sources"]["lm:small"]["tokens"] == 2
    assert domains["chat"]["sources"]["none"]["rounds"] == domains["chat"]["rounds"] == 5
    assert domains["code"]["mean_accepted_tokens"] == (1 + 15 + 2) / 8


@pytest.mark.parametrize("price", [None, Price("costs", lambda c: c.rounds * np.asarray([1.0, 1.5, 4.0]))])
def test_seconds_add_up_to_what_was_measured(price):
    found = two_kinds().by_domain(price=price)
    domains = found.as_dict()["domains"]
    each = [row["seconds"] for about in domains.values() for row in about["sources"].values()]
    assert sum(each) == pytest.approx(4.0)
    assert sum(about["seconds"] for about in domains.values()) == pytest.approx(4.0)
    for about in domains.values():
        assert sum(row["share_of_time"] for row in about["sources"].values()) == pytest.approx(1.0, abs=1e-3)
    assert found.shares().sum() == pytest.approx(1.0)


def test_a_price_shares_a_look_s_seconds_and_tells_what_plain_decoding_would_have_given():
    price = Price("costs", lambda c: c.rounds * np.asarray([1.0, 1.5, 4.0]))
    found = two_kinds().by_domain(price=price).as_dict()
    assert found["seconds_from"] == "costs"
    code, chat = found["domains"]["code"]["sources"], found["domains"]["chat"]["sources"]
    # the first look's 3 s are 1 + 4 * 1.5 + 5 = 12 plain rounds, the second's 1 s 2 * 1.5 + 4 = 7
    assert code["lookup"]["seconds"] == pytest.approx(3 * 6 / 12 + 3 / 7)
    assert chat["none"]["seconds"] == pytest.approx(3 * 5 / 12)
    assert code["lookup"]["tokens_won"] == pytest.approx(15 - (6 + 3))
    assert code["lm:small"]["tokens_won"] == pytest.approx(2 - 4)
    assert chat["none"]["tokens_won"] == pytest.approx(0), "plain decoding wins nothing over itself"
    assert found["domains"]["code"]["tokens_won"] == pytest.approx(18 - 14)


def test_a_measured_speed_of_plain_decoding_is_used_where_there_is_one():
    domains = two_kinds().by_domain(plain={"code": 2.0}).as_dict()["domains"]
    code = domains["code"]
    assert code["tokens_won"] == pytest.approx(18 - 2 * code["seconds"])
    assert domains["chat"]["tokens_won"] is None
    assert domains["chat"]["sources"]["none"]["tokens_won"] is None


def test_without_a_price_seconds_are_those_that_the_looks_tell():
    tally = Tally(NAMES)
    for none, lookup in ((4, 0), (2, 2), (0, 4), (3, 1)):
        tally.take(counters([[none, lookup, 0]]), none * 0.1 + lookup * 0.3, [ALL])
    done = tally.by_domain().domains[ALL]
    assert done.seconds == pytest.approx([0.9, 2.1, 0.0], rel=1e-4)


def test_a_look_s_seconds_stay_where_the_fit_says_that_its_source_takes_none():
    tally = Tally(NAMES)
    for none, lookup, seconds in ((1, 8, 4.0), (8, 1, 0.4), (8, 8, 3.0), (1, 0, 0.25), (8, 0, 0.25)):
        tally.take(counters([[none, lookup, 0]]), seconds, ["plain" if not lookup else "mixed"])
    assert tally.by_domain().domains["plain"].seconds == pytest.approx([0.5, 0, 0])


def test_a_tail_without_a_round_has_its_drafts_and_no_ratio():
    tally = Tally(NAMES)
    tally.take(counters([[0, 0, 2]], None, {(0, 1): [2], (0, 2): [2]}, {(0, 1): [1]}), 1.0, ["x"])
    row = tally.by_domain().as_dict()["domains"]["x"]["sources"]["lookup"]
    assert (row["rounds"], row["proposed"], row["accepted"], row["mean_accepted_tokens"]) == (0, 2, 1, 0.0)
    assert "lookup" in shown(tally), "the table leaves out only sources that did nothing"


def test_nothing_counted_is_nothing():
    found = Tally(NAMES).by_domain()
    assert found.as_dict()["domains"] == {}
    assert found.shares().tolist() == [0, 0, 0]
    assert parsed(found.prometheus()) == {}


def test_two_looks_differ_by_what_was_counted_between_them():
    before, after = counters([[1, 2, 0]], None, {(0, 1): [2, 1]}), counters([[3, 2, 4]], None, {(0, 1): [2, 1]})
    assert since(before, after).rounds.tolist() == [[2, 0, 4]]
    assert not since(before, after).proposed.any()


def test_sums_are_those_of_the_statistics():
    whole = stats(counters([[6, 6, 1]], [[6, 15, 2]], {(0, 1): [6, 3, 1], (0, 2): [1]}, {(0, 1): [5, 3], (0, 2): [1]}),
                  NAMES, rounds=13, seconds=4.0, windows=(1, 2))["sources"]  # fmt: skip
    domains = two_kinds().by_domain().as_dict()["domains"].values()
    for name in NAMES:
        for key in ("rounds", "tokens", "proposed", "accepted", "catch_up_tokens"):
            assert sum(about["sources"][name][key] for about in domains) == whole[name][key], (name, key)


# As text


def shown(tally: Tally) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(tally.by_domain(plain={"code": 2.0}).as_table())
    return console.export_text()


def test_the_table_has_a_row_for_each_source_that_did_something():
    text = shown(two_kinds())
    (line,) = [line for line in text.splitlines() if "lookup" in line]
    assert [cell.strip() for cell in line.split("│")[1:-1]][1:4] == ["lookup", "6", "5/6 3/3 0/1"]
    assert text.count("none") == 2
    assert text.count("lm:small") == 1
    assert "timings of rounds" in text


def test_a_json_line_is_a_domain_and_a_source():
    found = two_kinds().by_domain()
    lines = [json.loads(line) for line in found.json_lines().splitlines()]
    assert [(line.pop("domain"), line.pop("source")) for line in lines] == [
        (d, s) for d in ("code", "chat") for s in NAMES
    ]
    assert lines == [row for about in found.as_dict()["domains"].values() for row in about["sources"].values()]


def parsed(text: str) -> dict[tuple[str, frozenset], float]:
    """Samples of an exposition by name and labels; refuses what the format forbids."""
    assert text.endswith("\n")
    found, kinds, helped, family = {}, {}, set(), None
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in helped, "a family once, all its lines together"
            assert re.fullmatch(r"(?:[^\\]|\\\\|\\n)+", line.split(" ", 3)[3])
            helped.add(family)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (name, kind in ("counter", "gauge")) == (family, True)
            assert (kind == "counter") == name.endswith("_total")
            kinds[name] = kind
        else:
            match = LINE.fullmatch(line)
            assert match, line
            assert match["name"] == family
            assert match["name"] in kinds
            pairs = LABEL.findall(match["labels"])
            assert ",".join(f'{name}="{value}"' for name, value in pairs) == match["labels"]
            value = float(match["value"])
            assert value >= 0 or kinds[family] == "gauge"
            unescaped = {name: re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text) for name, text in pairs}
            key = match["name"], frozenset(unescaped.items())
            assert key not in found
            found[key] = value
    return found


def test_the_exposition_holds_every_number():
    found = two_kinds().by_domain(plain={"code": 2.0})
    samples = parsed(found.prometheus())

    def of(name, domain, source, **more):
        return samples[f"jaxspec_{name}", frozenset({"domain": domain, "source": source, **more}.items())]

    for domain, about in found.as_dict()["domains"].items():
        for source, row in about["sources"].items():
            assert of("rounds_total", domain, source) == row["rounds"]
            assert of("tokens_total", domain, source) == row["tokens"]
            assert of("catch_up_tokens_total", domain, source) == row["catch_up_tokens"]
            assert of("decode_seconds_total", domain, source) == row["seconds"]
            assert of("time_share", domain, source) == row["share_of_time"]
            assert of("mean_accepted_tokens", domain, source) == row["mean_accepted_tokens"]
    depths = [
        of(f"drafts_{what}_total", "code", "lookup", depth=str(d))
        for what in ("proposed", "accepted")
        for d in (1, 2, 3)
    ]
    assert depths == [6, 3, 1, 5, 3, 0], "a depth whose drafts were all rejected has a sample too"
    assert of("tokens_won", "code", "lookup") == found.as_dict()["domains"]["code"]["sources"]["lookup"]["tokens_won"]
    assert not [key for key in samples if key[0] == "jaxspec_tokens_won" and ("domain", "chat") in key[1]]


def test_labels_are_escaped():
    tally = Tally(("none", HOSTILE))
    tally.take(counters([[1, 2]]), 1.0, [HOSTILE])
    text = tally.by_domain().prometheus()
    key = "jaxspec_rounds_total", frozenset({("domain", HOSTILE), ("source", HOSTILE)})
    assert parsed(text)[key] == 2
    with pytest.raises(AssertionError):  # the control: the parser sees what is not escaped
        parsed(text.replace(r"\"", '"'))


@pytest.mark.parametrize(("name", "begins"), [("a.json", "{\n"), ("a.jsonl", '{"domain"'), ("b/a.prom", "# HELP")])
def test_the_ending_of_a_file_says_what_it_holds(name, begins):
    text = two_kinds().by_domain().written(name)
    assert text.startswith(begins)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@pytest.mark.parametrize("name", ["a.txt", "a", "prom"])
def test_another_ending_is_refused(name):
    with pytest.raises(ValueError, match=r"ends in none of \.json, \.jsonl, \.prom"):
        check_form(name)
