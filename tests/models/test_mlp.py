import pytest
import torch
from torch import nn

from fedfi.errors import InputError
from fedfi.models.mlp import mlp
from fedfi.models.shapes import InputSpec

DIGITS = InputSpec("image", (1, 8, 8), 10)
TABLE = InputSpec("tabular", (13,), 2)


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_parameters_of_one_hidden_layer():
    """64 inputs: (64 + 1) 64 + (64 + 1) 10 = 4160 + 650."""
    assert count(mlp(DIGITS)) == 4810


def test_parameters_without_bias_and_with_two_hidden_layers():
    """13 * 8 + 8 * 4 + 4 * 2 = 104 + 32 + 8."""
    assert count(mlp(TABLE, hidden=(8, 4), bias=False)) == 144


def test_no_hidden_layer_is_linear():
    model = mlp(TABLE, hidden=())
    x = torch.arange(26.0).reshape(2, 13)
    weight, bias = model.parameters()
    torch.testing.assert_close(model(x), x @ weight.T + bias)


@pytest.mark.parametrize("spec", [DIGITS, TABLE])
def test_logits(spec):
    assert mlp(spec)(torch.zeros(3, *spec.shape)).shape == (3, spec.classes)


def test_dropout_follows_each_hidden_layer():
    rates = [m.p for m in mlp(TABLE, hidden=(8, 4), dropout=0.25).modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.25, 0.25]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"hidden": (8, 0)}, r"at least 1, got \[8, 0\]"), ({"dropout": 1.0}, r"dropout must be in \[0, 1\)")],
)
def test_out_of_range(options, message):
    with pytest.raises(InputError, match=message):
        mlp(TABLE, **options)


def test_text_is_refused():
    with pytest.raises(InputError, match="needs images or tabular data, got text"):
        mlp(InputSpec("text", (16,), 4, 100, 0))
