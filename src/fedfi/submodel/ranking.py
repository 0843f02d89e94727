"""Which entries a submodel keeps, by scores: the k best of each pool, over all of it or inside each part."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from fedfi.federation.workbench import VectorLayout
from fedfi.numerics.selection import select

Scope = Literal["global", "block", "layer"]
"""One ranking for all of a pool, one for each block, or one for each parameter.

A block is a part of the network at its top: the parameters whose names begin alike up to the first dot. In a ResNet
these are the stem, the stages and the head, inside each of which FIARSE's layer-wise variant ranks.
"""


def pools(layout: VectorLayout) -> Iterator[tuple[slice, list[str], list[int]]]:
    """Each pool: where it lies in the vector, the names of its parameters, and their sizes."""
    first = start = 0
    for count in layout.pools:
        names, sizes = layout.names[first : first + count], layout.sizes[first : first + count]
        yield slice(start, start + sum(sizes)), names, sizes
        first, start = first + count, start + sum(sizes)


def best(
    layout: VectorLayout, scores: Tensor, ratio: float, *, scope: Scope, floor: float = 0.0, ties: Tensor | None = None
) -> Tensor:
    """The mask `[pool]` of the best ceil(ratio d) entries of each pool (or of each block or layer of it).

    Args:
        layout: Gives the pools and what they are made of.
        scores: `[pool]`.
        ratio: The fraction kept, in (0, 1].
        scope: Over what a ranking goes.
        floor: With the global scope, the part of its proportional share that each layer keeps at least.
        ties: `[pool]`; among equal scores the larger value here wins, then the lower index.
    """
    masks = []
    for place, names, sizes in pools(layout):
        within = blocks(names, sizes) if scope == "block" else sizes
        masks.append(
            select(
                scores[place],
                ratio,
                sizes=within,
                scope="global" if scope == "global" else "layer",
                floor=floor,
                ties=None if ties is None else ties[place],
            )
        )
    return torch.cat(masks)


def blocks(names: list[str], sizes: list[int]) -> list[int]:
    """Sizes of the runs of parameters whose names begin alike up to the first dot."""
    runs = groupby(zip(names, sizes, strict=True), key=lambda item: item[0].split(".")[0])
    return [sum(size for _, size in run) for _, run in runs]


def thresholds(layout: VectorLayout, weights: Tensor, mask: Tensor, scope: Scope) -> Tensor:
    """The threshold of each entry's ranking `[pool]`: its smallest kept |w|.

    It is 0 where a ranking keeps everything, and infinite where it keeps nothing.
    """
    result = torch.full_like(weights, torch.inf)
    size = weights.abs()
    for place, names, sizes in pools(layout):
        parts = {"global": [sum(sizes)], "block": blocks(names, sizes), "layer": sizes}[scope]
        start = place.start
        for length in parts:
            part = slice(start, start + length)
            kept = size[part][mask[part]]
            if len(kept):
                result[part] = kept.min() if len(kept) < length else 0.0
            start += length
    return result


def pool_thresholds(layout: VectorLayout, weights: Tensor, mask: Tensor) -> Tensor:
    """The threshold of each pool `[pools]`: its smallest kept |w|, or 0 where it keeps everything."""
    size = weights.abs()
    least = [size[place][mask[place]].min() * ~mask[place].all() for place, _, _ in pools(layout)]
    return torch.stack(least)


def spread(layout: VectorLayout, values: Tensor) -> Tensor:
    """A value a pool `[pools]`, given to each of its entries `[pool]`."""
    return torch.cat(
        [v.expand(place.stop - place.start) for v, (place, _, _) in zip(values, pools(layout), strict=True)]
    )
