r"""Tensors as 8- or 16-bit codes with one scale a tensor.

For a tensor t with m = max |t|, and code c:

| kind | codes | value of a code | error |
|---|---|---|---|
| `linear16` | int16, -32767..32767 | c m / (2^15 - 1) | at most m / 65534, absolute |
| `linear8` | uint8, 1..255 (zero is 128) | (c - 128) m / 127 | at most m / 254, absolute |
| `log8` (t >= 0) | uint8, 0..255 | 0 for c = 0, else m 2^(-40 (255 - c) / 254) | at most 5.61 %, relative |

The range of `log8` is 40 octaves below m (a factor 1.1e12): neighbouring levels are 2^(40/254) apart, so
rounding to the nearest in log space errs by at most 2^(40/508) - 1 = 5.61 %. Positive values below m 2^-40
take code 1: they stay positive, with an absolute error below m 2^-40, and only zero becomes zero. This keeps
Fisher information, which spans many decades, where fp16 underflows.

Values are rounded to float32 before and after. Where a result is subnormal (below 1.18e-38) that adds up to
2^-149, since `log8` also keeps positive values from rounding to zero.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Kind", "Quantized", "dequantize", "quantize"]

Kind = Literal["linear16", "linear8", "log8"]

_TYPES = {"linear16": torch.int16, "linear8": torch.uint8, "log8": torch.uint8}
_LEVELS = {"linear16": 2**15 - 1, "linear8": 2**7 - 1}  # l_q: the code of the largest magnitude
_MIDDLE = 128  # the uint8 code of zero in linear8
_OCTAVES = 40
_STEPS_PER_OCTAVE = 254 / _OCTAVES
_SMALLEST = 2.0**-149  # the smallest positive float32


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized tensor.

    Attributes:
        codes: the codes, in the shape of the tensor; int16 for `linear16`, else uint8.
        scale: m, the largest magnitude of the tensor: finite, at least 0.
        kind: how codes become values.
    """

    codes: Tensor
    scale: float
    kind: Kind

    def __post_init__(self) -> None:
        """Refuses codes, scales and kinds that do not belong together."""
        expected = _type_of(self.kind)
        if self.codes.dtype != expected:
            raise ValueError(f"codes are {self.codes.dtype}; expected {expected} for kind {self.kind!r}")
        if not 0 <= self.scale <= torch.finfo(torch.float32).max:
            raise ValueError(f"scale is {self.scale}; expected a finite float32 value of at least 0")


def quantize(t: Tensor, kind: Kind) -> Quantized:
    """Quantizes a floating tensor of any shape, empty ones and scalars included.

    Args:
        t: finite values within the range of float32; for `log8` none negative.
        kind: see the table of this module.

    Raises:
        ValueError: for an unknown kind, a type not floating, NaN, infinity, or (`log8`) negative values.
    """
    code_type = _type_of(kind)
    if not t.is_floating_point():
        raise ValueError(f"the tensor is {t.dtype}; expected a floating type")
    values = t.detach().to(torch.float32)
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the tensor contains NaN, infinity or values beyond float32; expected finite values")
    if kind == "log8" and bool((values < 0).any()):
        raise ValueError(f"the tensor contains {float(values.min())}; log8 expects no negative values (use linear8)")
    scale = float(values.abs().max()) if values.numel() else 0.0
    # In float64 neither the ratio to the scale nor a step can underflow, whatever the float32 input.
    shares = values.to(torch.float64).div_(scale if scale else 1.0)
    if kind == "log8":
        # log2(0) = -inf becomes level 1 here, and is then replaced.
        codes = shares.log2_().mul_(_STEPS_PER_OCTAVE).round_().add_(255).clamp_(min=1)
        codes = codes.masked_fill_(values == 0, 0)
    else:
        codes = shares.mul_(_LEVELS[kind]).round_()
        codes = codes.add_(_MIDDLE) if kind == "linear8" else codes
    return Quantized(codes.to(code_type), scale, kind)


def dequantize(q: Quantized) -> Tensor:
    """The float32 tensor that the codes stand for, in their shape."""
    if q.kind == "log8":
        exponents = (torch.arange(256, dtype=torch.float64) - 255) / _STEPS_PER_OCTAVE
        table = (torch.exp2(exponents) * q.scale).clamp_(min=_SMALLEST if q.scale else 0.0)
        table[0] = 0.0
        table = table.to(q.codes.device, torch.float32)
        return table.index_select(0, q.codes.reshape(-1).to(torch.int32)).reshape(q.codes.shape)
    codes = q.codes.to(torch.float64)
    codes = codes.sub_(_MIDDLE) if q.kind == "linear8" else codes
    return codes.mul_(q.scale / _LEVELS[q.kind]).to(torch.float32)


def _type_of(kind: str) -> torch.dtype:
    if kind not in _TYPES:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(_TYPES)}")
    return _TYPES[kind]
