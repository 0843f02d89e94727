"""Tables with named columns: labels, natural ids, numbers and categories.

Numbers stay as they are, NaN where missing; what imputes and scales them is fitted after the split, on
training rows alone (`Dataset.fitted`). Categories become one-hot columns, all zero where missing; that fixes
their names in advance but learns nothing from any row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedfi.data import lines
from fedfi.data.arrays import encode_both
from fedfi.data.dataset import Dataset
from fedfi.errors import InputError, as_number, counted, of_option, these, unknown
from fedfi.models.shapes import InputSpec

if TYPE_CHECKING:
    import pandas as pd

LABELS = ("label", "labels", "target", "class", "y", "fine_label")
_MOST_CATEGORIES = 256
_MANY = 20
"""In so many rows it is no chance that all values of a column of whole numbers or of categories differ."""
_MOST_SLIPS = 0.1
"""A column of which so few values are no numbers is one of numbers, with slips; above it, it is one of categories."""


@dataclass(frozen=True)
class Fixed:
    """How rows are read, as somebody else has fixed it; see `fedfi.data.inputs.Inputs`.

    Attributes:
        columns: Columns of numbers; None: not known by name.
        categories: Values of each column of categories; others are errors.
        tokenizer: What makes token ids of texts.
        length: Token ids an example.
    """

    columns: tuple[str, ...] | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] | None = None
    length: int | None = None


@dataclass(frozen=True)
class Options:
    """What a user may say about a source.

    Attributes:
        label: Column of the labels; None: the first of `LABELS` that is there.
        group: Column of the natural ids.
        columns: Columns to use as features; None: all that are left.
        categories: Columns whose values are categories although they look like numbers.
        text: Column of the text, which makes it a text data set.
        test: Path of the test set.
        vocabulary: Number of token ids of a tokenizer trained on the training texts.
        length: Token ids an example.
        tokenizer: Name or folder of a pretrained tokenizer.
        augment: Random transforms of training images.
        fixed: What is fixed already; None: nothing.
    """

    label: str | None = None
    group: str | None = None
    columns: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    text: str | None = None
    test: str | None = None
    vocabulary: int | None = None
    length: int | None = None
    tokenizer: str | None = None
    augment: tuple[str, ...] | None = None
    fixed: Fixed | None = None


def column(frame: pd.DataFrame, wanted: str, name: str) -> pd.Series:
    """A column by name, or an `InputError` that names the nearest one."""
    if wanted not in frame.columns:
        raise InputError(f"data {name!r}: " + unknown("column", wanted, map(str, frame.columns)))
    return frame[wanted]


def label_column(frame: pd.DataFrame, options: Options, name: str) -> str:
    """Name of the column of labels, the one asked for or the first usual one."""
    if options.label is not None:
        with of_option("label"):
            return str(column(frame, options.label, name).name)
    for usual in LABELS:
        if usual in frame.columns:
            return usual
    raise InputError(
        f"data {name!r} has no column {', '.join(LABELS)}: name the column of labels with the option 'label' "
        f"(choose from {', '.join(map(str, frame.columns))})"
    )


def labels(
    train: pd.DataFrame, test: pd.DataFrame | None, options: Options, name: str
) -> tuple[torch.Tensor, torch.Tensor | None, tuple[str, ...]]:
    """Classes of train and test (or None), and the label of each class."""
    for frame, which in ((train, ""), (test, ", test set")):
        if frame is None:
            continue
        lines.refuse_twice(frame.columns, f"{name!r}{which}")
        if len(frame) == 0:
            raise InputError(f"data {name!r}{which} has no rows, only the columns {', '.join(map(str, frame.columns))}")
    key = label_column(train, options, name)
    with of_option("label" if options.label is not None else ""):
        _refuse_missing(train, [key], name)
        if test is None:
            return encode_both(train[key].to_numpy(), None, name)
        _refuse_missing(test, [key], f"{name}, test set")
        return encode_both(train[key].to_numpy(), test[key].to_numpy(), name)


def groups(frame: pd.DataFrame, options: Options, name: str, *, test: bool = False) -> dict[str, Any]:
    """The fields `groups` and `group_column` of a data set, where one is asked for; a test may lack it."""
    if options.group is None or (test and options.group not in frame.columns):
        return {}
    with of_option("group"):
        ids = column(frame, options.group, name)
        if said := lines.missing(ids, f"in the group {options.group!r}"):
            raise InputError(f"data {name!r}: {said}")
    return {"groups": tuple(str(value) for value in ids.tolist()), "group_column": options.group}


def from_frame(
    train: pd.DataFrame, test: pd.DataFrame | None, name: str, options: Options, *, missing: bool
) -> tuple[Dataset, Dataset | None]:
    """Tabular data sets from tables.

    Args:
        train: One row an example.
        test: As `train`, with the same columns, or None.
        name: For messages and records.
        options: What the columns mean.
        missing: Whether numbers and categories may be missing.

    Returns:
        Train and test; numbers first, then the one-hot columns of the categories.

    Raises:
        InputError: If a column is unknown, missing, infinite, or has too many categories.
    """
    targets, test_targets, names = labels(train, test, options, name)
    key = label_column(train, options, name)
    fixed = options.fixed if options.fixed is not None and options.fixed.columns is not None else None
    if fixed is not None:
        chosen = _fixed_columns(train, fixed, options, key, name)
    elif options.columns is None:
        chosen = [c for c in map(str, train.columns) if c not in (key, options.group)]
    else:
        chosen = list(options.columns)
        with of_option("columns"):
            for wanted in chosen:
                column(train, wanted, name)
            if key in chosen:
                raise InputError(f"data {name!r}: the label {key!r} is also among the columns to learn from")
    if not chosen:
        raise InputError(f"data {name!r} has no columns to learn from besides {key!r}")
    if fixed is not None:
        numbers, categories = list(fixed.columns or ()), dict(fixed.categories)
    else:
        numbers, categories = _columns(train, chosen, options.categories or (), name)
    left = [c for c in map(str, train.columns) if c not in (*chosen, key, options.group)] if fixed is not None else []
    features = (*numbers, *(f"{c}={value}" for c, values in categories.items() for value in values))
    one_hot = len(features) - len(numbers)

    def build(frame: pd.DataFrame, classes: torch.Tensor, *, test: bool) -> Dataset:
        if not missing:
            _refuse_missing(frame, chosen, name)
        if fixed is not None:
            _refuse_new(frame, categories, f"{name!r}, test set" if test else repr(name))
        values = torch.from_numpy(features_of(frame, numbers, categories, name, "the test set" if test else name))
        return Dataset(
            inputs=values,
            targets=classes,
            spec=InputSpec(kind="tabular", shape=(len(features),), classes=len(names)),
            name=name,
            label_names=names,
            feature_names=features,
            one_hot=one_hot,
            categories=categories,
            notes=() if test else (*_left_out(left), *_odd(frame, (*numbers, *categories))),
            **groups(frame, options, name, test=test),
        )

    if test is None or test_targets is None:
        return build(train, targets, test=False), None
    return build(train, targets, test=False), build(test, test_targets, test=True)


def _columns(
    frame: pd.DataFrame, chosen: list[str], named: tuple[str, ...], name: str
) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Which of the columns are numbers, and the sorted categories of the others."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    for c in named:
        if c in chosen:
            continue
        with of_option("categories"):
            raise InputError(f"data {name!r}: categories: {unknown('column', c, chosen)}")
    numbers: list[str] = []
    categories: dict[str, tuple[str, ...]] = {}
    for c in chosen:
        if c not in named and is_numeric_dtype(frame[c]) and not is_bool_dtype(frame[c]):
            numbers.append(c)
            continue
        if c not in named:
            _refuse_slips(frame[c], name)
        values = tuple(sorted({str(value) for value in frame[c].dropna().tolist()}))
        if len(values) > _MOST_CATEGORIES:
            raise InputError(
                f"data {name!r}: column {c!r} has {len(values)} different values, more than "
                f"{_MOST_CATEGORIES} categories; leave it out with the option 'columns', or name it as 'text'"
            )
        categories[c] = values
    return numbers, categories


def _odd(frame: pd.DataFrame, chosen: Sequence[str]) -> tuple[str, ...]:
    """What is said of columns that have nothing to learn from: those without a value, and ids."""
    from pandas.api.types import is_float_dtype

    notes = []
    for c in chosen:
        values = frame[c]
        if values.isna().all():
            notes.append(f"column {c!r} has no value at all: nothing is learnt from it; leave it out (columns)")
        elif len(values) < _MANY or values.isna().any() or not values.is_unique:
            continue
        elif not is_float_dtype(values) or (values % 1 == 0).all():
            notes.append(
                f"column {c!r} has another value in each of the {len(values)} rows, as ids have: if it is one, leave it"
                " out (columns)"
            )
    return tuple(notes)


def features_of(
    frame: pd.DataFrame, numbers: Sequence[str], categories: Mapping[str, Sequence[str]], name: str, which: str
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Features of rows as a data set holds them, NaN where a number is missing.

    Args:
        frame: One row an example; other columns are left alone.
        numbers: Columns of numbers.
        categories: The values of each column of categories. One that is missing, or none of them, is all zero.
        name: Of the data, for messages.
        which: What to call these rows in messages.

    Returns:
        float32 ``[n, F]``: the numbers, then the one-hot columns.

    Raises:
        InputError: If a column is unknown, or not all finite numbers.
    """
    parts = []
    for c in numbers:
        values = column(frame, c, name)
        try:
            array = values.to_numpy(dtype=np.float32, na_value=np.nan)
        except (TypeError, ValueError) as error:
            slip = _slips(values)[0]
            raise InputError(f"data {name!r}: column {c!r} is not all numbers in {which}: {slip}") from error
        if (wrong := np.isinf(array)).any():
            said = counted(int(wrong.sum()), "infinite value")
            raise InputError(f"data {name!r}: {said} in column {c!r} ({lines.placed(frame, wrong)})")
        parts.append(array[:, None])
    for c, known in categories.items():
        values, place_of = column(frame, c, name), _places(known)
        hot = np.zeros((len(frame), len(known)), dtype=np.float32)
        for row, (value, missing) in enumerate(zip(values.tolist(), values.isna().tolist(), strict=True)):
            if missing:
                continue
            if (place := place_of(str(value))) is not None:
                hot[row, place] = 1
        parts.append(hot)
    return np.concatenate(parts, axis=1)


def _places(known: Sequence[str]) -> Callable[[str], int | None]:
    """Where a category stands among those that are known; None: nowhere."""
    places: dict[str, int | None] = {text: i for i, text in enumerate(known)}
    plain = list(map(_plainly, known))

    def place_of(text: str) -> int | None:
        if text not in places:  # a column without a missing cell has 1 where another has 1.0
            places[text] = plain.index(_plainly(text)) if plain.count(_plainly(text)) == 1 else None
        return places[text]

    return place_of


def _refuse_new(frame: pd.DataFrame, categories: Mapping[str, Sequence[str]], what: str) -> None:
    """Refuses a category that the inputs do not know, which would be no category at all."""
    for c, known in categories.items():
        values, place_of = frame[c], _places(known)
        for row, (value, missing) in enumerate(zip(values.tolist(), values.isna().tolist(), strict=True)):
            if not missing and place_of(str(value)) is None:
                where = lines.place(frame, row)
                raise InputError(
                    f"data {what}: column {c!r}, {where}: {unknown('category', value, known)}, as the inputs fix them"
                )


def _fixed_columns(frame: pd.DataFrame, fixed: Fixed, options: Options, key: str, name: str) -> list[str]:
    """The columns that inputs fix, where the table has them."""
    for option in ("columns", "categories"):
        if getattr(options, option) is not None:
            with of_option(option):
                raise InputError(f"data {name!r}: the inputs fix the columns: leave the option {option!r} out")
    chosen = [*(fixed.columns or ()), *fixed.categories]
    for wanted in chosen:
        column(frame, wanted, name)
    if key in chosen:
        raise InputError(f"data {name!r}: the label {key!r} is a column that the inputs learn from")
    return chosen


def _left_out(columns: Sequence[str]) -> tuple[str, ...]:
    return (f"{these('column', columns)}: left out, since the inputs do not name it",) if columns else ()


def _plainly(text: str) -> str:
    """A category that reads as a number as that number; any other as it is."""
    number = as_number(text)
    return text if number is None or text.endswith("%") else repr(number)


def _refuse_slips(values: pd.Series, name: str) -> None:
    """Refuses a column of which nearly all values are numbers; as categories, each number would be one of its own."""
    slips, there = _slips(values), int(values.notna().sum())
    if 0 < len(slips) <= _MOST_SLIPS * there:
        more = f", and {len(slips) - 1} more" if len(slips) > 1 else ""
        raise InputError(
            f"data {name!r}: column {str(values.name)!r} is all numbers but for {len(slips)} of {there} values:"
            f" {slips[0]}{more}; mend it, leave the cell empty where the number is missing, or name the column among"
            " 'categories' if its values are no numbers"
        )


def _slips(values: pd.Series) -> list[str]:
    """The values that are there and no numbers, each with its place."""
    wrong = ((n, v) for n, v in enumerate(values.tolist()) if not _is_missing(v) and not _is_number(v))
    return [f"{lines.place(values, n)}: {v!r}" for n, v in wrong]


def _is_missing(value: Any) -> bool:
    return value is None or value != value


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _refuse_missing(frame: pd.DataFrame, chosen: list[str], name: str) -> None:
    for c in chosen:
        if said := lines.missing(column(frame, c, name), f"in column {c!r}"):
            raise InputError(f"data {name!r}: {said}")
