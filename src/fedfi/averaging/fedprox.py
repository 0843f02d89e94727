"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

| paper | here |
|---|---|
| mu, Eq. 2: h(w) = F(w) + mu/2 ||w - w_t||^2 | `proximal` |

Deviations: none in the objective. Clients are drawn uniformly and weighted by `weights`, where the paper's Algorithm 2
draws them in proportion to their data and takes the plain mean. The paper lets clients stop at different accuracies
(gamma-inexact solutions); here the length of local work is the task's `[train]` table, the same for all. The reported
loss is without the proximal term; clipping, where asked for, sees the gradient with it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from pydantic import Field

from fedfi.averaging.server import Averaging
from fedfi.federation.algorithm import method
from fedfi.federation.client import Client
from fedfi.federation.training import Trained, train_locally


@final
@method
class FedProx(Averaging):
    """Federated averaging with a proximal term that keeps clients near the global model."""

    proximal: Annotated[float, Field(ge=0, description="weight mu of the proximal term")] = 0.01

    forgetful: ClassVar[bool] = True

    def train(self, client: Client) -> Trained:
        """Local training on the loss plus mu/2 times the squared distance from the global model."""
        vector = client.workbench.vector
        start, gradient = vector.detach().clone(), vector.grad
        assert gradient is not None  # made with the workbench

        def pull() -> None:
            if self.proximal:
                gradient.add_(vector.detach() - start, alpha=self.proximal)

        return train_locally(client, adjust=pull)
