"""Whether weights are sound: finite, possible, true to their ties, near what is sent of them, and of these data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedfi.data.dataset import Examples
from fedfi.errors import InputError
from fedfi.federation.evaluation import sums
from fedfi.federation.rng import keyed_generator
from fedfi.federation.task import Task
from fedfi.federation.workbench import Workbench, ties_of
from fedfi.models.norms import never_negative
from fedfi.numerics.finite import all_finite
from fedfi.oneshot.uploads import Merged, Upload

_JOINED = re.compile(r"^networks\.\d+\.")  # of `together.joined` models
_TOLD, _REFUSED = 0.01, 0.1  # of a tensor's numbers half are changed by more than this, relatively


def load_weights(
    bench: Workbench, weights: Mapping[str, Tensor], source: str, counted: int | None = None, columns: str = ""
) -> None:
    """Takes a network's values from a state dict, all of them.

    Args:
        bench: The network.
        weights: The state dict.
        source: Where it is from; errors start with it.
        counted: The network's number of classes where that was counted from examples, which may lack some.
        columns: What to say where the weights have more inputs than the network has from its examples' columns.

    Raises:
        InputError: Naming the source and the first name that is missing, unexpected, or of another shape; or as
            `check_values`.
    """
    state = bench.module.state_dict()
    for what, names in (("lacks", state.keys() - weights.keys()), ("holds", weights.keys() - state.keys())):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            where = "which the network has" if what == "lacks" else "which the network does not have"
            raise InputError(f"{source}: {what} {min(names)!r}{more}, {where}")
    for name, value in weights.items():
        if value.shape != state[name].shape:
            given, expected = list(value.shape), list(state[name].shape)
            few = counted is not None and given[:1] > expected[:1] == [counted] and given[1:] == expected[1:]
            hint = f" for the {counted} classes that the data name; if they lack some, give all by --classes"
            hint = hint if few else columns if given[-1:] > expected[-1:] and len(given) == len(expected) == 2 else ""
            raise InputError(f"{source}: {name!r} has shape {given}, expected {expected}{hint}")
    check_values(bench, weights, source)
    own = bench.tree()
    bench.load({n: t for n, t in weights.items() if n in own})


def check_values(bench: Workbench, weights: Mapping[str, Tensor], source: str, *, strict: bool = False) -> None:
    """Checks the values of a state dict that fits a network by names and shapes.

    Args:
        bench: The network.
        weights: The state dict.
        source: Where it is from; errors start with it.
        strict: Whether numbers must be finite even where the network's own are not, as in a network that is trained.

    Raises:
        InputError: Naming the source and the tensor: a number that is not finite (where the network's own is), a
            variance or a counter below zero, or two values for one shared tensor.
    """
    state = bench.module.state_dict()
    for name, value in weights.items():
        if value.is_floating_point() and not all_finite(value):
            wrong = ~value.isfinite() if strict else _spoilt(value, state[name])
            if count := int(wrong.sum()):
                raise InputError(f"{source}: {name!r} holds {count} of {value.numel()} values that are not finite")
    for name in sorted(never_negative(bench.module) & weights.keys()):
        if weights[name].numel() and float(weights[name].min()) < 0:
            raise InputError(f"{source}: {name!r} holds {float(weights[name].min()):g}, expected at least 0")
    for name, first in ties_of(bench.module).items():
        if name in weights and first in weights and not torch.equal(weights[name], weights[first]):
            raise InputError(f"{source}: {name!r} and {first!r} are one tensor of the network, but differ here")


def check_merged(merged: Merged, uploads: Sequence[Upload]) -> None:
    """Checks that a merge came to numbers, parameters and buffers alike.

    A buffer may hold what is none where the parties' holds it, such as a mask of minus infinities.

    Raises:
        InputError: Naming the tensor.
    """
    first = uploads[0]
    for name, value in {**merged.model, **(merged.deployed or {})}.items():
        if not value.is_floating_point() or all_finite(value):
            continue
        own = None if name in first.trained else first.model.get(_JOINED.sub("", name))
        if own is None or own.shape != value.shape or bool(_spoilt(value, own).any()):
            raise InputError(f"the merge came to values of {name!r} that are not finite; nothing was kept of it")


def _spoilt(value: Tensor, own: Tensor) -> Tensor:
    """Where numbers are not finite, and not those that a network has of its own."""
    own = own.to(value.dtype)
    return ~(value.isfinite() | (value == own) | (value.isnan() & own.isnan()))


def check_rounding(sent: Upload, arrived: Upload, source: str) -> list[str]:
    """Says what rounding to 16 bits has changed too much.

    Of each parameter it takes the median of the relative changes of its numbers, which one large number among small
    ones cannot hide.

    Returns:
        A note, or none.

    Raises:
        InputError: Naming the tensor, if half of its numbers change by more than a tenth.
    """
    changes = {n: _change(sent.model[n].double(), arrived.model[n].double()) for n in sent.trained}
    name = max(changes, key=lambda n: changes[n])
    if changes[name] <= _TOLD:
        return []
    largest = float(sent.model[name].abs().max())
    text = (
        f"{source}: 16 bits change half of {name!r} by more than {changes[name]:.1%}, since its largest number is"
        f" {largest:.3g}"
    )
    if changes[name] > _REFUSED:
        raise InputError(f"{text}: send it with --bits 32")
    return [f"{text}; --bits 32 sends it as it is"]


def _change(before: Tensor, after: Tensor) -> float:
    there = before != 0
    if not bool(there.any()):
        return 0.0
    return float(((after - before).abs() / before.abs())[there].median())


@dataclass(frozen=True)
class Fit:
    """How well weights fit examples.

    Attributes:
        accuracy: Share of right answers; None where the task has none.
        loss: Mean loss.
        examples: On how many.
        classes: How many answers there are.
    """

    accuracy: float | None
    loss: float
    examples: int
    classes: int

    def __str__(self) -> str:
        """One line for people."""
        right = "" if self.accuracy is None else f"accuracy {self.accuracy:.1%}, "
        return f"{right}loss {self.loss:.4g} on {self.examples} examples"

    def notes(self, source: str) -> list[str]:
        """A note where the weights are no better than guessing: by accuracy (within two deviations), or by loss."""
        chance = 1 / max(1, self.classes)
        guessed = chance + 2 * math.sqrt(chance * (1 - chance) / max(1, self.examples))
        near = self.accuracy is not None and self.accuracy <= guessed
        if not near and self.loss < math.log(max(2, self.classes)):
            return []
        return [
            f"{source}: on these data the weights are hardly better than guessing ({self}): are they of this network,"
            " and do labels, columns and their order agree with what it was trained on?"
        ]


def fit_of(task: Task, module: nn.Module, examples: Examples, limit: int | None = None) -> Fit:
    """Judges a model on examples, or on `limit` of them, drawn."""
    if limit is not None and limit < len(examples):
        rng = keyed_generator(0, "fit")
        examples = examples.subset(torch.randperm(len(examples), generator=rng)[:limit].sort().values)
    found = sums(task, module, examples)
    count = found["examples"]
    accuracy = found["accuracy"] / count if "accuracy" in found else None
    return Fit(accuracy, found["loss"] / count, int(count), examples.dataset.spec.classes)
