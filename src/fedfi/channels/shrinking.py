"""From smaller tensors to a smaller module that runs, and is wired as the large one was."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedfi.channels.resizing import replace_attention, resize, resize_norm, resize_others
from fedfi.channels.slicing import Group, kept, pieces
from fedfi.channels.tracing import Example, arguments, evaluating, innermost, trace
from fedfi.channels.walking import walk
from fedfi.errors import InputError

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Extent:
    """An axis that a normalisation has the length of.

    Args:
        module: The name of the module that holds it.
        axis: Which of its normalised axes.
        length: The full length.
        widths: How many positions a unit of each group has of it.
    """

    module: str
    axis: int
    length: int
    widths: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Shrinker:
    """Makes smaller copies of modules of one architecture, and checks each new set of counts.

    Args:
        groups: The groups.
        extents: Sizes that normalisations know.
        grouped: Modules that hold a grouped convolution or a group norm of several groups.
        shapes: The full shape of every parameter and buffer.
        example: What a smaller module must run on.
        runs: Counts that were checked; filled as they are.
    """

    groups: tuple[Group, ...]
    extents: tuple[Extent, ...]
    grouped: frozenset[str]
    shapes: Mapping[str, tuple[int, ...]]
    example: Example
    runs: dict[tuple[int, ...], bool]

    def __call__(self, module: Module, small: dict[int, Tensor], units: Mapping[str, Tensor]) -> Module:
        """A copy of a module with other tensors in it.

        Args:
            module: The module.
            small: For the identity of each parameter and buffer, the tensor that takes its place.
            units: The units that they keep.

        Raises:
            InputError: If it does not run, or wires its units otherwise.
        """
        counts = tuple(int(units[group.name].sum()) for group in self.groups)
        if counts == tuple(group.units for group in self.groups):
            return copy.deepcopy(module, dict(small))
        if counts in self.runs:
            return self._made(module, small, units, self.runs[counts])
        problem = ""
        for others in (False, True):
            made = self._made(module, small, units, others)
            found = self._problem(made, units)
            if not found:
                self.runs[counts] = others
                return made
            problem = problem or found
        raise InputError(
            f"{type(module).__name__} does not work with fewer channels: {problem}; a size is fixed in its code: "
            "read it off a tensor's shape instead (-1 in a view)"
        )

    def _made(self, module: Module, small: dict[int, Tensor], units: Mapping[str, Tensor], others: bool) -> Module:
        made: Module = copy.deepcopy(module, dict(small))
        counts = {name: int(flags.sum()) for name, flags in units.items()}
        for each in made.modules():
            resize(each)
        for extent in self.extents:
            lost = sum((len(units[name]) - counts[name]) * width for name, width in extent.widths.items())
            resize_norm(made.get_submodule(extent.module), extent.axis, extent.length - lost)
        if others:
            resize_others(made, self.groups, counts, self.shapes)
        made = replace_attention(made)  # type: ignore[assignment]  # an attention by itself becomes another class
        return made

    def _problem(self, made: nn.Module, units: Mapping[str, Tensor]) -> str:
        device = next((each.device for each in (*made.parameters(), *made.buffers())), torch.device("cpu"))
        example = pytree.tree_map_only(Tensor, lambda each: each.to(device), self.example)
        args, kwargs = arguments(example)
        with evaluating(made), torch.no_grad():
            try:
                made(*args, **kwargs)
            except Exception as error:
                return _fails(made, error)
        blocks = any(member.positions.shape[1] > 1 for group in self.groups for member in group.members)
        return self._rewired(made, example, units) if blocks else ""

    def _rewired(self, made: nn.Module, example: Example, units: Mapping[str, Tensor]) -> str:
        """Traces the small module: units must be what they were. A reshape may run and cut heads elsewhere."""
        ledger = walk(trace(made, example), self.grouped).ledger
        components = ledger.components()
        owners = pieces(self.groups)
        for group in self.groups:
            found = []
            for member in group.members:
                flags = kept(owners[member.name][member.axis], self.shapes[member.name][member.axis], units)
                places = member.positions[units[group.name]]
                places = places if flags is None else (flags.cumsum(0) - 1)[places]
                found.append(components[(places + ledger.starts[member.name, member.axis]).numpy()])
            rows = np.concatenate(found, axis=1)
            if (rows != rows[:, :1]).any() or len(np.unique(rows[:, 0])) != len(rows):
                return f"it cuts the units of {group.name!r} in other places"
        return ""


def _fails(made: nn.Module, error: Exception) -> str:
    inner = innermost(made, error)
    shapes = [f"{n} {list(t.shape)}" for n, t in made.get_submodule(inner).named_parameters(recurse=False)]
    line = next((text for text in str(error).splitlines() if text.strip()), "")
    tensors = f" with {', '.join(shapes[:4])}" if shapes else ""
    return f"{inner or 'its forward'} fails{tensors}: {line[:200]}"
