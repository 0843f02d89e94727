"""A grid file: how it is read, what it extends, and whether its keys mean something.

A grid holds `seeds`, `rates`, an experiment `[base]`, what a scale changes `[scale.NAME]`, what a setting changes
`[axis.AXIS.VALUE]`, and what a method changes `[method.LABEL]`. Values of axes and methods may hold tables for a scale,
`[axis.AXIS.VALUE.scale.NAME]`, `[method.LABEL.scale.NAME]`. docs/reproduce.md has all keys.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedfi.errors import InputError, unknown
from fedfi.experiment import read_toml
from fedfi.reproducing.paper import fitting
from fedfi.reproducing.places import folder
from fedfi.validation import check_plain, nearest_key, shown, validate

Tables = Mapping[str, Any]

WHOLE = ("partition", "capacities")
"""Tables that are replaced, not merged."""
_TABLES = ("base", "scale", "axis", "method", "paper")
_LABEL = re.compile(r"[\w.+-]+")


class OnTraffic(BaseModel):
    """What is drawn against traffic."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: Annotated[str, Field(description="a number of the evaluation, such as one that is shown")]
    methods: Annotated[list[str], Field(description="labels of methods; none = all")] = Field(default_factory=list)


class Head(BaseModel):
    """The keys at the head of a grid file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: Annotated[list[int], Field(min_length=1, description="seeds; tuning takes the first")]
    rates: Annotated[list[float], Field(min_length=1, description="learning rates to choose from")]
    kind: Annotated[Literal["methods", "followers"], Field(description="what is measured of a run")] = "methods"
    metric: Annotated[str, Field(description="number of the validation that tuning goes by")] = "validation/accuracy"
    shown: Annotated[dict[str, str], Field(min_length=1, description="columns of the table: name -> number")] = Field(
        default_factory=lambda: {
            "global": "global/accuracy",
            "levels": "levels/mean/accuracy",
            "local": "local/accuracy_mean",
        }
    )
    traffic: Annotated[OnTraffic | None, Field(description="number drawn against bytes in traffic.svg")] = None
    last: Annotated[int, Field(ge=1, description="a run came to the mean of its last so many evaluations")] = 2
    shared: Annotated[bool, Field(description="clients' first training is done once for all methods")] = False
    predictions: Annotated[bool, Field(description="keep what models say of every test example")] = False


class OfScale(BaseModel):
    """The keys of a scale that are no settings of an experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: Annotated[list[int] | None, Field(min_length=1, description="instead of the file's")] = None
    rates: Annotated[list[float] | None, Field(min_length=1, description="instead of the file's")] = None
    tune: Annotated[dict[str, list[Any]], Field(description="dotted keys and the values to choose from")] = Field(
        default_factory=dict
    )
    tuning_rounds: Annotated[int | None, Field(ge=1, description="rounds of a tuning run; by default all")] = None


class OfMethod(OfScale):
    """The keys of a method that are no settings of an experiment."""

    ignores: Annotated[list[str], Field(description="axes that mean nothing to it")] = Field(default_factory=list)
    skip: Annotated[dict[str, list[str]], Field(description="axis -> values at which it is not run")] = Field(
        default_factory=dict
    )


OF_SCALE, OF_METHOD = (tuple(kind.model_fields) for kind in (OfScale, OfMethod))


def read(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A grid file, and what it extends; axes, methods and lists are replaced, other tables merged.

    Args:
        path: The file.
        above: Files that extend it.

    Raises:
        InputError: If one of them cannot be read, or extends itself.
    """
    tables = read_toml(path)
    if "extends" not in tables:
        return tables
    name = tables.pop("extends")
    if not isinstance(name, str):
        raise InputError(f"{path}: extends = {shown(name)}: must be the name of a grid file")
    beside, chain = path.parent / name, (*above, path.resolve())
    before = beside if beside.exists() or not (folder() / name).exists() else folder() / name
    if before.resolve() in chain:
        raise InputError(f"{path}: extends = {shown(name)}: the file extends itself")
    return _extended(read(before, chain), tables)


def _extended(before: Tables, tables: Tables) -> dict[str, Any]:
    replaced = {key: tables[key] for key in ("axis", "method") if key in tables}
    result = merged(before, tables) | replaced
    own = tables.get("paper", {})
    paper = {key: value for key, value in before.get("paper", {}).items() if key not in ("name", "also")} | own
    if "figures" in paper and "figures" not in own:
        paper["figures"] = fitting(paper["figures"], result.get("axis", {}), result.get("method", {}))
    return result | ({"paper": paper} if paper else {})


def merged(tables: Tables, changes: Tables) -> dict[str, Any]:
    """Tables with some keys replaced, deeply but for those of `WHOLE`."""
    result = copy.deepcopy(dict(tables))
    for key, value in changes.items():
        deep = isinstance(value, dict) and key not in WHOLE and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if deep else copy.deepcopy(value)
    return result


def check(tables: Tables, source: str) -> Head:
    """Checks everything in a grid file but the experiments that it makes, and its paper.

    Raises:
        InputError: In one line: file, key, value, and the nearest valid one.
    """
    check_plain(tables, source=source)
    keys = {key: value for key, value in tables.items() if key not in _TABLES}
    for key in keys:
        if key not in Head.model_fields:
            raise InputError(f"{source}: {key}: unknown key; {nearest_key(key, [*Head.model_fields, *_TABLES])}")
    for key in _TABLES:
        if not isinstance(tables.get(key, {}), dict):
            raise InputError(f"{source}: {key} = {shown(tables[key])}: must be a table")
        if key in ("scale", "method") and key not in tables:
            raise InputError(f"{source}: {key}: is missing; a grid has at least one [{key}.NAME]")
    head: Head = validate(Head, keys, source=source)
    for axis, values in tables.get("axis", {}).items():
        for value, content in _tables(values, source, "axis", axis).items():
            _check_scales(content, tables["scale"], source, f"axis.{axis}.{value}")
    for scale, content in _tables(tables["scale"], source, "scale").items():
        validate(OfScale, _own(content, OF_SCALE), source=source, path=["scale", scale])
    for label, content in _tables(tables["method"], source, "method").items():
        _check_scales(content, tables["scale"], source, f"method.{label}")
        for own in ({}, *content.get("scale", {}).values()):
            _check_method(label, merged(content, own), tables.get("axis", {}), source)
    for label in head.traffic.methods if head.traffic else ():
        if label not in tables["method"]:
            raise InputError(f"{source}: traffic.methods: {unknown('method', label, tables['method'])}")
    return head


def _own(content: Tables, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: content[key] for key in keys if key in content}


def _tables(tables: Any, source: str, *path: str) -> Tables:
    """Tables by label.

    Raises:
        InputError: If one is none, or its label cannot be part of a file's name.
    """
    place = ".".join(path)
    if not isinstance(tables, dict) or not tables:
        raise InputError(f"{source}: {place} = {shown(tables)}: must be a table of tables")
    for label, content in tables.items():
        if not _LABEL.fullmatch(label):
            raise InputError(f"{source}: {place}: label {label!r}: only letters, digits and . _ + - may be in it")
        if not isinstance(content, dict):
            raise InputError(f"{source}: {place}.{label} = {shown(content)}: must be a table")
    return tables


def _check_scales(content: Tables, scales: Tables, source: str, place: str) -> None:
    for scale in content.get("scale", {}):
        if scale not in scales:
            raise InputError(f"{source}: {place}.scale: {unknown('scale', scale, scales)}")


def _check_method(label: str, content: Tables, axes: Tables, source: str) -> None:
    method = validate(OfMethod, _own(content, OF_METHOD), source=source, path=["method", label])
    for axis in (*method.ignores, *method.skip):
        if axis not in axes:
            raise InputError(f"{source}: method.{label}: {unknown('axis', axis, axes)}")
    for axis, values in method.skip.items():
        for value in values:
            if value not in axes[axis]:
                raise InputError(f"{source}: method.{label}.skip: {unknown(f'value of {axis}', value, axes[axis])}")
