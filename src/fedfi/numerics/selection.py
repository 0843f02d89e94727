"""Exact, deterministic choice of the k best coordinates, and masks as bytes.

Shape convention: one flat vector of d scores; a segment is a run of consecutive coordinates (a layer's
parameter, flattened), and the segments cover the vector in order.

The threshold comes from `numpy.partition`, whose introselect is linear in the worst case. `torch.kthvalue` is
not: on 11 million descending values it needs minutes instead of a tenth of a second. `torch.topk` is slower
too, and does not say which of several equal scores it returns. Where most scores are equal, as after few steps of
a network with dead units, `numpy.partition` takes five times as long; so two quantiles of a sample bracket the
threshold first, as Floyd and Rivest (1975) do, and only what lies between them is partitioned. Counting decides
whether the bracket holds; the sample decides nothing but the time.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["count_for", "jaccard", "keep_rates", "pack_bits", "select", "top_k_mask", "unpack_bits"]

Scope = Literal["global", "layer"]

# A ratio such as 0.1 or 1 - 0.7 stands for the number next to it: so many units in the last place are equal.
_SLACK = 4

_SAMPLE = 1 << 12
_SPREAD = 3 * _SAMPLE**0.5 / 2
"""Three standard deviations, at most, of the place of a quantile in a sample."""


def top_k_mask(scores: Tensor, k: int, *, ties: Tensor | None = None) -> Tensor:
    """Marks the k largest scores: always exactly k, always the same ones, in O(d).

    Args:
        scores: real numbers `[d]`; infinities are allowed.
        k: how many to mark, 0 to d.
        ties: `[d]`; among equal scores the larger value here wins; then, or without it, the lower index.

    Returns:
        A boolean mask `[d]` on the device of `scores`.

    Raises:
        ValueError: for scores or ties that are not a vector `[d]` or hold NaN, or k outside [0, d].
    """
    values, keys = _ranked(scores, ties)
    if not 0 <= k <= values.size:
        raise ValueError(f"k is {k}; expected 0 to {values.size}, the number of scores")
    return torch.from_numpy(_top_k(values, k, keys)).to(scores.device)


def count_for(ratio: float, size: int) -> int:
    """ceil(ratio * size) for the ratio that was meant: 0.1 of 30 is 3, though 0.1 is a float above one tenth.

    When a whole count's share of `size` lies within 4 units in the last place of `ratio`, that is the count.

    Args:
        ratio: the fraction kept, in (0, 1].
        size: the number of coordinates, at least 0.

    Raises:
        ValueError: for a ratio outside (0, 1] or a negative size.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio is {ratio}; expected a fraction in (0, 1]")
    if size < 0:
        raise ValueError(f"size is {size}; expected 0 or more")
    return math.ceil(_product(ratio, size))


def select(
    scores: Tensor,
    ratio: float,
    *,
    sizes: Sequence[int],
    scope: Scope = "global",
    floor: float = 0.0,
    ties: Tensor | None = None,
) -> Tensor:
    """Marks the best `ratio` of the coordinates, over all segments together or inside each.

    Args:
        scores: `[d]`.
        ratio: the fraction kept, in (0, 1].
        sizes: the lengths of the segments, each at least 1, summing to d.
        scope: "global" marks ceil(ratio d) of all; "layer" marks ceil(ratio d_l) of each segment.
        floor: in [0, 1]. When positive, with the global scope, each segment first keeps its best
            max(1, floor(floor * ratio * d_l)), and the global ranking fills the rest up to ceil(ratio d). If
            these reserved ones exceed that total, the 1 is dropped. The layer scope meets any floor anyway.
        ties: `[d]`, see `top_k_mask`.

    Returns:
        A boolean mask `[d]`.

    Raises:
        ValueError: for arguments outside these ranges, NaN scores, or an unknown scope.
    """
    values, keys = _ranked(scores, ties)
    if not 0 <= floor <= 1:
        raise ValueError(f"floor is {floor}; expected a fraction in [0, 1]")
    if scope not in ("global", "layer"):
        raise ValueError(f"scope is {scope!r}; expected 'global' or 'layer'")
    bounds, total = _bounds(sizes, values.size), count_for(ratio, values.size)
    if scope == "layer":
        mask = _best_of_each(values, keys, bounds, [count_for(ratio, size) for size in sizes])
    elif floor == 0:
        mask = _top_k(values, total, keys)
    else:
        shares = [math.floor(_product(floor * ratio, size)) for size in sizes]
        reserved = [max(1, share) for share in shares]
        mask = _best_of_each(values, keys, bounds, reserved if sum(reserved) <= total else shares)
        if values.max() < np.inf:  # the reserved ones come first in a global ranking, which takes them all
            mask = _top_k(np.where(mask, np.inf, values).astype(values.dtype, copy=False), total, keys)
        else:
            free, missing = ~mask, total - int(np.count_nonzero(mask))
            mask[free] = _top_k(values[free], missing, None if keys is None else keys[free])
    return torch.from_numpy(mask).to(scores.device)


def pack_bits(mask: Tensor) -> bytes:
    """A boolean mask `[d]` as ceil(d / 8) bytes; coordinate i is bit i % 8 (lowest first) of byte i // 8."""
    return np.packbits(_mask(mask, "mask"), bitorder="little").tobytes()


def unpack_bits(data: bytes, size: int) -> Tensor:
    """The mask `[size]` that `pack_bits` wrote.

    Raises:
        ValueError: if `data` is not ceil(size / 8) bytes, or a bit beyond `size` is set.
    """
    if size < 0 or len(data) != -(-size // 8):
        raise ValueError(f"{len(data)} bytes for {size} bits; expected {max(0, -(-size // 8))} bytes")
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if bits[size:].any():
        raise ValueError(f"a padding bit after the {size} bits of the mask is set; expected zeros")
    return torch.from_numpy(bits[:size].astype(np.bool_))


def jaccard(a: Tensor, b: Tensor) -> float:
    """|a and b| / |a or b| of two boolean masks `[d]`; 1.0 when both are empty."""
    left, right = _mask(a, "a"), _mask(b, "b")
    if left.shape != right.shape:
        raise ValueError(f"masks of {left.size} and {right.size} coordinates; expected the same length")
    union = int(np.count_nonzero(left | right))
    return int(np.count_nonzero(left & right)) / union if union else 1.0


def keep_rates(mask: Tensor, sizes: Sequence[int]) -> list[float]:
    """The fraction of each segment that a boolean mask `[d]` keeps; the lengths `sizes` sum to d."""
    flags = _mask(mask, "mask")
    return [float(flags[start:end].mean()) for start, end in pairwise(_bounds(sizes, flags.size))]


def _top_k(values: NDArray[Any], k: int, ties: NDArray[Any] | None) -> NDArray[np.bool_]:
    if k == 0 or k == values.size:
        return np.full(values.size, k > 0)
    threshold = _kth_largest(values, k)
    mask: NDArray[np.bool_] = values > threshold
    missing = k - int(np.count_nonzero(mask))
    tied = values == threshold
    if ties is not None and missing < np.count_nonzero(tied):
        mask[tied] = _top_k(ties[tied], missing, None)
    else:
        mask[np.flatnonzero(tied)[:missing]] = True
    return mask


def _kth_largest(values: NDArray[Any], k: int) -> Any:
    """The k-th largest value, 1 <= k <= size."""
    if values.size < 4 * _SAMPLE:
        return _partitioned(values, k)
    sample = np.sort(values[:: values.size // _SAMPLE | 1])
    place = sample.size * (1 - k / values.size)
    low, high = (sample[int(min(max(place + s, 0), sample.size - 1))] for s in (-_SPREAD, _SPREAD))
    inside = values > low
    above_low, above_high = int(np.count_nonzero(inside)), int(np.count_nonzero(values > high))
    if above_low < k <= above_low + int(np.count_nonzero(values == low)):
        return low
    if not above_high < k <= above_low:
        return _partitioned(values, k)  # the sample misled
    inside &= values <= high
    return _partitioned(values[inside], k - above_high)


def _partitioned(values: NDArray[Any], k: int) -> Any:
    return np.partition(values, values.size - k)[values.size - k]


def _best_of_each(
    values: NDArray[Any], ties: NDArray[Any] | None, bounds: list[int], counts: Sequence[int]
) -> NDArray[np.bool_]:
    mask = np.zeros(values.size, dtype=np.bool_)
    for (start, end), count in zip(pairwise(bounds), counts, strict=True):
        mask[start:end] = _top_k(values[start:end], count, None if ties is None else ties[start:end])
    return mask


def _product(share: float, size: int) -> Fraction:
    """Share times size, exactly, but a whole number when one lies within the float's own uncertainty."""
    product = Fraction(share) * size
    nearest = round(product)
    return Fraction(nearest) if abs(product - nearest) <= _SLACK * Fraction(math.ulp(share)) * size else product


def _bounds(sizes: Sequence[int], total: int) -> list[int]:
    if any(size < 1 for size in sizes) or sum(sizes) != total:
        raise ValueError(
            f"sizes sum to {sum(sizes)}, the smallest is {min(sizes, default=0)}; "
            f"expected sizes of at least 1 summing to {total}"
        )
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    return bounds


def _ranked(scores: Tensor, ties: Tensor | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    values, keys = _vector(scores, "scores"), None if ties is None else _vector(ties, "ties")
    if keys is not None and keys.shape != values.shape:
        raise ValueError(f"ties has {keys.size} entries; expected one for each of the {values.size} scores")
    return values, keys


def _vector(values: Tensor, name: str) -> NDArray[Any]:
    if values.ndim != 1 or values.is_complex():
        raise ValueError(
            f"{name} has shape {list(values.shape)}, {values.dtype}; expected a vector [d] of real numbers"
        )
    values = values.detach()
    # numpy has no bfloat16, and is slow with float16; both fit into float32 exactly.
    array = (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).cpu().numpy()
    if array.size and np.isnan(array.max()):
        raise ValueError(f"{name} contains NaN; expected numbers that can be ordered")
    return array


def _mask(mask: Tensor, name: str) -> NDArray[np.bool_]:
    if mask.ndim != 1 or mask.dtype != torch.bool:
        raise ValueError(f"{name} has shape {list(mask.shape)}, {mask.dtype}; expected a boolean vector [d]")
    array: NDArray[np.bool_] = mask.detach().cpu().numpy()
    return array
