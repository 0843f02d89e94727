"""HeteroFL: Diao, Ding, Tarokh, Computation and Communication Efficient FL for Heterogeneous Clients, ICLR 2021.

| paper | here |
|---|---|
| W_l^p, the first columns and rows | `Wiring.prefix` |
| shrinkage ratio r of a level | `ratio = "width"`; under `"params"` the width whose parameters fit |
| aggregation over W^{p-1} minus W^p | `holders.HolderMean` |
| Scaler | `scaler` |
| masked cross-entropy | `masked_loss`, and `label_rows` for the classifier |
| static batch normalisation | `norm = "static"` of a model; its statistics come from the server's validation examples |
| fix, dynamic | `level_mode` |

Deviations:

- The first ceil(r C) channels are kept of whatever may be cut together: a pair of channels where group normalisation
  has groups of two, a head of attention.
- The authors cut attention inside every head, here whole heads go; levels of `level_mode = "dynamic"` keep exact
  shares, where theirs are drawn independently.
- In the authors' code a client's classifier rows of absent classes are left out of the mean, as `label_rows` does;
  there the server knows every client's classes, here a client sends them, a bit each.
- The authors take the statistics of static batch normalisation from all training examples in one place. A federation
  has no such place; the server's own examples are used.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic.dataclasses import dataclass as validated

from fedfi.channels import Units, Wiring
from fedfi.federation.algorithm import CONFIG
from fedfi.submodel.structured import LabelRows, MaskedLoss, Scaler, Structured


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class HeteroFL(Structured):
    """The first channels of every layer, as a small dense network."""

    scaler: Scaler = True
    masked_loss: MaskedLoss = True
    label_rows: LabelRows = True

    def units(self, wiring: Wiring, width: float, round: int, rng: torch.Generator) -> Units:
        """The first ones."""
        return wiring.prefix(width)
