"""Pages about runs, made from run directories alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def write_report(directories: Iterable[Path | str], out: Path | str) -> Path:
    """Writes one self-contained HTML page about one or more runs.

    Args:
        directories: Run directories, or directories that hold some, such as that of a comparison.
        out: The page.

    Returns:
        The page's path.

    Raises:
        InputError: If a directory holds no run, `out` cannot be written, or plotly (extra `report`) is not
            installed.
    """
    from fedfi.report.page import write

    return write([Path(d) for d in directories], Path(out))
