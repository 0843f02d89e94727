"""The server's model of the family, as a vector and what is not trained, and the part of it that a submodel is.

A submodel is a mask over the vector. Unstructured methods draw it entry by entry; structured ones from kept channels,
whose entries a client holds as a smaller network. What travels, and how updates are averaged, is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.packet import Tree
from fedfi.federation.workbench import VectorLayout, Workbench

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

    def __post_init__(self) -> None:
        for name, constant in self.constants.items():
            if constant.is_complex():
                what = "buffer" if name in self.buffers else "parameter"
                raise InputError(
                    f"{what} {name!r} is of complex numbers, which do not travel; keep its real and imaginary parts"
                    f" (torch.view_as_real), or register a constant buffer with persistent=False"
                )
        if self.vector.is_complex():
            raise InputError("the model has parameters of complex numbers, which do not travel; keep two of real ones")

    @staticmethod
    def of(bench: Workbench) -> Model:
        """A copy of what a workbench holds.

        Raises:
            InputError: If there is no parameter to select.
        """
        if not bench.layout.pool:
            raise InputError(
                f"the model {type(bench.module).__name__} trains parameters of normalisation layers alone, which every"
                f" client keeps; there is nothing to select"
            )
        constants = {n: t.clone() for n, t in bench.constants.items()}
        return Model(bench.vector.detach().clone(), constants, list(bench.buffers()), bench.layout)

    @property
    def pool(self) -> Tensor:
        """The selectable entries `[pool]`."""
        return self.vector[: self.layout.pool]

    def whole(self, mask: Tensor) -> Tensor:
        """A mask of selectable entries `[pool]` as one of all entries `[size]`: the others are always kept."""
        return torch.cat([mask, mask.new_ones(self.layout.size - self.layout.pool)])

    def tree(self) -> Tree:
        """The model by name."""
        return self.layout.split(self.vector) | self.constants


def marked(tensors: Mapping[str, Tensor]) -> Tree:
    """Buffers and frozen parameters under the names that they travel by."""
    return {BUFFER + n: t for n, t in tensors.items()}


def unmarked(tensors: Mapping[str, Tensor]) -> Tree:
    """The inverse of `marked`; whatever else a packet holds is left out."""
    return {n.removeprefix(BUFFER): t for n, t in tensors.items() if n.startswith(BUFFER)}
