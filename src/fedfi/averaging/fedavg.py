"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

| paper, Algorithm 1 | here |
|---|---|
| C, share of clients | `participation` |
| n_k / n weighting | `weights = "examples"` |
| ClientUpdate: E epochs of batches of size B | the task's `[train]` table |

Deviations: `weights = "uniform"` and a `server_learning_rate` are options of later work (Reddi et al., Adaptive
Federated Optimization, ICLR 2021); with the defaults the method is the paper's, except that the number of clients a
round is rounded, and that a last batch of one example joins the batch before it. Buffers of normalisation layers,
which the paper does not treat, are averaged with the same weights.
"""

from __future__ import annotations

from typing import ClassVar, final

from fedfi.averaging.server import Averaging
from fedfi.federation.algorithm import method
from fedfi.federation.client import Client
from fedfi.federation.training import Trained, train_locally


@final
@method
class FedAvg(Averaging):
    """Federated averaging: a client minimises its own loss, the server takes the weighted mean."""

    forgetful: ClassVar[bool] = True

    def train(self, client: Client) -> Trained:
        """Plain local training."""
        return train_locally(client)
