"""How much each entry of a client's model matters to its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from fedfi.federation.client import Client
from fedfi.numerics.fisher import diagonal_fisher


def fisher_vector(client: Client, samples: Literal["batch", "example"], most: int = 20) -> Tensor:
    """The diagonal of the Fisher information at the workbench's model on the client's training examples `[size]`.

    Args:
        client: Whose model and data.
        samples: Squares of batch gradients, or of each example's (no batch norm in training then; statistics are
            used as they are).
        most: Most batches that are looked at, drawn without replacement.
    """
    bench, data = client.workbench, client.data.train
    order = torch.randperm(len(data), generator=client.rng("fisher"))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for positions in order.split(client.task.training.batch_size)[:most]:
            inputs, targets = data.batch(positions)
            yield inputs.to(client.device), targets.to(client.device)

    bench.module.eval()  # running statistics, and no dropout: the information is the model's, not the noise's
    named = diagonal_fisher(bench.module, batches(), client.task.loss, kind=samples)
    return bench.layout.join(named)
