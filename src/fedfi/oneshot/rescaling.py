"""Giving the units of a merged model the mean and the spread that they have in the clients' models.

Means of networks have activations that vary less than theirs, the less the deeper the layer (Jordan et al., REPAIR,
ICLR 2023, arXiv:2211.08403). For every layer with a matrix of its own that a pass calls once, but for the one that
makes the logits, going from the input on:

    w_c <- w_c s_c / s'_c,    b_c <- (b_c - m'_c) s_c / s'_c + m_c

with m', s' the mean and standard deviation of what the merged network's unit c puts out on the server's inputs, and
m, s those of the clients' models, averaged. Deviations from REPAIR: batch norms are not added to the network, its
weights take the factors; without a bias there is no place for the means, and the spread alone is set right. Where the
network has batch norms, the merged network's are given the batch's own statistics while it is measured.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedfi.channels import Wiring
from fedfi.federation.packet import Tree
from fedfi.numerics.kfac import matrix_layers
from fedfi.numerics.tape import listen, used_once
from fedfi.oneshot.server import Server

_LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class Spread:
    """What the channels of one layer put out: means and standard deviations, `[channels]`, float64."""

    mean: Tensor
    std: Tensor


def rescaled(
    server: Server,
    model: Mapping[str, Tensor],
    models: Sequence[Mapping[str, Tensor]],
    orders: Sequence[Mapping[str, Tensor]] | None,
    party: Sequence[float],
) -> Tree:
    """A merged model whose units vary as the clients' do.

    Args:
        server: The network, its wiring and the inputs.
        model: The merged model.
        models: The clients' models, as they were sent.
        orders: For each model and group the model's unit at each place of the merged one, -1 for none; None: its own.
        party: Weights of the models, which add up to 1.

    Raises:
        InputError: If the server has no examples.
    """
    inputs = server.inputs()
    if not inputs:
        raise server.without_examples("rescale measures units on")
    layers = _layers(server, inputs[0])
    shared = {name: _Mean(server.wiring, name) for name in layers}
    for i, (own, share) in enumerate(zip(models, party, strict=True)):
        for name, spread in spreads(server.loaded(own), layers, inputs).items():
            shared[name].add(spread, None if orders is None else orders[i], share)
    found = dict(model)
    module = _with_batch_statistics(copy.deepcopy(server.loaded(model)))
    state = dict(module.named_parameters())
    for name in layers:
        now = spreads(module, [name], inputs)[name]
        wanted = shared[name].spread(now)
        factor = torch.where(now.std > _LEAST, wanted.std / now.std.clamp(min=_LEAST), 1.0)
        weight, bias = f"{name}.weight" if name else "weight", f"{name}.bias" if name else "bias"
        _set(found, state, weight, found[weight].double() * factor.view(-1, *[1] * (found[weight].ndim - 1)))
        if bias in found:
            _set(found, state, bias, (found[bias].double() - now.mean) * factor + wanted.mean)
    return found


def spreads(module: nn.Module, names: Sequence[str], inputs: Sequence[Tensor]) -> dict[str, Spread]:
    """Means and standard deviations of the channels of some layers over all inputs and positions."""
    sums: dict[str, tuple[Tensor, Tensor, int]] = {}

    def note(name: str, layer: nn.Module, output: Tensor) -> None:
        flat = output.detach().movedim(-1 if isinstance(layer, nn.Linear) else 1, 0).flatten(1).double()
        total, squares, count = sums.get(name, (torch.zeros(len(flat)), torch.zeros(len(flat)), 0))
        sums[name] = total + flat.sum(1), squares + flat.square().sum(1), count + flat.shape[1]

    layers = dict(module.named_modules())
    hooks = (layers[n].register_forward_hook(lambda layer, _, output, n=n: note(n, layer, output)) for n in names)
    listen(module, hooks, inputs)
    found = {}
    for name, (total, squares, count) in sums.items():
        mean = total / count
        found[name] = Spread(mean, (squares / count - mean.square()).clamp(min=0).sqrt())
    return found


class _Mean:
    """The mean over clients of a layer's spreads, each channel brought to its place in the merged model."""

    def __init__(self, wiring: Wiring, layer: str) -> None:
        weight = f"{layer}.weight" if layer else "weight"
        self._members = [
            (g.name, m.positions) for g in wiring.groups for m in g.members if m.name == weight and m.axis == 0
        ]
        self._sums = torch.zeros(3, wiring.shapes[weight][0], dtype=torch.float64)

    def add(self, spread: Spread, orders: Mapping[str, Tensor] | None, weight: float) -> None:
        channels = torch.arange(len(spread.mean))
        for group, positions in self._members if orders is not None else ():
            places = orders[group] if orders is not None else positions[:, 0]
            old = positions[places.clamp(min=0)]
            channels[positions.flatten()] = torch.where(places[:, None] >= 0, old, -1).flatten()
        there = (channels >= 0).double() * weight
        chosen = channels.clamp(min=0)
        self._sums += torch.stack([spread.mean[chosen] * there, spread.std[chosen] * there, there])

    def spread(self, otherwise: Spread) -> Spread:
        mass = self._sums[2]
        mean, std = (self._sums[i] / mass.clamp(min=1e-300) for i in (0, 1))
        return Spread(torch.where(mass > 0, mean, otherwise.mean), torch.where(mass > 0, std, otherwise.std))


def _layers(server: Server, inputs: Tensor) -> list[str]:
    """Layers with a matrix, in the order in which a pass calls them, without those that make the logits."""
    module = server.bench.module.eval()
    last = {m.name.rpartition(".")[0] for m in server.wiring.outputs}
    firsts = list(server.wiring.aliases.values())
    own = [n for n in matrix_layers(module) if firsts.count(f"{n}.weight" if n else "weight") == 1]  # tied to no other
    once = used_once(module, inputs[:1], own) - last
    called: list[str] = []
    layers = dict(module.named_modules())
    hooks = (layers[n].register_forward_pre_hook(lambda *_, n=n: called.append(n)) for n in once)
    listen(module, hooks, [inputs[:1]])
    return called


def _with_batch_statistics(module: nn.Module) -> nn.Module:
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
            norm.track_running_stats = False
    return module


def _set(tree: Tree, state: Mapping[str, Tensor], name: str, value: Tensor) -> None:
    tree[name] = value.to(tree[name].dtype)
    with torch.no_grad():
        state[name].copy_(tree[name])
