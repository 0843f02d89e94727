"""What a benchmark reports: figures beside their targets, the timings behind them, and the machine they are from."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

PACKAGES = ("fedfi", "torch", "numpy", "scipy", "typer", "pydantic")


@dataclass(frozen=True)
class Figure:
    """One number and what it should be.

    Attributes:
        name: Which benchmark, and which of its figures.
        what: What the number is.
        measured: The number; None if it was not measured.
        unit: ``"x"`` for ratios, ``"%"`` for shares of something, ``"s"`` or ``"GB"``.
        at_most: The target, if the number should be small.
        at_least: The target, if it should be large.
        reason: Why it was not measured, or what else there is to know.
    """

    name: str
    what: str
    measured: float | None
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    reason: str = ""

    @property
    def target(self) -> str:
        """The target in words; a dash for numbers that are only reported."""
        if self.at_most is not None:
            return f"at most {self.at_most:g} {self.unit}"
        return "-" if self.at_least is None else f"at least {self.at_least:g} {self.unit}"

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None without a target or a number."""
        if self.measured is None or (self.at_most is None and self.at_least is None):
            return None
        return (self.at_most is None or self.measured <= self.at_most) and (
            self.at_least is None or self.measured >= self.at_least
        )


@dataclass(frozen=True)
class Report:
    """What one benchmark found.

    Attributes:
        figures: The numbers of the table.
        timings: Everything that was measured, in the order in which it was.
        sizes: How much work it was.
    """

    figures: list[Figure]
    timings: dict[str, Any]
    sizes: dict[str, Any] = field(default_factory=dict)

    def as_json(self, judged: bool) -> dict[str, Any]:
        """The report as it is written to the results; `judged` says whether its sizes allow a verdict."""
        figures = [asdict(f) | {"target": f.target, "ok": f.ok if judged else None} for f in self.figures]
        return {"figures": figures, "sizes": self.sizes, "timings": self.timings}


def summary(values: Sequence[float]) -> dict[str, Any]:
    """All values, their median and their minimum."""
    return {"median": median(values), "min": min(values), "all": list(values)}


def environment() -> dict[str, Any]:
    """The machine and the software, and how busy the machine was at the start."""
    import torch

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": cores(),
        "torch_threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()),
        "packages": versions,
    }


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def show(figures: Sequence[Figure], judged: bool) -> None:
    """Prints the table, with verdicts if the figures are to be judged."""
    table = Table("name", "figure", "target", "measured", "ok?")
    for figure in figures:
        measured = f"{figure.measured:.3g} {figure.unit}" if figure.measured is not None else "not run"
        text = f"{measured}: {figure.reason}" if figure.reason else measured
        verdict = {None: "-", True: "yes", False: "no"}[figure.ok if judged else None]
        table.add_row(figure.name, figure.what, figure.target, text, verdict)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 180)
    console.print(table)


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
