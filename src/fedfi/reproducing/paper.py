"""What a grid says of the paper whose table it runs again: where it stands there, and the paper's own figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedfi.errors import InputError, unknown
from fedfi.validation import shown, validate

Value = float | tuple[float, float] | str
"""A number, a mean and a standard deviation, or words such as ``"14 to 23"``; in the unit of the table."""


class Figure(BaseModel):
    """`[[paper.figures]]`: what one table or figure of the paper says of some methods."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Annotated[str, Field(description="where in the paper, such as Table 1")]
    metric: Annotated[str, Field(description="the number that it is, one of those shown")]
    at: Annotated[dict[str, str], Field(description="values of axes; of those not named, all")] = Field(
        default_factory=dict
    )
    values: Annotated[dict[str, Value], Field(description="by method of the grid")]


class Paper(BaseModel):
    """`[paper]` of a grid.

    Attributes:
        figures: The paper's own; they are checked one by one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(description="what `fedfi reproduce` calls the grid; without one, it has no name")] = ""
    also: Annotated[list[str], Field(description="other names of it")] = Field(default_factory=list)
    paper: Annotated[str, Field(description="which paper")]
    shows: Annotated[str, Field(description="which of its tables or figures")]
    measures: Annotated[str, Field(description="what is measured")]
    hours: Annotated[float, Field(gt=0, description="estimate for two cores, at scale small")]
    note: Annotated[str, Field(description="what a reader of the table must know")] = ""
    figures: tuple[Figure, ...] = ()

    def figure(self, metric: str, method: str, at: Mapping[str, str]) -> tuple[str, str] | None:
        """What the paper says of a method in a setting, and where; None where it says nothing.

        Args:
            metric: Of which number.
            method: The method's label.
            at: The value of every axis.
        """
        for figure in self.figures:
            here = figure.metric == metric and all(at[axis] == value for axis, value in figure.at.items())
            if here and method in figure.values:
                return told(figure.values[method]), figure.source
        return None


def told(value: Value) -> str:
    """A figure in a table's cell."""
    if isinstance(value, tuple):
        return " ± ".join(map(told, value))
    return value if isinstance(value, str) else str(value)


def check_paper(
    table: Mapping[str, Any],
    source: str,
    axes: Mapping[str, Collection[str]],
    methods: Collection[str],
    metrics: Collection[str],
) -> Paper:
    """A table `[paper]`, checked against the grid that it belongs to.

    Args:
        table: Its keys.
        source: The file; errors start with it.
        axes: The values of each axis.
        methods: The labels of the methods.
        metrics: The numbers that tables show.

    Raises:
        InputError: In one line: file, key, value, and the nearest valid one.
    """
    keys = dict(table)
    figures = keys.pop("figures", [])
    if not isinstance(figures, Sequence) or isinstance(figures, str):
        raise InputError(f"{source}: paper.figures = {shown(figures)}: must be a list of tables")
    found = []
    for number, content in enumerate(figures):
        path = ["paper", "figures", str(number)]
        figure: Figure = validate(Figure, content, source=source, path=path)
        for what, given, valid in _names(figure, axes, methods, metrics):
            if given not in valid:
                raise InputError(f"{source}: paper.figures.{number}: {unknown(what, given, valid)}")
        found.append(figure)
    paper: Paper = validate(Paper, keys, source=source, path=["paper"])
    return paper.model_copy(update={"figures": tuple(found)})


def _names(
    figure: Figure, axes: Mapping[str, Collection[str]], methods: Collection[str], metrics: Collection[str]
) -> Iterator[tuple[str, str, Collection[str]]]:
    """Every name in a figure, what it is, and which there are."""
    yield "metric", figure.metric, metrics
    for axis, value in figure.at.items():
        yield "axis", axis, axes
        yield f"value of axis {axis}", value, axes[axis]
    for method in figure.values:
        yield "method", method, methods


def fitting(
    figures: Sequence[Mapping[str, Any]], axes: Mapping[str, Collection[str]], methods: Collection[str]
) -> list[dict[str, Any]]:
    """Of the figures of a grid that another one extends, those of settings and methods that this one has, too."""
    found = []
    for figure in figures:
        values = {method: value for method, value in figure.get("values", {}).items() if method in methods}
        if values and all(value in axes.get(axis, ()) for axis, value in figure.get("at", {}).items()):
            found.append({**figure, "values": values})
    return found
