"""The book of a tracing: which positions exist, which move together, which must stay.

A *node* is one position of one axis of one parameter or buffer (or one element of a parameter that is used like
an activation). Nodes are whole numbers from 0; negative numbers stand for content that belongs to no channel, and
equal ones for equal content. Rules only add ties and freezes; components are found once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from fedfi.channels.slicing import Role

_MOST_ELEMENTS = 1 << 22  # of a parameter used like an activation, each of which becomes a node


class Ledger:
    """Ties, freezes and roles, collected while the rules walk the graph.

    Args:
        shapes: The shape of each parameter and buffer, by name.
        whole: Modules whose grouped operation ties its channels even if it has one group.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], whole: frozenset[str] = frozenset()) -> None:
        self.whole = whole
        self.grouped: set[str] = set()
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.starts: dict[tuple[str, int], int] = {}
        self.elements: dict[str, int] = {}
        self.roles: dict[tuple[str, int], Role] = {}
        self.size = 0
        self._contents = 0
        self._ties: list[NDArray[np.int64]] = []
        self._frozen: list[tuple[NDArray[np.int64], str]] = []
        self._emitted: list[NDArray[np.int64]] = []
        for name, shape in self.shapes.items():
            for axis, length in enumerate(shape):
                self.starts[name, axis] = self.size
                self.size += length

    def axis(self, name: str, axis: int) -> Tensor:
        """The nodes of one axis."""
        start = self.starts[name, axis]
        return torch.arange(start, start + self.shapes[name][axis])

    def element_start(self, name: str) -> int | None:
        """The first of a parameter's element nodes, in row-major order; None if it has too many."""
        if name not in self.elements:
            count = math.prod(self.shapes[name])
            if count > _MOST_ELEMENTS:
                return None
            self.elements[name] = self.size
            self.size += count
        return self.elements[name]

    def content(self, shape: Sequence[int]) -> Tensor:
        """New negative numbers, all different."""
        count = math.prod(shape)
        first = self._contents + 1
        self._contents += count
        return -torch.arange(first, first + count).reshape(tuple(shape))

    def tie(self, left: Tensor, right: Tensor) -> None:
        """Nodes that move together, pair by pair, after broadcasting; pairs with a negative number are left out."""
        left, right = torch.broadcast_tensors(left, right)
        pairs = torch.stack([left.reshape(-1), right.reshape(-1)])
        pairs = pairs[:, (pairs >= 0).all(0)]
        if pairs.shape[1]:
            self._ties.append(torch.unique(pairs, dim=1).numpy())

    def freeze(self, nodes: Tensor, reason: str) -> None:
        """Nodes that are always kept; negative numbers are left out."""
        nodes = nodes[nodes >= 0]
        if nodes.numel():
            self._frozen.append((torch.unique(nodes).numpy(), reason))

    def emit(self, nodes: Tensor) -> None:
        """Nodes that make a channel, tied to others or not."""
        self._emitted.append(nodes.reshape(-1).numpy())

    def claim(self, name: str, axis: int, role: Role) -> None:
        """Notes how an axis is used; the first use counts."""
        self.roles.setdefault((name, axis), role)

    def components(self) -> NDArray[np.int64]:
        """The component of each node, ``[nodes]``, after elements have been bound to axes."""
        found = self._connect()
        for name, start in self.elements.items():
            self._bind(name, found[start : start + math.prod(self.shapes[name])])
        return self._connect() if self.elements else found

    def active(self) -> NDArray[np.bool_]:
        """Which nodes took part in the network's channels, ``[nodes]``."""
        flags = np.zeros(self.size, dtype=np.bool_)
        for part in (*self._ties, *self._emitted, *(nodes for nodes, _ in self._frozen)):
            flags[part.reshape(-1)] = True
        return flags

    def reasons(self, components: NDArray[np.int64]) -> dict[int, str]:
        """Why a component is frozen, for those that are; the first reason counts."""
        found: dict[int, str] = {}
        for nodes, reason in self._frozen:
            for component in np.unique(components[nodes]).tolist():
                found.setdefault(component, reason)
        return found

    def _connect(self) -> NDArray[np.int64]:
        pairs = np.concatenate(self._ties, axis=1) if self._ties else np.zeros((2, 0), dtype=np.int64)
        graph = coo_array((np.ones(pairs.shape[1], dtype=np.bool_), (pairs[0], pairs[1])), (self.size, self.size))
        found: NDArray[np.int64] = connected_components(graph, directed=False)[1].astype(np.int64)
        return found

    def _bind(self, name: str, components: NDArray[np.int64]) -> None:
        """Ties elements to the one axis of their parameter that decides which component they are in."""
        shape, start = self.shapes[name], self.elements[name]
        used = self.active()[start : start + components.size].reshape(shape)
        if not used.any():
            return
        grid = components.reshape(shape)
        nodes = torch.arange(start, start + components.size).reshape(shape)
        for axis in sorted(range(len(shape)), key=lambda axis: shape[axis] == 1):
            others = tuple(other for other in range(len(shape)) if other != axis)
            low = np.where(used, grid, np.iinfo(np.int64).max).min(others)
            high = np.where(used, grid, -1).max(others)
            if (low >= high).all():
                view = [1] * len(shape)
                view[axis] = -1
                flags = torch.from_numpy(used)
                self.tie(torch.where(flags, nodes, -1), self.axis(name, axis).reshape(view))
                self.claim(name, axis, "along")
                return
        self.freeze(nodes[torch.from_numpy(used)], f"{name} is used along more than one of its axes")
