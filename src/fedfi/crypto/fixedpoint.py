"""Real numbers as whole numbers whose sum cannot wrap around.

A client of weight a in (0, 1] sends round(a clip(w, -R, R) 2^f) and, once a packet, round(a 2^f). The sums of both are
exact, and their quotient is the weighted mean; the weights stay hidden in the sum. With K contributors no sum exceeds
K R 2^f, which must stay within the scheme's limit: the encoder refuses otherwise, before anything is encrypted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfi.crypto.parameters import LIMIT
from fedfi.errors import InputError
from fedfi.numerics.rounding import rounded


@dataclass(frozen=True)
class FixedPoint:
    """How numbers are rounded.

    Attributes:
        clip: R, the largest magnitude; larger values are cut to it.
        bits: f, binary digits after the point.
        contributors: K, the most values that may be added up.
    """

    clip: float
    bits: int
    contributors: int

    def __post_init__(self) -> None:
        """Refuses what could wrap around."""
        if not (math.isfinite(self.clip) and self.clip > 0) or self.contributors < 1 or self.bits < 1:
            raise InputError(
                f"fixed point with clip = {self.clip}, bits = {self.bits}, contributors = {self.contributors}:"
                " all must be positive"
            )
        if self.largest_sum > LIMIT:
            _refuse_too_large(self.clip, self.contributors)
            fits = _most_bits(self.clip, self.contributors)
            raise InputError(
                f"encryption.fraction_bits = {self.bits}: {self.contributors} values of up to {self.clip:g} may sum to"
                f" {self.largest_sum:.3g}, beyond {LIMIT} (nearest valid: {fits})"
            )

    @staticmethod
    def fitting(clip: float, contributors: int) -> FixedPoint:
        """The most binary digits that leave room for `contributors` values.

        Raises:
            InputError: If not even one digit after the point fits.
        """
        _refuse_too_large(clip, contributors)
        return FixedPoint(clip, _most_bits(clip, contributors), contributors)

    @property
    def largest_sum(self) -> float:
        """K (max(R, 1) 2^f + 1/2): the weight itself, of at most 1, is sent too."""
        return self.contributors * (max(self.clip, 1.0) * 2.0**self.bits + 0.5)

    def encode(self, values: Tensor, weight: float = 1.0) -> Tensor:
        """Weighted, clipped and rounded values, int64 in the shape of `values`.

        Args:
            values: Real numbers of any shape.
            weight: a, in (0, 1].

        Raises:
            InputError: For NaN, infinity, or a weight out of range.
        """
        if not 0 < weight <= 1:
            raise InputError(f"weight = {weight}: must be above 0 and at most 1")
        wide = values.detach().double()
        if not bool(torch.isfinite(wide).all()):
            count = int((~torch.isfinite(wide)).sum())
            raise InputError(f"{count} of {wide.numel()} values are NaN or infinite and cannot be encrypted")
        return wide.clamp(-self.clip, self.clip).mul(weight * 2.0**self.bits).round().to(torch.int64)

    def clipped(self, values: Tensor) -> int:
        """How many values `encode` would cut."""
        return int((values.detach().double().abs() > self.clip).sum())

    def refuse_cut(self, values: Tensor) -> None:
        """Refuses values that `encode` would cut; those that are no numbers it refuses itself.

        The text of the error reaches whoever adds up, so it tells of the data no more than the power of two.

        Raises:
            InputError: With the least power of two that, as a clip, holds them all.
        """
        finite = values.detach()[torch.isfinite(values.detach())]
        if self.clipped(finite):
            mantissa, exponent = math.frexp(float(finite.double().abs().max()))
            enough = 2.0 ** (exponent - (mantissa == 0.5))
            raise InputError(
                f"encryption.clip = {self.clip:g}: a value is beyond it and would be cut"
                f" (nearest power of two that is enough: {enough:.17g})"
            )

    def weight(self, weight: float) -> int:
        """The denominator's share of a contributor."""
        return int(self.encode(torch.tensor(1.0 if self.clip >= 1 else self.clip), weight))

    def mean(self, sums: Tensor, denominator: Tensor) -> Tensor:
        """The weighted mean in float64 of sums (any shape) and of the sum of `weight`s that broadcasts to it."""
        unit = 1.0 if self.clip >= 1 else self.clip
        return sums.double() / denominator.double() * unit

    def error(self, contributors: int, weights: float) -> float:
        """Bound on the error of a mean of values within the clip, for weights that sum to `weights`.

        Each of the numerator's terms is off by at most 1/2 of 2^-f, and so is each of the denominator's, which
        counts R times as much.
        """
        return contributors * 0.5 * 2.0**-self.bits * (1 + max(self.clip, 1.0)) / weights


def _refuse_too_large(clip: float, contributors: int) -> None:
    if _most_bits(clip, contributors) < 1:
        most = (LIMIT / contributors - 0.5) / 2
        raise InputError(
            f"encryption.clip = {clip:g}: {contributors} contributors of that size leave no digit after the point"
            f" (nearest valid: {rounded(most, 6, up=False)})"
        )


def _most_bits(clip: float, contributors: int) -> int:
    return math.floor(math.log2((LIMIT / contributors - 0.5) / max(clip, 1.0)))
