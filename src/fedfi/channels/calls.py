"""One operation of the graph, with its arguments by name, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedfi.channels.ledger import Ledger
from fedfi.channels.values import Value, freeze, labels_of, plain


@dataclass(frozen=True)
class Call:
    """An operation and what it is given.

    Args:
        ledger: The book to write in.
        name: The operation, without its overload and the underscore of an in-place one.
        target: The overload itself.
        given: Its arguments by name, defaults included; tensors are `Value`s.
        args: Its arguments by position, as given.
        kwargs: Its arguments by keyword, as given.
        shapes: The shapes of its tensor results, in order.
        where: The module that calls it, for messages, or the empty string.
        several: Whether it returns a list or tuple, even of one tensor.
    """

    ledger: Ledger
    name: str
    target: Callable[..., Any]
    given: dict[str, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    where: str
    several: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self.shapes[0]

    def labels(self, name: str) -> Tensor:
        """The labels of an argument, see `labels_of`."""
        return labels_of(self.ledger, self.given[name])

    def result(self, labels: Tensor) -> Value:
        """The first result, with these labels."""
        return Value(self.shape, (labels,))

    def says(self, what: str) -> str:
        """A reason to freeze, with the operation and the module."""
        return f"{self.name}{f' in {self.where}' if self.where else ''} {what}"


Result = Value | list[Value]
Rule = Callable[[Call], Result]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operations of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def values(argument: Any) -> list[Value]:
    """The tensors in an argument, however nested in lists."""
    if isinstance(argument, Value):
        return [argument]
    if isinstance(argument, list | tuple):
        return [value for each in argument for value in values(each)]
    return []


def opaque(call: Call, what: str = "is not understood") -> Result:
    """Freezes every channel that goes in; nothing that comes out belongs to a channel."""
    for value in values(list(call.given.values())):
        freeze(call.ledger, value, call.says(what))
    results = [plain(call.ledger, shape) for shape in call.shapes]
    return results if call.several or not results else results[0]


def in_blocks(call: Call, groups: int) -> bool:
    """Whether an operation in so many groups has blocks of channels; one group has, if it was several once."""
    if groups > 1:
        call.ledger.grouped.add(call.where)
    return groups > 1 or call.where in call.ledger.whole


def positive(axis: int, count: int) -> int:
    """An axis counted from the front."""
    return axis + count if axis < 0 else axis


def varies(labels: Tensor, axes: list[int]) -> bool:
    """Whether labels change along one of these axes."""
    return any(labels.shape[axis] > 1 for axis in axes)


def tensor_shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    """The shapes of the tensors that an operation returns, as its fake result tells."""
    if isinstance(value, Tensor):
        return (tuple(int(length) for length in value.shape),)
    if isinstance(value, list | tuple):
        return tuple(shape for each in value for shape in tensor_shapes(each))
    return ()


def is_pointwise(target: Any) -> bool:
    """Whether an operation acts on each element by itself, after broadcasting."""
    return torch.Tag.pointwise in getattr(target, "tags", ())
