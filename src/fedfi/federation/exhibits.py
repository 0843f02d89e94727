"""What a run leaves for pages besides numbers: small tables by name, of which the newest is kept.

A number a round belongs into a method's metrics. Some things are no number: which units of a network were matched,
how many votes each packet had. A method that has such a thing offers it, and the loop keeps the newest in the run
directory (`exhibits/NAME.safetensors`, an encoded packet). Nothing of it travels, no result depends on it, no
checkpoint holds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedfi.errors import InputError, RunError
from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.packet import Packet, Tree, decode
from fedfi.federation.task import Task

FOLDER = "exhibits"
MOST_BYTES = 1_000_000
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@runtime_checkable
class Exhibits(Protocol):
    """A method with something to show of its state after a round."""

    def exhibits(self, state: Any) -> Mapping[str, Packet]:
        """Tables by name, such as ``"votes"``; at most 1 MB each, so sum up what may be larger."""
        ...


@runtime_checkable
class Portrays(Protocol):
    """A method with something to show of what a round did to the memory of a few clients.

    Only where clients live in this process, that is in simulations: nothing of it could be had from real clients.
    """

    def portrayed(self, state: Any, round: int, clients: Sequence[str]) -> Sequence[str]:
        """The clients whose memory is worth a look before and after the round; few, and mostly none."""
        ...

    def portrait(
        self, task: Task, state: Any, before: Mapping[str, Tree], after: Mapping[str, Tree]
    ) -> Mapping[str, Packet]:
        """Tables by name, as `Exhibits`.

        Args:
            task: With the clients' data, since this is a simulation.
            state: The server's state before the round.
            before: The memory of each client before the round.
            after: The same after it; equal for a client that did not take part.
        """
        ...


@runtime_checkable
class ShowsMemory(Protocol):
    """An engine whose clients live in this process."""

    def clients(self) -> Sequence[str]:
        """All of them."""
        ...

    def memory_of(self, client: str) -> Tree:
        """Copies of what a client has in its memory."""
        ...


class Exhibition:
    """Keeps the newest exhibits of a run.

    Args:
        algorithm: The method.
        task: What it learns.
        engine: Where clients live.
        directory: Of the run; None keeps nothing.
    """

    def __init__(self, algorithm: Any, task: Task, engine: Any, directory: Path | None) -> None:
        self._algorithm, self._task, self._engine = algorithm, task, engine
        self._folder = None if directory is None else directory / FOLDER
        self._state: Any = None
        self._before: dict[str, Tree] = {}

    def before(self, state: Any, round: int) -> None:
        """Looks at the clients that a round will change.

        Args:
            state: The server's state before the round.
            round: From 0.
        """
        self._before = {}
        if self._folder and isinstance(self._algorithm, Portrays) and isinstance(self._engine, ShowsMemory):
            chosen = self._algorithm.portrayed(state, round, self._engine.clients())
            self._state, self._before = state, {c: self._engine.memory_of(c) for c in chosen}

    def after(self, state: Any, round: int) -> None:
        """Keeps what a round has to show.

        Args:
            state: The server's state after the round.
            round: From 0.

        Raises:
            InputError: If a method shows something that is none.
            RunError: If the disk refuses.
        """
        if not self._folder:
            return
        found: dict[str, Packet] = {}
        if isinstance(self._algorithm, Exhibits):
            found |= self._algorithm.exhibits(state)
        if self._before:
            after = {c: self._engine.memory_of(c) for c in self._before}
            found |= self._algorithm.portrait(self._task, self._state, self._before, after)
            self._state, self._before = None, {}
        for name, packet in found.items():
            self._keep(self._folder, name, packet, round)

    def _keep(self, folder: Path, name: str, packet: Packet, round: int) -> None:
        method = type(self._algorithm).__name__
        if not _NAME.fullmatch(name):
            raise InputError(f"{method} shows {name!r}; expected a name of a-z, 0-9, - and _, at most 40 characters")
        content = Packet(packet.tensors, {**packet.scalars, "round": round + 1}, packet.blobs)
        if content.nbytes > MOST_BYTES:
            raise InputError(f"{method} shows {name!r} of {content.nbytes} bytes; expected at most {MOST_BYTES}")
        try:
            folder.mkdir(exist_ok=True)
            write_atomically(folder / f"{name}.safetensors", content.encode())
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error.strerror or error}") from error


def read_exhibit(directory: Path, name: str) -> Packet | None:
    """What a run directory keeps under a name, with its ``round`` (from 1); None where there is nothing.

    Raises:
        InputError: If it cannot be read.
    """
    path = directory / FOLDER / f"{name}.safetensors"
    try:
        return decode(path.read_bytes()) if path.exists() else None
    except (OSError, InputError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def pooled(values: Tensor, most: int, *, how: str = "sum") -> Tensor:
    """Numbers along the first axis, neighbours taken together so that at most `most` remain.

    Args:
        values: `[n, ...]`.
        most: At least 1.
        how: ``"sum"``, or ``"max"``.
    """
    each = -(-len(values) // most)
    if each <= 1:
        return values
    missing = -len(values) % each
    filled = torch.cat([values, values.new_zeros(missing, *values.shape[1:])]) if missing else values
    groups = filled.reshape(-1, each, *values.shape[1:])
    return groups.sum(1) if how == "sum" else groups.amax(1)
