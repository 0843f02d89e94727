from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests import tiny
from torch import nn

from fedfi.engines.local import LocalEngine
from fedfi.engines.workplace import Job, Workplace
from fedfi.federation.packet import Packet
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.federation.training import batch_positions
from fedfi.federation.workbench import Workbench
from fedfi.submodel.fedlagc import FedLAGC, Layers, shares
from fedfi.submodel.masked import sent_mask
from fedfi.submodel.model import Model


def deep():
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8),
                         nn.ReLU(), nn.Linear(8, 3))  # fmt: skip


def test_shares_follow_the_logarithm_of_the_mean_weight_times_the_size():
    """log(1 + S) is 1 and 3, times sizes 40 and 20: quotas of 50 are 50 * 40 / 100 = 20 and 50 * 60 / 100 = 30, which
    exceeds 20; the second layer is kept whole, and the first gets the other 30."""
    importance = [math.e - 1, math.e**3 - 1]
    assert shares(importance, [40, 20], 20) == [8, 12]
    assert shares(importance, [40, 20], 50) == [30, 20]
    assert shares(importance, [40, 20], 60) == [40, 20]
    assert shares(importance, [40, 20], 0) == [0, 0]


def test_counts_are_whole_by_largest_remainder():
    """Equal rates over sizes 3, 3 and 4: quotas of 5 are 1.5, 1.5 and 2; the earlier of two equal ones is raised."""
    assert shares([1.0, 1.0, 1.0], [3, 3, 4], 5) == [2, 1, 2]


def test_layers_of_zeros_share_by_size():
    assert shares([0.0, 0.0], [30, 10], 8) == [6, 2]
    assert shares([1.0, 0.0, 0.0], [4, 6, 2], 8) == [4, 3, 1]


def test_first_and_last_layers_and_biases_are_kept_and_the_rest_is_the_largest_of_each_layer():
    layout = Workbench(deep()).layout
    d, edges, biases = layout.pool, (48 + 8) + (24 + 3), 16
    weights = torch.randn(d, generator=torch.Generator().manual_seed(3))
    mask = FedLAGC(capacities={1.0: 1.0}).mask(
        dataclasses.replace(Model.of(Workbench(deep())), vector=torch.cat([weights, torch.ones(16)])),
        0.75,
        torch.Generator(),
    )
    assert int(mask.sum()) == math.ceil(0.75 * d)
    parts = layout.split(torch.cat([mask, torch.ones(16, dtype=torch.bool)]))
    sizes = layout.split(torch.cat([weights.abs(), torch.zeros(16)]))
    assert all(bool(parts[n].all()) for n in ("0.weight", "0.bias", "3.bias", "5.bias", "7.weight", "7.bias"))
    budget = math.ceil(0.75 * d) - edges - biases
    mean = [float(torch.cat([sizes[f"{i}.weight"].flatten(), sizes[f"{i}.bias"]]).mean()) for i in (3, 5)]
    first = budget * math.log1p(mean[0]) / sum(map(math.log1p, mean))
    assert abs(int(parts["3.weight"].sum()) - first) <= 1
    for i in ("3.weight", "5.weight"):
        assert sizes[i][parts[i]].min() > sizes[i][~parts[i]].max()


def test_a_level_below_what_is_always_kept_is_refused_when_the_run_begins():
    """Of 56 + 72 + 72 + 27 = 227 parameters the edges are 83 and the inner biases 16."""
    task = tiny.small(model=deep)
    with pytest.raises(ValueError, match=r"level 0.4 is 91 of 227 parameters.*keeps 99.*exceed 0.4361.*keep_edges"):
        run(FedLAGC(participation=1.0, capacities={1.0: 0.5, 0.4: 0.5}), task, rounds=1)
    run(FedLAGC(participation=1.0, capacities={1.0: 0.5, 0.4: 0.5}, keep_edges=False), task, rounds=1)


@pytest.mark.parametrize("correction", ["opposed", "reported"])
def test_two_rounds_equal_a_dense_reference(correction):
    """SGD on x * M with the gradient ((1 + 2 t|x| / (|x| + t)^2) g - lambda) * M, lambda from the round before."""
    task = tiny.small(model=deep, clients=1)
    algorithm = FedLAGC(participation=1.0, capacities={0.7: 1.0}, correction=correction, correction_rate=0.5)
    engine = LocalEngine(algorithm, task)
    state = algorithm.init(task, keyed_generator(0, "server", "init"))
    layout, data = state.model.layout, task.data.clients["c0"].train
    past = torch.zeros(layout.size)
    for number in range(2):
        ((client, packet),) = algorithm.configure(state, number, ["c0"], keyed_generator(0, "x"))
        (reply,) = engine.map("client_update", [(client, packet)], number)
        mask = sent_mask(packet, state.model)
        start = state.model.vector * mask
        x, threshold = start.clone(), torch.zeros(layout.size)
        named = layout.split(threshold)
        for name in ("3.weight", "5.weight"):
            kept = layout.split(start)[name].abs()[layout.split(mask)[name]]
            named[name].fill_(kept.min())
        rng = Workplace(algorithm, task, 0).client(Job("client_update", "c0", number, Packet())).rng("batches")
        for positions in batch_positions(len(data), task.training, rng):
            inputs, targets = data.batch(positions)
            leaf = x.clone().requires_grad_(True)
            outputs = torch.func.functional_call(deep(), layout.split(leaf), (inputs,))
            (slope,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, targets), leaf)
            factor = 1 + 2 * threshold * x.abs() / (x.abs() + threshold).clamp_min(1e-12) ** 2
            x = x - 0.1 * (factor * slope - past) * mask
        torch.testing.assert_close(reply.packet.tensors["update"], (start - x)[mask], rtol=1e-4, atol=1e-6)
        past = past + (0.5 if correction == "reported" else -0.5) * (x - start) * mask
        reply = dataclasses.replace(reply, sent=packet)
        state, _ = algorithm.aggregate(state, number, iter([reply]), keyed_generator(0, "y"))


def test_the_factor_is_for_ranked_weights_alone():
    layout = Workbench(deep()).layout
    layers = Layers.of(layout, True)
    weights = torch.ones(layout.pool)
    threshold = layers.thresholds(weights, layers.mask(weights, 0.8))
    assert torch.equal(threshold > 0, ~layers.always)
    whole = layers.thresholds(weights, torch.ones(layout.pool, dtype=torch.bool))
    assert not whole.any()


def test_the_correction_ends_and_is_forgotten():
    task = tiny.small(model=deep)
    options = {"participation": 1.0, "capacities": {0.7: 1.0}}
    plain = run(FedLAGC(**options, correction="none"), task, rounds=2)
    first = run(FedLAGC(**options, correction_rounds=1), task, rounds=2)
    always = run(FedLAGC(**options), task, rounds=2)
    assert all(torch.equal(t, first.model[n]) for n, t in plain.model.items())
    assert any(not torch.equal(t, always.model[n]) for n, t in plain.model.items())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"correction": "drift"}, "'opposed', 'reported' or 'none'"),
        ({"correction_rate": 0}, "above 0"),
        ({"correction_rounds": 0}, "at least 1"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        FedLAGC(**options)
