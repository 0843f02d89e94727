"""The pieces that personalised methods are put together from: snapshots in memory, and what is trained when."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfi.federation.client import Client
from fedfi.federation.packet import Tree
from fedfi.federation.task import Training
from fedfi.federation.training import Trained, train_locally
from fedfi.federation.workbench import Workbench


@dataclass(frozen=True)
class Snapshot:
    """A model off the workbench.

    Attributes:
        vector: Its trainable parameters `[size]`.
        buffers: Its buffers by name.
    """

    vector: Tensor
    buffers: Tree

    @staticmethod
    def of(bench: Workbench) -> Snapshot:
        """What is on the workbench."""
        return Snapshot(bench.vector.detach().clone(), {n: t.clone() for n, t in bench.buffers().items()})

    def put(self, bench: Workbench) -> None:
        """Puts it back."""
        with torch.no_grad():
            bench.vector.copy_(self.vector)
        bench.load(self.buffers)

    def keep(self, client: Client, name: str) -> None:
        """Remembers it under a name."""
        client.memory[name] = self.vector
        for buffer, value in self.buffers.items():
            client.memory[f"{name}:{buffer}"] = value


def recall(client: Client, name: str) -> Snapshot | None:
    """What the client remembers under a name; None for one that never took part."""
    if name not in client.memory:
        return None
    buffers = {n: client.memory[f"{name}:{n}"] for n in client.workbench.buffers()}
    return Snapshot(client.memory[name].to(client.device), buffers)


def put_recalled(name: str) -> Callable[[Client], None]:
    """A piece that puts the remembered model on the workbench, where there is one."""

    def put(client: Client) -> None:
        found = recall(client, name)
        if found is not None:
            found.put(client.workbench)

    return put


def mask_of(client: Client, names: Collection[str]) -> Tensor:
    """Which entries of the workbench's vector belong to parameters of these names, boolean `[size]`."""
    layout = client.workbench.layout
    parts = [torch.full((size,), name in names) for name, size in zip(layout.names, layout.sizes, strict=True)]
    return torch.cat(parts).to(client.device)


def train_only(
    client: Client,
    mask: Tensor,
    *,
    pull: Callable[[], None] | None = None,
    training: Training | None = None,
    purpose: str = "",
) -> Trained:
    """Local training in which entries off the mask stay to the bit, under every optimizer.

    Args:
        client: Whose workbench.
        mask: Trained entries, boolean `[size]`.
        pull: Adds to the gradient before the mask is applied.
        training: As for `train_locally`.
        purpose: As for `train_locally`.
    """
    vector, grad = client.workbench.vector, client.workbench.vector.grad
    assert grad is not None  # made with the workbench
    if bool(mask.all()):
        return train_locally(client, adjust=pull, training=training, purpose=purpose)
    fixed, values = ~mask, vector.detach()[~mask].clone()

    def adjust() -> None:
        if pull:
            pull()
        grad.mul_(mask)

    def settle() -> None:
        vector[fixed] = values

    return train_locally(client, adjust=adjust, settle=settle, training=training, purpose=purpose)


def lasting(training: Training, *, epochs: int | None = None, steps: int | None = None) -> Training:
    """The same recipe for another length, in steps where both are given; for its own length where neither is."""
    if epochs is None and steps is None:
        return training
    return dataclasses.replace(training, epochs=epochs if steps is None else None, steps=steps)


def plain_steps(training: Training, rate: float) -> Training:
    """The same length and batches, but steps that are exactly `rate` times the gradient, in every round."""
    return dataclasses.replace(
        training,
        learning_rate=rate,
        optimizer="sgd",
        momentum=0.0,
        weight_decay=0.0,
        schedule="constant",
        round_decay=1.0,
        clip_norm=None,
    )


def nothing(client: Client) -> None:
    """The piece that does nothing."""
