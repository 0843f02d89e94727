"""Submodels by an unstructured mask: how they travel, how they are trained, how their updates are averaged.

The mask covers the vector's selectable entries (`VectorLayout.pool`); parameters of normalisation layers are always
kept and trained. Only kept values travel: the forward pass runs at x * M, so a client has no use for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedfi.federation.client import Client
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Scalar, Tree
from fedfi.federation.training import Gradient, Trained, train_locally
from fedfi.federation.workbench import VectorLayout, Workbench
from fedfi.numerics.selection import pack_bits, unpack_bits

BUFFER = "buffer:"


@dataclass(frozen=True)
class Model:
    """The server's model.

    Attributes:
        vector: All trainable parameters `[size]`, selectable ones first.
        constants: Frozen parameters and buffers, by name.
        buffers: Which of the constants are buffers.
        layout: Where each parameter lies in the vector.
    """

    vector: Tensor
    constants: Tree
    buffers: list[str]
    layout: VectorLayout

    @staticmethod
    def of(bench: Workbench) -> Model:
        """A copy of what a workbench holds."""
        constants = {n: t.clone() for n, t in bench.constants.items()}
        return Model(bench.vector.detach().clone(), constants, list(bench.buffers()), bench.layout)

    @property
    def pool(self) -> Tensor:
        """The selectable entries `[pool]`."""
        return self.vector[: self.layout.pool]

    def tree(self, mask: Tensor | None = None) -> Tree:
        """The model by name; with a mask `[pool]`, entries off it are zero."""
        vector = self.vector.clone()
        if mask is not None:
            vector[: self.layout.pool] *= mask
        return self.layout.split(vector) | self.constants


def send(model: Model, mask: Tensor, scalars: Mapping[str, Scalar]) -> Packet:
    """The packet of a submodel: a bit a selectable entry, the kept values, and what every submodel has."""
    tensors = {"kept": model.pool[mask], "rest": model.vector[model.layout.pool :]}
    tensors |= {BUFFER + n: t for n, t in model.constants.items()}
    return Packet(tensors, scalars, {"mask": pack_bits(mask)})


def receive(packet: Packet, bench: Workbench) -> Tensor:
    """Loads a submodel into a workbench and returns its mask `[pool]`."""
    pool, device = bench.layout.pool, bench.vector.device
    mask = unpack_bits(packet.blobs["mask"], pool).to(device)
    bench.load({n.removeprefix(BUFFER): t for n, t in packet.tensors.items() if n.startswith(BUFFER)})
    with torch.no_grad():
        bench.vector.zero_()
        bench.vector[:pool].masked_scatter_(mask, packet.tensors["kept"].to(device))
        bench.vector[pool:] = packet.tensors["rest"].to(device)
    return mask


def train_masked(
    client: Client, mask: Tensor, gradient: Gradient, threshold: float | None = None
) -> tuple[Trained, Tree]:
    """Trains the loaded submodel; entries off the mask stay exactly zero under every optimizer.

    Args:
        client: On whose workbench `receive` put the submodel.
        mask: `[pool]`.
        gradient: As for `train_locally`.
        threshold: With one, gradients on the mask are multiplied by FIARSE's factor at this threshold.

    Returns:
        The training's outcome, and what travels back: the update of the kept entries (start minus end) as
        ``"update"``, that of the others as ``"rest"``, and the buffers.
    """
    bench = client.workbench
    pool = bench.layout.pool
    start = bench.vector.detach().clone()
    selectable, factor = bench.vector.detach()[:pool], mask.to(start.dtype)
    grad = bench.vector.grad
    assert grad is not None  # made with the workbench
    slopes = grad[:pool]

    def adjust() -> None:
        slopes.mul_(factor)
        if threshold:
            slopes.mul_(threshold_factor(selectable, threshold))

    def settle() -> None:
        selectable.mul_(factor)

    trained = train_locally(client, gradient=gradient, adjust=adjust, settle=settle)
    change = start - bench.vector.detach()
    back = {"update": change[:pool][mask], "rest": change[pool:].clone()}
    return trained, back | {BUFFER + n: t.clone() for n, t in bench.buffers().items()}


def threshold_factor(weights: Tensor, threshold: float) -> Tensor:
    """FIARSE's factor 1 + 2 t |w| / (|w| + t)^2 of the gradient: 1.5 at |w| = t, towards 1 far from it."""
    size = weights.abs()
    return 1 + 2 * threshold * size / (size + threshold) ** 2


def returned(model: Model, kept: int) -> Layout:
    """The layout of what `train_masked` sends back of a submodel of `kept` entries."""
    rest = model.vector[model.layout.pool :]
    tensors = {"update": model.vector.new_empty(kept), "rest": rest}
    return Layout.like(tensors | {BUFFER + n: model.constants[n] for n in model.buffers})


class MaskedMean:
    """Folds masked updates into the next model.

    Args:
        model: The model from which the submodels were taken.
        divide: ``"count"`` divides each entry by the number of clients that held it, and leaves entries that
            nobody held bit-identical; ``"plain"`` divides by the number of clients.
        start: ``"masked"`` takes the printed algorithm at its word: a client starts from x * M, so its update off
            the mask is x itself. Under ``"count"`` only clients that hold an entry speak for it, so it makes no
            difference.
    """

    def __init__(self, model: Model, divide: Literal["count", "plain"], start: Literal["full", "masked"]) -> None:
        self._model, self._divide, self._start = model, divide, start
        self._sum = torch.zeros_like(model.pool)
        self._count = torch.zeros_like(model.pool)
        self._rest = WeightedMean()

    def add(self, mask: Tensor, packet: Packet) -> None:
        """Adds what a client sent back of the submodel with this mask."""
        self._sum += torch.zeros_like(self._sum).masked_scatter_(mask, packet.tensors["update"])
        self._count += mask
        if self._start == "masked" and self._divide == "plain":
            self._sum += self._model.pool * ~mask
        self._rest.add({n: t for n, t in packet.tensors.items() if n == "rest" or n.startswith(BUFFER)})

    def next(self, server_learning_rate: float) -> Model:
        """X <- x - server_learning_rate * (mean of the updates)."""
        if self._divide == "count":
            step = torch.where(self._count > 0, self._sum / self._count.clamp(min=1), 0.0)
        else:
            step = self._sum / self._rest.weight
        rest = self._rest.mean()
        vector = self._model.vector - torch.cat([step, rest.pop("rest")]) * server_learning_rate
        buffers = {n.removeprefix(BUFFER): t for n, t in rest.items()}
        return Model(vector, self._model.constants | buffers, self._model.buffers, self._model.layout)
