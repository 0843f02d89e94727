"""What a client selects and what a federation agrees on: pure functions of scores, masks and votes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedfi.numerics.selection import count_for, select, top_k_mask

LEAST = 3
"""m_min: with two contributors each learns the other's values by subtracting its own."""


@dataclass(frozen=True)
class Rule:
    """What becomes of votes.

    Attributes:
        quorum: tau, share of the voters that must want a packet.
        least: m_min, fewest voters that must.
        budget: B, most packets that are agreed on.
    """

    quorum: float
    least: int
    budget: int

    def needed(self, voters: int) -> int:
        """Votes that a packet needs: max(ceil(tau S), m_min)."""
        return max(math.ceil(self.quorum * voters - 1e-9), self.least)


def scores_of_packets(
    fisher: Tensor,
    share: Literal["high", "low"],
    packet_size: int,
    *,
    ratio: float | None = None,
    threshold: float | None = None,
) -> Tensor:
    """How much each packet holds of what the client wants to share, float64 `[P]`; zero where it holds nothing.

    The Fisher-guided partition is one of parameters: the `ratio` of them with the highest (lowest) information, or
    those above (at most) `threshold` times its mean. A packet scores the information of its selected parameters, or,
    where low information is shared, the sum of how far they lie below the largest selected one.

    Args:
        fisher: Fisher information of every parameter `[d]`.
        share: Whether parameters of high or of low information are shared.
        packet_size: Parameters a packet.
        ratio: Share of the parameters that is selected, by budget.
        threshold: Multiple of the mean information that selects, instead.
    """
    if threshold is None:
        selected = select(fisher if share == "high" else -fisher, ratio or 1.0, sizes=[len(fisher)])
    else:
        above = fisher > threshold * fisher.mean()
        selected = above if share == "high" else ~above
    values = fisher.double()
    if share == "low" and bool(selected.any()):
        top = values[selected].max()
        values = (top - values) + (top if bool(top > 0) else 1.0) * 1e-9  # the largest counts a little, too
    values = torch.where(selected, values, 0.0)
    packets = -(-len(values) // packet_size)
    padded = values.new_zeros(packets * packet_size)
    padded[: len(values)] = values
    return padded.view(packets, packet_size).sum(1)


def top_packets(scores: Tensor, most: int) -> Tensor:
    """The packets that a client uploads: those that hold anything selected, at most `most`, the best; `[P]`."""
    mask = top_k_mask(scores, min(most, len(scores)))
    return mask & (scores > 0)


def exchanged(mask: Tensor, probability: float, rng: torch.Generator) -> Tensor:
    """A mask `[P]` in which each marked packet was exchanged, with this probability, for a random unmarked one."""
    marked, free = mask.nonzero().flatten(), (~mask).nonzero().flatten()
    leaving = marked[torch.rand(len(marked), generator=rng) < probability]
    coming = free[torch.randperm(len(free), generator=rng)[: len(leaving)]]
    result = mask.clone()
    result[leaving[: len(coming)]] = False
    result[coming] = True
    return result


def consensus(votes: Tensor, voters: int, rule: Rule, *tie: object) -> Tensor:
    """The packets that enough voters want, at most the budget: those with most votes, ties by hash; boolean `[P]`.

    Args:
        votes: Votes of each packet, int64 `[P]`.
        voters: How many voted.
        rule: What is enough.
        tie: Names the decision, such as run and round, so that ties do not fall to the same packets each round.
    """
    enough = votes >= rule.needed(voters)
    if int(enough.sum()) <= rule.budget:
        return enough
    text = "\x1f".join(map(str, tie))
    order = sorted(
        enough.nonzero().flatten().tolist(),
        key=lambda p: (-int(votes[p]), hashlib.blake2b(f"{text}\x1f{p}".encode(), digest_size=8).digest()),
    )
    result = torch.zeros_like(enough)
    result[order[: rule.budget]] = True
    return result


def budget_of(share: float, packets: int) -> int:
    """ceil(share * packets), for the share that was meant."""
    return count_for(share, packets)
