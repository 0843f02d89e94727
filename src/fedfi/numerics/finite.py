"""Whether numbers are numbers, looked at once."""

import math

import torch
from torch import Tensor


def all_finite(values: Tensor) -> bool:
    """Whether no entry is infinite or NaN.

    A finite sum shows it in one pass without a copy, since neither infinities nor NaN can leave a sum again; a sum that
    is itself too large is followed by a look at every entry.
    """
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())
