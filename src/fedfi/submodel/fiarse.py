"""FIARSE: Wu et al., Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction, NeurIPS 2024.

| paper | here |
|---|---|
| theta, k-th largest abs(x) | `ranking.thresholds` of the mask, a pool at a time |
| M = 1[abs(x) >= theta], in every forward pass | `masked.train_thresholded` |
| TCB-GD, 1 + 2 theta abs(x) / (abs(x) + theta)^2 | `masked.threshold_factor`, `threshold_factor` |
| mean over the holders of an entry | `holders.HolderMean` |
| layer-wise variant | `scope = "block"` |

As in the authors' code, the pool is every weight and bias of convolutions and linear layers, the classifier's too;
norms are always kept; a client starts from the full model, so an update is zero off the mask; and the threshold stays
as it is for a round, while the mask is looked at anew in every pass.

Deviations:

- An entry is averaged over the clients that hold it. The authors' servers count those whose update of it is not zero,
  so that a word that one of A clients has seen moves A times as far there.
- k = ceil(gamma d), where the authors round down.
- Exactly k entries are kept where several equal the threshold: the larger index falls out, which the paper leaves open.
- A client that holds everything has threshold 0, so it trains as in FedAvg; by the letter its threshold would be the
  smallest abs(x), and weights that cross zero would be switched off.
- An entry that falls below the threshold counts as zero and keeps its value. The authors mask the gradient, under
  which momentum or weight decay move such an entry; here its update is masked, so that it stays where it is.
- `reevaluate = false` keeps the round's first mask, as a check of what the moving mask brings.
- Under `ratio = "params"` levels are fractions of each pool, as in the authors' code; `ratio = "width"` keeps as many
  parameters as a network of that width has.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.packet import Tree
from fedfi.federation.training import Trained
from fedfi.submodel.masked import threshold_factor, train_masked, train_thresholded
from fedfi.submodel.model import Model
from fedfi.submodel.ranking import Scope, best, thresholds
from fedfi.submodel.unstructured import Unstructured


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FIARSE(Unstructured):
    """Submodels of the largest weights, trained by gradients that the threshold controls."""

    scope: Annotated[
        Scope, Field(description="one ranking of all parameters, one a block of the network, or one a layer")
    ] = "global"
    threshold_factor: Annotated[bool, Field(description="multiply gradients by the threshold's factor")] = True
    reevaluate: Annotated[bool, Field(description="compare weights with the threshold in every forward pass")] = True

    def mask(self, model: Model, fraction: float, rng: torch.Generator) -> Tensor:
        """The largest weights."""
        return best(model.layout, model.pool.abs(), fraction, scope=self.scope)

    def train(self, client: Client, mask: Tensor) -> tuple[Trained, Tree]:
        """SGD, or what the task says, under a threshold that stays as it is."""
        layout = client.workbench.layout
        weights = client.workbench.vector.detach()[: layout.pool]
        threshold = thresholds(layout, weights, mask, self.scope)
        if self.reevaluate:
            return train_thresholded(client, mask, threshold, factor=self.threshold_factor)
        factor = partial(threshold_factor, threshold=threshold) if self.threshold_factor else None
        return train_masked(client, mask, factor=factor)
