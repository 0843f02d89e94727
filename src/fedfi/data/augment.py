"""Random crops and flips of a batch of images at once, without a loop over images.

Images ``[b, C, H, W]`` of any dtype, before normalisation: the border of a crop is black, not the mean
colour.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

TRANSFORMS = ("crop", "flip")
PAD = 4


def random_crop(images: Tensor, rng: torch.Generator) -> Tensor:
    """Pads each image with zeros by `PAD` on every side and cuts its old size out at a uniform offset.

    Args:
        images: ``[b, C, H, W]``.
        rng: Draws rows then columns of the offsets, int64 ``[2, b]`` in ``0 .. 2 PAD``.

    Returns:
        A new tensor ``[b, C, H, W]``.
    """
    count, _, height, width = images.shape
    down, right = torch.randint(0, 2 * PAD + 1, (2, count), generator=rng)
    windows = functional.pad(images, (PAD,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(count), :, down, right]


def random_flip(images: Tensor, rng: torch.Generator) -> Tensor:
    """Mirrors each image left to right with probability one half.

    Args:
        images: ``[b, C, H, W]``.
        rng: Draws one bit an image, int64 ``[b]``; 1 mirrors.

    Returns:
        A new tensor ``[b, C, H, W]``.
    """
    mirror = torch.randint(0, 2, (len(images),), generator=rng).bool()
    return torch.where(mirror[:, None, None, None], images.flip(-1), images)
