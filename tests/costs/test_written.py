"""Tables that people write: lines between what they give, one sentence for what is wrong."""

import json
import re

import numpy as np
import pytest

from jaxspec import decode
from jaxspec.costs import document, parse, read
from jaxspec.select.cost import CostTable, guess
from tests.decode import tiny

NAMES, WINDOWS = ("none", "lookup", "jacobi", "lm:d"), (1, 4, 8)
RULES = {"paid": [False, False, False, True], "lags": [False, False, False, True], "rides": True}
GOOD = {"verify": {"1": 1, "8": 1.7}, "draft": {"lm:d": {"1": 0.2}}, "lag": {"lm:d": 0.01}, "ride": 0.1}


def parsed(**changes) -> CostTable:
    """GOOD with changes; None takes a part away."""
    given = {part: value for part, value in (GOOD | changes).items() if value is not None}
    return parse(given, NAMES, WINDOWS, **RULES)


def setup_of(drafts=("lookup", "exit:1")) -> decode.Setup:
    model, _ = tiny.model_of(tiny.TARGET, 0, 1.6)
    return decode.make_setup(model, drafts=drafts, select="goodput", vocab_size=tiny.VOCAB)


def test_a_table_is_read_as_it_was_written():
    rng = np.random.default_rng(0)
    drafts = np.sort(rng.random((4, 8)), axis=1).astype(np.float32)
    drafts[:2], drafts[:, 0] = 0, 0
    table = guess((False, False, False, True), 3, WINDOWS)._replace(
        verify=np.asarray([1 / 3, 0.4, 0.7], np.float32), draft=drafts, lag=np.asarray([0, 0, 0, 1e-5], np.float32)
    )
    again = parse(json.loads(json.dumps(document(table, NAMES, WINDOWS))), NAMES, WINDOWS, **RULES)
    for mine, theirs in zip(table, again, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_what_is_not_given_lies_on_straight_lines():
    table = parsed()
    np.testing.assert_allclose(table.verify, [1.0, 1.3, 1.7], rtol=1e-6)
    np.testing.assert_allclose(table.draft[3], 0.2 * np.arange(8), rtol=1e-6)
    assert not table.draft[:3].any()
    bent = parsed(draft={"lm:d": {"1": 0.5, "3": 0.7}})
    np.testing.assert_allclose(bent.draft[3], [0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1], rtol=1e-6)
    np.testing.assert_allclose(parsed(verify=[1, 2, 3]).verify, [1, 2, 3])


def test_one_file_may_be_for_several_setups():
    assert parsed(draft=GOOD["draft"] | {"feature": {"1": 9}}).draft.max() < 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"verify": None}, "it has no verify; give what a round costs at the window widths 1, 4, 8"),
        ({"verify": [1, 2]}, "verify lists 2 costs; the window widths are 1, 4, 8, one for each"),
        ({"verify": 3}, 'verify is a number; give an object by number of tokens, for example {"1": 0.03}'),
        ({"verify": {"4": 1}}, 'verify has no "1"; give what a plain step costs'),
        ({"verify": {"1": 1}}, "verify has one width; give a second, of the window widths 1, 4, 8"),
        ({"verify": {"1": 0, "8": 1}}, "verify of width 1 is 0; a plain step costs more than 0"),
        ({"verify": {"1": 1, "wide": 2}}, "verify has an entry 'wide'; entries are numbers of tokens from 1"),
        ({"verify": {"1": -1, "8": 2}}, "verify, 1 is -1; a cost is a finite number from 0"),
        ({"verify": {"1": float("nan"), "8": 2}}, "verify, 1 is nan; a cost is a finite number from 0"),
        ({"draft": None}, "draft has no 'lm:d'; give what its drafts cost"),
        ({"draft": {"lm": {"1": 1}}}, "draft has no 'lm:d'; give what its drafts cost"),
        ({"draft": {"lm:d": {}}}, "draft of lm:d is an object; give an object by number of tokens"),
        ({"draft": {"lm:d": {"0": 1}}}, "draft of lm:d has an entry '0'; entries are numbers of tokens from 1"),
        ({"draft": {"lm:d": {"1": "2"}}}, "draft of lm:d, 1 is '2'; a cost is a finite number from 0"),
        ({"draft": [1]}, "draft is a list; give an object by the name of the source"),
        ({"lag": None}, "lag has no 'lm:d'; give what a token that it has to catch up costs, or 0"),
        ({"lag": {"lm:d": True}}, "lag of lm:d is True; a cost is a finite number from 0"),
        ({"ride": None}, "it has no ride; give what the branch in the window costs"),
        ({"ride": float("inf")}, "ride is inf; a cost is a finite number from 0"),
    ],
)
def test_what_is_wrong_is_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}") as caught:
        parsed(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot read the cost table"),
        ("{", "is no JSON"),
        ("[1]", "it is a list; write an object with verify, draft, lag, ride"),
        ('{"verify": {"1": 1, "8": 2}}', "draft has no 'exit:1'"),
    ],
)
def test_a_bad_file_is_named(text, sentence, tmp_path):
    path = tmp_path / "costs.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=sentence) as caught:
        read(str(path), setup_of())
    assert str(path) in str(caught.value)


def test_a_file_needs_only_what_the_setup_pays_for(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"verify": [1, 2, 3], "draft": {"exit:1": {"1": 0.5}}}))
    table = read(str(path), setup_of())
    np.testing.assert_allclose(table.draft[2], 0.5 * np.arange(8))
    assert not np.any(table.lag)
