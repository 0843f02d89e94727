"""pFedMe: Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.

| paper, Algorithm 1 | here |
|---|---|
| theta ~ argmin f(theta; batch) + lambda/2 ||theta - w||^2, Eq. 7 | `inner_steps` steps a batch, `penalty` |
| w <- w - eta lambda (w - theta), line 8 | `rate` is eta |
| w <- (1 - beta) w + beta mean(w_i), line 11 | `server_learning_rate` is beta |

Deviations: the step on theta takes the quadratic term implicitly, theta <- (theta - r grad f + r lambda w) /
(1 + r lambda) with the task's learning rate r, which has the same fixed point and does not diverge where r lambda > 2.
w is moved by plain steps at `rate`, whatever the task's optimizer, schedule and clipping; theta starts at w for each
batch. The server averages all participants, weighted by `weights`, where the paper draws a plain mean over a sample.
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
from fedfi.personal.pieces import Snapshot, plain_steps, put_recalled
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class PFedMe(Personal):
    """The global model follows personal ones that stay near it."""

    penalty: Annotated[float, Field(gt=0, description="lambda: how near the personal model stays")] = 15.0
    inner_steps: Annotated[int, Field(ge=1, description="steps K on the personal model, a batch")] = 5
    rate: Annotated[float, Field(gt=0, description="step size eta of the local copy of the global model")] = 0.005

    def scheme(self) -> Scheme:
        """All shared; the last personal model is remembered and judged."""

        def train(client: Client) -> Trained:
            bench, recipe = client.workbench, client.task.training
            vector, grad = bench.vector, bench.vector.grad
            assert grad is not None  # made with the workbench
            plain = mean_loss_gradient(client)
            personal = vector.detach().clone()
            inner = recipe.learning_rate * recipe.round_decay**client.round

            def gradient(inputs: Tensor, targets: Tensor) -> Tensor:
                current = vector.detach().clone()
                loss = torch.zeros(())
                for _ in range(self.inner_steps):
                    grad.zero_()
                    loss = plain(inputs, targets)
                    with torch.no_grad():
                        vector.sub_(grad, alpha=inner).add_(current, alpha=inner * self.penalty)
                        vector.div_(1 + inner * self.penalty)
                personal.copy_(vector.detach())
                grad.copy_((current - personal) * self.penalty)
                with torch.no_grad():
                    vector.copy_(current)
                return loss

            trained = train_locally(client, gradient=gradient, training=plain_steps(recipe, self.rate))
            Snapshot(personal, Snapshot.of(bench).buffers).keep(client, "model")
            return trained

        return Scheme(train=train, judge=put_recalled("model"))
