"""Running averages of Fisher information: one a client, on disk, and one that all clients share.

Convention of this file: a stored value below zero means "never observed"; such an entry counts as its prior, which
is |x_0| times a scale. Shapes are `[pool]`, the selectable entries of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedfi.federation.rows import RowStore, Storage

WarmStart = Literal["replace", "rescale", "raw"]
UNSEEN = -1.0
DIGIT_BITS = 16
"""Binary digits after the point of what `divided` makes."""

_SCALES, _GRAIN = (2.0**-12, 2.0**4, 2.0**20), 2.0**-DIGIT_BITS


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


@dataclass
class Averages:
    """All averages of a federation: of each client that took part, and the one that all share.

    Attributes:
        prior: |x_0| of the selectable entries.
        shared: The average over the rounds' mean estimates, as stored.
        shared_scale: The prior's scale in it.
        rows: The average of each client that took part, as stored.
        scales: The prior's scale in each of them.
    """

    prior: Tensor
    shared: Tensor
    shared_scale: float
    rows: RowStore
    scales: dict[str, float]

    @staticmethod
    def new(prior: Tensor, storage: Storage) -> Averages:
        """Before anything was measured."""
        return Averages(prior, torch.full_like(prior, UNSEEN), 1.0, RowStore(len(prior), storage), {})

    def own(self, client: str) -> Tensor:
        """The average of a client that took part."""
        return resolve(self.rows.read(client), self.prior, self.scales[client])

    def common(self) -> Tensor:
        """The average that all share; the prior before anybody took part."""
        return resolve(self.shared, self.prior, self.shared_scale)

    def mean_of(self, clients: Sequence[str]) -> Tensor:
        """The mean of these clients' own averages."""
        mean = torch.zeros_like(self.prior)
        for client in clients:
            mean += self.own(client) / len(clients)
        return mean

    def following(self, pooled: Tensor, seen: Tensor | None, averaging: Averaging) -> Averages:
        """These averages after the shared one has taken in a round's mean estimate; `seen` says of which entries."""
        scale = self.shared_scale
        if bool((self.shared < 0).all()):
            scale = averaging.first_scale(pooled, seen, self.prior)
        shared = averaging.update(self.shared, pooled, seen, self.prior, scale)
        return replace(self, shared=shared, shared_scale=scale)

    def begin(self, own: bool) -> Round:
        """Starts a round; what it adds reaches these averages only by `Round.end`.

        Args:
            own: Whether clients have averages of their own.
        """
        return Round(self, self.rows.fork(), dict(self.scales), own)


class Round:
    """Folds the estimates of one round."""

    def __init__(self, before: Averages, rows: RowStore, scales: dict[str, float], own: bool) -> None:
        self._before, self._rows, self._scales, self._own = before, rows, scales, own
        self._total, self._count = torch.zeros_like(before.prior), torch.zeros_like(before.prior)

    def add(self, client: str, estimate: Tensor, observed: Tensor | None, averaging: Averaging) -> None:
        """Adds a client's estimate; `observed` as in `Averaging.update`."""
        self._total += estimate
        self._count += 1.0 if observed is None else observed
        if not self._own:
            return
        prior = self._before.prior
        if client not in self._scales:
            self._scales[client] = averaging.first_scale(estimate, observed, prior)
        stored = self._rows.read(client) if client in self._rows else None
        self._rows.write(client, averaging.update(stored, estimate, observed, prior, self._scales[client]))

    def kept(self) -> Averages:
        """The averages after the round, but for the shared one, which stays."""
        return replace(self._before, rows=self._rows, scales=self._scales)

    def end(self, averaging: Averaging) -> Averages:
        """The averages after the round."""
        count = self._count
        seen = None if bool((count > 0).all()) else count > 0
        return self.kept().following(self._total / count.clamp(min=1), seen, averaging)


def resolve(stored: Tensor, prior: Tensor, scale: float) -> Tensor:
    """The average with its prior where nothing was observed."""
    return torch.where(stored < 0, prior * scale, stored)


def score(kind: Literal["fisher", "fisher2x2", "magnitude"], importance: Tensor, weights: Tensor) -> Tensor:
    """What a submodel is selected by: F (Eq. 10), F^2 x^2 (Eq. 6; as F |x|, which ranks the same) or |x|."""
    if kind == "fisher":
        return importance
    return weights.abs() if kind == "magnitude" else importance * weights.abs()


def divided(estimate: Tensor) -> list[Tensor]:
    """An estimate as three vectors of digits, from the highest to the lowest, all but the last multiples of 2^-16.

    Fisher values span more decades than a fixed point that is made for weights. The means of these vectors in such a
    fixed point, of numbers up to 8, tell the mean of estimates up to 2^15, with twenty more binary digits.
    """
    digits, rest = [], estimate.double()
    for scale in _SCALES[:-1]:
        digits.append((rest * scale / _GRAIN).round() * _GRAIN)
        rest = rest - digits[-1] / scale
    return [d.float() for d in (*digits, rest * _SCALES[-1])]


def undivided(digits: Sequence[Tensor]) -> Tensor:
    """The inverse of `divided`, float32; what rounding has left below zero is zero, as no Fisher value is."""
    total = torch.zeros_like(digits[0], dtype=torch.float64)
    for part, scale in zip(digits, _SCALES, strict=True):
        total += part.double() / scale
    return total.clamp(min=0).float()
