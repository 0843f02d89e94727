"""WB fusion: Akash, Li, Trillos, Wasserstein barycenter-based model fusion, arXiv:2210.06671.

| paper | here |
|---|---|
| barycentre of the layers' measures, alternating couplings and support, Eq. 9 | `numerics.transport.barycentre` |
| pi_k, couplings of uniform measures of equal size: permutations | `alignment.by_layers` |
| W = sum_k alpha_k (m m') pi_k W_k pi_prev^T | a mean of aligned models by `weights` |
| at most 100 iterations, mean squared change below 1e-5 | `iterations`, `tolerance` (its root) |

It is FedFiOT's alternation with equal Fisher information. Deviations: all models have one architecture, so couplings
are permutations; biases and norms are coordinates of their units; the support starts at the model of the client with
most examples, where the authors start from random values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.channels import Wiring
from fedfi.federation.algorithm import CONFIG
from fedfi.federation.packet import Tree
from fedfi.oneshot.alignment import Aligned, by_layers
from fedfi.oneshot.given import check_models, check_names, check_range, check_wiring
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.units import moved
from fedfi.oneshot.uploads import Merged, Upload, largest, shares


def barycentre_fusion(
    models: Sequence[Mapping[str, Tensor]],
    names: Sequence[str],
    wiring: Wiring,
    party: Sequence[float],
    *,
    reference: int = 0,
    iterations: int = 100,
    tolerance: float = 0.0,
) -> tuple[Tree, Aligned]:
    """The barycentre of K models, layer by layer.

    Args:
        models: Parameters and buffers by name.
        names: The trained parameters, by which units are compared.
        wiring: The channel groups.
        party: alpha, K weights.
        reference: The model that the support starts from.
        iterations: At most so many alternations a layer.
        tolerance: Stop when the support moves less (root mean square).

    Returns:
        The model, and the aligned ones.

    Raises:
        InputError: If models, names and weights do not fit together.
    """
    check_models(models, party)
    check_names(names, models[0])
    check_wiring(wiring, models[0])
    check_range("reference", reference, 0, len(models) - 1, whole=True)
    check_range("iterations", iterations, 1, whole=True)
    check_range("tolerance", tolerance, 0.0)
    weights = [{n: torch.full_like(m[n], p) for n in names} for m, p in zip(models, party, strict=True)]
    aligned = by_layers(wiring, models, weights, reference, iterations=iterations, tolerance=tolerance)
    return mean(aligned.models, party), aligned


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class WBFusion(OneShot):
    """Layer by layer the Wasserstein barycentre of the clients' neurons."""

    iterations: Annotated[int, Field(ge=1, description="alternations a layer at most")] = 100
    tolerance: Annotated[float, Field(ge=0, description="stop when the barycentre moves less (rms)")] = 0.00316

    needs_channels: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """The barycentre."""
        model, aligned = barycentre_fusion(
            [u.model for u in uploads],
            uploads[0].trained,
            context.server.wiring,
            shares(uploads, self.weights),
            reference=largest(uploads),
            iterations=self.iterations,
            tolerance=self.tolerance,
        )
        return Merged(model, {"permuted": moved(aligned.orders)[""]}, orders=aligned.orders)
