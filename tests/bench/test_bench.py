import importlib.util
import io
import json
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from jaxspec.bench import contenders as who
from jaxspec.bench import measure, micro, show, summary
from jaxspec.bench.contenders import MODE, PEER, PLAIN, Contender, Run
from jaxspec.bench.measure import Timing
from jaxspec.bench.run import Options, bench, check
from jaxspec.telemetry import Counters, Price
from jaxspec.text import read_cases
from tests.bench import tiny

NEW_TOKENS = 12
FIELDS = {
    "options",
    "timing",
    "contenders",
    "results",
    "telemetry",
    "equality",
    "steps",
    "switch_overhead",
    "compilations_after_warmup",
    "prompts",
    "capacity",
    "load_before",
    "provenance",
}


def script():
    path = Path(__file__).parents[2] / "scripts" / "bench.py"
    spec = importlib.util.spec_from_file_location("bench_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("bench")
    tiny.checkpoint(root / "target", layers=2, seed=0)
    tiny.checkpoint(root / "draft", layers=1, seed=1)
    tiny.prompts(root / "prompts.jsonl")
    return root


def options(folder: Path, **changes) -> Options:
    given = {"modes": ("rule", "fixed:none"), "per_category": 2, "max_new_tokens": NEW_TOKENS, "lookahead": 1}
    files = {"prompts": str(folder / "prompts.jsonl"), "target": str(folder / "target")}
    return Options(**(files | given | {"repeats": 2, "read_bytes": 1 << 20} | changes))


@pytest.fixture(scope="module")
def report(folder):
    return bench(options(folder))


# synthetic timings


def counters(proposed: int, accepted: int) -> Counters:
    """One row, sources none and lookup, lookahead 2; every proposal of depth 1."""
    rounds, emitted = np.array([[0, proposed]]), np.array([[0, proposed + accepted]])
    tried, kept = np.zeros((1, 2, 2), int), np.zeros((1, 2, 2), int)
    tried[0, 1, 0], kept[0, 1, 0] = proposed, accepted
    return Counters(rounds, emitted, tried, kept, np.zeros((1, 2), int), np.array([0, proposed]))


def synthetic() -> tuple[list[Timing], list[Contender], list[str]]:
    """Prompts x, y (one a category) and z (y's): plain, a mode and two peers; the last repeat is a slow minute."""

    def run(tokens: int, seconds: float, **more) -> Run:
        return Run(list(range(tokens)), seconds, seconds / 2, more.pop("decode_tokens", tokens), **more)

    each = {
        PLAIN: lambda prompt: {"tokens": 10, "seconds": 10.0, "rounds": 10},
        "rule": lambda prompt: {
            "tokens": 10,
            "seconds": (2.0, 5.0, 10.0)[prompt],
            "rounds": 5,
            "counters": counters(5, 5),
        },
        "peer:a": lambda prompt: {
            "tokens": 10,
            "seconds": (40.0, 10.0, 10.0)[prompt],
            "rounds": 10,
            "decode_tokens": 9,
        },
        "peer:b": lambda prompt: {"tokens": 10, "seconds": 20.0, "rounds": 4, "decode_tokens": 8},
    }
    kinds = {PLAIN: PLAIN, "rule": MODE, "peer:a": PEER, "peer:b": PEER}
    contenders = [
        Contender(n, k, lambda p, m: pytest.fail("ran"), ("none", "lookup"), (1, 2)) for n, k in kinds.items()
    ]
    timings = []
    for repeat, slower in enumerate((1.0, 1.0, 50.0)):
        for name, about in each.items():
            for prompt in range(3):
                given = about(prompt)
                timings.append(
                    Timing(name, prompt, repeat, run(given.pop("tokens"), slower * given.pop("seconds"), **given))
                )
    return timings, contenders, ["x", "y", "y"]


def test_rates_are_total_tokens_over_the_sum_of_medians():
    results = summary.summarise(*synthetic())
    assert list(results["categories"]) == ["x", "y"]
    overall, y = results["overall"], results["categories"]["y"]
    assert overall[PLAIN]["tokens_per_second"] == pytest.approx(30 / 30)
    assert overall["rule"]["tokens_per_second"] == pytest.approx(30 / 17)  # a mean would see the slow minute
    assert y["rule"]["tokens_per_second"] == pytest.approx(20 / 15)
    assert y["peer:a"]["decode_tokens_per_second"] == pytest.approx(18 / 10)
    assert overall["rule"]["seconds"] == 17.0
    assert overall["rule"]["decode_seconds"] == 8.5


def test_ratios_are_to_plain_and_to_the_fastest_peer_of_each_group():
    results = summary.summarise(*synthetic())
    x, y, overall = results["categories"]["x"], results["categories"]["y"], results["overall"]
    assert x["rule"]["tokens_per_second_to_plain"] == pytest.approx(5.0)
    assert x["rule"]["tokens_per_second_to_peer_best"] == pytest.approx((10 / 2) / (10 / 20))  # b is x's fastest
    assert y["rule"]["tokens_per_second_to_peer_best"] == pytest.approx((20 / 15) / (20 / 20))  # and a is y's
    assert y["rule"]["decode_tokens_per_second_to_peer_best"] == pytest.approx((20 / 7.5) / (18 / 10))
    assert overall[PLAIN]["tokens_per_second_to_plain"] == 1.0
    assert max(overall[n]["tokens_per_second_to_peer_best"] for n in ("peer:a", "peer:b")) == 1.0


def test_without_a_peer_there_is_no_ratio_to_it():
    timings, contenders, categories = synthetic()
    results = summary.summarise(timings, contenders[:2], categories)
    assert results["overall"]["rule"]["tokens_per_second_to_peer_best"] is None


def test_acceptance_is_summed_over_prompts_once_whatever_the_repeats():
    overall = summary.summarise(*synthetic())["overall"]
    assert overall["rule"]["sources"]["lookup"]["proposed"] == 15
    assert overall["rule"]["acceptance_rate"] == 1.0
    assert overall["rule"]["mean_accepted_tokens"] == 2.0
    assert overall["rule"]["passes_by_window"] == {"1": 0, "2": 15}
    assert overall["peer:b"]["mean_accepted_tokens"] == 2.5
    assert overall[PLAIN]["sources"] == {}


def test_seconds_are_shared_out_by_the_costs_of_whoever_was_given_some():
    timings, contenders, categories = synthetic()
    told = summary.by_domain(timings, contenders, categories)
    assert (list(told), told["rule"]["seconds_from"]) == (["rule"], "timings of rounds")
    price = Price("calibrated costs", lambda c: c.rounds * np.asarray([1.0, 2.0]))
    told = summary.by_domain(timings, [*contenders[:3], contenders[3]._replace(price=price)], categories)["rule"]
    assert told["seconds_from"] == "calibrated costs"
    y = told["domains"]["y"]["sources"]["lookup"]
    assert y["seconds"] == pytest.approx((5 + 10) / 2)
    assert y["tokens_won"] == pytest.approx(20 - 7.5 * 20 / 10)  # the plain loop's tokens a second, not the price's


def test_equality_names_every_answer_that_differs_and_where():
    timings, *_ = synthetic()
    wrong = Timing("rule", 1, 2, Run([0, 1, 9], 1.0, 0.5, 3, 3))
    timings = [wrong if (t.contender, t.prompt, t.repeat) == ("rule", 1, 2) else t for t in timings]
    found = summary.equality(timings, ["rule", "peer:a"], ["p0", "p1", "p2"])
    assert found["peer:a"] == {"compared": 9, "equal": 9, "mismatches": []}
    assert found["rule"]["equal"] == 8
    assert found["rule"]["mismatches"] == [{"repeat": 2, "position": 2, "token": 9, "plain_token": 2, "prompt": "p1"}]


def test_an_answer_that_ends_early_is_a_mismatch():
    timings = [Timing(n, 0, 0, Run(list(range(k)), 1.0, 1.0, k, k)) for n, k in ((PLAIN, 3), ("rule", 2))]
    (apart,) = summary.equality(timings, ["rule"], ["p"])["rule"]["mismatches"]
    assert (apart["position"], apart["token"], apart["plain_token"]) == (2, None, 2)


def test_every_contender_meets_every_prompt_and_nobody_is_always_first():
    order = list(measure.schedule(3, 4, 2))
    assert Counter(order) == {(r, p, c): 1 for r in range(2) for p in range(4) for c in range(3)}
    blocks = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert all(len({(r, p) for r, p, _ in block}) == 1 for block in blocks)  # a prompt's runs stand together
    firsts = Counter(block[0][2] for block in blocks)
    assert max(firsts.values()) - min(firsts.values()) <= 1
    starts = {(r, p): c for (r, p, c) in (block[0] for block in blocks)}
    assert all(starts[0, p] != starts[1, p] for p in range(4))


def test_warm_up_covers_every_prefill_width_with_few_prompts():
    assert measure.covering([10, 300, 12, 290, 40]) == [0, 1]
    assert measure.covering([1, 2]) == [0, 1]


def test_measuring_runs_the_schedule_after_a_short_warm_up():
    calls = []

    def contender(name: str, kind: str) -> Contender:
        def run(prompt, most: int) -> Run:
            calls.append((name, len(prompt), most))
            return Run([1] * most, 1.0, 1.0, most, most)

        return Contender(name, kind, run)

    some = [contender(PLAIN, PLAIN), contender("peer", PEER)]
    timings = measure.measure(some, [[1] * 300, [1] * 5], max_new_tokens=9, repeats=1)
    warm = measure.WARM_UP_TOKENS
    assert calls[:3] == [(PLAIN, 300, warm), (PLAIN, 5, warm), ("peer", 300, warm)]
    assert [(name, n) for name, n, _ in calls[3:]] == [(PLAIN, 300), ("peer", 300), ("peer", 5), (PLAIN, 5)]
    assert [(t.contender, t.prompt) for t in timings] == [(PLAIN, 0), ("peer", 0), ("peer", 1), (PLAIN, 1)]


def test_step_costs_compare_with_the_best_way_of_reading():
    found = micro.costs({1: 0.02, 8: 0.03}, {"slow": 1e9, "fast": 2e9}, weights=20_000_000)
    assert found["floor_seconds"] == pytest.approx(0.01)
    assert found["step_to_floor"] == pytest.approx(2.0)
    assert found["windows"]["8"]["ratio"] == pytest.approx(1.5)


def test_an_embedding_counts_as_read_only_where_it_is_the_output_matrix_too():
    table, norm = jnp.zeros((10, 4)), jnp.zeros(4)
    tied = {"embed_tokens.weight": table, "norm.weight": norm}
    assert micro.weight_bytes(tied) == 176
    assert micro.weight_bytes(tied | {"lm_head.weight": table}) == 176


# the whole run, on a random model


def test_report_has_every_field_and_is_json(report):
    assert set(report) == FIELDS
    assert json.loads(json.dumps(report))["results"].keys() == {"overall", "categories"}
    assert list(report["results"]["categories"]) == ["a", "b"]
    assert list(report["contenders"]) == [PLAIN, "rule", "fixed:none"]
    assert [p["id"] for p in report["prompts"]] == ["p0", "p1", "p3", "p4"]
    assert all(len(p["runs"]["rule"]["seconds"]) == 2 for p in report["prompts"])
    assert set(report["steps"]["windows"]) == {"1", "2"}
    assert report["provenance"]["versions"]["jax"]
    assert report["switch_overhead"]["ratio"] > 0


def test_every_mode_gives_the_plain_loop_s_tokens(report):
    for mode in ("rule", "fixed:none"):
        assert report["equality"][mode] == {"compared": 8, "equal": 8, "mismatches": []}


def test_modes_draft_as_their_names_say(report):
    overall = report["results"]["overall"]
    assert overall["fixed:none"]["mean_accepted_tokens"] == 1.0
    assert overall["rule"]["sources"]["lookup"]["accepted"] > 0
    assert overall["rule"]["mean_accepted_tokens"] > 1.0


def test_telemetry_by_category_adds_up_to_the_whole(report):
    for mode in ("rule", "fixed:none"):
        told, overall = report["telemetry"][mode], report["results"]["overall"][mode]
        assert list(told["domains"]) == ["a", "b"]
        for key in ("rounds", "tokens", "proposed", "accepted"):
            for source, row in overall["sources"].items():
                assert sum(about["sources"][source][key] for about in told["domains"].values()) == row[key]
        seconds = sum(about["seconds"] for about in told["domains"].values())
        assert seconds == pytest.approx(overall["decode_seconds"])
        for category, about in told["domains"].items():
            plain = report["results"]["categories"][category][PLAIN]["decode_tokens_per_second"]
            assert about["tokens_won"] == pytest.approx(about["tokens"] - plain * about["seconds"])


def test_nothing_compiles_after_the_warm_up(report):
    assert report["compilations_after_warmup"] == 0


def test_tables_show_every_category_and_contender(report):
    console = Console(width=160, record=True, file=io.StringIO())
    for part in show.tables(report):
        console.print(part)
    text = console.export_text()
    for word in ("overall", "fixed:none", "rule", "lookup", "8/8", "window", "MB of weights"):
        assert word in text


def row_of(proposed: list[int], accepted: list[int], speed: float, source: str) -> dict:
    counts = {"proposed_by_depth": proposed, "accepted_by_depth": accepted}
    ratios = {f"{summary.DECODE}_to_plain": speed, "mean_accepted_tokens": 2.0}
    return {"sources": {"none": {}, source: counts}} | ratios


def written(table) -> list[list[str]]:
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_fixed_modes_are_compared_by_category_and_by_depth():
    fixed = ["fixed:lookup:2", "fixed:exit:1", "fixed:exit:1:3"]
    rows = {
        "fixed:lookup:2": row_of([10, 8], [4], 1.2, "lookup"),
        "fixed:exit:1": row_of([9], [3], 0.9, "exit:1"),
        "fixed:exit:1:3": row_of([9, 3, 1], [3, 3], 1.5, "exit:1"),
    }
    slow = {name: row | {f"{summary.DECODE}_to_plain": 0.5} for name, row in rows.items()}
    assert written(show.choices({"overall": rows, "categories": {"chat": slow}}, fixed)) == [
        ["overall", "chat"],
        ["1.20", "0.50"],
        ["0.90", "0.50"],
        ["1.50", "0.50"],
        ["exit:1:3", "lookup:2"],
        ["1.25", "0.50"],
    ]
    assert written(show.depths(rows, fixed)) == [
        ["lookup:2", "exit:1", "exit:1:3"],
        ["2.00"] * 3,
        ["0.40", "0.33", "0.33"],
        ["0.00", "-", "1.00"],
        ["-", "-", "0.00"],
    ]


def test_script_prints_and_writes_what_was_measured(report, folder, tmp_path, monkeypatch, capsys):
    module, seen = script(), []
    monkeypatch.setattr(module, "bench", lambda asked, told: seen.append(asked) or report)
    monkeypatch.setattr(module.telemetry, "keep_compilations", lambda: None)
    out, html = tmp_path / "out.json", tmp_path / "out.html"
    given = ["--prompts", "f.jsonl", "--draft", "lookup", "--draft", "exit:1", "--modes", "rule", "fixed:none", "rule"]
    assert module.main([*given, "--json", str(out), "--report", str(html)]) == 0
    assert (seen[0].drafts, seen[0].modes) == (("lookup", "exit:1"), ("rule", "fixed:none"))
    assert json.loads(out.read_text()) == json.loads(json.dumps(report))
    assert "tok/s" in capsys.readouterr().out
    assert "python scripts/bench.py --prompts f.jsonl --draft lookup" in html.read_text(encoding="utf-8")
    missing = str(tmp_path / "gone" / "out.html")
    assert module.main([*given, "--report", missing]) == 2
    assert capsys.readouterr().err.startswith(f"error: {missing} cannot be written")


# bad input


def sentence(folder: Path, **changes) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        check(options(folder, **changes))
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{oops", "is not JSON"),
        ('{"category": "a"}', "has no prompt"),
        ('{"prompt": "x", "category": 3}', "has the category 3"),
    ],
)
def test_a_malformed_line_is_named(folder, tmp_path, line, words):
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "fine"}\n\n' + line + "\n")
    said = sentence(folder, prompts=str(file))
    assert f"{file}, line 3" in said
    assert words in said


@pytest.mark.parametrize("mode", ["fast", "fixed:exit:2:3", "fixed:lookup:x", "fixed:", "rule:3", "ucb:a", "goodput:"])
def test_an_unknown_mode_is_refused_before_loading(folder, mode):
    said = sentence(folder, target="/nowhere", modes=("rule", mode))
    assert repr(mode) in said
    assert "fixed:none and fixed:SOURCE:K with SOURCE among the drafts lookup" in said


@pytest.mark.parametrize(
    "mode",
    ["rule", "goodput", "goodput:a/b", "router:a/b", "fixed:none", "fixed:lookup", "fixed:lookup:3", "fixed:lm:a:b:3"],
)
def test_known_modes_pass(mode):
    who.check_modes([mode], ["lookup", "lm:a:b"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peer": "vllm"}, "peer 'vllm' is unknown; choose transformers"),
        ({"repeats": 0}, "repeats is 0; it must be 1 or more"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be 1 or more"),
        ({"per_category": 0}, "per_category is 0; it must be 1 or more"),
        ({"drafts": ("oracle",)}, "draft source 'oracle' is unknown"),
        ({"json": "/no/such/folder/out.json"}, "its folder does not exist"),
        ({"json": "/"}, "it is a folder; give a file's name"),
        ({"report": "/no/such/folder/out.html"}, "there is no folder /no/such/folder"),
        ({"report": ""}, "'' names no file"),
        ({"prompts": "/no/such/file.jsonl"}, "cannot read /no/such/file.jsonl"),
    ],
)
def test_bad_options_are_one_sentence(folder, changes, words):
    assert words in sentence(folder, **changes)


@pytest.mark.parametrize(
    ("missing", "changes"), [("torch", {"peer": "transformers"}), ("matplotlib", {"plot": "a.png"})]
)
def test_a_missing_extra_is_named(folder, monkeypatch, missing, changes):
    monkeypatch.setattr("jaxspec.bench.run.find_spec", lambda name: None)
    said = sentence(folder, **changes)
    assert f"needs {missing}" in said
    assert "pip install -e" in said


def test_a_lookahead_that_no_window_holds_is_refused(folder):
    with pytest.raises(ValueError, match="lookahead 99"):
        bench(options(folder, lookahead=99))


def test_script_tells_a_bad_option_in_one_line(folder, capsys):
    status = script().main(["--prompts", str(folder / "prompts.jsonl"), "--modes", "fast"])
    assert status == 2
    assert capsys.readouterr().err.startswith("error: mode 'fast' is unknown")


def test_cases_keep_order_ids_and_categories(tmp_path):
    file = tiny.prompts(tmp_path / "p.jsonl")
    cases = read_cases(file, per_category=2)
    assert [(c.name, c.category) for c in cases] == [("p0", "a"), ("p1", "a"), ("p3", "b"), ("p4", "b")]
    text = tmp_path / "p.txt"
    text.write_text("one\n\ntwo\n")
    assert [(c.name, c.category, c.prompt) for c in read_cases(text)] == [("1", "all", "one"), ("3", "all", "two")]


# the peer


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_the_peer_answers_with_our_tokens_and_the_plot_is_drawn(folder, tmp_path):
    draft, png = f"lm:{folder / 'draft'}", tmp_path / "plot.png"
    modes = (f"fixed:{draft}:2",)
    asked = options(
        folder,
        drafts=("lookup", draft),
        modes=modes,
        per_category=1,
        lookahead=2,
        peer="transformers",
        plot=str(png),
    )
    found = bench(asked)
    peers = ["transformers:greedy", "transformers:lookup", f"transformers:assisted:{draft}"]
    assert list(found["contenders"]) == [PLAIN, *modes, *peers]
    for name in (*modes, *peers):
        assert found["equality"][name]["equal"] == found["equality"][name]["compared"] == 4, name
    overall = found["results"]["overall"]
    assert overall["transformers:greedy"]["decode_tokens"] == overall["transformers:greedy"]["tokens"] - 2
    assert overall["transformers:greedy"]["mean_accepted_tokens"] == 1.0
    assert max(overall[name]["tokens_per_second_to_peer_best"] for name in peers) == 1.0
    show.plot(found, png)
    assert png.read_bytes().startswith(b"\x89PNG")
