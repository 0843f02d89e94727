"""FedALA: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023.

| paper | here |
|---|---|
| Theta_hat = Theta_old + (Theta - Theta_old) * W, Eq. 3 | `_mixed` |
| p, higher layers to which it applies; lower ones are overwritten, Eq. 4 | `layers` |
| s %, random part of the local examples | `examples` |
| W <- clip(W - eta grad * (Theta - Theta_old)), Eq. 5-6 | `weight_rate` is eta |
| W trained until it converges in the second round, then one epoch a round | `spread`, `most_epochs` |

Deviations: a layer is a module with parameters, where the authors' code counts parameter tensors. Convergence means
that the standard deviation of the last ten epochs' losses falls below `spread`, as in their code; `most_epochs` bounds
it. What is judged is the mixture that a client would begin its next round with, weights fitted to the newest global
model as there, which the authors judge, too. With `layers = 0` the method is FedAvg to the bit.
"""

from __future__ import annotations

import math
from statistics import pstdev
from typing import Annotated, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.training import Trained, batches_of, mean_loss_gradient, train_locally
from fedfi.personal.parts import last_modules, within
from fedfi.personal.pieces import Snapshot, mask_of, recall
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedALA(Personal):
    """A client learns, entry by entry, how much of the global model it takes over into its own."""

    layers: Annotated[int, Field(ge=0, description="last modules p that are mixed; the others are overwritten")] = 1
    examples: Annotated[float, Field(gt=0, le=1, description="share s of the examples that weights are fitted to")] = (
        0.8
    )
    weight_rate: Annotated[float, Field(gt=0, description="step size eta of the weights")] = 1.0
    spread: Annotated[float, Field(gt=0, description="standard deviation of losses at which they converged")] = 0.1
    most_epochs: Annotated[int, Field(ge=1, description="most epochs until then")] = 30

    def scheme(self) -> Scheme:
        """All shared; mixed with the remembered model before training; the next mixture is judged."""

        def train(client: Client) -> Trained:
            trained = train_locally(client)
            if self.layers:
                Snapshot.of(client.workbench).keep(client, "model")
            return trained

        def mix(client: Client) -> None:
            weights = self._mix(client)
            if weights is not None:
                client.memory["weights"] = weights

        def judge(client: Client) -> None:
            self._mix(client)

        return Scheme(mix=mix, train=train, judge=judge)

    def _mix(self, client: Client) -> Tensor | None:
        """Fits the weights and mixes by them; what they have become, None if they are as they were."""
        kept, bench = recall(client, "model"), client.workbench
        if kept is None:
            return None
        upper = within(bench.module, last_modules(bench.module, self.layers))
        mask = mask_of(client, upper)
        vector = bench.vector
        new, old = vector.detach()[mask].clone(), kept.vector[mask]
        known = "weights" in client.memory
        weights = client.memory["weights"].to(client.device).clone() if known else torch.ones_like(new)
        differ = not torch.equal(new, old)
        if differ:
            self._fit(client, mask, new, old, weights, until_converged=not known)
        with torch.no_grad():
            vector[mask] = _mixed(old, new, weights)
        return weights if differ else None

    def _fit(
        self, client: Client, mask: Tensor, new: Tensor, old: Tensor, weights: Tensor, *, until_converged: bool
    ) -> None:
        vector, grad = client.workbench.vector, client.workbench.vector.grad
        assert grad is not None  # made with the workbench
        plain, rng, size = mean_loss_gradient(client), client.rng("weights"), client.task.training.batch_size
        data = client.data.train
        chosen = torch.randperm(len(data), generator=rng)[: max(1, round(self.examples * len(data)))]
        buffers = Snapshot.of(client.workbench).buffers
        client.workbench.module.train()
        losses: list[float] = []
        for _ in range(self.most_epochs if until_converged else 1):
            total = 0.0
            for positions in batches_of(chosen, size):
                with torch.no_grad():
                    vector[mask] = _mixed(old, new, weights)
                grad.zero_()
                inputs, targets = data.batch(positions)
                loss = plain(inputs.to(client.device), targets.to(client.device))
                total += float(loss) * len(positions)
                weights.sub_(grad[mask] * (new - old), alpha=self.weight_rate).clamp_(0, 1)
            losses.append(total / len(chosen))
            newest = losses[-10:]
            if len(losses) > 10 and all(map(math.isfinite, newest)) and pstdev(newest) < self.spread:
                break
        client.workbench.load(buffers)


def _mixed(old: Tensor, new: Tensor, weights: Tensor) -> Tensor:
    """Eq. 3; where a weight is 1 it is the new value to the bit."""
    return torch.where(weights == 1, new, old + (new - old) * weights)
