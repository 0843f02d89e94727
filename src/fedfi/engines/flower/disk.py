"""What a client remembers between rounds, on the disk of the node where it lives.

Memory has versions, one for each step in which a client's work changed it, named by the step and by a digest of the
content. The server says with each job which version the work begins from: the one that its own state belongs to. So
a client whose reply came too late, or was lost with the server, begins again from what it had before; and a client
whose disk was put back to an older state is told so instead of working on with wrong memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.engine import Work
from fedfi.federation.packet import Packet, PacketError, Tree, decode

_VERSION = re.compile(r"(\d{6,12})-([0-9a-f]{16})")
_STEPS: tuple[Work, ...] = ("client_negotiate", "client_update", "client_evaluate")
_ABANDONED = 3600.0  # seconds in which nobody wrote to a file that is being written
_RUN = re.compile(r"[0-9a-f]{16}")


class MemoryLost(InputError):
    """The version that the server expects is not there, or not what it was."""


def step_of(work: Work, round: int) -> int:
    """The number of a step, in the order in which a round takes them."""
    return len(_STEPS) * round + _STEPS.index(work)


def is_version(version: object, step: int | None = None) -> bool:
    """Whether this names a version, and one of that step."""
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    return found is not None and (step is None or int(found[1]) == step)


def default_root() -> Path:
    """Where nodes keep the memory of their clients: `FEDFI_MEMORY`, or a folder of the user."""
    given = os.environ.get("FEDFI_MEMORY")
    if given:
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "fedfi/clients"


class DiskMemory:
    """The memory of the clients of one run.

    Args:
        root: A folder; each run has one of its own in it.
        run: 16 hexadecimal digits that the server chose when the run began.

    Raises:
        InputError: If `run` is of another form.
    """

    def __init__(self, root: Path, run: str) -> None:
        if not isinstance(run, str) or not _RUN.fullmatch(run):
            raise InputError(f"run {str(run)[:40]!r}: expected 16 hexadecimal digits")
        self._folder = root / run

    def read(self, client: str, version: str | None) -> Tree:
        """What a client remembers in a version; nothing without one.

        Raises:
            MemoryLost: If this version is not there or damaged.
        """
        if version is None:
            return {}
        if not is_version(version):
            raise MemoryLost(f"memory {str(version)[:40]!r} is not the name of a version")
        path = self._path(client, version)
        try:
            encoded = path.read_bytes()
            if _digest(encoded) != version.partition("-")[2]:
                raise PacketError("is damaged")
            return dict(decode(encoded).tensors)
        except (OSError, PacketError) as error:
            there = ", ".join(self.versions(client)) or "nothing"
            reason = "is damaged" if isinstance(error, PacketError) else "is not there"
            raise MemoryLost(
                f"client {client!r}: its memory {version}, which the run goes on from, {reason} (there is: {there});"
                f" restore {path.parent}, or let the client forget (lost-memory = 'forget')"
            ) from None

    def write(
        self, client: str, step: int, memory: Mapping[str, Tensor], *, base: str | None, keep: Iterable[str] = ()
    ) -> str:
        """Stores what a client remembers after a step, and drops what no checkpoint of the server refers to.

        Args:
            client: Whose.
            step: Which step, as `step_of` numbers them.
            memory: All of it.
            base: The version before the step, which is kept in case the step is done again.
            keep: Further versions to keep.

        Returns:
            The new version.
        """
        encoded = Packet(memory).encode()
        version = f"{step:06d}-{_digest(encoded)}"
        path = self._path(client, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encoded)
        self._sweep(path.parent)
        for old in set(self.versions(client)) - {version, base, *keep}:
            if int(old.partition("-")[0]) <= step:  # later ones belong to jobs that overtook this one
                self._path(client, old).unlink(missing_ok=True)
        return version

    def versions(self, client: str) -> list[str]:
        """All versions of a client's memory that are there, oldest first."""
        folder = self._path(client, "").parent
        if not folder.is_dir():
            return []
        return sorted(p.stem for p in folder.glob("*.safetensors") if is_version(p.stem))

    def _sweep(self, folder: Path) -> None:
        """Removes what processes that were killed while writing left behind."""
        for part in folder.glob(".*.part"):
            with contextlib.suppress(FileNotFoundError):  # its process is alive after all, and has finished
                if time.time() - part.stat().st_mtime > _ABANDONED:
                    part.unlink()

    def _path(self, client: str, version: str) -> Path:
        return self._folder / f"client-{quote(client, safe='')}" / f"{version}.safetensors"


def _digest(encoded: bytes) -> str:
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()
