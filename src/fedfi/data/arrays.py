"""From numpy arrays and labels of any kind to data sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from fedfi.data import lines
from fedfi.data.dataset import Dataset
from fedfi.errors import InputError, counted, first_line, unknown
from fedfi.models.shapes import InputSpec

Array = np.ndarray[Any, Any]

# The names that inputs, targets and groups go by, for train and test: MedMNIST's, Keras's, the plain ones.
_LAYOUTS = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("x", "y", "test_x", "test_y"),
)

_LEAST_CLASSES: ContextVar[int] = ContextVar("_LEAST_CLASSES", default=2)


@contextmanager
def one_class_will_do() -> Iterator[None]:
    """Within it, data may lack all classes but one: the others are named by somebody else."""
    token = _LEAST_CLASSES.set(1)
    try:
        yield
    finally:
        _LEAST_CLASSES.reset(token)


def from_arrays(arrays: Mapping[str, Any], name: str) -> tuple[Dataset, Dataset | None]:
    """Data sets from named arrays: images, or tables of numbers.

    Args:
        arrays: ``train_images`` and ``train_labels`` (and ``test_images``, ``test_labels``) as MedMNIST has
            them, or ``x_train``, ``y_train`` (``x_test``, ``y_test``), or ``x``, ``y`` (``test_x``,
            ``test_y``); and ``groups`` (``test_groups``) of natural ids. Images ``[n, H, W]``, ``[n, H, W,
            C]`` or ``[n, C, H, W]``, uint8 or float; tables ``[n, F]``. A validation split is left alone.
        name: For messages and records.

    Raises:
        InputError: If names, shapes or values do not fit.
    """
    for layout in _LAYOUTS:
        if layout[0] in arrays:
            break
    else:
        expected = "; ".join(", ".join(layout[:2]) for layout in _LAYOUTS)
        raise InputError(f"data {name!r} has the arrays {sorted(arrays)}, expected one of: {expected}")
    for key in layout[1:2] if layout[2] not in arrays else layout[1:]:
        if key not in arrays:
            raise InputError(f"data {name!r} has {layout[0]!r} but no {key!r}")
    keys = layout[1::2] if layout[2] in arrays else layout[1:2]
    labels, *test = (_one_a_row(arrays[key], f"{name}: {key}") for key in keys)
    targets, tested, names = encode_both(labels, test[0] if test else None, name)
    train = from_inputs(arrays[layout[0]], targets, names, name, groups=arrays.get("groups"))
    if tested is None:
        return train, None
    return train, from_inputs(arrays[layout[2]], tested, names, f"{name}, test set", groups=arrays.get("test_groups"))


def from_inputs(
    inputs: Any, targets: torch.Tensor, label_names: tuple[str, ...], name: str, *, groups: Any = None
) -> Dataset:
    """A data set of images or numbers; see `from_arrays` for the shapes."""
    tensor = raw_inputs(inputs, name)
    ids = None if groups is None else tuple(map(str, _array(groups, f"data {name!r}: groups").ravel()))
    return Dataset(
        inputs=tensor,
        targets=targets,
        spec=InputSpec("image" if tensor.ndim == 4 else "tabular", tuple(tensor.shape[1:]), len(label_names)),
        name=name,
        groups=ids,
        group_column=None if groups is None else "groups",
        label_names=label_names,
    )


def raw_inputs(inputs: Any, name: str) -> torch.Tensor:
    """Images ``[n, C, H, W]`` or numbers ``[n, F]`` as a data set holds them; see `from_arrays` for what is taken."""
    values = _numeric(inputs, name)
    if len(values) == 0:
        raise InputError(f"data {name!r} has no examples: inputs are {list(values.shape)}")
    if values.size == 0:
        raise InputError(f"data {name!r}: inputs are {list(values.shape)}, expected sizes of at least 1")
    if values.ndim >= 3:
        values = _channels_first(values, name)
        values = values if values.dtype == np.uint8 else values.astype(np.float32)
    else:
        values = values.reshape(len(values), -1).astype(np.float32)
        bad = ~np.isfinite(values)
        if bad.any():
            column = int(bad.sum(0).argmax())
            said = counted(int(bad[:, column].sum()), "non-finite value")
            raise InputError(f"data {name!r}: {said} in column {column} ({lines.placed(None, bad[:, column])})")
    return torch.from_numpy(np.ascontiguousarray(values))


def encode_labels(
    labels: Array | Sequence[Any], known: tuple[str, ...] | None, name: str
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Labels of any kind as classes ``0 .. C - 1``, in sorted order (numbers by value).

    Args:
        labels: ``[n]``, numbers, truth values or strings.
        known: The label of each class, where the training set has fixed them; None: fix them now.
        name: For messages.

    Returns:
        Classes, int64 ``[n]``; the label of each class.

    Raises:
        InputError: If labels are missing, look continuous, or are not among `known`.
    """
    values = np.asarray(labels)
    if values.dtype.kind not in "biufUS":
        _refuse_missing([value is None or value != value for value in values.tolist()], name)
        values = np.asarray([str(value) for value in values.tolist()])
    if values.dtype.kind == "f":
        _refuse_missing(np.isnan(values).tolist(), name)
        odd = values[(values != np.round(values)) | (np.abs(values) >= 2**53)]  # infinities, too
        if len(odd):
            raise InputError(f"data {name!r}: labels such as {odd[0]} are no classes")
        values = values.astype(np.int64)
    if known is None:
        present, classes = np.unique(values, return_inverse=True)
        if len(present) == 0:
            raise InputError(f"data {name!r} has no examples: its labels are []")
        if len(present) < _LEAST_CLASSES.get():
            raise InputError(f"data {name!r}: all labels are {present[:1].tolist()}, expected at least 2 classes")
        names = tuple(str(label) for label in present.tolist())
        return torch.from_numpy(classes.astype(np.int64)), names
    number = {label: i for i, label in enumerate(known)}
    strings = [str(label) for label in values.tolist()]
    for label in strings:
        if label not in number:
            raise InputError(f"data {name!r}, test set: " + unknown("label", label, known))
    return torch.tensor([number[label] for label in strings], dtype=torch.int64), known


def encode_both(
    labels: Array | Sequence[Any], test: Array | Sequence[Any] | None, name: str
) -> tuple[torch.Tensor, torch.Tensor | None, tuple[str, ...]]:
    """Labels of training and test examples as classes; those of the training examples fix which there are.

    Within `one_class_will_do` a test label that no training example has is a further class.

    Args:
        labels: As for `encode_labels`.
        test: Likewise, or None.
        name: For messages.

    Returns:
        Classes of both, int64 ``[n]`` and ``[m]``; the label of each class.
    """
    targets, names = encode_labels(labels, None, name)
    if test is None:
        return targets, None, names
    if _LEAST_CLASSES.get() == 1:
        _, others = encode_labels(test, None, f"{name}, test set")
        names = (*names, *(label for label in others if label not in names))
    return targets, encode_labels(test, names, name)[0], names


def _refuse_missing(missing: Sequence[bool], name: str) -> None:
    if any(missing):
        said = counted(sum(missing), "label is", "labels are")
        raise InputError(f"data {name!r}: {said} missing ({lines.placed(None, missing)})")


def _one_a_row(labels: Any, name: str) -> Array:
    """Labels ``[n]`` from ``[n]`` or ``[n, 1]``."""
    values = _array(labels, name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(f"{name} has shape {list(values.shape)}, expected one label an example")
    return values


def _numeric(inputs: Any, name: str) -> Array:
    values = _array(inputs, f"data {name!r}: inputs")
    if values.ndim < 1 or values.dtype.kind not in "biuf":
        raise InputError(f"data {name!r}: inputs must be an array of numbers, got {values.dtype} {list(values.shape)}")
    return values


def _array(values: Any, where: str) -> Array:
    if isinstance(values, torch.Tensor):  # numpy takes none that needs a gradient or lives on a device
        values = values.detach().cpu()
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # such as rows of different lengths
        raise InputError(f"{where} are no array: {first_line(error)}") from error


def _channels_first(images: Array, name: str) -> Array:
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise InputError(f"data {name!r}: images must have 3 or 4 dimensions, got {list(images.shape)}")
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 and images.dtype.kind in "iub":
        low, high = int(images.min()), int(images.max())
        if low < 0 or high > 255:
            raise InputError(f"data {name!r}: whole-numbered pixels run from {low} to {high}, expected 0 to 255")
        images = images.astype(np.uint8)
    return images
