"""What stands above a grid's table."""

from __future__ import annotations

from fedfi.reproducing.grid import Grid


def heading(grid: Grid) -> list[str]:
    """What the table is of, and of what use the paper's figures are; nothing for a grid that names no paper."""
    paper = grid.paper
    if paper is None:
        return []
    lines = [f"{paper.paper}: {paper.shows}. {paper.measures}. Scale: {grid.scale}.", ""]
    if not paper.figures:
        lines += ["The paper's figures: none. " + (paper.note or "It gives none of these settings."), ""]
        return lines
    cut = " The setting here is cut: see the file." if grid.scale != "paper" else ""
    lines += [f"Columns *(paper)*: the paper's own figures, of its own setting.{cut} {paper.note}".rstrip(), ""]
    return lines
