"""The same with pfl-research: its simulated backend and its FederatedAveraging, in one process."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.contestants import work


class LeNet(nn.Module):
    """The model with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = work.lenet()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a batch."""
        return functional.cross_entropy(self.layers(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """Nothing: pfl evaluates in the first round whatever it is told, so an evaluation must cost nothing."""
        return {}


class Clock(TrainingProcessCallback):
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.finished: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Notes the time."""
        self.finished.append(work.now())
        return False, Metrics()


def main() -> None:
    order = work.order()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = work.read_data(order.data)
    users = {}
    for client in range(work.CLIENTS):
        rows = work.rows_of(client)
        users[client] = PyTorchTensorDataset((images[rows], labels[rows]), user_id=str(client))
    # Its own sampler that never draws a client twice in a round.
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    module = LeNet()
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=order.rounds,
            evaluation_frequency=order.rounds + 1,
            train_cohort_size=work.COHORT,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=work.STEPS,
            local_learning_rate=work.RATE,
            local_batch_size=work.BATCH,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=work.BATCH),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    work.report(order, clock.finished, module.layers.state_dict(), pfl=metadata.version("pfl"))


if __name__ == "__main__":
    main()
