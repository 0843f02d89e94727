"""What a run directory remembers of a run: its state, and the settings that it began with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfi.errors import InputError, PlaceError, RunError
from fedfi.federation import checkpoint
from fedfi.federation.algorithm import Algorithm
from fedfi.federation.engine import Engine
from fedfi.federation.record import RunDirectory, without_none
from fedfi.federation.rng import keyed_generator
from fedfi.federation.rows import attach_all
from fedfi.federation.task import Task
from fedfi.validation import flat

_OF_THE_LOOP = ("evaluate", "checkpoint_every", "min_replies")
"""Settings that change no bit of a model that is there."""
_PLACES = ("data.name", "data.test", "data.tokenizer")
"""Settings that may be paths, which change when a run and its data move to another machine."""


@dataclass
class Content:
    """What a checkpoint holds."""

    state: Any
    memory: Any = field(default_factory=dict)
    metrics_size: int = 0
    config: str = ""


def last_state(
    algorithm: Algorithm[Any],
    task: Task,
    out: Path,
    seed: int,
    engine: Engine | None = None,
    config: Mapping[str, Any] | None = None,
    written: Mapping[str, Any] | None = None,
) -> tuple[int, Any]:
    """The best round's state of a run where one is chosen, else the newest that is saved; and the number of its rounds.

    Nothing is written to the directory.

    Args:
        algorithm: As it was run.
        task: As it was run.
        out: The run directory.
        seed: The run's seed.
        engine: Gets the clients' memory of that round.
        config: The settings by what `run.toml` says now; what makes or reads the model must be as the run began.
        written: What stands in `run.toml`; settings that neither it nor the run knows are defaults of a newer fedfi,
            and paths of data may have changed.

    Raises:
        InputError: If another process runs there, or the run began with other settings.
        RunError: If there is no usable checkpoint.
    """
    directory = RunDirectory(out)
    directory.lock_for_reading()
    try:
        if config is not None:
            check_config(directory, settings(config), _OF_THE_LOOP, written)
        state = algorithm.init(task, keyed_generator(seed, "server", "init"))
        attach_all(checkpoint.row_stores(state), directory.rows, read_only=True)
        try:
            kept = checkpoint.load_best(directory.checkpoints, Content(state))
        except RunError as error:
            raise RunError(f"{error}; {directory.restored()}") from error
        rounds, content = kept or load(directory, Content(state), lambda _: None, read_only=True)
    finally:
        directory.close()
    if engine:
        engine.restore(content.memory, rounds)
    return rounds, content.state


def load(
    directory: RunDirectory, template: Content, report: Callable[[str], None], *, read_only: bool = False
) -> tuple[int, Content]:
    """The newest intact checkpoint of a run, as `checkpoint.load`.

    Raises:
        RunError: If there is none, with what to do.
    """
    try:
        return checkpoint.load(directory.checkpoints, template, report, read_only=read_only)
    except RunError as error:
        raise RunError(f"{error}; {directory.anew()}") from error


def has_begun(directory: RunDirectory) -> bool:
    """Whether a run has a checkpoint to go on from; False for one that ended before its first, and may begin again.

    Raises:
        InputError: If its checkpoints are gone though it came further, which beginning again would overwrite.
    """
    if checkpoint.any_in(directory.checkpoints):
        return True
    found = [name for name in ("metrics.jsonl", "model.safetensors") if _holds(directory.path / name)]
    if found:
        raise PlaceError(
            f"{directory.checkpoints}: holds no checkpoint to go on from, though the run has a {' and a '.join(found)},"
            f" which going on would overwrite: put the checkpoints back, or {directory.anew()}"
        )
    return False


def check_finished(directory: RunDirectory, rounds: int, config: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    """Checks that a finished run is still what it was, by its newest checkpoint, if that was kept.

    Args:
        directory: The run directory.
        rounds: How many rounds it came to.
        config: The settings by what `run.toml` says now.
        written: What stands in `run.toml`.

    Raises:
        InputError: If its settings were edited, or `metrics.jsonl` lacks rounds.
    """
    check_config(directory, settings(config), written=written)
    directory.check_metrics(int(checkpoint.peek(directory.checkpoints, "metrics_size") or 0))
    lines = directory.read_metrics()
    if not lines or lines[-1]["round"] < rounds:
        done = lines[-1]["round"] if lines else 0
        raise PlaceError(
            f"{directory.path / 'metrics.jsonl'}: holds {done} of the {rounds} rounds of the finished run: put it back,"
            f" or {directory.anew()}"
        )


def _holds(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def settings(config: Mapping[str, Any]) -> str:
    """What a checkpoint remembers of the settings: all but the number of rounds, which may grow."""
    kept = {k: v for k, v in without_none(config).items() if k != "rounds"}
    return json.dumps(kept, sort_keys=True, default=str)


def check_config(
    directory: RunDirectory, now: str, free: Sequence[str] = (), written: Mapping[str, Any] | None = None
) -> None:
    """Compares the settings that a run began with and those that its `run.toml` holds now.

    Args:
        directory: Its newest checkpoint knows how the run began.
        now: As `settings` makes it.
        free: Tables and keys that may differ.
        written: What stands in `run.toml`, where a model is only read: what neither it nor the run knows may differ,
            and where data lie.

    Raises:
        InputError: Naming the first key that differs.
    """
    before = checkpoint.peek(directory.checkpoints, "config")
    if not before:
        return  # nothing to go by; reading the checkpoint will say so
    old, new = (dict(flat({k: v for k, v in json.loads(text).items() if k not in free})) for text in (before, now))
    known = set(old) | set(new if written is None else dict(flat(written)))
    if written is not None:
        known -= {key for key in _PLACES if all(Path(str(each.get(key, ""))).is_absolute() for each in (old, new))}
    for key in {**old, **new}:
        if key in known and old.get(key) != new.get(key):
            given = f"{key} = {new[key]!r}" if key in new else f"{key} is missing"
            began = f"with {old[key]!r}" if key in old else "without it"
            raise InputError(
                f"{directory.path / 'run.toml'}: {given}, the run began {began}; change it back, or begin a new run"
            )
