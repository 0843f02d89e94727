from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests import tiny
from torch import nn
from torch.nn import functional

from fedfi.channels import discover
from fedfi.engines.local import LocalEngine
from fedfi.engines.workplace import Job, Workplace
from fedfi.errors import InputError
from fedfi.federation.packet import Packet
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.federation.task import Task
from fedfi.federation.training import batch_positions
from fedfi.models import InputSpec
from fedfi.models.resnet18 import resnet18
from fedfi.submodel.fjord import FjORD, divergence
from fedfi.submodel.nested import Nested, places

MIX = {"capacities": {1.0: 0.5, 0.5: 0.5}, "ratio": "width", "participation": 1.0}
KEPT = {1.0: 8, 0.5: 4}  # hidden units of `tiny.with_buffers`


def start(algorithm, task):
    return algorithm.init(task, keyed_generator(0, "server", "init")), list(task.data.clients)


def one_round(algorithm, task, state, clients):
    jobs = list(algorithm.configure(state, 0, clients, keyed_generator(0, "x")))
    sent = dict(jobs)
    replies = [
        dataclasses.replace(r, sent=sent[r.client]) for r in LocalEngine(algorithm, task).map("client_update", jobs, 0)
    ]
    after, _ = algorithm.aggregate(state, 0, iter(replies), keyed_generator(0, "y"))
    return sent, {r.client: r.packet for r in replies}, after


class Reference:
    """`tiny.with_buffers`, whose first k hidden units run with batch norms of their own."""

    def __init__(self, state, ratio):
        self.tree = {n: t.clone() for n, t in state.model.tree().items()}
        self.levels = [r for r in (1.0, 0.5) if r <= ratio]
        for name in ("0.weight", "0.bias"):
            self.tree[name] = self.tree[name][: KEPT[ratio]].clone()
        self.tree["3.weight"] = self.tree["3.weight"][:, : KEPT[ratio]].clone()
        self.tree = {n: t for n, t in self.tree.items() if ":" not in n or float(n.partition(":")[0]) <= ratio}
        self.names = [n for n in self.tree if not n.endswith(("mean", "var", "tracked"))]

    def outputs(self, ratio, inputs, leaves):
        k, norm = KEPT[ratio], f"{ratio:g}:1."
        hidden = functional.linear(inputs, leaves["0.weight"][:k], leaves["0.bias"][:k])
        self.tree[norm + "num_batches_tracked"] += 1
        statistics = self.tree[norm + "running_mean"], self.tree[norm + "running_var"]
        hidden = functional.batch_norm(hidden, *statistics, leaves[norm + "weight"], leaves[norm + "bias"], True)
        return functional.linear(functional.relu(hidden), leaves["3.weight"][:, :k], leaves["3.bias"])

    def step(self, loss, rate):
        leaves = {n: self.tree[n].clone().requires_grad_(True) for n in self.names}
        slopes = torch.autograd.grad(loss(leaves), list(leaves.values()), allow_unused=True)
        for name, slope in zip(leaves, slopes, strict=True):
            if slope is not None:
                self.tree[name] -= rate * slope


@pytest.mark.parametrize("distillation", [False, True])
def test_local_training_equals_a_network_cut_by_hand(distillation):
    task = tiny.small(model=tiny.with_buffers, epochs=4, batch_size=16)  # batch norm on few examples magnifies rounding
    algorithm = FjORD(**MIX, distillation=distillation, distillation_weight=0.75, temperature=2.0)
    state, clients = start(algorithm, task)
    sent, replies, _ = one_round(algorithm, task, state, clients)
    seen = set()
    for client in clients:
        ratio, data = float(sent[client].scalars["ratio"]), task.data.clients[client].train
        reference = Reference(state, ratio)
        before = {n: t.clone() for n, t in reference.tree.items()}
        place = Workplace(algorithm, task, 0).client(Job("client_update", client, 0, Packet()))
        draws = place.rng("width")
        for positions in batch_positions(len(data), task.training, place.rng("batches")):
            inputs, targets = data.batch(positions)
            drawn = reference.levels[int(torch.randint(len(reference.levels), (), generator=draws))]
            seen.add((ratio, drawn))

            def loss(leaves, drawn=drawn, inputs=inputs, targets=targets, ratio=ratio, reference=reference):
                if not distillation or drawn == ratio:
                    return functional.cross_entropy(reference.outputs(drawn, inputs, leaves), targets)
                teacher = reference.outputs(ratio, inputs, leaves)
                student = reference.outputs(drawn, inputs, leaves)
                goal, made = (teacher.detach() / 2).softmax(1), (student / 2).softmax(1)
                soft = (goal * (goal / made).log()).sum(1).mean() * 4
                hard = functional.cross_entropy(student, targets)
                return functional.cross_entropy(teacher, targets) + 0.25 * hard + 0.75 * soft

            reference.step(loss, 0.1)
        order = [n for n in state.model.layout.names if n in before]
        update = torch.cat([(before[n] - reference.tree[n]).flatten() for n in order])
        torch.testing.assert_close(replies[client].tensors["update"], update, rtol=1e-4, atol=1e-6)
        for name in state.model.buffers:
            if name in before:
                torch.testing.assert_close(replies[client].tensors[f"buffer:{name}"], reference.tree[name])
    assert seen == {(1.0, 1.0), (1.0, 0.5), (0.5, 0.5)}


def test_entries_are_averaged_over_the_networks_that_have_them_by_examples():
    task = tiny.small(model=tiny.with_buffers)
    algorithm = FjORD(**MIX)
    state, clients = start(algorithm, task)
    sent, replies, after = one_round(algorithm, task, state, clients)
    ends: dict[str, list] = {}
    for client in clients:
        ratio, weight = float(sent[client].scalars["ratio"]), float(replies[client].scalars["examples"])
        reference = Reference(state, ratio)
        order = [n for n in state.model.layout.names if n in reference.tree]
        pieces = replies[client].tensors["update"].split([reference.tree[n].numel() for n in order])
        for name, piece in zip(order, pieces, strict=True):
            ends.setdefault(name, []).append((weight, reference.tree[name] - piece.view(reference.tree[name].shape)))
    assert len({e.shape for _, e in ends["0.weight"]}) == 2
    for name, value in after.model.layout.split(after.model.vector).items():
        large = [(w, e) for w, e in ends[name] if e.shape == value.shape]
        expected = sum(w * e for w, e in large) / sum(w for w, _ in large)
        shared = tuple(slice(0, min(e.shape[a] for _, e in ends[name])) for a in range(value.ndim))
        expected[shared] = sum(w * e[shared] for w, e in ends[name]) / sum(w for w, _ in ends[name])
        torch.testing.assert_close(value, expected)


def test_levels_are_plain_networks_with_norms_of_their_own():
    task = tiny.small(model=tiny.with_buffers)
    algorithm = FjORD(**MIX)
    result = run(algorithm, task, rounds=3)
    state, inputs = result.state, torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    assert result.failures == []
    assert set(result.model) == set(tiny.with_buffers().state_dict())
    benches = Workplace(algorithm, task, 0).benches
    for (name, packet), ratio in zip(algorithm.levels(state), (1.0, 0.5), strict=True):
        bench = algorithm.place(packet, benches)
        assert bench.module[0].out_features == KEPT[ratio]
        tree, norm = state.model.tree(), f"{name}:1."
        hidden = functional.linear(inputs, tree["0.weight"][: KEPT[ratio]], tree["0.bias"][: KEPT[ratio]])
        statistics = tree[norm + "running_mean"], tree[norm + "running_var"]
        hidden = functional.batch_norm(hidden, *statistics, tree[norm + "weight"], tree[norm + "bias"])
        expected = functional.linear(functional.relu(hidden), tree["3.weight"][:, : KEPT[ratio]], tree["3.bias"])
        torch.testing.assert_close(bench.module.eval()(inputs), expected)
    norms = [state.model.tree()[f"{level}:1.running_mean"][:4] for level in ("1", "0.5")]
    assert not torch.equal(*norms)


def test_a_nested_resnet_computes_what_its_shrunk_networks_do_and_learns_through_them():
    spec = InputSpec("image", (3, 8, 8), 10)
    module = resnet18(spec, width=0.125)
    wiring = discover(module, spec.example())
    levels = [wiring.prefix(w) for w in (0.75, 0.5, 0.25)]
    nested = Nested.of(module, wiring, levels).train()
    inputs = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for level, units in enumerate(levels):
        small = wiring.shrink(module, units).train()
        nested.level = level
        nested.zero_grad()
        made, expected = nested(inputs), small(inputs)
        torch.testing.assert_close(made, expected)
        made.square().sum().backward()
        expected.square().sum().backward()
        weight, own = nested.whole.stage2[0].first.conv.weight.grad, small.stage2[0].first.conv.weight.grad
        torch.testing.assert_close(weight[: own.shape[0], : own.shape[1]], own, rtol=1e-3, atol=1e-4)
        assert float(weight.abs().sum()) == pytest.approx(float(own.abs().sum()), rel=1e-3)
        norms = dict(nested.norms[level - 1].named_buffers()) if level else dict(nested.whole.named_buffers())
        mean = norms["0.running_mean" if level else "stem.norm.running_mean"]
        torch.testing.assert_close(mean, small.stem.norm.running_mean)


def test_places_are_relative_to_the_larger_network():
    """Of six, the larger keeps 0, 2, 3, 5 and the smaller 2 and 5: its second and fourth; a prefix is a number."""

    def mask(*kept):
        return torch.tensor([i in kept for i in range(6)])[:, None].expand(6, 2)

    (rows, columns) = places(mask(0, 2, 3, 5), mask(2, 5))
    assert rows.tolist() == [1, 3]
    assert columns is None
    assert places(mask(0, 2, 3, 5), mask(0, 2)) == (2, None)
    assert places(torch.tensor(True), torch.tensor(True)) == ()


def test_divergence_is_the_closed_form():
    """The student's probabilities are 1/4 and 3/4, the teacher's 1/2: ln(2)/2 + ln(2/3)/2. At temperature 2 the
    student's odds are the root of three."""
    student, teacher = torch.tensor([[0.0, math.log(3)]]), torch.zeros(1, 2)
    assert float(divergence(student, teacher, 1.0)) == pytest.approx(0.5 * math.log(4 / 3), rel=1e-5)
    low, high = 1 / (1 + math.sqrt(3)), math.sqrt(3) / (1 + math.sqrt(3))
    expected = 4 * 0.5 * (math.log(0.5 / low) + math.log(0.5 / high))
    assert float(divergence(student, teacher, 2.0)) == pytest.approx(expected, rel=1e-5)


def test_without_whole_clients_the_whole_network_keeps_its_first_norms():
    task = tiny.small(model=tiny.with_buffers)
    algorithm = FjORD(participation=1.0, capacities={0.5: 1.0}, ratio="width")
    before = algorithm.global_model(start(algorithm, task)[0])
    after = run(algorithm, task, rounds=1).model
    assert torch.equal(after["1.running_mean"], before["1.running_mean"])
    assert torch.equal(after["0.weight"][4:], before["0.weight"][4:])
    assert not torch.equal(after["0.weight"][:4], before["0.weight"][:4])


def test_distillation_refuses_outputs_that_are_no_logits():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)

        def forward(self, inputs):
            return self.second(self.first(inputs).relu())[:, 0]

    small = tiny.small(model=Flat)
    task = Task(small.model, small.data, small.training, lambda o, t: (o - t) ** 2, lambda o, t: {"loss": (o - t) ** 2})
    result = run(FjORD(**MIX), task, rounds=1)
    assert result.failures == []
    failures = run(FjORD(**MIX, distillation=True), task, rounds=3).failures
    assert failures
    assert all("distillation = true needs logits [batch, classes], but" in f.error for f in failures)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"distillation_weight": 1.5}, "at most 1"),
        ({"temperature": 0}, "above 0"),
        ({"weights": "sizes"}, "'examples' or 'uniform'"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        FjORD(**options)


class Named(nn.Module):
    """`tiny.with_buffers` under other names."""

    def __init__(self, *names):
        super().__init__()
        self.names = names
        parts = dict(zip(names, tiny.with_buffers(), strict=True))
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, rows):
        for name in self.names:
            rows = self._modules[name](rows)
        return rows


@pytest.mark.parametrize("names", [("a/b", "a/n", "r", "c"), ("0_5:a", "x:n", "r", "1:c"), ("a", "/", "//", "c:")])
def test_names_of_modules_may_hold_any_sign(names):
    """The same network under plain names learns the same."""
    plain = run(FjORD(**MIX), tiny.small(model=tiny.with_buffers), rounds=2)
    named = run(FjORD(**MIX), tiny.small(model=lambda: Named(*names)), rounds=2)
    assert named.failures == []
    for old, new in zip("0123", names, strict=True):
        for key, value in plain.model.items():
            if key.startswith(f"{old}."):
                assert torch.equal(named.model[new + key[1:]], value)


def test_a_parameter_that_is_called_as_a_level_s_norm():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = tiny.with_buffers()
            self.add_module("0", nn.ModuleDict({"5:body": nn.ModuleDict({"1": nn.Linear(1, 1)})}))

        def forward(self, rows):
            return self.body(rows) * self._modules["0"]["5:body"]["1"].weight.sum()

    with pytest.raises(InputError, match=r"a parameter is called '0\.5:body\.1\.weight'"):
        run(FjORD(**MIX), tiny.small(model=Odd), rounds=1)
