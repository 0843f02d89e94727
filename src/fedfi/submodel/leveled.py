"""Who is at which level: what every method of the family asks its user for."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG, Algorithm, ClientId
from fedfi.federation.rng import keyed_generator
from fedfi.submodel.capacities import NON_UNIFORM, Capacities, assign, empty_levels, held_levels, level_name
from fedfi.submodel.sizing import RatioKind

State = TypeVar("State")


@validated(frozen=True, kw_only=True, config=CONFIG)
class Leveled(Algorithm[State], ABC):
    """A method whose clients carry as much of the model as their level says."""

    participation: Annotated[float, Field(gt=0, le=1, description="share of the clients a round")] = 0.1
    capacities: Annotated[Capacities, Field(description="ratio of the model -> share of clients")] = Field(
        default_factory=lambda: dict(NON_UNIFORM)
    )
    ratio: Annotated[
        RatioKind, Field(description="what a ratio is of: the model's parameters, or the width of its layers")
    ] = "params"
    level_mode: Annotated[
        Literal["fix", "dynamic"], Field(description="a client's level is its own, or drawn anew each round")
    ] = "fix"

    def mixes_networks(self) -> bool:
        """Where some client trains less than the whole."""
        return any(ratio < 1 for ratio in held_levels(self.capacities))

    @property
    def level_names(self) -> dict[str, float]:
        """All levels of the mix by name, also those with a share of 0."""
        return {level_name(ratio): ratio for ratio in self.capacities}

    def assigned(self, clients: Sequence[ClientId], seed: int, round: int | None) -> dict[ClientId, float]:
        """The level of each client in a round; None asks for levels to judge by.

        Shares are exact among all clients in either mode.
        """
        if self.level_mode == "dynamic" and round is not None:
            seed = int(torch.randint(2**31, (), generator=keyed_generator(seed, "levels", round)))
        return assign(clients, self.capacities, seed)

    def notes_on_clients(self, clients: Sequence[ClientId]) -> list[str]:
        """Names the levels that have a share of the clients, of which rounding leaves nothing."""
        empty = empty_levels(len(clients), self.capacities)
        if not empty:
            return []
        names = ", ".join(map(level_name, empty))
        return [
            f"level{'' if len(empty) == 1 else 's'} {names}: 0 of {len(clients)} clients, since shares are rounded to"
            f" whole clients; nobody trains there, but what capacities declares is judged"
        ]
