"""FedRolex: Alam, Liu, Yan, Zhang, FedRolex: Model-Heterogeneous FL with Rolling Sub-Model Extraction, NeurIPS 2022.

| paper | here |
|---|---|
| S_n^(j), the window that rolls by one each round | `Wiring.rolled`, shift = round |
| capacity beta_n | a width: `ratio = "width"`; under `"params"` the width whose parameters fit |
| aggregation by holders, Eq. 4 | `holders.HolderMean` |

All clients share the window's start. Of a layer with n channels on either side, windows of width w reach the entries
whose two indices lie less than wn apart around the circle: (2w - 1/n) of them, if no client is whole.

Deviations:

- The window moves by one unit of what may be cut together: a pair of channels where group normalisation has groups of
  two, a head of attention.
- Eq. 4 weighs clients by p_n; here they count alike, as in the authors' code.
- The authors' window moves the other way around the circle, and norms and the head are weighted there by counts of
  their own.
- A window is a set: its channels keep their order, which permutes a client's network and changes nothing else.
- `scaler`, `masked_loss` and `label_rows` are HeteroFL's devices, which the authors' code has too.
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
class FedRolex(Structured):
    """A window of every layer's channels that rolls on by one each round."""

    scaler: Scaler = True
    masked_loss: MaskedLoss = True
    label_rows: LabelRows = True

    def units(self, wiring: Wiring, width: float, round: int, rng: torch.Generator) -> Units:
        """As many as the width says, from the round's on."""
        return wiring.rolled(width, round)
