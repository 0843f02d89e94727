"""Operations whose result for one entry does not depend, to the bit, on how many other entries there are.

Torch computes the last few entries of a tensor, which do not fill a register of the processor, by other instructions
than the rest, and a batch of one matrix by another routine than a batch of more. What is computed for many clients at
once must not show who else was there, so lengths are filled up and a single matrix is given a companion.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

LANES = 64
"""A multiple of the entries of any processor's vector loop."""


def full(length: int) -> int:
    """The next multiple of `LANES`."""
    return -(-length // LANES) * LANES


def elementwise(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A function such as the sigmoid of values ``[e]``, entry by entry."""
    length = len(values)
    return function(functional.pad(values, (0, full(length) - length)))[:length]


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Products ``[n, a, c]`` of matrices ``[n, a, b]`` and ``[n, b, c]``."""
    if len(left) != 1:
        return torch.bmm(left, right)
    return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]
