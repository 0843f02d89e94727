r"""FedDPA: Yang et al., Dynamic Personalized Federated Learning with Adaptive Differential Privacy, NeurIPS 2023.

| paper and authors' code | here |
|---|---|
| layer-wise Fisher information of the own model, scaled to [0, 1] | `_fisher` |
| u, entries above tau: kept from the own model | `threshold` is tau |
| v, the others: taken from the global model | |
| R1: lambda_1/2 sum over layers of ||w - w_global||, while u is trained | `own_penalty` |
| R2: lambda_2/2 \| sum of ||w - w_received|| - C \|, while v is trained | `shared_penalty`, `norm` is C |

Deviations: the noise that gives the paper its differential privacy is not in here but in `Private`, which clips and
perturbs the update of any method that is linear. Fisher information is that of batch gradients by default (batch norm
has no others). With `threshold = 1` and both penalties 0 nothing is personal, and the method is FedAvg to the bit.
A round costs two trainings, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.training import Trained
from fedfi.personal.pieces import Snapshot, put_recalled, recall, train_only
from fedfi.personal.scheme import Personal, Scheme
from fedfi.personal.scores import fisher_vector


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedDPA(Personal):
    """Entries of high Fisher information stay the client's own, the others come from the global model."""

    threshold: Annotated[float, Field(ge=0, le=1, description="tau, of Fisher information scaled to [0, 1]")] = 0.4
    own_penalty: Annotated[float, Field(ge=0, description="lambda_1, while own entries are trained")] = 0.05
    shared_penalty: Annotated[float, Field(ge=0, description="lambda_2, while the others are trained")] = 0.05
    norm: Annotated[float, Field(gt=0, description="C, the size that updates are drawn to")] = 1.0
    fisher_samples: Annotated[
        Literal["batch", "example"], Field(description="squares of batch or example gradients")
    ] = "batch"

    def scheme(self) -> Scheme:
        """All shared; the own model is remembered and judged."""
        return Scheme(train=self._train, judge=put_recalled("model"))

    def _train(self, client: Client) -> Trained:
        bench, received = client.workbench, Snapshot.of(client.workbench)
        own = recall(client, "model") or received
        own.put(bench)
        high = self._fisher(client) > self.threshold
        received.put(bench)
        with torch.no_grad():
            bench.vector[high] = own.vector[high]
        if bool(high.any()):
            first = train_only(client, high, pull=self._towards(client, received.vector), purpose="own")
            if bool(high.all()):
                Snapshot.of(bench).keep(client, "model")
                return first
        trained = train_only(client, ~high, pull=self._sized(client, received.vector))
        Snapshot.of(bench).keep(client, "model")
        return trained

    def _fisher(self, client: Client) -> Tensor:
        """Fisher information `[size]`, brought to [0, 1] layer by layer."""
        sizes = client.workbench.layout.sizes
        scaled = []
        for part in fisher_vector(client, self.fisher_samples).split(sizes):
            low, high = part.min(), part.max()
            scaled.append((part - low) / (high - low) if bool(high > low) else torch.zeros_like(part))
        return torch.cat(scaled)

    def _towards(self, client: Client, anchor: Tensor) -> Callable[[], None]:
        """The gradient of R1."""
        vector, grad = client.workbench.vector, client.workbench.vector.grad
        sizes = client.workbench.layout.sizes

        def pull() -> None:
            assert grad is not None
            if self.own_penalty:
                grad.add_(_directions(vector.detach() - anchor, sizes)[0], alpha=self.own_penalty / 2)

        return pull

    def _sized(self, client: Client, anchor: Tensor) -> Callable[[], None]:
        """The gradient of R2."""
        vector, grad = client.workbench.vector, client.workbench.vector.grad
        sizes = client.workbench.layout.sizes

        def pull() -> None:
            assert grad is not None
            if self.shared_penalty:
                directions, total = _directions(vector.detach() - anchor, sizes)
                sign = (total > self.norm) - (total < self.norm)
                grad.add_(directions, alpha=sign * self.shared_penalty / 2)

        return pull


def _directions(difference: Tensor, sizes: list[int]) -> tuple[Tensor, float]:
    """The gradient of the sum of layers' norms, zero where a norm is, and that sum."""
    parts, total = [], 0.0
    for part in difference.split(sizes):
        norm = float(part.norm())
        parts.append(part / norm if norm else torch.zeros_like(part))
        total += norm
    return torch.cat(parts), total
