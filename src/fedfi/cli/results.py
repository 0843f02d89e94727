"""What came of a run, read from its directory and printed as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfi.errors import counted
from fedfi.federation.divergence import DIVERGENCE, short
from fedfi.federation.failing import UNJUDGED, reasons
from fedfi.federation.spent import privacy
from fedfi.report.reading import percent, read_run, size

_JUDGED = (
    ("global model, test", "global/{}"),
    ("global model, validation", "validation/{}"),
    ("submodels, mean of the levels", "levels/mean/{}"),
    ("clients, own test examples: mean", "local/{}_mean"),
    ("clients, own test examples: worst", "local/{}_worst"),
)


_TOLD = 5


def warned(warnings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each kind of warning, what went astray last; of warnings under one key the last counts.

    Args:
        warnings: Events of the kind ``"warning"``.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for warning in warnings:
        kinds.setdefault(str(warning.get("key", warning["text"])), []).append(warning)
    astray = [kinds.pop(key) for key in (DIVERGENCE, UNJUDGED) if key in kinds]
    others = list(kinds.values())
    lines = [_warning(same) for same in others[:_TOLD]]
    lines += [f"{counted(len(others) - _TOLD, 'more warning')} in events.jsonl"] if len(others) > _TOLD else []
    return lines + [_warning(same) for same in astray]


def _warning(same: Sequence[Mapping[str, Any]]) -> str:
    often = f" ({len(same)} times; this is the last)" if len(same) > 1 else ""
    return f"warning: {same[-1]['text']}{often}"


def print_result(directory: Path) -> None:
    """Prints what the run came to, the traffic, the failures and what went astray."""
    from rich.console import Console
    from rich.table import Table

    run = read_run(directory)
    warnings = run.of_kind("warning")
    table = Table("", "accuracy", "loss", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, key in _JUDGED:
        accuracy, loss = (run.result.get(key.format(metric)) for metric in ("accuracy", "loss"))
        if accuracy is not None or loss is not None:
            shown = "" if accuracy is None else percent(accuracy)
            table.add_row(name, shown, "" if loss is None else short(loss))
    if any(key.startswith("ranking/") for key in run.result):
        table = Table("full ranking", "HR@10", "NDCG@10", "MRR@10", box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for name, prefix in (("test items", "ranking"), ("validation items", "validation")):
            table.add_row(name, *(f"{run.result[f'{prefix}/{key}@10']:.4f}" for key in ("hr", "ndcg", "mrr")))
    console = Console(highlight=False, soft_wrap=True)
    unjudged = [w for w in warnings if w.get("key") == UNJUDGED]
    if run.result:
        console.print(table)
    elif unjudged:
        console.print("no result: in no evaluation could anybody be judged", markup=False)
    chosen = f"; round {run.result['round']} is the best by {run.chosen_by}" if run.chosen_by and run.result else ""
    ended = ", then stopped" if run.stopped else ""
    console.print(f"rounds: {run.rounds}{ended}, {run.total('seconds'):.1f} s{chosen}", markup=False)
    console.print(f"traffic: {size(run.total('bytes/up'))} up, {size(run.total('bytes/down'))} down")
    if (promised := privacy(run.spent)) is not None:
        console.print(f"privacy of a client: {promised}")
    failures = run.of_kind("failure")
    console.print(f"client failures: {len(failures)}")
    for reason in reasons(failures):
        console.print(f"  {reason}", markup=False)
    for line in warned(warnings):
        console.print(line, markup=False)
