"""What the loop asks of an engine: the only thing that knows where clients live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from fedfi.federation.algorithm import ClientId, Failure, Reply
from fedfi.federation.packet import Packet

Work = Literal["client_update", "client_evaluate", "client_negotiate"]
Split = Literal["test", "validation"]
Judged = Literal["model", "level"]
"""A whole model by name, or a packet that the method itself puts on a workbench."""


class Engine(Protocol):
    """Runs client work and server evaluations."""

    def clients(self) -> Sequence[ClientId]:
        """All clients that can be asked, in a fixed order."""
        ...

    def map(self, work: Work, jobs: Iterable[tuple[ClientId, Packet]], round: int) -> Iterator[Reply | Failure]:
        """Has each job done by its client; yields in the order of `jobs`, which it consumes as it goes."""
        ...

    def evaluate(
        self, what: Judged, models: Iterable[tuple[str, Packet]], split: Split
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """The task's evaluation of each named model on the server's examples, as means."""
        ...

    def memory(self) -> Mapping[str, Any]:
        """All client memory that the engine owns, for the checkpoint; empty where clients keep it themselves."""
        ...

    def restore(self, memory: Mapping[str, Any], round: int) -> None:
        """Puts client memory back to what it was before `round`."""
        ...

    def close(self) -> None:
        """Ends every process and frees what the engine holds; may be called twice."""
        ...
