"""What each client can carry: a mix of levels, and who is at which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, BeforeValidator, Field

Ratio = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def _sums_to_one(mix: dict[float, float]) -> dict[float, float]:
    if not mix:
        raise ValueError('a mix needs at least one level, such as { "1.0" = 1.0 }')
    total = sum(mix.values())
    if abs(total - 1) > 1e-6:
        raise ValueError(f"the shares of clients sum to {total:g}, expected 1")
    named: dict[str, float] = {"1": 1.0}  # the whole model is a level of some methods, whoever trains it
    for ratio in mix:
        other = named.setdefault(level_name(ratio), ratio)
        if other != ratio:
            raise ValueError(
                f"levels {other!r} and {ratio!r} are both called {level_name(ratio)}; levels must differ in their first"
                f" six digits"
            )
    return mix


def _each_once(mix: Any) -> Any:
    if isinstance(mix, Mapping):
        for ratio in mix:
            same = [other for other in mix if str(other) != str(ratio) and _number(other) == _number(ratio)]
            if same:
                raise ValueError(f"level {ratio} is given twice, also as {same[0]}")
        return {_number(ratio): share for ratio, share in mix.items()}  # a file's keys are texts
    return mix


def _number(ratio: Any) -> Any:
    try:
        return float(ratio)
    except (TypeError, ValueError):
        return ratio


Capacities = Annotated[dict[Ratio, Share], BeforeValidator(_each_once), AfterValidator(_sums_to_one)]
"""Ratio of the model -> share of the clients; the shares sum to one."""

UNIFORM: dict[float, float] = {1.0: 0.2, 0.5: 0.2, 0.25: 0.2, 0.125: 0.2, 0.0625: 0.2}
NON_UNIFORM: dict[float, float] = {1.0: 0.1, 0.5: 0.1, 0.25: 0.3, 0.125: 0.3, 0.0625: 0.2}


def assign(clients: Sequence[str], capacities: Mapping[float, float], seed: int) -> dict[str, float]:
    """The level of each client: exact shares by largest remainder, in an order drawn from `seed`.

    The same clients, mix and seed give the same levels in every round and to every method.
    """
    levels = [ratio for ratio, count in level_counts(len(clients), capacities).items() for _ in range(count)]
    order = torch.randperm(len(clients), generator=torch.Generator().manual_seed(seed)).tolist()
    return {clients[i]: level for i, level in zip(order, levels, strict=True)}


def level_counts(clients: int, capacities: Mapping[float, float]) -> dict[float, int]:
    """The number of clients at each level: exact shares by largest remainder, the earlier level where those tie."""
    quotas = [share * clients for share in capacities.values()]
    counts = [int(q + 1e-9) for q in quotas]
    remainders = sorted(range(len(quotas)), key=lambda i: (counts[i] - quotas[i], i))
    for i in remainders[: clients - sum(counts)]:
        counts[i] += 1
    return dict(zip(capacities, counts, strict=True))


def held_levels(capacities: Mapping[float, float]) -> list[float]:
    """The levels with a share of the clients, largest first: those that are judged.

    Rounding may leave one of them without any client, see `empty_levels`; it is judged all the same, so that runs of
    one mix compare whatever their number of clients.
    """
    return sorted((ratio for ratio, share in capacities.items() if share), reverse=True)


def empty_levels(clients: int, capacities: Mapping[float, float]) -> list[float]:
    """Those of `held_levels` that rounding leaves without a client."""
    counts = level_counts(clients, capacities)
    return [ratio for ratio in held_levels(capacities) if not counts[ratio]]


def level_name(ratio: float) -> str:
    """How a level is called in metrics and files: ``"0.25"``; by six digits, in which the levels of a mix differ."""
    return f"{ratio:g}"
