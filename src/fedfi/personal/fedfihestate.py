"""What the server of FedFIHE keeps from round to round."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

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
