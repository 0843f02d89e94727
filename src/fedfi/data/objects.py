"""Data that users hold in Python: arrays, lists, tables, and torch's data sets of pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from fedfi.arguments import described
from fedfi.data import arrays, tables
from fedfi.data.dataset import Dataset
from fedfi.data.tables import Options
from fedfi.errors import InputError, first_line
from fedfi.importing import call

Pair = tuple[Dataset, Dataset | None]
_TABLE_OPTIONS = ("label", "group", "columns")
_HOLDERS: tuple[type, ...] = (Dataset, tuple, list, Mapping, torch_data.DataLoader, torch_data.IterableDataset)
FORMS = (
    "arrays (x, y) or ((x, y), (test_x, test_y)), a dictionary of arrays, a data frame, a torch data set of pairs"
    " (x, y), or a fedfi.Dataset; or two of one of the last three, the second for the test"
)


def takes(value: object) -> bool:
    """Whether something is for `given`, rather than a name or a path."""
    return isinstance(value, _HOLDERS) or is_frame(value) or _is_map(value)


def given(value: Any, where: str, name: str, options: Options, accept: Callable[[tuple[str, ...]], None]) -> Pair:
    """Data sets of what a user gives, or a user's function returns.

    Args:
        value: The data.
        where: What gave them, for errors.
        name: Name of the data set.
        options: What the columns of data frames mean.
        accept: Refuses options other than those.

    Raises:
        InputError: If it is nothing of the kind, saying how to convert it.
    """
    first, second = value if _is_two(value) else (value, None)
    both = (first,) if second is None else (first, second)
    if all(map(is_frame, both)) and (second is None or list(first.columns) == list(second.columns)):
        accept(_TABLE_OPTIONS)
        return tables.from_frame(first, second, name, options, missing=True)
    accept(())
    if all(isinstance(each, Dataset) for each in both):
        return first, second
    if isinstance(value, Mapping):
        return arrays.from_arrays(value, name)
    if any(isinstance(each, torch_data.DataLoader) for each in both):
        raise InputError(f"{where}: got a DataLoader, expected what it reads from: give its .dataset")
    if all(map(_is_map, both)):
        parts = [_read(each, where) for each in both]
    elif all(map(_is_pair, both)):
        parts = list(both)
    elif _is_pair(value):
        parts = [(first, second)]
    elif isinstance(value, list) and value and all(isinstance(v, tuple) and len(v) == 2 for v in value):
        parts = [_read(value, where)]
    else:
        kinds = ", ".join(type(v).__name__ for v in value) if isinstance(value, tuple | list) else ""
        got = f"a {type(value).__name__} of {kinds}" if kinds and len(kinds) < 80 else described(value)
        raise InputError(f"{where}: expected {FORMS}; got {got}{_hint(value)}")
    (x, y), *test = parts
    named = {"x": as_array(x), "y": as_array(y)}
    if test:
        named |= {"test_x": as_array(test[0][0]), "test_y": as_array(test[0][1])}
    return arrays.from_arrays(named, name)


def _hint(value: Any) -> str:
    if isinstance(value, torch_data.IterableDataset):
        return ", which has no length; give list(data)"
    return ""


def _is_two(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def is_frame(value: Any) -> bool:
    """Whether something is a data frame."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and hasattr(value, "iloc")


def _is_array(value: Any) -> bool:
    """An array, a tensor, a column or a table of numbers; or a list, whose entries are rows."""
    if isinstance(value, list):
        return bool(value) and not isinstance(value[0], tuple | Mapping)
    return hasattr(value, "shape") and (hasattr(value, "dtype") or is_frame(value))


def _is_pair(value: Any) -> bool:
    """Inputs and targets; a list of two is a pair only of arrays, since else it might be two rows."""
    if isinstance(value, list) and not all(hasattr(v, "shape") for v in value):
        return False
    return _is_two(value) and all(map(_is_array, value))


def _is_map(value: Any) -> bool:
    """A data set that gives an example for each position, as torch's do."""
    if isinstance(value, str | tuple | list | Mapping | Dataset) or is_frame(value):
        return False
    if hasattr(value, "shape") and hasattr(value, "dtype"):  # an array alone
        return False
    return hasattr(value, "__getitem__") and isinstance(value, Sized)


def _read(data: Any, where: str) -> tuple[Any, Any]:
    """Inputs and targets of a data set of pairs, which is read once, as it is."""
    if isinstance(data, torch_data.TensorDataset) and len(data.tensors) == 2:
        return data.tensors
    inputs, targets = [], []
    for position in range(len(data)):
        pair = call(data.__getitem__, f"{where}: example {position} of the {type(data).__name__}", position)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            what = "; give its table: .to_pandas()" if hasattr(data, "to_pandas") else ""
            raise InputError(
                f"{where}: example {position} of the {type(data).__name__} is {described(pair)}, expected (x, y){what}"
            )
        inputs.append(_plain(pair[0]))
        targets.append(_plain(pair[1]))
    if not inputs:
        raise InputError(f"{where}: the {type(data).__name__} has no examples")
    shapes = sorted({x.shape for x in inputs})
    if len(shapes) > 1:
        raise InputError(
            f"{where}: examples of the {type(data).__name__} are of {len(shapes)} shapes, such as {list(shapes[0])}"
            f" and {list(shapes[1])}; expected one"
        )
    return np.stack(inputs), np.stack(targets)


def _plain(value: Any) -> np.ndarray[Any, Any]:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def as_array(value: Any) -> Any:
    """An array as it is; a list of them, or of numbers, as one."""
    if is_frame(value):
        return value.to_numpy()
    if not isinstance(value, list):
        return value
    try:
        return np.stack([_plain(each) for each in value])
    except (TypeError, ValueError, RuntimeError) as error:  # such as rows of different lengths
        raise InputError(f"load: a list of {len(value)} is no array: {first_line(error)}") from error
