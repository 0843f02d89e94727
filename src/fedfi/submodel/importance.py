"""Running averages of Fisher information: one a client, on disk, and one that all clients share.

Convention of this file: a stored value below zero means "never observed"; such an entry counts as its prior, which
is |x_0| times a scale. Shapes are `[pool]`, the selectable entries of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

WarmStart = Literal["replace", "rescale", "raw"]
UNSEEN = -1.0


@dataclass(frozen=True)
class Averaging:
    """How an average takes in an estimate (Eq. 9, and what comes before it).

    Attributes:
        rate: The share alpha of the old value.
        warm_start: What the prior is worth at an entry's first observation: ``"replace"``: nothing;
            ``"rescale"``: as much as an estimate, brought to the estimates' mean; ``"raw"``: as it is (literal).
            Until then an entry ranks by its prior, at the estimates' mean but for ``"raw"``.
    """

    rate: float
    warm_start: WarmStart

    def first_scale(self, estimate: Tensor, observed: Tensor | None, prior: Tensor) -> float:
        """The prior's scale, fixed at the first estimate.

        Where some entries stay unobserved, their prior has to rank beside estimates, so it is brought to the
        estimates' mean unless the literal reading (``"raw"``) is asked for.
        """
        if self.warm_start == "raw" or (self.warm_start == "replace" and observed is None):
            return 1.0
        seen, weights = (estimate, prior) if observed is None else (estimate[observed], prior[observed])
        mass, total = float(seen.double().sum()), float(weights.double().sum())
        return mass / total if mass and total else 1.0

    def update(
        self, stored: Tensor | None, estimate: Tensor, observed: Tensor | None, prior: Tensor, scale: float
    ) -> Tensor:
        """The average after one more estimate.

        Args:
            stored: The average so far, or None.
            estimate: The new estimate; read only where observed.
            observed: Which entries were observed; None means all.
            prior: |x_0|.
            scale: The prior's scale.
        """
        known = torch.full_like(prior, UNSEEN) if stored is None else stored
        mixed = self.rate * resolve(known, prior, scale) + (1 - self.rate) * estimate
        if self.warm_start == "replace":
            mixed = torch.where(known < 0, estimate, mixed)
        return mixed if observed is None else torch.where(observed, mixed, known)


def resolve(stored: Tensor, prior: Tensor, scale: float) -> Tensor:
    """The average with its prior where nothing was observed."""
    return torch.where(stored < 0, prior * scale, stored)


def score(kind: Literal["fisher", "fisher2x2", "magnitude"], importance: Tensor, weights: Tensor) -> Tensor:
    """What a submodel is selected by: F (Eq. 10), F^2 x^2 (Eq. 6; as F |x|, which ranks the same) or |x|."""
    if kind == "fisher":
        return importance
    return weights.abs() if kind == "magnitude" else importance * weights.abs()
