"""The task of `submodel` and `memory`: ResNet-18 with group norm on random 3 x 32 x 32 images, batches of 20."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fedfi import Client, ClientData, Dataset, FederatedData, InputSpec, Memory, Task, Training, build
from fedfi.federation.task import cross_entropy
from fedfi.federation.workbench import Benches

SPEC = InputSpec(kind="image", shape=(3, 32, 32), classes=10)
BATCH = 20


def task_of(width: float, steps: int, loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> Task:
    """The task, with one client that holds ten batches."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(10 * BATCH, *SPEC.shape, generator=rng)
    labels = torch.randint(SPEC.classes, (len(images),), generator=rng)
    examples = Dataset(inputs=images, targets=labels, spec=SPEC).examples()
    nothing = examples.subset(torch.arange(0))
    return Task(
        model=partial(build, "resnet18", SPEC, {"norm": "group", "width": width}),
        data=FederatedData({"0": ClientData(examples, nothing)}, test=nothing, validation=None, spec=SPEC),
        training=Training(learning_rate=0.01, batch_size=BATCH, steps=steps),
        loss=loss,
    )


def client_of(task: Task) -> Client:
    """The task's client, as an engine makes it."""
    return Client("0", task.data.clients["0"], Memory(), task, Benches(task, 0), round=0, seed=0)
