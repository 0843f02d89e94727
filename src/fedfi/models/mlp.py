"""A multilayer perceptron."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from fedfi.errors import InputError
from fedfi.models.shapes import Dropout, InputSpec, Units


def mlp(spec: InputSpec, *, hidden: tuple[Units, ...] = (64,), bias: bool = True, dropout: Dropout = 0.0) -> nn.Module:
    """Multilayer perceptron with ReLU on flattened images or rows of a table.

    Args:
        spec: Images or tabular data; inputs ``[batch, *shape]``, logits ``[batch, classes]``.
        hidden: Number of units of each hidden layer; none makes a linear model.
        bias: Whether layers have biases.
        dropout: Probability of dropping a hidden unit, in [0, 1).

    Raises:
        InputError: If the data are text or ratings, or an option is out of range.
    """
    if spec.kind not in ("image", "tabular"):
        raise InputError(f"model 'mlp' needs images or tabular data, got {spec.kind} of shape {spec.shape}")
    if any(units < 1 for units in hidden):
        raise InputError(f"hidden must be numbers of units of at least 1, got {list(hidden)}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be in [0, 1), got {dropout}")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    inputs = math.prod(spec.shape)
    for number, units in enumerate(hidden, start=1):
        layers[f"hidden{number}"] = nn.Linear(inputs, units, bias=bias)
        layers[f"relu{number}"] = nn.ReLU()
        if dropout:
            layers[f"dropout{number}"] = nn.Dropout(dropout)
        inputs = units
    layers["head"] = nn.Linear(inputs, spec.classes, bias=bias)
    return nn.Sequential(layers)
