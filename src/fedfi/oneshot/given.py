"""What plain functions of merging are given: models, statistics and weights that belong together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, get_args

from torch import Tensor, nn

from fedfi.arguments import described, expect
from fedfi.channels import Wiring
from fedfi.errors import InputError, counted, some, unknown
from fedfi.numerics.finite import all_finite

Trees = Sequence[Mapping[str, Tensor]]
RNG = "a torch.Generator, such as torch.Generator().manual_seed(0)"
_LEFT_OUT: Any = object()


def check_models(models: Trees, party: Any = _LEFT_OUT, *, start: Any = _LEFT_OUT) -> None:
    """Checks that models have the same tensors, of numbers, and that weights are weights of theirs.

    Args:
        models: K models by name.
        party: K weights, if there are to be some.
        start: What the models began with, if that is to be there; names of theirs, with their shapes.

    Raises:
        InputError: Naming the first model, tensor or weight that does not fit.
    """
    _check_trees("models", models)
    _check_alike("models", models, "tensors")
    _check_types(models)
    if start is not _LEFT_OUT:
        check_beside("start", start, models[0])
    if party is not _LEFT_OUT:
        check_party(party, len(models))


def check_beside(what: str, tree: Mapping[str, Tensor], model: Mapping[str, Tensor], *, whole: bool = False) -> None:
    """Checks that a tree has the shapes of a model, of the tensors that both hold.

    Args:
        what: What the tree is called, for errors.
        tree: The tree.
        model: The model, called ``models[0]``.
        whole: Whether it has to hold all that the model holds.

    Raises:
        InputError: Naming the first tensor that does not fit.
    """
    _check_tree(what, tree)
    lacking = sorted(model.keys() - tree.keys()) if whole else []
    if lacking:
        raise InputError(f"{what} lacks {some(lacking)} of models[0]")
    for name, value in tree.items():
        if name in model:
            _check_like(f"{what}[{name!r}]", value, model[name], f"models[0][{name!r}]")
            _check_numbers(f"{what}[{name!r}]", value)


def check_wiring(wiring: Wiring, model: Mapping[str, Tensor], what: str = "wiring") -> None:
    """Checks that channel groups are those of a model's network.

    Args:
        wiring: The channel groups.
        model: The model.
        what: What the groups are called, for errors.

    Raises:
        InputError: Naming the first tensor that the network does not have, has in another shape, or has besides.
    """
    expect(what, wiring, Wiring, "the channel groups that fedfi.channels.discover(network, inputs) finds")
    for name, value in model.items():
        own = wiring.shapes.get(wiring.aliases.get(name, name))
        if own != tuple(value.shape):
            has = "is not there" if own is None else f"has shape {list(own)}"
            raise InputError(
                f"{what} is of another network: {name!r} {has}, but {list(value.shape)} in the model; take"
                " fedfi.channels.discover(network, inputs) of a network that was merged"
            )
    held = {wiring.aliases.get(name, name) for name in model}
    lacking = [name for name in wiring.trained if name not in held]
    if lacking:
        raise InputError(f"{what} is of another network, or the model is not whole: it lacks {some(lacking)}")


def check_party(party: Sequence[float], models: int) -> None:
    """Checks one weight a model, none below zero, and not all of them zero.

    Raises:
        InputError: Naming the weight.
    """
    if not isinstance(party, Sequence) or isinstance(party, str):
        listed = "; its tolist() is one" if hasattr(party, "tolist") else ""
        raise InputError(f"party is {described(party)}, expected a list of weights, one a model{listed}")
    if len(party) != models:
        raise InputError(f"party has {counted(len(party), 'weight')} for {counted(models, 'model')}")
    for position, weight in enumerate(party):
        _check_real(f"party[{position}]", weight)
        if not (math.isfinite(weight) and weight >= 0):
            raise InputError(f"party[{position}] is {weight}, expected a number of at least 0")
    if not any(party):
        raise InputError("all weights in party are 0, so there is nothing to average")


def check_diagonals(what: str, diagonals: Trees, models: Trees) -> None:
    """Checks one tree of numbers from 0 a model, each of the shape of the parameter that it belongs to.

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
    for position, tree in enumerate(diagonals):
        for name, value in tree.items():
            if value.numel() and float(value.min()) < 0:
                raise InputError(f"{what}[{position}][{name!r}] holds {float(value.min()):g}, expected at least 0")


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


def check_names(names: Sequence[str], model: Mapping[str, Tensor], **others: Mapping[str, Tensor]) -> None:
    """Checks that all are tensors of a model, and that there are some.

    Args:
        names: The names.
        model: The model.
        others: Other trees that have to hold them, such as what a model began with.

    Raises:
        InputError: Naming the first that is none, and the nearest.
    """
    if isinstance(names, str):
        raise InputError(f"names is the text {names!r}, expected a sequence of names")
    if not len(names):
        raise InputError(f"names is empty, expected the names of the trained parameters, such as {some(list(model))}")
    for name in names:
        if name not in model:
            raise InputError(f"names: {unknown('tensor', name, model)}")
        for other, tree in others.items():
            if name not in tree:
                raise InputError(f"{other} lacks {name!r}, which is one of names")


def check_choice(option: str, given: object, choices: Any) -> None:
    """Checks that a word is one of a `Literal`'s.

    Raises:
        InputError: Naming the option, and the nearest word.
    """
    if given not in get_args(choices):
        raise InputError(f"{option}: {unknown('choice', given, get_args(choices))}")


def check_range(
    option: str,
    given: float,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    open_below: bool = False,
    whole: bool = False,
) -> None:
    """Checks that a number is one, finite, and within bounds.

    Args:
        option: Its name, for errors.
        given: The number.
        least: The least that is allowed.
        most: The largest that is allowed.
        open_below: Whether `least` itself is not.
        whole: Whether it has to be a whole number.

    Raises:
        InputError: Naming the option, the number and the bounds.
    """
    _check_real(option, given, whole=whole)
    if not math.isfinite(given) or given < least or given > most or (open_below and given == least):
        bounds = f"above {least:g}" if open_below else f"at least {least:g}"
        bounds = "a finite number" if least == -math.inf else bounds
        raise InputError(
            f"{option} is {given}, expected {bounds}" + (f" and at most {most:g}" if most < math.inf else "")
        )


def _check_real(what: str, given: object, *, whole: bool = False) -> None:
    if not isinstance(given, Integral if whole else Real) or isinstance(given, bool):
        raise InputError(f"{what} is {described(given)}, expected a {'whole number' if whole else 'number'}")


def _check_trees(what: str, trees: Trees) -> None:
    if isinstance(trees, Mapping | nn.Module) or not isinstance(trees, Sequence):
        raise InputError(f"{what}: expected a sequence of trees of tensors, got {type(trees).__name__}")
    if not trees:
        raise InputError(f"{what} is empty: expected at least one")
    for position, tree in enumerate(trees):
        _check_tree(f"{what}[{position}]", tree)


def _check_tree(what: str, tree: object) -> None:
    if isinstance(tree, nn.Module):
        raise InputError(f"{what} is a module ({type(tree).__name__}); give its state_dict()")
    if not isinstance(tree, Mapping):
        raise InputError(f"{what}: expected tensors by name, got {type(tree).__name__}")


def _check_alike(what: str, trees: Trees, parts: str) -> None:
    for position, tree in enumerate(trees):
        differing = sorted(tree.keys() ^ trees[0].keys())
        if differing:
            raise InputError(f"{what}[{position}] and {what}[0] differ in their {parts}: {some(differing)}")
        for name, value in tree.items():
            _check_like(f"{what}[{position}][{name!r}]", value, trees[0][name], f"{what}[0][{name!r}]")
            _check_numbers(f"{what}[{position}][{name!r}]", value)


def _check_types(models: Trees) -> None:
    for position, model in enumerate(models):
        for name, value in model.items():
            if value.dtype != models[0][name].dtype:
                raise InputError(
                    f"models[{position}][{name!r}] is {value.dtype}, models[0][{name!r}] {models[0][name].dtype};"
                    " make them one type"
                )


def _check_like(what: str, value: Tensor, other: Tensor, whose: str) -> None:
    if not isinstance(value, Tensor):
        raise InputError(f"{what}: expected a tensor, got {type(value).__name__}")
    if value.shape != other.shape:
        raise InputError(f"{what} has shape {list(value.shape)}, {whose} {list(other.shape)}")


def _check_numbers(what: str, value: Tensor) -> None:
    if value.is_floating_point() and not all_finite(value):
        raise InputError(f"{what} holds values that are not finite")
