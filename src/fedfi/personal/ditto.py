"""Ditto: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.

| paper, Algorithm 1 | here |
|---|---|
| w, global model by any solver | FedAvg's, to the bit |
| lambda, Eq. 1: F_k(v) + lambda/2 ||v - w*||^2 | `penalty` |
| v_k, personal model, s local iterations | remembered; trained for the task's recipe, or `epochs` |

Deviations: a client's v begins at the global model that it receives first, which is w^0 under full participation. The
pull is towards the w that the client received, as in the paper. A round costs two trainings.
"""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.client import Client
from fedfi.federation.training import Trained, train_locally
from fedfi.personal.pieces import Snapshot, lasting, put_recalled, recall
from fedfi.personal.scheme import Personal, Scheme


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class Ditto(Personal):
    """Beside the global model each client trains its own, pulled towards the global one."""

    penalty: Annotated[float, Field(ge=0, description="weight lambda of the squared distance")] = 0.1
    epochs: Annotated[int | None, Field(ge=1, description="local epochs of the own model; none: the task's")] = None

    def scheme(self) -> Scheme:
        """All shared; the own model is remembered."""

        def train(client: Client) -> Trained:
            bench, received = client.workbench, Snapshot.of(client.workbench)
            trained = train_locally(client)
            shared = Snapshot.of(bench)
            (recall(client, "model") or received).put(bench)
            gradient = bench.vector.grad
            assert gradient is not None  # made with the workbench

            def pull() -> None:
                gradient.add_(bench.vector.detach() - received.vector, alpha=self.penalty)

            training = lasting(client.task.training, epochs=self.epochs)
            train_locally(client, adjust=pull, training=training, purpose="own")
            Snapshot.of(bench).keep(client, "model")
            shared.put(bench)
            return trained

        return Scheme(train=train, judge=put_recalled("model"))
