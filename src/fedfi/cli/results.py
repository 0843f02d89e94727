"""What came of a run, read from its directory and printed as a table."""

from __future__ import annotations

from pathlib import Path

from fedfi.report.reading import read_run, size

_JUDGED = (
    ("global model, test", "global"),
    ("global model, validation", "validation"),
    ("submodels, mean of the levels", "levels/mean"),
    ("clients, own test examples", "local"),
)


def print_result(directory: Path) -> None:
    """Prints the last evaluation, the traffic and the failures of a run."""
    from rich.console import Console
    from rich.table import Table

    run = read_run(directory)
    table = Table("", "accuracy", "loss", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, prefix in _JUDGED:
        values = [run.last.get(f"{prefix}/{key}") for key in ("accuracy", "loss")]
        if any(v is not None for v in values):
            table.add_row(name, *("" if v is None else f"{v:.4f}" for v in values))
    if any(key.startswith("ranking/") for key in run.last):
        table = Table("full ranking", "HR@10", "NDCG@10", "MRR@10", box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for name, prefix in (("test items", "ranking"), ("validation items", "validation")):
            table.add_row(name, *(f"{run.last[f'{prefix}/{key}@10']:.4f}" for key in ("hr", "ndcg", "mrr")))
    console = Console(highlight=False, soft_wrap=True)
    if run.last:
        console.print(table)
    console.print(f"rounds: {run.rounds}, {run.total('seconds'):.1f} s")
    console.print(f"traffic: {size(run.total('bytes/up'))} up, {size(run.total('bytes/down'))} down")
    console.print(f"client failures: {len(run.of_kind('failure'))}")
    console.print(f"run directory: {directory}", markup=False)
