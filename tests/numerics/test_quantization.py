"""Round trips against the error bounds of the module's table."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfi.numerics.quantization import Quantized, dequantize, quantize

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
LINEAR = [("linear16", 2**15 - 1), ("linear8", 127)]


@settings(deadline=None)
@given(values=st.lists(FLOATS, max_size=30), which=st.sampled_from(LINEAR))
def test_linear_errs_by_half_a_step(values, which):
    kind, levels = which
    t = torch.tensor(values, dtype=torch.float32)
    back = dequantize(quantize(t, kind))
    largest = max(map(abs, values), default=0.0)
    # Half a step, and half a float32 unit (relative 2^-24, or 2^-150 where subnormal) for the result.
    bound = largest / (2 * levels) * (1 + 1e-9) + largest * 2**-24 + 2.0**-150
    assert back.dtype == torch.float32
    assert back.shape == t.shape
    assert all(abs(b - v) <= bound for b, v in zip(back.tolist(), values, strict=True))


@settings(deadline=None)
@given(values=st.lists(FLOATS.map(abs), max_size=30))
def test_log_errs_by_a_fixed_ratio(values):
    """Levels are 2^(40/254) apart, rounded to the nearest in log space: at most 2^(40/508) - 1 = .0561."""
    back = dequantize(quantize(torch.tensor(values, dtype=torch.float32), "log8")).tolist()
    largest = max(values, default=0.0)
    for b, v in zip(back, values, strict=True):
        if v == 0:
            assert b == 0
        elif v >= largest * 2.0**-40:
            assert abs(b - v) <= (2 ** (40 / 508) - 1) * v * (1 + 1e-6) + 2.0**-149
        else:
            assert 0 < b <= max(largest * 2.0**-40 * (1 + 1e-6), 2.0**-149)


def test_log_bound_is_the_documented_one():
    """A grid of 1e5 points over the 40 octaves comes within .1 % of the bound and never above 5.61 %."""
    t = torch.exp2(torch.linspace(-40, 0, 100_001, dtype=torch.float64)).float()
    errors = (dequantize(quantize(t, "log8")).double() / t.double() - 1).abs()
    assert 0.055 < float(errors.max()) <= 0.0561
    assert 2 ** (40 / 508) - 1 < 0.0561


def test_known_codes():
    """m = 2. linear8: 1 -> 128 + round(63.5) = 192 (to even). log8: 1 is an octave, 6.35 steps, below 255."""
    t = torch.tensor([[0.0, 1.0], [-2.0, 2.0]])
    assert quantize(t, "linear8").codes.tolist() == [[128, 192], [1, 255]]
    assert quantize(t, "linear16").codes.tolist() == [[0, 16384], [-32767, 32767]]
    assert quantize(t.clamp(min=0), "log8").codes.tolist() == [[0, 249], [0, 255]]
    assert quantize(torch.tensor([1.0, 1e-30]), "log8").codes.tolist() == [255, 1]


@pytest.mark.parametrize("kind", ["linear16", "linear8", "log8"])
@pytest.mark.parametrize("value", [3.4e38, 1.0, 1e-30, 1e-38, 2.0**-149])
def test_single_values_are_exact(kind, value):
    t = torch.tensor(value)
    assert torch.equal(dequantize(quantize(t, kind)), t)


@pytest.mark.parametrize("kind", ["linear16", "linear8", "log8"])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (), (3, 2)])
def test_zeros_and_empty_tensors(kind, shape):
    back = dequantize(quantize(torch.zeros(shape), kind))
    assert torch.equal(back, torch.zeros(shape))


def test_half_precision_and_non_contiguous_input():
    t = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16, requires_grad=True).T
    back = dequantize(quantize(t, "linear16"))
    assert torch.allclose(back, t.detach().float(), atol=4 / 65534 * 1.001)
    assert not back.requires_grad


@pytest.mark.parametrize("kind", ["linear16", "linear8", "log8"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_values_that_are_not_finite_are_refused(kind, value):
    with pytest.raises(ValueError, match="expected finite"):
        quantize(torch.tensor([1.0, value], dtype=torch.float64), kind)


def test_other_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="no negative"):
        quantize(torch.tensor([1.0, -1e-30]), "log8")
    with pytest.raises(ValueError, match="kind is 'log16'; expected one of linear16, linear8, log8"):
        quantize(torch.ones(1), "log16")
    with pytest.raises(ValueError, match="expected a floating type"):
        quantize(torch.ones(1, dtype=torch.int64), "linear8")
    with pytest.raises(ValueError, match=r"expected torch\.int16"):
        Quantized(torch.zeros(1, dtype=torch.uint8), 1.0, "linear16")
    with pytest.raises(ValueError, match="scale is nan"):
        Quantized(torch.zeros(1, dtype=torch.uint8), math.nan, "log8")
