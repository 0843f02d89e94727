"""FedAvg with fine-tuning: the global model, trained on by each client before it is judged or used.

A baseline of most papers on personalised federated learning, such as Collins et al., ICML 2021 ("FedAvg+FT"), and
Cheng et al., Fine-tuning is Fine in Federated Learning, arXiv:2108.07313.

| usual name | here |
|---|---|
| fine-tuning epochs | `epochs`, or `steps` |

The global model is FedAvg's to the bit. Fine-tuning follows the task's recipe and starts from the global model each
time, so that nothing is remembered.

Deviations: none; papers differ in how long, and at which rate, they fine-tune.
"""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.training import train_locally
from fedfi.personal.pieces import lasting
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FineTune(Personal):
    """FedAvg, and a few local epochs before the model is used."""

    epochs: Annotated[int, Field(ge=1, description="local epochs of fine-tuning")] = 1
    steps: Annotated[int | None, Field(ge=1, description="steps of fine-tuning, instead of epochs")] = None

    def scheme(self) -> Scheme:
        """All shared; fine-tuned to be judged."""

        def judge(client: Client) -> None:
            training = lasting(client.task.training, epochs=self.epochs, steps=self.steps)
            train_locally(client, training=training, purpose="finetune")

        return Scheme(judge=judge)
