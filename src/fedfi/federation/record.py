"""The run directory: what was run, where, on whose data, what happened, and what came of it."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedfi.data import FederatedData
from fedfi.data.inputs import FILE as INPUTS
from fedfi.data.ratings import RatingsData
from fedfi.errors import InputError, OutputError, PlaceError, RunError
from fedfi.federation.checkpoint import write_atomically
from fedfi.importing import import_places


class RunDirectory:
    """The files of one run, and the lock that keeps a second process out of them.

    Files: `run.toml` (resolved configuration), `env.json`, `split.json`, `inputs.json` (see `data.inputs`),
    `events.jsonl` (append-only), `metrics.jsonl` (a line a round), `exhibits/` (see `federation.exhibits`),
    `checkpoints/`, `rows/`, `model.safetensors`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.rows = path / "rows"
        self._lock = -1

    @staticmethod
    def create(path: Path, config: Mapping[str, Any], data: FederatedData | RatingsData) -> RunDirectory:
        """Makes a new run directory.

        Raises:
            OutputError: If the directory exists and is not empty, or cannot be made.
        """
        if (taken := RunDirectory.taken(path)) is not None:
            raise OutputError(f"{path}: {taken}")
        directory = RunDirectory(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            directory.lock()
            write_atomically(path / "run.toml", tomli_w.dumps(without_none(config)).encode())
            write_atomically(path / "env.json", json.dumps(environment(), indent=1).encode())
            directory._write_about(data)
        except OSError as error:
            raise OutputError(f"cannot write to {path}: {error.strerror or error}") from error
        return directory

    @staticmethod
    def taken(path: Path) -> str | None:
        """Why no run may begin there; None where nothing is, or what a run that ended before it began has left."""
        if not path.exists():
            return None
        if not path.is_dir():
            return "is a file; name a directory that is new or empty"
        if all(p.name == ".lock" or p.name.endswith(".part") for p in path.iterdir()):
            return None
        if (path / "run.toml").exists():
            return f"exists and is not empty; resume it with `fedfi resume {shlex.quote(str(path))}`, or name another"
        return "exists and is not empty, and is no run that could be resumed; name another"

    def lock(self) -> None:
        """Takes the directory for this process.

        Raises:
            InputError: If another process runs in it.
        """
        import fcntl

        try:
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}") from error
        self._take(fcntl.LOCK_EX)

    def lock_for_reading(self) -> None:
        """Keeps processes that would write out of the directory, which need not be writable; readers may be many.

        Raises:
            InputError: If another process runs in it.
        """
        import fcntl

        try:
            self._lock = os.open(self.path / ".lock", os.O_RDONLY)
        except FileNotFoundError:  # a copy, in which nobody has run yet
            return
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        self._take(fcntl.LOCK_SH)

    def _take(self, kind: int) -> None:
        import fcntl

        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise PlaceError(f"another process is running in {self.path}") from None

    def complete(self, config: Mapping[str, Any], data: FederatedData | RatingsData) -> None:
        """Writes what a run that goes on should have: its settings, such as more rounds, and lost files about data."""
        settings = tomli_w.dumps(without_none(config)).encode()
        if (self.path / "run.toml").read_bytes() != settings:
            write_atomically(self.path / "run.toml", settings)
        self._write_about(data)

    def _write_about(self, data: FederatedData | RatingsData) -> None:
        """Writes what is not there yet of `split.json` and `inputs.json`."""
        if not (self.path / "split.json").exists():
            write_atomically(self.path / "split.json", json.dumps(data.split_record()).encode())
        if not (self.path / INPUTS).exists() and (inputs := data.inputs_record()) is not None:
            write_atomically(self.path / INPUTS, json.dumps(inputs).encode())

    def close(self) -> None:
        """Gives the directory free."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def event(self, kind: str, **content: object) -> None:
        """Appends a line to `events.jsonl`."""
        self._append("events.jsonl", [{"event": kind, "time": round(time.time(), 3), **content}])

    def metrics(self, line: Mapping[str, object]) -> None:
        """Appends a line to `metrics.jsonl`."""
        self._append("metrics.jsonl", [line])

    def metrics_size(self) -> int:
        """Bytes of `metrics.jsonl` so far, which a checkpoint remembers."""
        path = self.path / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def check_metrics(self, size: int) -> None:
        """Checks that `metrics.jsonl` still holds what it held at a checkpoint.

        Raises:
            InputError: If it is shorter, with what to do.
        """
        there = self.metrics_size()
        if there < size:
            raise PlaceError(
                f"{self.path / 'metrics.jsonl'}: has {there} bytes, it had {size} at the checkpoint: put it back, or"
                f" {self.anew()}"
            )

    def anew(self) -> str:
        """What to do with a run that cannot go on."""
        model, file = self.path / "model.safetensors", shlex.quote(str(self.path / "run.toml"))
        kept = f" (its model is still in {model})" if model.exists() else ""
        return f"begin the run anew in another directory, such as `fedfi run {file} --out {_other(self.path)}`{kept}"

    def restored(self) -> str:
        """What to do where a file is lost or damaged without which a run cannot go on."""
        return f"put it back from a copy of the directory, or {self.anew()}"

    def rewind(self, size: int) -> None:
        """Cuts `metrics.jsonl` back to what it was at a checkpoint, and `events.jsonl` to its last whole line.

        Raises:
            InputError: If `metrics.jsonl` is shorter than it was.
        """
        self.check_metrics(size)
        if self.metrics_size():
            os.truncate(self.path / "metrics.jsonl", size)
        events = self.path / "events.jsonl"
        if events.exists():
            content = events.read_bytes()
            os.truncate(events, content.rfind(b"\n") + 1)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return read_lines(self.path / "metrics.jsonl")

    def _append(self, name: str, lines: Iterable[Mapping[str, object]]) -> None:
        text = "".join(json.dumps(finite(line), allow_nan=False) + "\n" for line in lines)
        try:
            with (self.path / name).open("a") as file:
                file.write(text)
        except OSError as error:
            raise RunError(f"cannot write to {self.path / name}: {error.strerror or error}") from error


def _other(path: Path) -> str:
    return shlex.quote(f"{path}-anew")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file; a last line without its end, as a killed process leaves it, is left out.

    A null stands for a number that JSON does not have, and is read as NaN.
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(keepends=True), start=1):
        if line.endswith("\n"):
            try:
                found.append(_numbers(json.loads(line)))
            except ValueError as error:
                raise PlaceError(f"{path}: line {number} is not JSON: {error}") from None
    return found


def finite(value: Any) -> Any:
    """The same without the numbers that JSON does not have: NaN and the infinities become None."""
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    return math.nan if value is None else value


def environment() -> dict[str, Any]:
    """What the run ran on: versions, machine, and where a user's own modules were looked for."""
    packages = {}
    for name in ("fedfi", "torch", "torchvision", "numpy", "scipy", "datasets", "flwr-datasets", "flwr"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "import_from": import_places(),
        "packages": packages,
    }


def without_none(value: Any) -> Any:
    """The same nested configuration without empty entries, which TOML cannot write; tuples become lists."""
    if isinstance(value, Mapping):
        return {str(k): without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [without_none(v) for v in value]
    return value
