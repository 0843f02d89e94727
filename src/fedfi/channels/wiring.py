"""The channel groups of an architecture, and what can be done with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedfi.channels import given
from fedfi.channels.grouping import Frozen
from fedfi.channels.shrinking import Extent, Shrinker
from fedfi.channels.slicing import Group, Member, Pieces, cut, kept, outer, paste, pieces, reordered
from fedfi.channels.tracing import Example, one_at_a_time
from fedfi.errors import InputError, unknown
from fedfi.numerics.selection import count_for, pack_bits, unpack_bits

Units = Mapping[str, Tensor]
"""The units that are kept, ``[units]`` flags for each group."""

Module = TypeVar("Module", bound=nn.Module)
_ROUNDED_UP = Context(prec=6, rounding=ROUND_CEILING)


@dataclass(frozen=True, eq=False)
class Wiring:
    """Which axes of which parameters and buffers are one and the same channel axis.

    Methods that take a tree accept any parameters and buffers by name, a state dict for instance; a tied tensor
    goes by each of its names, and of an empty tree they make an empty one. Made by `fedfi.channels.discover`, not by
    hand.

    Args:
        key: A digest of the architecture.
        groups: The groups, in the order of the computation.
        frozen: What is always kept, and why. Axes in neither (kernels, say) have no channels and are kept too.
        outputs: The axes that carry the classes, ``[classes, 1]`` positions each, where the module's output is
            one tensor of logits; else empty.
        shapes: The shape of every parameter and buffer, by its first name.
        aliases: Every name of every parameter and buffer, to the first one.
        trained: The names of the parameters that are trained (those that require gradients), in order.
        extents: Sizes that normalisations know.
        grouped: Modules that hold a grouped convolution or a group norm of several groups.
        example: What the module was traced on.
    """

    key: str
    groups: tuple[Group, ...]
    frozen: tuple[Frozen, ...]
    outputs: tuple[Member, ...]
    shapes: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str]
    trained: tuple[str, ...]
    extents: tuple[Extent, ...]
    grouped: frozenset[str]
    example: Example = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pieces", pieces(self.groups))
        object.__setattr__(
            self, "_shrinker", Shrinker(self.groups, self.extents, self.grouped, self.shapes, self.example, {})
        )

    def __repr__(self) -> str:
        """What there is of each, in one line; the groups themselves are in `groups`."""
        units, count = sum(group.units for group in self.groups), len(self.groups)
        return (
            f"Wiring({count} group{'' if count == 1 else 's'} of {units} units, {len(self.frozen)} frozen,"
            f" {len(self.shapes)} parameters and buffers)"
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wiring) and self.key == other.key

    @property
    def order(self) -> tuple[Group, ...]:
        """The groups, each made before the next; their members' roles tell who makes and who reads."""
        return self.groups

    @property
    def sizes(self) -> dict[str, int]:
        """The number of units of each group."""
        return {group.name: group.units for group in self.groups}

    # --- which units -------------------------------------------------------------------------------------------

    def full(self) -> dict[str, Tensor]:
        """All units."""
        return {group.name: torch.ones(group.units, dtype=torch.bool) for group in self.groups}

    def prefix(self, width: float) -> dict[str, Tensor]:
        """The first ceil(width n) units of each group, at least 1 (HeteroFL).

        Args:
            width: In (0, 1].

        Raises:
            InputError: If the width is out of range.
        """
        return {name: torch.arange(self.sizes[name]) < count for name, count in self.counts(width).items()}

    def rolled(self, width: float, shift: int) -> dict[str, Tensor]:
        """Units (j + shift) mod n for j below ceil(width n), for each group (FedRolex).

        Args:
            width: In (0, 1].
            shift: Any whole number, the round for instance.

        Raises:
            InputError: If the width is out of range.
        """
        shift = given.whole("shift", shift)
        return {name: flags.roll(shift % len(flags)) for name, flags in self.prefix(width).items()}

    def random(self, width: float, generator: torch.Generator) -> dict[str, Tensor]:
        """ceil(width n) units of each group, drawn without replacement (Federated Dropout).

        Args:
            width: In (0, 1].
            generator: Where the draws come from.

        Raises:
            InputError: If the width is out of range.
        """
        given.generator(generator)
        found = {}
        for name, count in self.counts(width).items():
            flags = torch.zeros(self.sizes[name], dtype=torch.bool)
            flags[torch.randperm(len(flags), generator=generator, device=generator.device)[:count].cpu()] = True
            found[name] = flags
        return found

    def counts(self, width: float) -> dict[str, int]:
        """How many units of each group a width keeps: ceil(width n), at least 1.

        Raises:
            InputError: If the width is not in (0, 1].
        """
        width = given.part("width", width)
        return {group.name: max(1, count_for(width, group.units)) for group in self.groups}

    def pack(self, units: Units) -> bytes:
        """One bit a unit over all groups in order, see `fedfi.numerics.selection.pack_bits`.

        Raises:
            InputError: If the units are not this wiring's, or a group keeps none.
        """
        units = self._checked(units)
        return pack_bits(torch.cat([units[g.name] for g in self.groups])) if self.groups else b""

    def unpack(self, data: bytes) -> dict[str, Tensor]:
        """The units that `pack` wrote.

        Raises:
            InputError: If there are too few or too many bytes, a bit beyond the last unit, or an empty group.
        """
        given.packed(data)
        try:
            bits = unpack_bits(bytes(data), sum(group.units for group in self.groups))
        except ValueError as error:
            raise InputError(f"packed units: {error}") from error
        parts = bits.split([group.units for group in self.groups]) if self.groups else ()
        units = {group.name: part for group, part in zip(self.groups, parts, strict=True)}
        return self._checked(units)

    # --- tensors -----------------------------------------------------------------------------------------------

    def mask(self, name: str, units: Units) -> Tensor:
        """Which entries of a parameter or buffer stay, in its full shape: the outer product over its axes.

        ``take({name: tensor}, units)[name].flatten()`` equals ``tensor[mask]``.

        Raises:
            InputError: If there is no such tensor, or the units are not this wiring's.
        """
        return outer(self.shapes[self._first(name)], self._axes(name, self._checked(units)))

    def take(self, tree: Mapping[str, Tensor], units: Units) -> dict[str, Tensor]:
        """The smaller tensors: kept positions of each axis, in order; differentiable.

        Args:
            tree: Tensors of full shape, of any of the parameters and buffers.
            units: What to keep.

        Raises:
            InputError: If a name or shape is not this wiring's, or the units are not.
        """
        given.tree("tree", tree)
        units = self._checked(units)
        found = {}
        for name, tensor in tree.items():
            self._expect(name, tensor, self.shapes[self._first(name)])
            found[name] = cut(tensor, self._axes(name, units))
        return found

    def put(self, full: Mapping[str, Tensor], small: Mapping[str, Tensor], units: Units) -> dict[str, Tensor]:
        """Copies of full tensors in which the kept entries hold the small tensors' values.

        Args:
            full: Tensors of full shape.
            small: As `take` makes them, for some or all of these names; the others are copied.
            units: What was kept.

        Raises:
            InputError: If a name or shape does not fit.
        """
        given.tree("full", full)
        given.tree("small", small)
        units = self._checked(units)
        for name in small:
            if name not in full:
                raise InputError(unknown("tensor", name, full))
        found = {}
        for name, tensor in full.items():
            self._expect(name, tensor, self.shapes[self._first(name)])
            if name not in small:
                found[name] = tensor.clone()
                continue
            axes = self._axes(name, units)
            shape = tuple(int(axes[a].sum()) if a in axes else length for a, length in enumerate(tensor.shape))
            self._expect(name, small[name], shape)
            found[name] = paste(tensor, small[name], axes)
        return found

    def weights(self, names: Any, units: Units, weight: float = 1.0) -> dict[str, Tensor]:
        """A number for each entry of the full tensors: `weight` where it is kept, else zero; summed, counts.

        Args:
            names: Names of parameters and buffers.
            units: What is kept.
            weight: The number.

        Raises:
            InputError: If a name or the units are not this wiring's.
        """
        weight = given.number("weight", weight, "a number")
        return {name: self.mask(name, units) * weight for name in given.names(names)}

    def permute(self, tree: Mapping[str, Tensor], permutations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same function with units in another order: unit j becomes the old unit ``permutation[j]``.

        Args:
            tree: Tensors of full shape; for the function to stay the same, all parameters and buffers.
            permutations: For some or all groups, ``[units]``.

        Raises:
            InputError: If a name, shape or group is not this wiring's, or something is no permutation.
        """
        given.tree("tree", tree)
        given.table("permutations", permutations, "groups to permutations")
        for name, order in permutations.items():
            if name not in self.sizes:
                raise InputError(unknown("group", name, self.sizes))
            if not _permutes(order, self.sizes[name]):
                raise InputError(
                    f"group {name!r} needs a permutation of {self.sizes[name]} units, a tensor of whole numbers,"
                    f" got {given.shown(order)}{_misplaced(order, self.sizes[name])}"
                )
        orders = {name: each.long().cpu() for name, each in permutations.items()}
        found = {}
        for name, tensor in tree.items():
            first = self._first(name)
            self._expect(name, tensor, self.shapes[first])
            found[name] = reordered(tensor, self._owners.get(first, {}), orders)
        return found

    def shrink(self, module: Module, units: Units) -> Module:
        """A smaller copy of a module: the kept channels alone, with sizes that fit.

        The copy is run on the example once for each new set of counts.

        Args:
            module: The module that was discovered, or another of the same architecture; left as it is.
            units: What to keep.

        Raises:
            InputError: If the module's tensors are not this wiring's, or the smaller one does not run: a size
                is then fixed in its code.
        """
        given.module(module)
        units = self._checked(units)
        named: dict[str, Tensor] = {}
        named |= dict(module.named_parameters(remove_duplicate=False))
        named |= dict(module.named_buffers(remove_duplicate=False))
        if missing := sorted(self.aliases.keys() - named.keys()):
            raise InputError(f"module {type(module).__name__} lacks {missing[0]!r}, which the wiring knows")
        small: dict[int, Tensor] = {}
        for name in self.aliases:
            tensor = named[name]
            self._expect(name, tensor, self.shapes[self._first(name)])
            if id(tensor) not in small:
                made = cut(tensor.detach(), self._axes(name, units))
                made = made.clone() if made.data_ptr() == tensor.data_ptr() else made
                small[id(tensor)] = (
                    nn.Parameter(made, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
                )
        made_module: Module = self._shrink(module, small, units)
        return made_module

    # --- sizes -------------------------------------------------------------------------------------------------

    def parameters(self, kept: Mapping[str, int | Tensor], names: Any = None) -> int:
        """Number of trained entries that are kept, in closed form.

        Args:
            kept: For each group the number of units, or flags.
            names: Count these parameters only.

        Raises:
            InputError: If a group is missing or a name unknown.
        """
        counts = self._counts(kept)
        return sum(self._entries(name, counts) for name in self._counted(names))

    def ratio_for(self, width: float, names: Any = None) -> float:
        """The share of trained entries that `prefix` keeps at a width.

        Args:
            width: In (0, 1].
            names: Count these parameters only.

        Raises:
            InputError: If the width is out of range or a name unknown.
        """
        return self.parameters(self.counts(width), names) / self._total(names)

    def width_for(self, ratio: float, names: Any = None) -> float:
        """The largest width whose prefix keeps at most this share of the trained entries.

        Args:
            ratio: In (0, 1].
            names: Count these parameters only.

        Raises:
            InputError: If the ratio is out of range, or even one unit a group is more.
        """
        ratio = given.part("ratio", ratio)
        total = self._total(names)
        allowed = count_for(ratio, total)
        if allowed > ratio * total * (1 + 1e-15):  # not the whole number that the ratio stands for
            allowed -= 1
        widths = sorted({Fraction(k, g.units) for g in self.groups for k in range(1, g.units + 1)} | {Fraction(1)})
        low, high = -1, len(widths) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.parameters(self.counts(float(widths[middle])), names) <= allowed:
                low = middle
            else:
                high = middle - 1
        if low < 0:
            least = self.parameters({group.name: 1 for group in self.groups}, names) / total
            raise InputError(
                f"ratio {ratio:g} is too small: one unit a group is already {least:.6g} of the parameters"
                f" (nearest valid: {_ROUNDED_UP.create_decimal_from_float(least):f})"
            )
        return float(widths[low])

    # --- inside ------------------------------------------------------------------------------------------------

    @property
    def _owners(self) -> Pieces:
        owners: Pieces = self.__dict__["_pieces"]
        return owners

    def _shrink(self, module: Module, small: dict[int, Tensor], units: Units) -> Module:
        shrinker: Shrinker = self.__dict__["_shrinker"]
        with one_at_a_time():  # another thread may trace the same module, whose mode would be copied
            return shrinker(module, small, units)

    def _first(self, name: str) -> str:
        given.name("a tensor's name", name)
        if name not in self.aliases:
            raise InputError(unknown("tensor", name, self.aliases))
        return self.aliases[name]

    def _axes(self, name: str, units: Units) -> dict[int, Tensor]:
        first = self._first(name)
        found = {}
        for axis, owners in self._owners.get(first, {}).items():
            flags = kept(owners, self.shapes[first][axis], units)
            if flags is not None:
                found[axis] = flags
        return found

    def _entries(self, name: str, counts: Mapping[str, int]) -> int:
        lengths = list(self.shapes[name])
        for axis, owners in self._owners.get(name, {}).items():
            lengths[axis] -= sum((len(places) - counts[group]) * places.shape[1] for group, places in owners)
        return math.prod(lengths)

    def _counted(self, names: Any) -> list[str]:
        if names is None:
            return list(self.trained)
        return list(dict.fromkeys(self._first(name) for name in given.names(names)))

    def _total(self, names: Any) -> int:
        return sum(math.prod(self.shapes[name]) for name in self._counted(names))

    def _counts(self, kept: Mapping[str, int | Tensor]) -> dict[str, int]:
        given.table("units", kept, "groups to flags")
        for name in kept:
            if name not in self.sizes:
                raise InputError(unknown("group", name, self.sizes))
        found = {}
        for name, size in self.sizes.items():
            if name not in kept:
                raise InputError(f"units of group {name!r} are missing")
            found[name] = given.count(f"units of group {name!r}", kept[name])
            if not 1 <= found[name] <= size:
                raise InputError(f"group {name!r} must keep 1 to {size} units, got {found[name]}")
        return found

    def _checked(self, units: Units) -> dict[str, Tensor]:
        self._counts(units)
        for name, flags in units.items():
            if not isinstance(flags, Tensor) or flags.shape != (self.sizes[name],):
                raise InputError(
                    f"units of group {name!r} must be flags [{self.sizes[name]}], got {given.shown(flags)}"
                )
        return {name: flags.cpu() for name, flags in units.items()}

    def _expect(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != shape:
            raise InputError(f"{name!r} has shape {list(tensor.shape)}, expected {list(shape)}")


def _misplaced(order: object, count: int) -> str:
    """What of a tensor of the right kind and length makes it no permutation; empty for another one."""
    if not isinstance(order, Tensor) or order.shape != (count,) or order.is_floating_point():
        return ""
    places = order.tolist()
    wrong = next((place for place in places if not 0 <= place < count), None)
    if wrong is not None:
        return f" that holds {wrong} (units are 0 to {count - 1})"
    return f" that holds {next(place for place in places if places.count(place) > 1)} twice"


def _permutes(order: object, count: int) -> bool:
    if not isinstance(order, Tensor) or order.is_floating_point() or order.dtype == torch.bool:
        return False
    return order.shape == (count,) and sorted(order.tolist()) == list(range(count))
