"""Examples in memory, kept compact and turned into model inputs a batch at a time.

Shapes: ``n`` examples; images ``[n, C, H, W]``, tables ``[n, F]``, token ids ``[n, L]``; targets ``[n]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfi.arguments import Named, expect
from fedfi.data import lines
from fedfi.data.augment import TRANSFORMS, random_crop, random_flip
from fedfi.errors import InputError, counted, unknown
from fedfi.models.shapes import InputSpec
from fedfi.numerics.finite import all_finite

_DIMENSIONS = {"image": 4, "tabular": 2, "text": 2}
_DTYPES = {
    "image": (torch.uint8, torch.float32),
    "tabular": (torch.float32,),
    "text": (torch.int32,),
}


@dataclass(frozen=True, eq=False)
class Dataset(metaclass=Named):
    """A table of examples with targets; nothing is normalised in place.

    Attributes:
        inputs: Images ``[n, C, H, W]`` uint8 (or float32, used as they are), tables ``[n, F]`` float32 where
            NaN is a missing value, or token ids ``[n, L]`` int32.
        targets: Classes ``[n]``, int64 in ``0 .. classes - 1``.
        spec: What a model is fed.
        name: Name for messages and records.
        mean: Per channel (of pixels / 255) or per feature, float32; None: not normalised.
        std: As `mean`, all positive.
        fill: Per feature, what replaces a missing value (tables only).
        groups: Natural id of each example, such as the hospital.
        group_column: Name of the column that `groups` came from.
        augment: Random transforms of training batches, of "crop" and "flip" (images only).
        label_names: The label that each class stood for, in class order.
        feature_names: Name of each feature (tables only).
        one_hot: How many of the last features are one-hot columns, which are never scaled (tables only).
        categories: Values of each column that became one-hot columns, in their order (tables with columns only).
        tokenizer: What makes token ids of texts: ``{"trained": ...}``, as the package tokenizers writes it, or
            ``{"pretrained": name or folder}`` (texts that were read only).
        notes: What is odd about the data, though they can be learnt from; a run says so at its start.

    Raises:
        InputError: If a shape, dtype or value does not fit.
    """

    inputs: Tensor
    targets: Tensor
    spec: InputSpec
    name: str = "data"
    mean: Tensor | None = None
    std: Tensor | None = None
    fill: Tensor | None = None
    groups: tuple[str, ...] | None = None
    group_column: str | None = None
    augment: tuple[str, ...] = ()
    label_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    one_hot: int = 0
    categories: Mapping[str, tuple[str, ...]] | None = None
    tokenizer: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.spec.shape))
        return f"Dataset({self.name!r}, {len(self)} examples, {self.spec.kind} {shape}, {self.spec.classes} classes)"

    def examples(self, indices: Tensor | None = None) -> Examples:
        """A view of the examples at `indices` (int64 ``[m]``; None: all, in order)."""
        return Examples(self, torch.arange(len(self)) if indices is None else indices)

    def fitted(self, rows: Tensor | None = None) -> Dataset:
        """This data set with `mean`, `std` and `fill` computed from some rows alone, usually training rows.

        Images: mean and standard deviation of each channel. Tables: median of what is present as `fill`, mean
        and standard deviation after filling, but 0 and 1 for one-hot columns. Text: nothing. A constant
        channel or feature gets a standard deviation of 1.

        Args:
            rows: int64 ``[m]``; None: all.

        Returns:
            A copy that shares inputs and targets.
        """
        rows = torch.arange(len(self)) if rows is None else rows
        if self.spec.kind == "text" or len(rows) == 0:
            return self
        if self.spec.kind == "image":
            mean, std = _pixel_statistics(self.inputs, rows)
            return dataclasses.replace(self, mean=mean, std=std)
        fill, mean, std = _feature_statistics(self.inputs[rows].double(), self.one_hot)
        return dataclasses.replace(self, fill=fill, mean=mean, std=std)


@dataclass(frozen=True, eq=False)
class Examples(metaclass=Named):
    """Some examples of a data set, by index; the values stay where they are.

    Attributes:
        dataset: The data set.
        indices: Rows of the data set, int64 ``[m]``.
    """

    dataset: Dataset
    indices: Tensor

    def __post_init__(self) -> None:
        expect("Examples: dataset", self.dataset, Dataset, "a fedfi.Dataset, such as the first that fedfi.load gives")
        expect("Examples: indices", self.indices, Tensor, "an int64 tensor [m], such as torch.tensor([0, 1])")
        if self.indices.dtype != torch.int64 or self.indices.ndim != 1:
            raise InputError(
                f"indices of {self.dataset.name!r} must be int64 [m], got {self.indices.dtype} "
                f"{list(self.indices.shape)}"
            )
        if len(self.indices):
            low, high = int(self.indices.min()), int(self.indices.max())
            if low < 0 or high >= len(self.dataset):
                raise InputError(
                    f"index {low if low < 0 else high} is outside {self.dataset.name!r}, which has "
                    f"{len(self.dataset)} examples"
                )

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Examples({len(self)} of {self.dataset.name!r})"

    @property
    def targets(self) -> Tensor:
        """Classes ``[m]``, int64."""
        return self.dataset.targets[self.indices]

    def class_counts(self) -> Tensor:
        """Number of examples of each class, int64 ``[classes]``."""
        return torch.bincount(self.targets, minlength=self.dataset.spec.classes)

    def subset(self, positions: Tensor) -> Examples:
        """The view of these positions of this view (int64 ``[k]``)."""
        return Examples(self.dataset, self.indices[positions])

    def batch(
        self, positions: Tensor | None = None, *, augment: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Model inputs and targets of some positions of this view.

        Args:
            positions: int64 ``[b]``, positions within this view, not rows of the data set; None: all.
            augment: Draws the random crops and flips that the data set asks for; None: no augmentation.

        Returns:
            Inputs, float32 ``[b, *shape]`` and normalised, or int64 token ids ``[b, L]``; targets, int64
            ``[b]``.
        """
        data = self.dataset
        rows = self.indices if positions is None else self.indices[positions]
        x, y = data.inputs[rows], data.targets[rows]
        if augment is not None and data.spec.kind == "image":
            if "crop" in data.augment:
                x = random_crop(x, augment)
            if "flip" in data.augment:
                x = random_flip(x, augment)
        return model_inputs(x, data.spec.kind, data.mean, data.std, data.fill), y


def model_inputs(x: Tensor, kind: str, mean: Tensor | None, std: Tensor | None, fill: Tensor | None) -> Tensor:
    """What a model is fed of values as a data set holds them.

    Args:
        x: Some of `Dataset.inputs`, or new ones like them.
        kind: Of `InputSpec`.
        mean: As `Dataset.mean`.
        std: As `Dataset.std`.
        fill: As `Dataset.fill`.

    Returns:
        Inputs, float32 ``[b, *shape]`` and normalised, or int64 token ids ``[b, L]``.
    """
    if kind == "text":
        return x.long()
    if kind == "tabular":
        if fill is not None:
            x = torch.where(x.isnan(), fill, x)
        return x if mean is None or std is None else (x - mean) / std
    x = x.float().div_(255) if x.dtype == torch.uint8 else x
    return x if mean is None or std is None else (x - mean[:, None, None]).div_(std[:, None, None])


def _check(data: Dataset) -> None:
    """Refuses a data set whose parts do not fit together."""
    inputs, targets, spec, name = data.inputs, data.targets, data.spec, data.name
    for part in ("inputs", "targets"):
        expect(f"data {name!r}: {part}", getattr(data, part), Tensor, "a tensor; fedfi.load((x, y)) takes arrays")
    expect(f"data {name!r}: spec", spec, InputSpec, "a fedfi.InputSpec(kind, shape, classes)")
    if spec.kind not in _DTYPES:
        raise InputError(f"data {name!r}: " + unknown("kind of input", spec.kind, _DTYPES))
    dtypes = _DTYPES[spec.kind]
    if inputs.dtype not in dtypes or inputs.ndim != _DIMENSIONS[spec.kind]:
        raise InputError(
            f"data {name!r}: {spec.kind} inputs must be {' or '.join(map(str, dtypes))} with "
            f"{_DIMENSIONS[spec.kind]} dimensions, got {inputs.dtype} {list(inputs.shape)}"
        )
    if tuple(inputs.shape[1:]) != spec.shape:
        raise InputError(f"data {name!r}: an input is {tuple(inputs.shape[1:])}, its spec says {spec.shape}")
    if targets.dtype != torch.int64 or targets.ndim != 1:
        raise InputError(
            f"data {name!r}: targets must be int64 [{len(inputs)}], got {targets.dtype} {list(targets.shape)}"
        )
    if len(targets) != len(inputs):
        raise InputError(f"data {name!r}: {len(inputs)} inputs, but {len(targets)} targets; expected one an input")
    if inputs.requires_grad:
        raise InputError(f"data {name!r}: inputs require gradients; give inputs.detach()")
    if 0 in spec.shape:
        raise InputError(f"data {name!r}: an input is {spec.shape}, expected sizes of at least 1")
    if len(targets) == 0:
        raise InputError(f"data {name!r} has no examples")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= spec.classes:
        raise InputError(f"data {name!r}: targets run from {low} to {high}, expected 0 to {spec.classes - 1}")
    if data.groups is not None and len(data.groups) != len(targets):
        raise InputError(f"data {name!r}: {len(data.groups)} group ids for {len(targets)} examples")
    for transform in data.augment:
        if transform not in TRANSFORMS:
            raise InputError(f"data {name!r}: " + unknown("augmentation", transform, TRANSFORMS))
        if spec.kind != "image":
            raise InputError(f"data {name!r}: only images can be augmented, this is {spec.kind}")
    if spec.kind == "tabular":
        _check_finite(data, inputs.isinf(), "infinite")
    elif inputs.dtype == torch.float32:
        if not all_finite(inputs):
            _check_finite(data, ~inputs.isfinite(), "non-finite")
    elif spec.kind == "text" and spec.vocabulary is not None:
        low, high = int(inputs.min()), int(inputs.max())
        if low < 0 or high >= spec.vocabulary:
            raise InputError(f"data {name!r}: token ids run from {low} to {high}, expected 0 to {spec.vocabulary - 1}")


def _check_finite(data: Dataset, wrong: Tensor, what: str) -> None:
    if not bool(wrong.any()):
        return
    where = ""
    if data.spec.kind == "tabular":
        column = int(wrong.sum(0).argmax())
        label = data.feature_names[column] if data.feature_names else str(column)
        where, wrong = f" in column {label!r}", wrong[:, column]
    rows = lines.placed(None, wrong.flatten(1).any(1) if wrong.ndim > 1 else wrong)
    raise InputError(f"data {data.name!r}: {counted(int(wrong.sum()), f'{what} value')}{where} ({rows})")


def _pixel_statistics(inputs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, exact for uint8: sums of histograms, a piece at a time."""
    if inputs.dtype != torch.uint8:
        chosen = inputs[rows].double()
        return _safe(chosen.mean((0, 2, 3)), chosen.var((0, 2, 3), correction=0))
    channels = inputs.shape[1]
    histogram = torch.zeros(channels, 256, dtype=torch.int64)
    for piece in torch.split(rows, 4096):
        chosen = inputs[piece]
        for channel in range(channels):
            histogram[channel] += torch.bincount(chosen[:, channel].flatten(), minlength=256)
    share = histogram.double() / histogram.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ values
    return _safe(mean, (share * (values - mean[:, None]) ** 2).sum(1))


def _feature_statistics(values: Tensor, one_hot: int) -> tuple[Tensor, Tensor, Tensor]:
    """What fills, centres and scales each feature; a feature that is missing everywhere is filled with 0."""
    absent = values.isnan().all(0)
    fill = torch.from_numpy(np.nanmedian(torch.where(absent, 0.0, values).numpy(), axis=0))
    values = torch.where(values.isnan(), fill, values)
    mean, std = _safe(values.mean(0), values.var(0, correction=0))
    if one_hot:
        fill[-one_hot:], mean[-one_hot:], std[-one_hot:] = 0.0, 0.0, 1.0
    return fill.float(), mean, std


def _safe(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    std = variance.sqrt()
    return mean.float(), torch.where(std > 1e-8, std, 1.0).float()
