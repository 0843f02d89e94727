"""What plain functions of merging are given: models, statistics and weights that belong together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from torch import Tensor, nn

from fedfi.errors import InputError, counted, some, unknown
from fedfi.numerics.finite import all_finite

Trees = Sequence[Mapping[str, Tensor]]


def check_models(
    models: Trees, party: Sequence[float] | None = None, *, start: Mapping[str, Tensor] | None = None
) -> None:
    """Checks that models have the same tensors, of numbers, and that weights are weights of theirs.

    Args:
        models: K models by name.
        party: K weights, if any are given.
        start: What the models began with; names of theirs, with their shapes.

    Raises:
        InputError: Naming the first model, tensor or weight that does not fit.
    """
    _check_trees("models", models)
    if start is not None:
        _check_trees("start", [start])
    _check_alike("models", models, "tensors")
    for name, value in (start or {}).items():
        if name in models[0]:
            _check_like(f"start[{name!r}]", value, models[0][name], f"models[0][{name!r}]")
            _check_numbers(f"start[{name!r}]", value)
    if party is not None:
        check_party(party, len(models))


def check_party(party: Sequence[float], models: int) -> None:
    """Checks one weight a model, none below zero, and not all of them zero.

    Raises:
        InputError: Naming the weight.
    """
    if len(party) != models:
        raise InputError(f"party has {counted(len(party), 'weight')} for {counted(models, 'model')}")
    for position, weight in enumerate(party):
        if not (math.isfinite(weight) and weight >= 0):
            raise InputError(f"party[{position}] is {weight}, expected a number of at least 0")
    if not any(party):
        raise InputError("all weights in party are 0, so there is nothing to average")


def check_diagonals(what: str, diagonals: Trees, models: Trees) -> None:
    """Checks one tree of numbers a model, each of the shape of the parameter that it belongs to.

    Args:
        what: The argument, for errors.
        diagonals: The trees.
        models: The models.

    Raises:
        InputError: Naming the first that does not fit.
    """
    check_statistics(what, diagonals, models)
    for name, value in diagonals[0].items():  # the others are like the first
        if name not in models[0]:
            raise InputError(f"{what}[0]: {unknown('parameter', name, models[0])}")
        _check_like(f"{what}[0][{name!r}]", value, models[0][name], f"models[0][{name!r}]")


def check_statistics(what: str, statistics: Trees, models: Trees) -> None:
    """Checks one tree of numbers a model, all with the same entries.

    Args:
        what: The argument, for errors.
        statistics: The trees.
        models: The models.

    Raises:
        InputError: Naming the first that does not fit.
    """
    _check_trees(what, statistics)
    if len(statistics) != len(models):
        raise InputError(f"{what} has {len(statistics)} entries for {counted(len(models), 'model')}")
    _check_alike(what, statistics, "entries")


def check_names(names: Sequence[str], model: Mapping[str, Tensor]) -> None:
    """Checks that all are tensors of a model.

    Raises:
        InputError: Naming the first that is none, and the nearest.
    """
    if isinstance(names, str):
        raise InputError(f"names is the text {names!r}, expected a sequence of names")
    for name in names:
        if name not in model:
            raise InputError(f"names: {unknown('tensor', name, model)}")


def check_choice(option: str, given: object, choices: Any) -> None:
    """Checks that a word is one of a `Literal`'s.

    Raises:
        InputError: Naming the option, and the nearest word.
    """
    if given not in get_args(choices):
        raise InputError(f"{option}: {unknown('choice', given, get_args(choices))}")


def check_range(option: str, given: float, least: float, most: float = math.inf, *, open_below: bool = False) -> None:
    """Checks a number's bounds.

    Args:
        option: Its name, for errors.
        given: The number.
        least: The least that is allowed.
        most: The largest that is allowed.
        open_below: Whether `least` itself is not.

    Raises:
        InputError: Naming the option, the number and the bounds.
    """
    if math.isnan(given) or given < least or given > most or (open_below and given == least):
        bounds = f"above {least:g}" if open_below else f"at least {least:g}"
        raise InputError(
            f"{option} is {given}, expected {bounds}" + (f" and at most {most:g}" if most < math.inf else "")
        )


def _check_trees(what: str, trees: Trees) -> None:
    if isinstance(trees, Mapping | nn.Module) or not isinstance(trees, Sequence):
        raise InputError(f"{what}: expected a sequence of trees of tensors, got {type(trees).__name__}")
    if not trees:
        raise InputError(f"{what} is empty: expected at least one")
    for position, tree in enumerate(trees):
        if isinstance(tree, nn.Module):
            raise InputError(f"{what}[{position}] is a module ({type(tree).__name__}); give its state_dict()")
        if not isinstance(tree, Mapping):
            raise InputError(f"{what}[{position}]: expected tensors by name, got {type(tree).__name__}")


def _check_alike(what: str, trees: Trees, parts: str) -> None:
    for position, tree in enumerate(trees):
        differing = sorted(tree.keys() ^ trees[0].keys())
        if differing:
            raise InputError(f"{what}[{position}] and {what}[0] differ in their {parts}: {some(differing)}")
        for name, value in tree.items():
            _check_like(f"{what}[{position}][{name!r}]", value, trees[0][name], f"{what}[0][{name!r}]")
            _check_numbers(f"{what}[{position}][{name!r}]", value)


def _check_like(what: str, value: Tensor, other: Tensor, whose: str) -> None:
    if not isinstance(value, Tensor):
        raise InputError(f"{what}: expected a tensor, got {type(value).__name__}")
    if value.shape != other.shape:
        raise InputError(f"{what} has shape {list(value.shape)}, {whose} {list(other.shape)}")


def _check_numbers(what: str, value: Tensor) -> None:
    if value.is_floating_point() and not all_finite(value):
        raise InputError(f"{what} holds values that are not finite")
