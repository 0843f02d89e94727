"""Federations small enough to compute by hand, or to run dozens of times a second."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from fedfi.data import ClientData, Dataset, FederatedData
from fedfi.federation.task import Task, Training
from fedfi.models import InputSpec


class Zeros(nn.Linear):
    """logits = W x, from W = 0."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes, bias=False)
        nn.init.zeros_(self.weight)


def federation(inputs: Tensor, targets: Tensor, holders: list[list[int]], tests: list[list[int]]) -> FederatedData:
    """Client i trains on `holders[i]` and is judged on `tests[i]`; all tests together are the server's."""
    spec = InputSpec("tabular", (inputs.shape[1],), int(targets.max()) + 1)
    data = Dataset(inputs, targets, spec, name="tiny")

    def view(rows: list[int]):
        return data.examples(torch.tensor(rows, dtype=torch.int64))

    clients = {f"c{i}": ClientData(view(a), view(b)) for i, (a, b) in enumerate(zip(holders, tests, strict=True))}
    return FederatedData(clients, view([row for rows in tests for row in rows]), None, spec, name="tiny")


def by_hand(steps: int = 1, learning_rate: float = 1.0) -> Task:
    """Two clients with one example each: x = 1 of class 0, x = 2 of class 1; logits = w x with w = (0, 0).

    At w = 0 both classes have probability 1/2, so the gradient of the cross-entropy is (p - onehot) x:
    (-1/2, 1/2) at client c0 and (1, -1) at client c1.
    """
    inputs, targets = torch.tensor([[1.0], [2.0], [1.0], [2.0]]), torch.tensor([0, 1, 0, 1])
    data = federation(inputs, targets, [[0], [1]], [[2], [3]])
    recipe = Training(learning_rate=learning_rate, batch_size=1, steps=steps)
    return Task(model=lambda: Zeros(1, 2), data=data, training=recipe)


def network(features: int = 6, classes: int = 3) -> nn.Module:
    """Two layers with a norm between them, whose parameters are never selected."""
    return nn.Sequential(nn.Linear(features, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, classes))


def with_buffers(features: int = 6, classes: int = 3) -> nn.Module:
    """The same with batch norm, whose statistics and counter are buffers."""
    return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


def small(clients: int = 6, model=network, **recipe: object) -> Task:
    """Three noisy classes of six features, uneven clients, a network of 2 x 8 units."""
    rng = torch.Generator().manual_seed(7)
    count = 16 * clients
    targets = torch.arange(count) % 3
    inputs = torch.randn(count, 6, generator=rng) + 2 * torch.eye(6)[targets]
    holders, tests, first = [], [], 0
    for i in range(clients):
        size = 6 + i
        holders.append(list(range(first, first + size)))
        tests.append(list(range(first + size, first + size + 3)))
        first += size + 3
    data = federation(inputs, targets, holders, tests)
    recipe = {"learning_rate": 0.1, "batch_size": 4, "epochs": 1} | recipe
    return Task(model=model, data=data, training=Training(**recipe))


def with_validation(task: Task, examples: int = 12) -> Task:
    """The same task whose server holds copies of the first test examples."""
    test = task.examples.test
    held = dataclasses.replace(test.dataset, inputs=test.dataset.inputs.clone()).examples(test.indices[:examples])
    return dataclasses.replace(task, data=dataclasses.replace(task.examples, validation=held))
