"""Data read as somebody else's inputs say: the same columns, categories, token ids and classes, whatever they hold.

A party that lacks a category or a class would otherwise number columns and outputs in a way of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

import torch

from fedfi.arguments import described
from fedfi.data.dataset import Dataset
from fedfi.data.inputs import Inputs
from fedfi.data.tables import Fixed
from fedfi.errors import InputError, some, unknown


def given(inputs: Inputs | str | Path) -> Inputs:
    """Inputs, or those of a file: one that `Inputs.read` reads, or an upload, which has no normalisation.

    Raises:
        InputError: If there are none in it.
    """
    if isinstance(inputs, Inputs):
        return inputs
    if not isinstance(inputs, str | Path):
        raise InputError(f"inputs is {described(inputs)}, expected a fedfi.Inputs or the name of a file")
    return Inputs.read(inputs, uploads=True)


def fixed(inputs: Inputs) -> Fixed:
    """What is fixed before rows are read."""
    length = inputs.spec.shape[0] if inputs.spec.kind == "text" else None
    return Fixed(inputs.columns, dict(inputs.categories or {}), inputs.tokenizer, length)


def conformed(data: Dataset, inputs: Inputs) -> Dataset:
    """A data set with classes, names and normalisation of the inputs.

    Columns without names are taken in the order of the inputs. Without a normalisation in the inputs, that of the data
    set stays.

    Raises:
        InputError: If its examples are none that the inputs speak of, naming the first difference.
    """
    name, spec = f"data {data.name!r}", inputs.spec
    if (data.spec.kind, data.spec.shape) != (spec.kind, spec.shape):
        mine, theirs = (f"{s.kind} {list(s.shape)}" for s in (data.spec, spec))
        raise InputError(f"{name}: an example is {mine}, but the inputs say {theirs}")
    tokens = [(s.vocabulary, s.padding) for s in (data.spec, spec)]
    if tokens[0] != tokens[1]:
        mine, theirs = (f"{size} token ids with padding {padding}" for size, padding in tokens)
        raise InputError(f"{name}: has {mine}, but the inputs say {theirs}")
    if inputs.columns is not None and data.feature_names is None:
        values = inputs.categories or {}
        hot = [f"{column}={value}" for column, known in values.items() for value in known]
        names = (*inputs.columns, *hot)
        data = dataclasses.replace(data, feature_names=names, one_hot=len(hot), categories=dict(values))
    own = Inputs.of(data)
    if found := columns_differ(inputs, own):
        raise InputError(f"{name}: the inputs and the data differ in {found}")
    if inputs.pixels != own.pixels:
        raise InputError(f"{name}: pixels are {own.pixels}, but the inputs say {inputs.pixels}")
    data = relabelled(data, class_names(inputs), name)
    if inputs.mean is None:
        return data
    return dataclasses.replace(data, fill=inputs.fill, mean=inputs.mean, std=inputs.std)


def relabelled(data: Dataset, labels: Sequence[str], said: str) -> Dataset:
    """The data set with classes counted in the order of these labels, of which it may lack some.

    Args:
        data: The data set.
        labels: All labels.
        said: Who says so; errors start with it.

    Raises:
        InputError: If it has another label.
    """
    own = [str(label) for label in data.label_names or range(data.spec.classes)]
    if missing := [label for label in own if label not in labels]:
        raise InputError(f"{said}: " + unknown("label", missing[0], labels))
    places = torch.tensor([list(labels).index(label) for label in own])
    spec = dataclasses.replace(data.spec, classes=len(labels))
    return dataclasses.replace(data, targets=places[data.targets], spec=spec, label_names=tuple(labels))


def class_names(inputs: Inputs) -> Sequence[str]:
    """The label of each class; 0, 1, ... where they have no names."""
    return inputs.labels if inputs.labels is not None else [str(i) for i in range(inputs.spec.classes)]


def columns_differ(first: Inputs, second: Inputs) -> str | None:
    """The first difference of columns and categories, such as ``"columns: number 0 is 'age' and 'pulse'"``.

    None where there is none, or one of the two names no columns.
    """
    if first.columns is None or second.columns is None:
        return None
    if found := differing("columns: number", first.columns, second.columns):
        return found
    own, others = first.categories or {}, second.categories or {}
    if found := differing("columns of categories: number", tuple(own), tuple(others)):
        return found
    for column in own:
        if found := differing(f"categories of {column!r}: number", own[column], others[column]):
            sides = (("first", own[column], others[column]), ("second", others[column], own[column]))
            alone = [(side, sorted(set(a) - set(b))) for side, a, b in sides]
            said = [f"only the {side} has {some(values)}" for side, values in alone if values]
            return f"{found} ({'; '.join(said)})" if said else found
    return None


def differing(what: str, first: Iterable[str], second: Iterable[str]) -> str | None:
    """The first place at which two lists of names differ, and what is there; None: they are the same."""
    for i, (a, b) in enumerate(zip_longest(first, second)):
        if a is None or b is None or str(a) != str(b):
            return f"{what} {i} is {_shown(a)} and {_shown(b)}"
    return None


def _shown(name: str | None) -> str:
    return "missing" if name is None else repr(str(name))
