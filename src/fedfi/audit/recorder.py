"""An engine that keeps the bytes of every exchange: what goes to a client and what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfi.engines.local import LocalEngine
from fedfi.federation.algorithm import ClientId, Failure, Reply
from fedfi.federation.engine import Judged, Split, Work
from fedfi.federation.packet import Packet


@dataclass(frozen=True)
class Observation:
    """One exchange with one client.

    Attributes:
        work: Which exchange of the round.
        round: From 0.
        client: With whom.
        sent: The packet to the client, encoded.
        received: The packet back, encoded.
    """

    work: Work
    round: int
    client: ClientId
    sent: bytes
    received: bytes


class Recorder:
    """A local engine under observation; it judges nothing, which is not what an audit is about."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self.observations: list[Observation] = []

    def clients(self) -> Sequence[ClientId]:
        """As the engine."""
        return self._engine.clients()

    def map(self, work: Work, jobs: Iterable[tuple[ClientId, Packet]], round: int) -> Iterator[Reply | Failure]:
        """As the engine, noting each exchange."""
        sent: dict[ClientId, bytes] = {}

        def noted() -> Iterator[tuple[ClientId, Packet]]:
            for client, packet in jobs:
                sent[client] = packet.encode()
                yield client, packet

        for reply in self._engine.map(work, noted(), round):
            if isinstance(reply, Reply):
                received = reply.packet.encode()
                self.observations.append(Observation(work, round, reply.client, sent[reply.client], received))
            yield reply

    def evaluate(
        self, what: Judged, models: Iterable[tuple[str, Packet]], split: Split
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Nothing."""
        return iter(())

    def memory(self) -> Mapping[str, Any]:
        """As the engine."""
        return self._engine.memory()

    def restore(self, memory: Mapping[str, Any], round: int) -> None:
        """As the engine."""
        self._engine.restore(memory, round)

    def close(self) -> None:
        """As the engine."""
        self._engine.close()
