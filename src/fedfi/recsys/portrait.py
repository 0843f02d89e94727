"""What a guidance does to users' tables, for pages: how far gates open, and one user's items before and after.

The table after guidance and before the round's training is computed anew from what the user had, the mean that it got
and the gate that it kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedfi.data.ratings import RatingsData
from fedfi.federation.packet import Packet, Tree
from fedfi.recsys.gate import gate_values, guided

USERS = 32
"""How many users are looked at; of one of them, the items are shown."""
_BINS = 20
_OWN, _OTHERS = 100, 200


def portrait(
    data: RatingsData, mean: Tensor, beta: float, before: Mapping[str, Tree], after: Mapping[str, Tree]
) -> dict[str, Packet]:
    """``"guidance"``: a histogram of gates, and rows of the first user's table; nothing where nobody was guided.

    Tensors: ``"gates"`` and ``"gates_own"`` int64 `[bins]` over (0, 1), of all items and of those that the user trains
    on; ``"before"``, ``"after"`` and ``"mean"`` `[k, d]` of some items of one user; ``"own"`` bool `[k]`, which of
    them the user trains on.

    Args:
        data: Who trains on which items.
        mean: The mean that arrived `[items, d]`.
        beta: Weight of the own table.
        before: What each user remembered before.
        after: And after; equal for those that did not take part.
    """
    guests = [c for c in before if "items" in before[c] and not torch.equal(before[c]["items"], after[c]["items"])]
    if not guests:
        return {}
    own = {user: torch.from_numpy(data.train[row]) for row, user in enumerate(data.users) if user in set(guests)}
    first = guests[0]
    shown = _chosen(own[first], len(mean))
    tables: Tree = {
        "before": before[first]["items"][shown],
        "after": guided(before[first]["items"], mean, beta, after[first].get("gate"))[shown],
        "mean": mean[shown],
        "own": torch.isin(shown, own[first]),
    }
    open_ = {c: gate_values(after[c]["gate"], before[c]["items"], mean) for c in guests if "gate" in after[c]}
    if open_:
        tables["gates"] = _histogram(open_.values())
        tables["gates_own"] = _histogram(values[own[c]] for c, values in open_.items())
    return {"guidance": Packet(tables, {"user": first, "users": len(guests), "beta": beta})}


def _chosen(own: Tensor, items: int) -> Tensor:
    """Some of the user's items and some of the others, evenly over their numbers."""
    others = torch.ones(items, dtype=torch.bool)
    others[own] = False
    return torch.cat([_spaced(own, _OWN), _spaced(others.nonzero()[:, 0], _OTHERS)])


def _spaced(items: Tensor, most: int) -> Tensor:
    if len(items) <= most:
        return items
    return items[torch.arange(most) * len(items) // most]


def _histogram(values: Iterable[Tensor]) -> Tensor:
    return torch.histc(torch.cat([v.flatten() for v in values]), bins=_BINS, min=0, max=1).long()
