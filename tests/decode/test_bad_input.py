"""Bad input is refused in one clear sentence, before anything is compiled."""

import math

import pytest

from jaxspec import decode, telemetry
from jaxspec.drafts import lookup
from jaxspec.models import ModelConfig
from jaxspec.sampling import warpers
from tests.decode.automata import automaton
from tests.decode.engines import tiny_engine
from tests.decode.tiny import DRAFT, TARGET, model_of

MODEL = automaton(10)
PLAIN = decode.make_setup(MODEL, drafts=("lookup",), vocab_size=8)
SAMPLING = decode.make_setup(MODEL, drafts=("lookup",), verify="coupled", vocab_size=8)


@pytest.fixture(autouse=True, scope="module")
def _small_programs():
    """The few operations that make a request's arrays, for one row and for two."""
    for rows in (1, 2):
        decode.make_request(PLAIN, [[1]] * rows, max_new_tokens=1, seed=0)


def refused(message, function, *args, **options):
    before = telemetry.compilations()
    with pytest.raises(ValueError, match=message) as error:
        function(*args, **options)
    text = str(error.value)
    assert telemetry.compilations() == before
    assert "\n" not in text
    assert len(text) < 250
    return text


SETUPS = {
    "an unknown source": ({"drafts": ("oracle",)}, "draft source 'oracle' is unknown; choose among lookup"),
    "a kind without a trained draft": ({"drafts": ("medusa",)}, "'medusa' is a name without a trained draft; give"),
    "a layer count that is none": ({"drafts": ("exit:x",)}, "draft source 'exit:x' is unknown"),
    "a model by name alone": ({"drafts": ("lm:small",)}, "'lm:small' is a name without a model; give"),
    "a source twice": ({"drafts": ("lookup", "lookup")}, "have a name twice; give each source once"),
    "an exit of a foreign model": ({"drafts": ("exit:1",)}, "needs a target of jaxspec.models"),
    "an unknown selector": ({"select": "bandit"}, "select 'bandit' is unknown; choose goodput"),
    "an unknown fixed source": ({"select": "fixed:suffix:3"}, "with SOURCE among none, lookup"),
    "a fixed lookahead too large": ({"select": "fixed:lookup:8"}, "asks for lookahead 8; the largest is 7"),
    "an unknown mode": ({"verify": "typical"}, "verify mode 'typical' is unknown; choose one of greedy"),
    "more model drafts than fit": ({"model_lookahead": 8}, "model_lookahead is 8; give 0 to 7"),
    "fewer model drafts than none": ({"model_lookahead": -1}, "model_lookahead is -1; give 0 to 7"),
    "a lookahead no window holds": ({"lookahead": 16}, "lookahead 16 is not in 0 to 15"),
    "a negative lookahead": ({"lookahead": -1}, "lookahead -1 is not in 0 to 15"),
    "windows without the plain step": ({"windows": (2, 4)}, "give ascending widths that start at 1"),
    "windows out of order": ({"windows": (1, 4, 2)}, "give ascending widths that start at 1"),
    "no vocabulary": ({"vocab_size": 0}, "vocab_size is 0; the target's output has 10 entries"),
    "a vocabulary beyond the output": ({"vocab_size": 11}, "give 1 to 10"),
}


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_that_cannot_be_is_refused(name):
    options, message = SETUPS[name]
    refused(message, decode.make_setup, MODEL, **options)


@pytest.mark.parametrize("layers", [0, 2, 30])
def test_an_exit_that_leaves_no_layer_is_refused(layers):
    model, _ = model_of(TARGET, 0, 1.6)
    message = f"exit:{layers} asks for {layers} layers; the target has 2, so give exit:1 to exit:1"
    refused(message, decode.make_setup, model, drafts=(f"exit:{layers}",))


def test_a_lookup_that_matches_nothing_is_refused():
    refused("min_match 0 and max_match 16; give 1 <=", lookup, min_match=0, lookahead=3)
    refused("min_match 5 and max_match 4", lookup, min_match=5, max_match=4, lookahead=3)


REQUESTS = {
    "no prompts": ({"prompts": []}, "there are no prompts; give at least one"),
    "an empty prompt": ({"prompts": [[1], []]}, "prompt 1 is empty; give at least one token"),
    "an id of the padding": ({"prompts": [[1, 8]]}, "prompt 0 has token id 8; ids of this target are 0 to 7"),
    "a negative id": ({"prompts": [[-3, 5]]}, "prompt 0 has token id -3"),
    "a cache of integers": ({"dtype": "int8"}, "dtype of the caches is 'int8'; give a floating-point type"),
    "a stop id too large": ({"stop_ids": [2**40]}, "stop_ids names 1099511627776; give token ids"),
    "nothing to generate": ({"max_new_tokens": 0}, "max_new_tokens of row 0 is 0; it must be 1 or more"),
    "a negative limit of one row": ({"prompts": [[1], [2]], "max_new_tokens": [3, -1]}, "of row 1 is -1; it must be 1"),
    "more than can be counted": ({"max_new_tokens": 2**32 + 1}, "max_new_tokens of row 0 is 4294967297; it must be"),
    "limits for other rows": ({"max_new_tokens": [3, 3]}, r"max_new_tokens is \[3, 3\] for 1 rows; give one number"),
    "a negative seed": ({"seed": -1}, "seed is -1; give a whole number from 0 to 4294967295"),
    "a seed too large": ({"seed": 2**32}, "seed is 4294967296; give a whole number"),
    "seeds for other rows": ({"seed": [1, 2]}, r"seed is \[1, 2\] for 1 rows"),
    "too many drafts": ({"max_lookahead": 8}, "max_lookahead of row 0 is 8; it must be 0 to 7, the largest bucket"),
    "a negative draft temperature": ({"draft_temperature": -0.5}, "draft_temperature of row 0 is -0.5; it must be 0"),
    "a draft temperature that is no number": ({"draft_temperature": math.nan}, "draft_temperature of row 0 is nan"),
    "a draft temperature too large": ({"draft_temperature": 1e300}, "draft_temperature of row 0 is inf"),
    "a confidence above one": ({"draft_confidence": 1.5}, "draft_confidence of row 0 is 1.5; it must be from 0 to 1"),
    "stop ids for other rows": ({"stop_ids": [[1], [2]]}, "stop_ids has 2 sequences for 1 rows"),
    "settings for other rows": ({"warp": warpers(3)}, "warp has 3 rows for 1 prompts"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_cannot_be_is_refused(name):
    options, message = REQUESTS[name]
    defaults = {"prompts": [[1, 2]], "max_new_tokens": 4}
    refused(message, decode.generate, PLAIN, decode.EngineParams({}, {}, ()), **(defaults | options))


def test_sampling_under_greedy_verification_is_refused():
    hot = warpers(1, temperature=0.7)
    params = decode.EngineParams({}, {}, ())
    options = {"max_new_tokens": 1, "warp": hot}
    refused("temperature is above 0 but verify is 'greedy'; use", decode.generate, PLAIN, params, [[1]], **options)
    assert decode.make_request(SAMPLING, [[1]], max_new_tokens=1, warp=hot).seed.shape == (1,)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("temperature", -1.0), ("temperature", math.nan), ("top_p", 0.0), ("top_p", 1.1), ("top_p", math.nan)],
)
def test_settings_out_of_range_are_refused(setting, value):
    refused(f"{setting} of row 0 is {value:g}; it must be", warpers, 1, **{setting: value})


def test_a_prompt_that_does_not_fit_is_refused():
    params = decode.EngineParams({}, {}, ())
    message = r"a prompt of 30 tokens with max_new_tokens 20 needs a capacity of 64\b.*; it is 40, so shorten"
    refused(message, decode.generate, PLAIN, params, [[1], [1] * 30], max_new_tokens=20, capacity=40)
    short = decode.make_setup(automaton(10, max_positions=32))
    message = "needs 50 positions; the target has 32, so shorten the prompt or ask for at most 2"
    refused(message, decode.generate, short, params, [[1] * 30], max_new_tokens=20)
    refused("needs 34 positions; .* at most 0", decode.generate, short, params, [[1] * 33], max_new_tokens=1)


def test_a_draft_without_parameters_is_named():
    model, params = model_of(TARGET, 0, 1.6)
    draft, _ = model_of(DRAFT, 1, 0.5)
    setup = decode.make_setup(model, drafts=(("lm:d", draft),), lookahead=1)
    with pytest.raises(ValueError, match=r"draft 'lm:d' has no parameters; give them in EngineParams.drafts\['lm:d'\]"):
        decode.generate(setup, decode.EngineParams(params, {}, ()), [[1]], max_new_tokens=2)


def test_an_unsupported_family_is_named_with_those_there_are():
    text = refused("mamba", ModelConfig.from_hf, {"model_type": "mamba"})
    assert "llama" in text


def test_good_input_is_not_refused():
    assert tiny_engine("greedy").setup.names == ("none", "lookup", "exit:1", "lm:d", "script")
    assert decode.make_setup(MODEL, lookahead=5, windows=(1, 2, 4, 8)).windows == (1, 2, 4, 6)
    assert decode.make_setup(MODEL, lookahead=0).windows == (1,)
    assert decode.make_setup(MODEL, select="fixed:none").selector.name == "fixed"
