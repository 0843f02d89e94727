"""APFL: Deng et al., Adaptive Personalized Federated Learning, arXiv:2003.13461.

| paper, Algorithm 1 | here |
|---|---|
| w_i, local version of the global model | FedAvg's, to the bit |
| v-bar = alpha v + (1 - alpha) w, Eq. 2 | `_mixed` |
| v <- v - eta alpha grad f(v-bar) | own model, one step a batch |
| alpha <- alpha - eta <v - w, grad f(v-bar)>, Eq. 10 | `adaptive` |

Deviations: v takes plain gradient steps at the task's learning rate (without momentum, decay or a schedule within
the round), whatever optimizer trains w. alpha moves once a step, as in the authors' analysis, and is kept in [0, 1].
v begins at the global model that a client receives first. The mean of the w_i is weighted by `weights`, where the
paper's is plain. Buffers of norm layers are those of w: the mixture is judged with them.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.training import Trained, mean_loss_gradient, train_locally
from fedfi.personal.pieces import Snapshot, recall
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class APFL(Personal):
    """Each client uses a mixture of the global model and its own, whose share it learns."""

    alpha: Annotated[float, Field(ge=0, le=1, description="first share of the own model in the mixture")] = 0.5
    adaptive: Annotated[bool, Field(description="learn the share")] = True

    def scheme(self) -> Scheme:
        """All shared; own model and share are remembered; the mixture is judged."""
        return Scheme(train=self._train, judge=self._judge)

    def _train(self, client: Client) -> Trained:
        bench, training = client.workbench, client.task.training
        vector, grad = bench.vector, bench.vector.grad
        assert grad is not None  # made with the workbench
        kept = recall(client, "model")
        own = vector.detach().clone() if kept is None else kept.vector.clone()
        alpha = float(client.memory["alpha"]) if "alpha" in client.memory else self.alpha
        rate = training.learning_rate * training.round_decay**client.round
        plain = mean_loss_gradient(client)

        def gradient(inputs: Tensor, targets: Tensor) -> Tensor:
            nonlocal alpha
            current = vector.detach().clone()
            with torch.random.fork_rng(devices=[]), torch.no_grad():  # so that w is trained as without v
                before = Snapshot.of(bench).buffers
                vector.copy_(_mixed(own, current, alpha))
                with torch.enable_grad():
                    plain(inputs, targets)
                slope = float(grad @ (own - current))
                own.sub_(grad, alpha=rate * alpha)
                if self.adaptive:
                    alpha = min(1.0, max(0.0, alpha - rate * slope))
                vector.copy_(current)
                bench.load(before)
            grad.zero_()
            return plain(inputs, targets)

        trained = train_locally(client, gradient=gradient)
        client.memory["alpha"] = torch.tensor(alpha, dtype=torch.float64)
        Snapshot(own, Snapshot.of(bench).buffers).keep(client, "model")
        return trained

    def _judge(self, client: Client) -> None:
        kept, vector = recall(client, "model"), client.workbench.vector
        if kept is not None:
            with torch.no_grad():
                vector.copy_(_mixed(kept.vector, vector.detach(), float(client.memory["alpha"])))
            client.workbench.load(kept.buffers)


def _mixed(own: Tensor, shared: Tensor, alpha: float) -> Tensor:
    return own * alpha + shared * (1 - alpha)
