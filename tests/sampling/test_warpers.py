import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.sampling import warp, warpers


@pytest.mark.parametrize(
    ("setting", "values"),
    {
        "temperature": [-0.1, math.nan, math.inf, 1e39],
        "top_k": [-1, 1.5, math.nan, 2**31],
        "top_p": [0.0, -0.1, 1.1, math.nan],
        "min_p": [-0.1, 1.1, math.nan],
        "repetition_penalty": [0.0, -1.0, math.nan, math.inf],
        "presence_penalty": [math.nan, math.inf],
        "frequency_penalty": [math.nan, -math.inf],
        "min_tokens": [-1, 0.5, math.nan],
    }.items(),
)
def test_a_value_out_of_range_is_refused_by_setting_row_and_rule(setting, values):
    good = 0.5 if setting in ("top_p", "repetition_penalty") else 0
    for value in values:
        with pytest.raises(ValueError, match=rf"^{setting} of row 1 is \S+; it must be .+"):
            warpers(2, **{setting: [good, value]})
        with pytest.raises(ValueError, match=rf"^{setting} of row 0"):
            warpers(2, **{setting: value})


@pytest.mark.parametrize("setting", ["temperature", "top_k", "repetition_penalty"])
def test_a_sequence_needs_one_number_a_row(setting):
    with pytest.raises(ValueError, match=rf"^{setting} has shape \(3,\) for 2 rows; give one number"):
        warpers(2, **{setting: [1, 1, 1]})


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ({10: 1.0}, "bias of row 0 names token 10; token ids go from 0 to 9"),
        ({-1: 1.0}, "bias of row 0 names token -1"),
        ([None, {3: math.nan}], "bias of row 1 for token 3 is nan; it must be a finite float32, or -inf to ban"),
        ({3: math.inf}, "bias of row 0 for token 3 is inf"),
        ({3: 1e39}, r"bias of row 0 for token 3 is 1e\+39"),
        ([{}], "bias has 1 mappings for 2 rows"),
    ],
)
def test_a_bad_bias_is_refused(bias, message):
    with pytest.raises(ValueError, match=message):
        warpers(2, bias=bias, vocab_size=10)


def test_a_scalar_is_for_all_rows_and_a_sequence_for_each():
    settings = warpers(2, temperature=[0, 0.5], top_k=7, bias=[None, {3: -math.inf, 5: 1.5}])
    np.testing.assert_array_equal(settings.temperature, np.array([0, 0.5], np.float32))
    np.testing.assert_array_equal(settings.top_k, [7, 7])
    assert (settings.bias_ids[0] == -1).all()
    np.testing.assert_array_equal(settings.bias_ids[1, :3], [3, 5, -1])
    np.testing.assert_array_equal(settings.bias_values[1, :3], np.array([-np.inf, 1.5, 0], np.float32))
    for field in dataclasses.fields(settings):
        leaf = getattr(settings, field.name)
        assert leaf.shape[0] == 2
        assert leaf.dtype in (jnp.float32, jnp.int32)


def test_the_shape_is_the_same_for_no_bias_and_a_few():
    shapes = {warpers(1, bias=dict.fromkeys(range(n), 1.0)).bias_ids.shape for n in (0, 1, 8)}
    assert shapes == {(1, 8)}
    assert warpers(1, bias=dict.fromkeys(range(9), 1.0)).bias_ids.shape == (1, 16)


def test_a_temperature_that_the_device_flushes_to_zero_is_greedy():
    assert warpers(1, temperature=1e-40).temperature[0] == 0


def test_changing_settings_does_not_trace_again():
    traces = []

    @jax.jit
    def run(logits, settings):
        traces.append(None)
        return warp(logits, settings)

    logits = jnp.zeros((2, 1, 5))
    for settings in (
        warpers(2),
        warpers(2, temperature=[0, 1], top_k=3, top_p=0.5, min_p=0.1),
        warpers(2, temperature=2, repetition_penalty=1.2, frequency_penalty=1, bias={3: -math.inf}, min_tokens=4),
    ):
        run(logits, settings)
    assert len(traces) == 1
