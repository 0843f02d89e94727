"""Inputs out of updates: Geiping et al., Inverting Gradients, NeurIPS 2020.

| paper | here |
|---|---|
| 1 - cosine(gradient of x, observed), Eq. 4 | `_distance`, over the entries that are known |
| total variation of the image | `variation` |
| signed gradients, Adam, step decay | `invert` |
| the search stays among images: pixels of 0 to 1 | `bounds` |
| labels are known (Zhao et al., iDLG, 2020, read them off the update) | given: the best case for the attack |

An update of several steps is attacked as one gradient, which it is up to curvature. Entries that are not known take no
part in the cosine; where nothing is known there is nothing to match, and the guess that the search begins with stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedfi.federation.task import Loss


@dataclass(frozen=True)
class Inversion:
    """What an inversion came to.

    Attributes:
        inputs: The reconstructed model inputs `[n, ...]`.
        distance: 1 - cosine at the end; 1 where nothing was known.
        start: What the search began with, which owes nothing to the update.
    """

    inputs: Tensor
    distance: float
    start: Tensor


def invert(
    module: nn.Module,
    parameters: dict[str, Tensor],
    change: dict[str, Tensor],
    known: dict[str, Tensor],
    loss: Loss,
    shape: tuple[int, ...],
    targets: Tensor,
    *,
    iterations: int = 600,
    rate: float = 0.1,
    variation: float = 1e-2,
    bounds: tuple[Tensor, Tensor] | None = None,
    rng: torch.Generator,
) -> Inversion:
    """Searches the inputs whose gradient points where the update does.

    Args:
        module: The architecture, which the server knows.
        parameters: Where training started, by name.
        change: Start minus end, which is along the gradient.
        known: Which entries of it the server can read.
        loss: Per-example loss.
        shape: Of one input.
        targets: The labels `[n]`.
        iterations: Steps of the search.
        rate: Its step size.
        variation: Weight of the total variation (images).
        bounds: Smallest and largest value of an input, of shapes that spread over it; None: any value may be.
        rng: Source of the first guess.
    """
    guess = torch.randn((len(targets), *shape), generator=rng)
    if not any(bool(k.any()) for k in known.values()):
        return Inversion(guess, 1.0, guess)
    start = guess.clone()
    guess.requires_grad_()
    optimizer = torch.optim.Adam([guess], lr=rate)
    marks = [int(iterations * s) for s in (3 / 8, 5 / 8, 7 / 8)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, marks, gamma=0.1)
    leaves = {n: p.detach().clone().requires_grad_() for n, p in parameters.items()}
    module.eval()
    distance = torch.ones(())
    for _ in range(iterations):
        optimizer.zero_grad()
        losses = loss(functional_call(module, leaves, (guess,)), targets)
        gradients = torch.autograd.grad(losses.mean(), list(leaves.values()), create_graph=True, allow_unused=True)
        distance = _distance(dict(zip(leaves, gradients, strict=True)), change, known)
        (slope,) = torch.autograd.grad(distance + variation * _variation(guess), [guess])
        guess.grad = slope.sign()
        optimizer.step()
        schedule.step()
        if bounds:  # a network with norms hardly sees brightness and contrast, so that values would wander off
            with torch.no_grad():
                guess.clamp_(*bounds)
    return Inversion(guess.detach(), float(distance.detach()), start)


def _distance(gradients: dict[str, Tensor | None], change: dict[str, Tensor], known: dict[str, Tensor]) -> Tensor:
    product, own, other = torch.zeros(()), torch.zeros(()), torch.zeros(())
    for name, gradient in gradients.items():
        if gradient is not None and bool(known[name].any()):
            mine, observed = gradient[known[name]], change[name][known[name]]
            product = product + (mine * observed).sum()
            own, other = own + mine.square().sum(), other + observed.square().sum()
    return 1 - product / (own.sqrt() * other.sqrt() + 1e-12)


def _variation(images: Tensor) -> Tensor:
    if images.ndim != 4:
        return images.new_zeros(())
    return images.diff(dim=2).abs().mean() + images.diff(dim=3).abs().mean()


def psnr(a: Tensor, b: Tensor, span: float = 1.0) -> float:
    """Peak signal-to-noise ratio of two images in dB; infinite where they are equal."""
    error = float((a.double() - b.double()).square().mean())
    return math.inf if error == 0 else 10 * math.log10(span**2 / error)


def ssim(a: Tensor, b: Tensor, span: float = 1.0, window: int = 7) -> float:
    """Structural similarity (Wang et al., 2004) of two images `[C, H, W]`, with uniform windows."""
    window = min(window, *a.shape[-2:])
    x, y = a.double().unsqueeze(0), b.double().unsqueeze(0)

    def mean(t: Tensor) -> Tensor:
        return functional.avg_pool2d(t, window, stride=1)

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    value = (2 * mx * my + c1) * (2 * cov + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return float(value.mean())
