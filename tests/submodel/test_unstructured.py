from __future__ import annotations

import math

import pytest
import torch
from tests import tiny
from torch import nn

from fedfi.engines.workplace import Job, Workplace
from fedfi.errors import InputError
from fedfi.federation.packet import Packet
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.federation.training import batch_positions
from fedfi.federation.workbench import VectorLayout
from fedfi.models import InputSpec, build
from fedfi.numerics.selection import unpack_bits
from fedfi.submodel.fedfibos import FedFIbOS
from fedfi.submodel.fedlagc import FedLAGC
from fedfi.submodel.fiarse import FIARSE
from fedfi.submodel.magnitude import Magnitude
from fedfi.submodel.masked import receive, threshold_factor
from fedfi.submodel.ranking import best, blocks, pool_thresholds, pools, spread, thresholds


def client_with(algorithm, task, ratio: float, name: str = "c2"):
    state = algorithm.init(task, keyed_generator(0, "server", "init"))
    client = Workplace(algorithm, task, 0).client(Job("client_update", name, 0, Packet()))
    packet = algorithm.packet_of(state, name, ratio, keyed_generator(0, "x"))
    return state, client, packet


@pytest.mark.parametrize("scope", ["global", "block", "layer"])
def test_fiarse_equals_a_dense_reference(scope):
    """SGD on w with the forward pass at w * 1[|w| >= theta] and the closed-form factor on the gradient.

    A large step size, so that weights fall below the threshold on the way (and stay where they fell)."""
    task = tiny.small(epochs=4, learning_rate=0.3)
    algorithm = FIARSE(participation=1.0, capacities={0.5: 1.0}, scope=scope)
    state, client, packet = client_with(algorithm, task, 0.5)
    layout, data = state.model.layout, task.data.clients["c2"].train
    mask = unpack_bits(packet.blobs["mask"], layout.pool)
    x = state.model.vector.clone()
    theta = torch.zeros(layout.pool)
    start = 0
    parts = {"global": [layout.pool], "block": blocks(layout.names[:4], layout.pool_sizes), "layer": layout.pool_sizes}
    for length in parts[scope]:
        part = slice(start, start + length)
        theta[part] = x[part].abs().sort(descending=True).values[math.ceil(0.5 * length) - 1]
        start += length
    assert torch.equal(mask, x[: layout.pool].abs() >= theta)
    fell = False
    for positions in batch_positions(len(data), task.training, client.rng("batches")):
        inputs, targets = data.batch(positions)
        active = mask & (x[: layout.pool].abs() >= theta)
        fell |= bool((mask & ~active).any())
        rest = torch.ones(layout.size - layout.pool)
        full = torch.cat([active.float(), rest])
        effective = (x * full).requires_grad_(True)
        outputs = torch.func.functional_call(tiny.network(), layout.split(effective), (inputs,))
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, targets), effective)
        factor = 1 + 2 * theta * x[: layout.pool].abs() / (x[: layout.pool].abs() + theta) ** 2
        x = x - 0.3 * slope * full * torch.cat([factor, rest])
    assert fell
    reply = algorithm.client_update(packet, client)
    expected = (state.model.vector - x)[state.model.whole(mask)]
    torch.testing.assert_close(reply.tensors["update"], expected, rtol=1e-4, atol=1e-6)


def test_the_factor_is_the_derivative_of_its_primitive():
    """d/dw [w + 2 t sign(w) (log(|w| + t) + t / (|w| + t))] = 1 + 2 t (1 / (|w| + t) - t / (|w| + t)^2)."""
    w = torch.linspace(-2, 2, 41, dtype=torch.float64).requires_grad_(True)
    t = 0.7
    size = w.abs()
    primitive = w + 2 * t * w.sign() * (torch.log(size + t) + t / (size + t))
    (slope,) = torch.autograd.grad(primitive.sum(), w)
    away = w.detach().abs() > 0
    torch.testing.assert_close(threshold_factor(w.detach(), t)[away], slope[away])
    assert threshold_factor(torch.tensor([0.7]), 0.7).item() == pytest.approx(1.5)
    assert threshold_factor(torch.zeros(2), torch.zeros(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("recipe", [{"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adamw"}], ids=str)
@pytest.mark.parametrize("algorithm", [FIARSE(), Magnitude(), Magnitude(score="random")], ids=str)
def test_what_a_client_does_not_hold_never_moves(algorithm, recipe):
    task = tiny.small(epochs=3, **recipe)
    state, client, packet = client_with(algorithm, task, 0.25)
    mask = receive(packet, client.workbench)
    algorithm.train(client, mask)
    pool = client.workbench.vector.detach()[: len(mask)]
    assert bool((pool[~mask] == 0).all())
    assert not torch.equal(pool[mask], state.model.pool[mask])


def test_a_weight_below_the_threshold_keeps_its_value_under_every_optimizer():
    """After training, whatever of the kept entries lies below the threshold got there by a single step."""
    task = tiny.small(epochs=6, learning_rate=0.3, momentum=0.9)
    algorithm = FIARSE()
    _, client, packet = client_with(algorithm, task, 0.5)
    mask = receive(packet, client.workbench)
    pool = client.workbench.vector.detach()[: len(mask)]
    seen: list[torch.Tensor] = []
    plain = client.workbench.module.forward

    def watched(inputs):
        seen.append(pool.clone())
        return plain(inputs)

    client.workbench.module.forward = watched
    theta = thresholds(client.workbench.layout, pool, mask, "global")
    algorithm.train(client, mask)
    below = torch.zeros_like(mask)
    for weights in seen:  # the effective weights: zero where the stored one is below
        assert bool((weights[below] == 0).all())
        below |= mask & (weights == 0)
    assert below.any()
    assert bool((pool[below].abs() < theta[below]).all())
    assert bool((pool[below] != 0).any())


def test_random_masks_differ_between_clients_and_magnitudes_do_not():
    task = tiny.small()
    for algorithm, same in ((Magnitude(participation=1.0, capacities={0.5: 1.0}), True),
                            (Magnitude(participation=1.0, capacities={0.5: 1.0}, score="random"), False)):  # fmt: skip
        state = algorithm.init(task, keyed_generator(0, "server", "init"))
        sent = dict(algorithm.configure(state, 0, list(task.data.clients), keyed_generator(0, "x")))
        assert (len({p.blobs["mask"] for p in sent.values()}) == 1) is same


def test_width_ratio_keeps_as_many_parameters_as_a_network_of_that_width():
    """tiny.network has 6 x 8 + 8 + 8 x 3 + 3 selectable and 16 norm parameters; at width .5 there are 4 channels:
    6 x 4 + 4 + 4 x 3 + 3 + 8 = 51 of 99."""
    task = tiny.small()
    algorithm = FIARSE(capacities={0.5: 1.0}, ratio="width")
    state = algorithm.init(task, keyed_generator(0, "server", "init"))
    assert state.fractions == {0.5: pytest.approx(51 / 99)}


def test_dynamic_levels_change_from_round_to_round_and_shares_stay():
    algorithm = FIARSE(capacities={1.0: 0.5, 0.5: 0.5}, level_mode="dynamic")
    clients = [f"c{i}" for i in range(10)]
    drawn = [algorithm.assigned(clients, 3, number) for number in range(6)]
    assert all(sorted(levels.values()) == [0.5] * 5 + [1.0] * 5 for levels in drawn)
    assert len({tuple(levels[c] for c in clients) for levels in drawn}) > 1
    fixed = FIARSE(capacities={1.0: 0.5, 0.5: 0.5})
    assert fixed.assigned(clients, 3, 0) == fixed.assigned(clients, 3, 5)


# -- pools -------------------------------------------------------------------------------------------------------


def text_layout() -> VectorLayout:
    spec = InputSpec("text", (5,), 3, vocabulary=40, padding=1)
    return VectorLayout.of(build("roberta", spec, {"layers": 1, "hidden": 8, "heads": 2, "intermediate": 16}))


def test_each_pool_keeps_its_own_share():
    """RoBERTa's pools: positions, words, linear layers; each keeps ceil(d / 4) though one has all large scores."""
    layout = text_layout()
    scores = torch.rand(layout.pool, generator=torch.Generator().manual_seed(0))
    found = list(pools(layout))
    assert len(found) == 3
    scores[found[1][0]] += 10
    for scope in ("global", "layer"):
        mask = best(layout, scores, 0.25, scope=scope)
        for place, _, sizes in found:
            share = math.ceil(sum(sizes) / 4) if scope == "global" else sum(math.ceil(s / 4) for s in sizes)
            assert int(mask[place].sum()) == share
    values = pool_thresholds(layout, scores, best(layout, scores, 0.25, scope="global"))
    assert values.shape == (3,)
    for value, (place, _, _) in zip(values, found, strict=True):
        assert bool((spread(layout, values)[place] == value).all())


def test_blocks_are_the_parts_at_the_top_of_a_network():
    names = ["stem.conv", "layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv", "head.weight", "head.bias"]
    assert blocks(names, [1, 2, 3, 4, 5, 6]) == [1, 5, 4, 11]


# -- parameters that are normed before they are used -------------------------------------------------------------


def normed(how):
    def model():
        return nn.Sequential(how(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))

    return model


class Symmetric(nn.Module):
    """A parametrization that divides by nothing."""

    def forward(self, weight):
        return weight + weight.flip(0)


def symmetric(layer):
    return nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric()) or layer


NORMS = {
    "_WeightNorm": (nn.utils.parametrizations.weight_norm, "0.parametrizations.weight.original1"),
    "_SpectralNorm": (nn.utils.parametrizations.spectral_norm, "0.parametrizations.weight.original"),
    "WeightNorm": (nn.utils.weight_norm, "0.weight_v"),
    "SpectralNorm": (nn.utils.spectral_norm, "0.weight_orig"),
}
METHODS = [FIARSE, Magnitude, FedFIbOS, FedLAGC]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", list(NORMS))
@pytest.mark.parametrize("method", METHODS)
def test_a_mask_over_normed_weights_is_refused(method, kind):
    """A row of zeros over its norm is zero by zero."""
    how, name = NORMS[kind]
    task = tiny.small(model=normed(how))
    with pytest.raises(InputError, match=f"'{name}' is normed by {kind.strip('_')} .*selection_pools"):
        method(capacities={0.5: 1.0}).init(task, keyed_generator(0, "server", "init"))


def test_normed_weights_that_are_not_masked_are_no_trouble():
    """Where everybody holds everything, and where the model leaves them out of its pools."""
    method, how = Magnitude(participation=1.0, capacities={1.0: 1.0}), nn.utils.parametrizations.weight_norm
    assert run(method, tiny.small(model=normed(how)), rounds=1).failures == []

    class Own(nn.Sequential):
        def selection_pools(self):
            return [["2.weight", "2.bias"]]

    task = tiny.small(model=lambda: Own(*normed(how)()))
    result = run(Magnitude(participation=1.0, capacities={0.5: 1.0}), task, rounds=1)
    assert result.failures == []
    assert math.isfinite(result.metrics[-1]["levels/0.5/loss"])


def test_a_parametrization_that_divides_by_nothing_is_masked():
    task = tiny.small(model=normed(symmetric))
    result = run(Magnitude(participation=1.0, capacities={0.25: 1.0}), task, rounds=1)
    assert result.failures == []
    assert math.isfinite(result.metrics[-1]["levels/0.25/loss"])
