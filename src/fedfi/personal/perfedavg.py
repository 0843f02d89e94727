"""Per-FedAvg: Fallah et al., Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020.

| paper, Algorithm 1 | here |
|---|---|
| w~ = w - alpha grad f(w, D), line 7 | `inner_rate` is alpha |
| w <- w - beta (I - alpha Hessian f(w, D'')) grad f(w~, D'), line 8 | the task's optimizer takes beta |
| FO: the Hessian left out, Eq. 17 | `order = "first"` |
| HF: (I - alpha H) v by a difference of gradients, Eq. 18-19 | `order = "hessian-free"`, `difference` is delta |
| personal model: one step from w | `steps` |

Deviations: D is the recipe's batch, D' and D'' are drawn afresh, uniformly without replacement within each. The
personal model takes its steps on batches of the client's training examples, with the same alpha as in training: neither
the task's optimizer nor its schedules apply to it. The mean is weighted by `weights`, where the paper's is plain.
"""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.training import Trained, mean_loss_gradient, train_locally
from fedfi.personal.pieces import lasting, plain_steps
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class PerFedAvg(Personal):
    """The global model is trained to be a good start: to do well after one local step."""

    inner_rate: Annotated[float | None, Field(gt=0, description="alpha; none: the task's learning rate")] = None
    order: Annotated[Literal["first", "hessian-free"], Field(description="what becomes of the Hessian")] = "first"
    difference: Annotated[float, Field(gt=0, description="delta of the difference of gradients")] = 1e-3
    steps: Annotated[int, Field(ge=1, description="steps from the global to the personal model")] = 1

    def scheme(self) -> Scheme:
        """All shared; adapted by a step to be judged."""
        return Scheme(train=self._train, judge=self._judge)

    def _rate(self, client: Client) -> float:
        return self.inner_rate or client.task.training.learning_rate

    def _train(self, client: Client) -> Trained:
        vector, grad = client.workbench.vector, client.workbench.vector.grad
        assert grad is not None  # made with the workbench
        plain, rng, rate = mean_loss_gradient(client), client.rng("second batch"), self._rate(client)

        def at(place: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                vector.copy_(place)
            grad.zero_()
            loss = plain(*batch)
            return loss, grad.detach().clone()

        def fresh() -> tuple[Tensor, Tensor]:
            examples = client.data.train
            count = min(client.task.training.batch_size, len(examples))
            inputs, targets = examples.batch(torch.randperm(len(examples), generator=rng)[:count])
            return inputs.to(client.device), targets.to(client.device)

        def gradient(inputs: Tensor, targets: Tensor) -> Tensor:
            current = vector.detach().clone()
            _, first = at(current, (inputs, targets))
            loss, outer = at(current - first * rate, fresh())
            if self.order == "hessian-free":
                batch = fresh()
                _, above = at(current + outer * self.difference, batch)
                _, below = at(current - outer * self.difference, batch)
                outer = outer - (above - below) * (rate / (2 * self.difference))
            with torch.no_grad():
                vector.copy_(current)
            grad.copy_(outer)
            return loss

        return train_locally(client, gradient=gradient)

    def _judge(self, client: Client) -> None:
        recipe = lasting(plain_steps(client.task.training, self._rate(client)), steps=self.steps)
        train_locally(client, training=recipe, purpose="adapt")
