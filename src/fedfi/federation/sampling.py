"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedfi.errors import InputError


def round_size(clients: int, participation: float, clients_per_round: int | None) -> int:
    """How many of `clients` take part: the given number, or the share, rounded, and at least one.

    Raises:
        InputError: If more clients are asked for than there are.
    """
    if clients_per_round is None:
        return max(1, round(participation * clients))
    if clients_per_round > clients:
        raise InputError(
            f"algorithm.clients_per_round = {clients_per_round}: there are only {clients} clients"
            f" (nearest valid: {clients})"
        )
    return clients_per_round


def sample_clients(clients: Sequence[str], count: int, rng: torch.Generator) -> list[str]:
    """Draws `count` clients uniformly without replacement, in the order of `clients`."""
    chosen = torch.randperm(len(clients), generator=rng)[:count].sort().values
    return [clients[i] for i in chosen.tolist()]
