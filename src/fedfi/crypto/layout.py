"""Where each parameter lies in the packets: the agreement that sender and receiver name by its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfi.errors import InputError


@dataclass(frozen=True)
class PacketLayout:
    """A vector of parameters cut into packets of equal size, the last one padded with zeros.

    Attributes:
        names: Tensors in their order in the vector.
        shapes: Their shapes.
        packet_size: Values a packet.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    packet_size: int

    def __post_init__(self) -> None:
        """Refuses packets of nothing."""
        if self.packet_size < 1 or not self.names:
            raise InputError(
                f"packets of {self.packet_size} values of {len(self.names)} tensors: both must be positive"
            )

    @staticmethod
    def of(tensors: Mapping[str, Tensor], packet_size: int) -> PacketLayout:
        """The layout of tensors in their order."""
        return PacketLayout(tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()), packet_size)

    @property
    def sizes(self) -> list[int]:
        """Values of each tensor."""
        return [int(torch.Size(s).numel()) for s in self.shapes]

    @property
    def size(self) -> int:
        """Values of all."""
        return sum(self.sizes)

    @property
    def packets(self) -> int:
        """Number of packets P."""
        return -(-self.size // self.packet_size)

    def hash(self, *agreed: object) -> str:
        """Sixteen hexadecimal digits of names, shapes, packet size and whatever else was agreed."""
        content = json.dumps([self.names, self.shapes, self.packet_size, [str(a) for a in agreed]])
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def cut(self, vector: Tensor) -> Tensor:
        """The packets `[P, packet_size]` of a vector `[size]`."""
        if vector.shape != (self.size,):
            raise InputError(f"a vector of shape {tuple(vector.shape)}, expected ({self.size},)")
        padded = vector.new_zeros(self.packets * self.packet_size)
        padded[: self.size] = vector
        return padded.view(self.packets, self.packet_size)

    def joined(self, packets: Tensor) -> Tensor:
        """The vector `[size]` of packets `[P, packet_size]`."""
        return packets.reshape(-1)[: self.size]

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The tensors, which are floating, as one vector `[size]`."""
        return torch.cat([tensors[n].detach().reshape(-1).float() for n in self.names])

    def tree(self, vector: Tensor) -> dict[str, Tensor]:
        """Named views of a vector `[size]`."""
        parts = vector.split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}
