"""Submodels by kept channels: how they travel, and the small dense network that a client trains.

The server's mask over the vector is the outer product of kept channels. In order, its entries are the vector of a
physically smaller network, so what travels and how it is averaged are as for unstructured submodels; the mask itself
travels as a bit a channel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedfi.channels import Units, Wiring
from fedfi.federation.packet import Layout, Packet, Scalar, Tree
from fedfi.federation.workbench import Benches, Workbench
from fedfi.submodel.model import Model, marked, unmarked
from fedfi.submodel.sizing import wiring_at


def entries(wiring: Wiring, model: Model, units: Units) -> Tensor:
    """The mask `[size]` of the vector's entries that lie in kept channels."""
    return torch.cat([wiring.mask(name, units).flatten() for name in model.layout.names])


def send(model: Model, wiring: Wiring, units: Units, scalars: Mapping[str, Scalar]) -> Packet:
    """The packet of a submodel: a bit a channel, its parameters in order, its buffers."""
    small = wiring.take(model.constants, units)
    tensors = {"kept": model.vector[entries(wiring, model, units)]} | marked(small)
    return Packet(tensors, scalars, {"units": wiring.pack(units)})


def receive(packet: Packet, benches: Benches) -> Workbench:
    """The workbench of the small network, with the packet's values."""
    wiring = wiring_at(benches)
    units = wiring.unpack(packet.blobs["units"])
    counts = tuple(int(kept.sum()) for kept in units.values())
    bench = benches.smaller(counts, lambda module: wiring.shrink(module, units))
    bench.load(unmarked(packet.tensors))
    transient = benches.known("transient buffers", transient_buffers)
    own = dict(bench.module.named_buffers())
    with torch.no_grad():
        bench.vector.copy_(packet.tensors["kept"])
        for name, value in wiring.take(transient, units).items():
            own[name].copy_(value)
    return bench


def transient_buffers(module: nn.Module) -> Tree:
    """Buffers that are not saved, such as tables of positions: they do not travel, but are cut like all others."""
    saved = module.state_dict()
    return {name: buffer.clone() for name, buffer in module.named_buffers() if name not in saved}


def parts(wiring: Wiring, model: Model, packet: Packet) -> tuple[Tensor, Tree]:
    """The mask `[size]` of what a packet of `send` holds, and that of each buffer."""
    units = wiring.unpack(packet.blobs["units"])
    return entries(wiring, model, units), {n: wiring.mask(n, units) for n in model.buffers}


def returned(model: Model, packet: Packet) -> Layout:
    """The layout of what a client sends back of a submodel: the update of what it holds, and the buffers."""
    buffers = {n: t for n, t in unmarked(packet.tensors).items() if n in model.buffers}
    return Layout.like({"update": packet.tensors["kept"]} | marked(buffers))


def update_of(bench: Workbench, start: Tensor) -> Tree:
    """What a client sends back: start minus end, and the buffers."""
    buffers = {n: t.clone() for n, t in bench.buffers().items()}
    return {"update": start - bench.vector.detach()} | marked(buffers)
