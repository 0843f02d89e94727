"""Fisher merging: Matena, Raffel, Merging models with Fisher-weighted averaging, NeurIPS 2022, arXiv:2111.09832.

| paper | here |
|---|---|
| F, diagonal, Eq. 4: expectation over the model's own labels | `fisher = "exact"` |
| lambda_m F_m theta_m / lambda_m F_m, Eq. 3 | `fisher_mean` (`weights` give lambda) |
| F scaled to norm 1, and a floor of 1e-6 (its implementation) | `normalize`, `floor` |

Deviations: lambda is a client's share of the examples, where the paper searches it on validation data; with
`fisher = "observed"` gradients are of the observed labels, C times cheaper for C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.packet import Tree
from fedfi.oneshot.given import check_diagonals, check_models, check_range
from fedfi.oneshot.means import elementwise
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.uploads import Merged, Upload, shares


def fisher_mean(
    models: Sequence[Mapping[str, Tensor]],
    fishers: Sequence[Mapping[str, Tensor]],
    party: Sequence[float],
    *,
    normalize: bool = True,
    floor: float = 1e-6,
) -> Tree:
    """The mean of each parameter by parties' weights times its Fisher information.

    Args:
        models: K models.
        fishers: K diagonals, of the parameters.
        party: K weights.
        normalize: Scale each model's diagonal to norm 1 first.
        floor: The least value of a diagonal.

    Raises:
        InputError: If models, diagonals and weights do not fit together.
    """
    check_models(models, party)
    check_diagonals("fishers", fishers, models)
    check_range("floor", floor, 0.0)
    weights = []
    for fisher, p in zip(fishers, party, strict=True):
        norm = sum(float(f.double().square().sum()) for f in fisher.values()) ** 0.5 if normalize else 1.0
        weights.append({n: (f.double() / (norm or 1.0)).clamp(min=floor) * p for n, f in fisher.items()})
    return elementwise(models, weights, party)


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FisherMerge(OneShot):
    """The mean of models, each parameter weighted by its Fisher information."""

    fisher: Annotated[
        Literal["exact", "observed"], Field(description="labels from the model, in expectation, or the observed ones")
    ] = "exact"
    normalize: Annotated[bool, Field(description="scale each client's Fisher information to norm 1")] = True
    floor: Annotated[float, Field(ge=0, description="least Fisher information")] = 1e-6

    def needs(self) -> tuple[str, ...]:
        """A diagonal."""
        return ("exact",) if self.fisher == "exact" else ("fisher",)

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """The mean."""
        (kind,) = self.needs()
        diagonals = [u.measured(kind) for u in uploads]
        party = shares(uploads, self.weights)
        return Merged(
            fisher_mean([u.model for u in uploads], diagonals, party, normalize=self.normalize, floor=self.floor)
        )
