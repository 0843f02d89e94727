"""What the bytes of an exchange tell of a client's model, method by method.

A view holds what an honest-but-curious server can read: the model that it takes the client to have started from, the
change where it is in the clear, and the packets that the client marked. Ciphertexts tell nothing but their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedfi.audit.recorder import Observation
from fedfi.crypto.message import Gate, Message, Terms
from fedfi.federation.algorithm import Algorithm
from fedfi.federation.packet import Packet, Tree, decode
from fedfi.federation.workbench import VectorLayout
from fedfi.numerics.selection import unpack_bits
from fedfi.personal.encryption import Exchange
from fedfi.personal.fedfihe import FedFIHE
from fedfi.personal.selective import Selective
from fedfi.personal.tally import stored


@dataclass(frozen=True)
class View:
    """What one client showed in one round.

    Attributes:
        client: Who.
        round: From 0.
        start: The model before training, as far as the server knows, by name.
        change: Start minus end `[size]`, zero where it is not known.
        known: Where it is, boolean `[size]`.
        packets: Packets that the client marked, boolean `[P]`; None where it marks none.
        fisher: Fisher scores that it sent; None where it sends none.
    """

    client: str
    round: int
    start: Tree
    change: Tensor
    known: Tensor
    packets: Tensor | None = None
    fisher: Tensor | None = None


def views(
    algorithm: Algorithm[Any], state: Any, layout: VectorLayout, first: Tree, observations: Iterable[Observation]
) -> list[View]:
    """Everything that the observations show, one view a client and round.

    Args:
        algorithm: The method.
        state: Its state, of which only what never changes is used.
        layout: Where parameters lie in the vector.
        first: The initialisation, which is public.
        observations: In their order.
    """
    found: dict[tuple[int, str], View] = {}
    for o in observations:
        view = _view(algorithm, state, layout, first, o)
        before = found.get((o.round, o.client))
        if before is not None and view.packets is None:
            view = View(
                view.client,
                view.round,
                view.start,
                view.change,
                view.known,
                before.packets,
                view.fisher if view.fisher is not None else before.fisher,
            )
        found[(o.round, o.client)] = view
    return list(found.values())


def _view(algorithm: Algorithm[Any], state: Any, layout: VectorLayout, first: Tree, o: Observation) -> View:
    sent, received = decode(o.sent), decode(o.received)
    change, known = torch.zeros(layout.size), torch.zeros(layout.size, dtype=torch.bool)
    start = {n: first[n] for n in layout.names} | {n: t for n, t in sent.tensors.items() if n in first}
    packets, fisher = None, received.tensors.get("fisher")
    if isinstance(algorithm, FedFIHE):
        packets = _of_fedfihe(algorithm, state, layout, start, o, received, change, known)
    elif isinstance(algorithm, Selective):
        packets = _of_selective(algorithm, state, layout, sent, received, change, known)
    elif "kept" in sent.tensors:  # a submodel by mask
        mask = unpack_bits(sent.blobs["mask"], layout.pool)
        known[: layout.pool], known[layout.pool :] = mask, True
        change[known] = received.tensors["update"]
        start = layout.split(torch.zeros(layout.size).masked_scatter_(known, sent.tensors["kept"]))  # x * M
    else:
        position = 0
        for name, size in zip(layout.names, layout.sizes, strict=True):
            if name in received.tensors:
                change[position : position + size] = received.tensors[name].reshape(-1)
                known[position : position + size] = True
            position += size
    return View(o.client, o.round, start, change, known, packets, fisher)


def _of_fedfihe(
    algorithm: FedFIHE,
    state: Any,
    layout: VectorLayout,
    start: Tree,
    o: Observation,
    received: Packet,
    change: Tensor,
    known: Tensor,
) -> Tensor | None:
    """The mask; and in the clear the values of the packets that were uploaded."""
    agreed = algorithm.exchange_of(state)
    if o.work == "client_negotiate":
        votes: Tensor = _opened(algorithm.vote_terms(agreed), agreed, o, received, phase=1).mask
        return votes if algorithm.votes == "plain" else None
    sent = decode(o.sent)
    if algorithm.phases == "two" and algorithm.votes == "encrypted":
        groups = algorithm.dense(agreed, torch.zeros(agreed.layout.packets, dtype=torch.bool))
    elif algorithm.phases == "two":
        groups = algorithm.dense(agreed, unpack_bits(sent.blobs["consensus"], agreed.layout.packets))
    else:
        groups = [[i] for i in range(agreed.layout.packets)]
    message = _opened(algorithm.terms_of(agreed, groups), agreed, o, received, phase=0)
    if not algorithm.encryption.enabled and algorithm.votes == "plain":
        shown = {p for g in groups for p in g if bool(message.mask[p])}
        _reveal_values(agreed, message, groups, shown, layout, start, change, known)
    marked: Tensor = message.mask
    return marked if algorithm.phases == "one" else None


def _reveal_values(
    agreed: Exchange,
    message: Message,
    groups: list[list[int]],
    shown: set[int],
    layout: VectorLayout,
    start: Tree,
    change: Tensor,
    known: Tensor,
) -> None:
    values = torch.zeros(agreed.layout.packets, agreed.layout.packet_size)
    seen = torch.zeros(agreed.layout.packets, agreed.layout.packet_size, dtype=torch.bool)
    for index, payload in zip(message.indices, message.payloads, strict=True):
        lines = torch.frombuffer(bytearray(payload), dtype=torch.int32).view(-1, agreed.row)
        for packet, line in zip(groups[index], lines, strict=False):
            if packet in shown:
                values[packet] = agreed.fixed.mean(line[:-2], line[-2]).float()
                seen[packet] = True
    mask = agreed.layout.joined(seen)
    known |= mask
    change[mask] = (layout.join(start) - agreed.layout.joined(values))[mask]


def _of_selective(
    algorithm: Selective,
    state: Any,
    layout: VectorLayout,
    sent: Packet,
    received: Packet,
    change: Tensor,
    known: Tensor,
) -> Tensor | None:
    """Packets in the clear, of the update's vector."""
    agreed = algorithm.exchange_of(state)
    if not received.blobs:  # a round without a sum
        return None
    if "clear" not in received.blobs:
        return unpack_bits(received.blobs["mask"], agreed.layout.packets)
    _, clear = algorithm.divided(stored(sent.blobs["protected"]), agreed)
    values = torch.zeros(agreed.layout.packets, agreed.layout.packet_size)
    seen = torch.zeros(agreed.layout.packets, agreed.layout.packet_size, dtype=torch.bool)
    if clear:
        lines = torch.frombuffer(bytearray(received.blobs["clear"]), dtype=torch.int32).view(len(clear), agreed.row)
        values[clear] = agreed.fixed.mean(lines[:, :-2], lines[:, -2:-1]).float()
        seen[clear] = True
    sent_values = dict(zip(agreed.layout.names, agreed.layout.joined(values).split(agreed.layout.sizes), strict=True))
    shown = dict(zip(agreed.layout.names, agreed.layout.joined(seen).split(agreed.layout.sizes), strict=True))
    position = 0
    for name, size in zip(layout.names, layout.sizes, strict=True):  # what stays with clients is in no packet
        if name in shown:
            known[position : position + size] = shown[name]
            change[position : position + size] = torch.where(shown[name], sent_values[name], 0.0)
        position += size
    return None


def _opened(terms: Terms, agreed: Exchange, o: Observation, received: Packet, phase: int) -> Message:
    gate = Gate(terms, round=o.round, phase=phase, verify=agreed.verify())
    return gate.check(received.blobs["message"], o.client)
