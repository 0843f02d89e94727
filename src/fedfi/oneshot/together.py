"""Several models as one network whose class probabilities are the mean of theirs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedfi.arguments import described
from fedfi.errors import InputError
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.workbench import Benches, Workbench
from fedfi.oneshot.given import check_choice

Combine = Literal["probabilities", "logits"]


class Together(nn.Module):
    """K networks of one architecture; inputs `[B, ...]`, log-probabilities or mean logits `[B, C]`.

    Args:
        networks: The networks.
        combine: Whether probabilities are averaged, or logits.

    Raises:
        InputError: If there is no network, or something else among them.
    """

    def __init__(self, networks: Iterable[nn.Module], combine: Combine = "probabilities") -> None:
        super().__init__()
        self.networks = nn.ModuleList(_checked(networks, combine))
        self.combine = combine

    def forward(self, inputs: Tensor) -> Tensor:
        """The logarithm of the mean probabilities, or the mean logits."""
        logits = torch.stack([network(inputs) for network in self.networks])
        if self.combine == "logits":
            return logits.mean(0)
        return logits.log_softmax(2).logsumexp(0) - torch.tensor(float(len(logits))).log()


def _checked(networks: Iterable[nn.Module], combine: Combine) -> list[nn.Module]:
    check_choice("combine", combine, Combine)
    found = list(networks)
    if not found:
        raise InputError("networks is empty: expected at least one")
    for position, network in enumerate(found):
        if not isinstance(network, nn.Module):
            raise InputError(
                f"networks[{position}] is {described(network)}, expected a torch.nn.Module; fedfi.Ensemble merges"
                " networks, and load_state_dict puts tensors into one"
            )
    return found


def joined(models: Sequence[Mapping[str, Tensor]]) -> Tree:
    """The parameters and buffers of K models under the names that `Together` has for them."""
    return {f"networks.{i}.{n}": t.clone() for i, model in enumerate(models) for n, t in model.items()}


def bench_of(packet: Packet, benches: Benches, combine: Combine) -> Workbench:
    """A workbench of as many networks as a packet of `joined` models holds, with their values."""
    count = 1 + max((int(name.split(".")[1]) for name in packet.tensors), default=0)

    def make(module: nn.Module) -> nn.Module:
        return Together((copy.deepcopy(module) for _ in range(count)), combine)

    bench = benches.smaller(("together", count, combine), make)
    bench.load(packet.tensors)
    return bench
