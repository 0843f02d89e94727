"""What the server of FedFIHE keeps from round to round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedfi.federation.algorithm import Metrics
from fedfi.federation.checkpoint import UNSAVED
from fedfi.federation.packet import Tree


@dataclass(frozen=True)
class FedFIHEState:
    """What the server knows.

    Attributes:
        model: The initialisation.
        trained: Names of the parameters that may be shared, in the order of their vector.
        run: Sixteen hexadecimal digits.
        contributors: Clients a round.
        releases: The last ones, encoded, uint8.
        keys: The key of each.
        number: Releases so far.
        synced: The newest release that each client has taken in.
        masks: Bitmaps of this round's voters, between the phases.
        votes: Encrypted sums of their votes.
        voters: How many voted.
        tallied: For pages: ``"votes"`` of each packet and whether it was ``"released"``, as far as the server knows
            them, and ``"voters"`` and ``"needed"`` votes; not saved.
    """

    model: Tree
    trained: list[str]
    run: str
    contributors: int
    releases: list[Tensor] = dataclasses.field(default_factory=list)
    keys: list[str] = dataclasses.field(default_factory=list)
    number: int = 0
    synced: dict[str, int] = dataclasses.field(default_factory=dict)
    masks: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    votes: list[Tensor] = dataclasses.field(default_factory=list)
    voters: int = 0
    tallied: Tree = dataclasses.field(default_factory=dict, metadata=UNSAVED)

    def new_to(self, client: str, key: str) -> Iterator[tuple[int, Tensor]]:
        """Releases, by number, that a client has not taken in; without those of other keys, which nobody can read."""
        for number, held, release in self._numbered():
            if number > self.synced.get(client, 0) and held == key:
                yield number, release

    def lost(self, key: str, synced: Mapping[str, int]) -> Metrics:
        """A warning of the releases under other keys that clients can never take in any more.

        Args:
            key: The present key.
            synced: The newest release of each client after this round's work, where `self.synced` is before it.
        """
        old = [number for number, held, _ in self._numbered() if held != key]
        missed = {c: [n for n in old if self.synced.get(c, 0) < n <= last] for c, last in synced.items()}
        missed = {c: numbers for c, numbers in missed.items() if numbers}
        if not missed:
            return {}
        count = len({n for numbers in missed.values() for n in numbers})
        return {
            "keys": f"the key is now {key}: {count} {'release' if count == 1 else 'releases'} under earlier keys, which"
            f" {len(missed)} {'client' if len(missed) == 1 else 'clients'} had not taken in, can no longer be read"
        }

    def _numbered(self) -> Iterator[tuple[int, str, Tensor]]:
        first = self.number - len(self.releases) + 1
        return ((first + i, *both) for i, both in enumerate(zip(self.keys, self.releases, strict=True)))
