"""Where commands may write: never over what they read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedfi.errors import InputError

_RECORD = ("run.toml", "env.json", "split.json", "inputs.json", "events.jsonl", "metrics.jsonl", "model.safetensors")
_FOLDERS = ("checkpoints", "exhibits")


def refuse_overwriting(out: Path, inputs: Sequence[Path | str | None]) -> None:
    """Refuses an output that is one of the files that are read, links resolved.

    Args:
        out: The output.
        inputs: Files, or names that may be files; None are none.

    Raises:
        InputError: Naming both.
    """
    for given in inputs:
        if given is None:
            continue
        path = Path(given).expanduser()
        if out.exists() and path.exists() and out.samefile(path):
            raise InputError(f"--out {out}: is {given}, which is read; choose another name")


def refuse_within_record(out: Path, directories: Sequence[Path]) -> None:
    """Refuses an output that is a part of a run's record.

    Args:
        out: The output.
        directories: Run directories, or directories of runs.

    Raises:
        InputError: Naming both.
    """
    if not out.exists():
        return
    for directory in directories:
        runs = [path.parent for path in directory.rglob("run.toml")]
        for run in runs:
            refuse_overwriting(out, [run / name for name in _RECORD])
            if any(out.resolve().is_relative_to((run / name).resolve()) for name in _FOLDERS):
                raise InputError(f"--out {out}: is a file of the run {run}; choose another name")
