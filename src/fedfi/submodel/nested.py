"""A network that holds smaller ones inside it: the same parameters, but batch normalisation of each width's own.

Names: the *label* of a parameter or buffer says what it is at the server, where there is one network at full width and
a set of batch norms a level. It is the task's own name, such as ``stage1.0.first.conv.weight``, or, for a batch norm,
that name behind the level, such as ``0.25:stage1.0.first.norm.weight``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedfi.channels import Units, Wiring

Places = tuple[Tensor | int | None, ...]
"""For each axis what a smaller network keeps of it: its first so many positions, these, or (None) all."""


class Nested(nn.Module):
    """A network, and smaller ones made of the first of its channels; `level` says which of them runs.

    Args:
        whole: The network; level 0.
        smaller: The networks of levels 1, 2, ..., each of them with what it keeps of each parameter and buffer. Their
            own parameters are not used, but for the first values of their batch norms.

    Attributes:
        whole: The same.
        norms: The batch norms of each smaller network, in the order of `batch_norms`.
        level: Which network runs.
    """

    def __init__(self, whole: nn.Module, smaller: Sequence[tuple[nn.Module, Mapping[str, Places]]]) -> None:
        super().__init__()
        self.whole = whole
        self.norms = nn.ModuleList(
            nn.ModuleList(copy.deepcopy(part) for part in batch_norms(module).values()) for module, _ in smaller
        )
        self.level = 0
        self._paths = [list(batch_norms(module)) for module, _ in smaller]
        self._smaller = tuple(smaller)  # not registered: what they hold is not theirs

    @staticmethod
    def of(module: nn.Module, wiring: Wiring, levels: Sequence[Units]) -> Nested:
        """The network of the first level's channels, with those of the others in it.

        Args:
            module: The task's whole network, whose wiring is given.
            wiring: Its channel groups.
            levels: The channels of each level, each a part of those before it.
        """
        whole = wiring.shrink(module, levels[0])
        own = dict([*whole.named_parameters(), *whole.named_buffers()])
        smaller = []
        for units in levels[1:]:
            kept = {name: places(wiring.mask(name, levels[0]), wiring.mask(name, units)) for name in own}
            smaller.append((wiring.shrink(module, units), kept))
        return Nested(whole, smaller)

    def forward(self, *inputs: Any) -> Any:
        """The outputs of the network of `level`."""
        if self.level == 0:
            return self.whole(*inputs)
        module, kept = self._smaller[self.level - 1]
        own = dict([*self.whole.named_parameters(), *self.whole.named_buffers()])
        tree = {name: cut(tensor, kept[name]) for name, tensor in own.items()}
        for path, part in self._norms(self.level - 1):
            tree |= {_join(path, leaf): t for leaf, t in [*part.named_parameters(), *part.named_buffers()]}
        return torch.func.functional_call(module, tree, inputs)

    def labels(self, levels: Sequence[str]) -> dict[str, str]:
        """The label of each parameter and buffer, given the levels' names, level 0 first."""
        norms = batch_norm_names(self.whole)
        names = [name for name, _ in [*self.whole.named_parameters(), *self.whole.named_buffers()]]
        found = {f"whole.{name}": label(name, levels[0], norms) for name in names}
        for index, level in enumerate(levels[1:]):
            for place, (path, part) in enumerate(self._norms(index)):
                for leaf, _ in [*part.named_parameters(), *part.named_buffers()]:
                    found[f"norms.{index}.{place}.{leaf}"] = label(_join(path, leaf), level, norms)
        return found

    def _norms(self, index: int) -> Iterator[tuple[str, nn.Module]]:
        """The batch norms of a smaller network, with their paths in it."""
        parts = cast(nn.ModuleList, self.norms[index])
        return zip(self._paths[index], parts, strict=True)

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode of all networks."""
        super().train(mode)
        for module, _ in self._smaller:
            module.train(mode)
        return self


def batch_norms(module: nn.Module) -> dict[str, nn.Module]:
    """The batch norms of a network, by path."""
    return {path: part for path, part in module.named_modules() if isinstance(part, _BatchNorm)}


def batch_norm_names(module: nn.Module) -> set[str]:
    """Names of the parameters and buffers of a network's batch norms."""
    return {
        _join(path, leaf)
        for path, part in batch_norms(module).items()
        for leaf, _ in [*part.named_parameters(), *part.named_buffers()]
    }


def label(name: str, level: str, norms: set[str]) -> str:
    """The label of a parameter or buffer of a level's network."""
    return f"{level}:{name}" if name in norms else name


def labels(names: Iterable[str], levels: Iterable[str], norms: set[str]) -> list[str]:
    """The labels of all of these at these levels, in the order in which they travel."""
    names = list(names)
    shared = [name for name in names if name not in norms]
    return shared + [f"{level}:{name}" for level in levels for name in names if name in norms]


def places(outer: Tensor, inner: Tensor) -> Places:
    """What a smaller network keeps of a larger one's tensor, given the masks of both in the whole network's tensor."""
    found: list[Tensor | int | None] = []
    for large, small in zip(_axes(outer), _axes(inner), strict=True):
        flags = small[large]
        count = int(flags.sum())
        if count == len(flags):
            found.append(None)
        else:
            found.append(count if bool(flags[:count].all()) else flags.nonzero()[:, 0])
    return tuple(found)


def cut(tensor: Tensor, kept: Places) -> Tensor:
    """These places of a tensor; differentiable."""
    for axis, part in enumerate(kept):
        if isinstance(part, int):
            tensor = tensor.narrow(axis, 0, part)
        elif part is not None:
            tensor = tensor.index_select(axis, part.to(tensor.device))
    return tensor


def _axes(mask: Tensor) -> list[Tensor]:
    """Which positions of each axis a mask that is an outer product keeps."""
    return [mask.movedim(axis, 0).reshape(length, -1).any(1) for axis, length in enumerate(mask.shape)]


def _join(path: str, leaf: str) -> str:
    return f"{path}.{leaf}" if path else leaf
