"""How a row, a picture or a text becomes a model's input: ``inputs.json`` of a run directory, and of what is exported.

Holds no example: names of columns and classes, the values of categories, the statistics that `Dataset.fitted` computed
from training examples, and what makes token ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfi.arguments import Named, described
from fedfi.data import arrays, files, images, objects, tables, text
from fedfi.data.dataset import Dataset, model_inputs
from fedfi.errors import InputError, PlaceError, as_number, first_line
from fedfi.models.shapes import InputSpec
from fedfi.numerics.finite import all_finite

FILE = "inputs.json"
METADATA = "inputs"
"""Its name in the metadata of an exported file."""
_UPLOAD, _MERGED = "fedfi-upload", "fedfi-merged"
"""How the formats of files of `fedfi fisher` and `fedfi merge` begin."""
_STATISTICS = ("fill", "mean", "std")
_ROWS = {
    "tabular": "a path of a csv, tsv or parquet file, a data frame, a list of dictionaries, or an array [n, features]",
    "image": "paths of pictures, or an array [n, H, W], [n, H, W, C] or [n, C, H, W]",
    "text": "a list of texts",
}


@dataclass(frozen=True, eq=False)
class Inputs(metaclass=Named):
    """What turns rows, pictures or texts into what a trained model is fed.

    Attributes:
        spec: What the model is fed.
        labels: The label that each class stands for, in the order of the model's outputs.
        columns: Columns of numbers, in order; then come the one-hot columns. None: a table without names, or no table.
        categories: Values of each column of categories, each of which is a one-hot column.
        fill: Per feature, what replaces a missing number, float32.
        mean: As `Dataset.mean`, float32.
        std: As `Dataset.std`, float32.
        pixels: Whether images are of ``"uint8"``, divided by 255 first, or of ``"float32"``, taken as they are.
        tokenizer: As `Dataset.tokenizer`.
    """

    spec: InputSpec
    labels: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    categories: Mapping[str, tuple[str, ...]] | None = None
    fill: Tensor | None = None
    mean: Tensor | None = None
    std: Tensor | None = None
    pixels: str | None = None
    tokenizer: Mapping[str, Any] | None = None

    @staticmethod
    def of(data: Dataset) -> Inputs:
        """What a data set does with its own values."""
        names = data.feature_names
        if names is None or (data.one_hot and data.categories is None):
            columns = None
        else:
            columns = names[: len(names) - data.one_hot]
        return Inputs(
            spec=data.spec,
            labels=data.label_names,
            columns=columns,
            categories=None if columns is None else data.categories,
            fill=data.fill,
            mean=data.mean,
            std=data.std,
            pixels=str(data.inputs.dtype).removeprefix("torch.") if data.spec.kind == "image" else None,
            tokenizer=data.tokenizer,
        )

    @staticmethod
    def read(path: str | Path, *, uploads: bool = False) -> Inputs:
        """Reads what belongs to a model.

        Args:
            path: A run directory, its ``inputs.json``, a ``.safetensors`` or ``.pt2`` file of ``fedfi export``, or a
                file of ``fedfi merge --validate``.
            uploads: Take a file of ``fedfi fisher``, too. It names columns, categories and classes, but how a party's
                numbers are normalised does not travel, so `prepare` would leave them as they are; nor is a tokenizer
                loaded that it names.

        Raises:
            InputError: If there is nothing of the kind, or it is damaged.
        """
        path = Path(path).expanduser()
        path = path / FILE if path.is_dir() else path
        if not path.is_file():
            raise PlaceError(f"{path}: no such file; runs of ratings have none, nor have those of older versions")
        held = _held(path)
        found, upload = held.get(METADATA), _uploaded(held)
        if upload is not None and not uploads:
            raise PlaceError(
                f"{path}: is an upload of fedfi fisher, in which no normalisation travels: read the merged file of"
                f" fedfi merge --validate; fedfi.load(..., inputs={str(path)!r}) takes columns and classes of it"
            )
        if not (found or upload):
            cure = f"export the run again, or read its {FILE}"
            if held.get("format", "").startswith(_MERGED):
                cure = "merge with --validate, whose examples give the normalisation"
            raise PlaceError(f"{path}: says nothing of a model's inputs; {cure}")
        try:
            inputs = from_record(json.loads(upload or found or ""))
            return inputs if upload is None else replace(inputs, tokenizer=None)  # a stranger says where to load from
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise PlaceError(f"{path}: is damaged ({first_line(error)})") from error

    def union(self, *others: Inputs) -> Inputs:
        """Inputs of tables that know all categories and labels that any of these know, and no normalisation.

        What parties agree on before they train, where each may lack some: `fedfi.load` and ``--inputs`` take it.

        Args:
            others: Those of other parties, with the same columns in any order.

        Returns:
            Columns in the order of this one; values of categories, and labels, in sorted order (numbers by value).

        Raises:
            InputError: If one is of no table with named columns, or the columns differ, naming the first that does.
        """
        everyone = (self, *others)
        for position, each in enumerate(everyone):
            if each.columns is None:
                raise InputError(f"inputs {position} name no columns, expected those of tables with headings")
            for what, mine, theirs in (
                ("column of numbers", self.columns or (), each.columns),
                ("column of categories", tuple(self.categories or {}), tuple(each.categories or {})),
            ):
                if odd := sorted(set(mine) ^ set(theirs)):
                    who = 0 if odd[0] in mine else position
                    raise InputError(
                        f"inputs 0 and {position} differ: only {who} has {odd[0]!r} as a {what}; load all with the same"
                        " 'columns' and 'categories'"
                    )
        categories = {c: _sorted({v for e in everyone for v in (e.categories or {})[c]}) for c in self.categories or {}}
        numbered = (map(str, range(e.spec.classes)) if e.labels is None else e.labels for e in everyone)
        labels = _sorted({label for names in numbered for label in names})
        width = len(self.columns or ()) + sum(map(len, categories.values()))
        spec = replace(self.spec, shape=(width,), classes=len(labels))
        return Inputs(spec, labels, self.columns, categories)

    def prepare(self, rows: Any) -> Tensor:
        """Model inputs of new rows, pictures or texts.

        Args:
            rows: For tables, a path of a csv, tsv or parquet file, a data frame, a list of dictionaries, or an array
                ``[n, features]``; columns that the model does not know are left alone, a missing number is filled, and
                a category that is missing or new is all zero. For images, paths of pictures, or an array as
                `fedfi.load` takes it. For texts, a list of them.

        Returns:
            float32 ``[n, *shape]``, or int64 token ids ``[n, L]`` for texts; in the order of the rows.

        Raises:
            InputError: If a column is unknown, or something does not fit.
        """
        kind = self.spec.kind
        if kind == "tabular":
            values = self._features(rows)
        elif kind == "image":
            values = self._pictures(rows)
        else:
            values = self._tokens(rows)
        if tuple(values.shape[1:]) != self.spec.shape:
            raise InputError(f"new rows are {list(values.shape)}, the model takes {['n', *self.spec.shape]}")
        made = model_inputs(values, kind, self.mean, self.std, self.fill)
        if kind != "text" and not all_finite(made):
            raise InputError("new rows: values are missing or infinite, and nothing is known to fill them with")
        return made

    def record(self) -> dict[str, Any]:
        """What ``inputs.json`` holds: the attributes that are known, numbers as lists, and those of the spec."""
        spec = self.spec
        found: dict[str, Any] = {"kind": spec.kind, "shape": list(spec.shape), "classes": spec.classes}
        found |= {"vocabulary": spec.vocabulary, "padding": spec.padding, "pixels": self.pixels}
        found |= {"labels": None if self.labels is None else list(map(str, self.labels))}
        found |= {"columns": None if self.columns is None else list(self.columns)}
        found |= {"categories": None if self.categories is None else {k: list(v) for k, v in self.categories.items()}}
        for name in _STATISTICS:
            value = getattr(self, name)
            found[name] = None if value is None else value.tolist()
        found["tokenizer"] = None if self.tokenizer is None else dict(self.tokenizer)
        return {key: value for key, value in found.items() if value is not None}

    def _features(self, rows: Any) -> Tensor:
        if isinstance(rows, str | Path):
            path = Path(rows).expanduser()
            frame, name = files.read_frame(path, path.name), path.name
        elif isinstance(rows, Mapping) or (isinstance(rows, list) and rows and isinstance(rows[0], Mapping)):
            frame, name = _frame(rows), "new rows"
        elif objects.is_frame(rows):
            frame, name = rows, "new rows"
        else:
            return self._values(rows, 2)
        if self.columns is None:
            raise InputError(
                f"data {name!r}: the model's inputs have no names; give an array {['n', *self.spec.shape]}"
            )
        return torch.from_numpy(tables.features_of(frame, self.columns, self.categories or {}, name, name))

    def _pictures(self, rows: Any) -> Tensor:
        if isinstance(rows, list | tuple) and rows and all(isinstance(row, str | Path) for row in rows):
            rows = images.decode([Path(row) for row in rows], "new rows")
        values = self._values(rows, 4)
        given = str(values.dtype).removeprefix("torch.")
        if given != self.pixels:
            such = "whole numbers 0 to 255" if self.pixels == "uint8" else "numbers scaled as those it was trained on"
            raise InputError(f"new rows: pixels are {given}, the model takes {self.pixels}: {such}")
        return values

    def _values(self, rows: Any, dimensions: int) -> Tensor:
        values = arrays.raw_inputs(objects.as_array(rows), "new rows")
        if values.ndim != dimensions:
            raise InputError(f"new rows are {list(values.shape)}, expected {_ROWS[self.spec.kind]}")
        return values

    def _tokens(self, rows: Any) -> Tensor:
        if self.tokenizer is None:
            raise InputError("new rows: the data came as token ids; make them as you made those")
        if not isinstance(rows, Sequence) or isinstance(rows, str) or not all(isinstance(row, str) for row in rows):
            raise InputError(f"new rows: expected {_ROWS['text']}, got {described(rows)}")
        if not rows:
            raise InputError("new rows: there are none")
        return text.recorded_tokenizer(self.tokenizer, self.spec.shape[0])(list(rows))


def _frame(rows: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(rows)


def _held(path: Path) -> Mapping[str, str]:
    """The metadata of a model's file, whatever its name; of a file of JSON, it all as `METADATA`."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
        if path.suffix == ".safetensors" or (
            start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size
        ):
            from safetensors import safe_open

            with safe_open(str(path), "pt") as model:
                return model.metadata() or {}
        if path.suffix == ".pt2":
            import torch.export

            extra = {METADATA: ""}
            torch.export.load(path, extra_files=extra)
            return extra
        return {METADATA: path.read_text(encoding="utf-8")}
    except Exception as error:  # whatever the libraries raise for a file of another kind
        raise PlaceError(f"{path}: cannot be read: {first_line(error)}") from error


def _uploaded(held: Mapping[str, str]) -> str | None:
    """The JSON in the metadata of an upload, whose scalars are one text; None: it is no upload."""
    try:
        scalars = json.loads(held.get("scalars", ""))
        known = str(scalars["format"]).startswith(_UPLOAD)
        return str(scalars[METADATA]) if known else None
    except (ValueError, LookupError, TypeError):
        return None


def from_record(record: Mapping[str, Any]) -> Inputs:
    """The inverse of `Inputs.record`.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, RuntimeError: If it is none.
    """
    if record["kind"] not in _ROWS:
        raise ValueError(f"its kind is {record['kind']!r}")
    shape = tuple(map(int, record["shape"]))
    spec = InputSpec(record["kind"], shape, int(record["classes"]), record.get("vocabulary"), record.get("padding"))
    return Inputs(
        spec,
        labels=_names(record.get("labels")),
        columns=_names(record.get("columns")),
        categories={k: tuple(map(str, v)) for k, v in record["categories"].items()} if "categories" in record else None,
        **{k: torch.tensor(record[k], dtype=torch.float32) if k in record else None for k in _STATISTICS},
        pixels=record.get("pixels"),
        tokenizer=record.get("tokenizer"),
    )


def _sorted(values: Iterable[str]) -> tuple[str, ...]:
    """Numbers by value, where all are; otherwise texts."""
    numbers = {value: as_number(value) for value in values}
    if None in numbers.values():
        return tuple(sorted(numbers))
    return tuple(sorted(numbers, key=lambda value: (numbers[value] or 0.0, value)))


def _names(values: Any) -> tuple[str, ...] | None:
    return None if values is None else tuple(map(str, values))
