from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.oneshot import cases

from fedfi.averaging.fedavg import FedAvg
from fedfi.channels import discover
from fedfi.errors import InputError
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.oneshot.alignment import by_blocks, by_layers, full_objective
from fedfi.oneshot.fedfiot import FedFiOT, damped_weights, fuse
from fedfi.oneshot.fishermerge import fisher_mean
from fedfi.oneshot.means import elementwise, mean
from fedfi.oneshot.otfusion import transported
from fedfi.oneshot.rebasin import merge_many
from fedfi.oneshot.taskarithmetic import added
from fedfi.oneshot.units import moved
from fedfi.oneshot.uploads import Upload
from fedfi.oneshot.wbfusion import barycentre_fusion


def double(tree):
    return {n: t.double() if t.is_floating_point() else t for n, t in tree.items()}


def copies(name: str, count: int = 3):
    """A network, its Fisher information, and `count` copies of both with all units in other orders."""
    model, wired = cases.network(name), cases.wiring(name)
    tree, fisher = double(cases.tree_of(model)), double(cases.fisher_of(model))
    models, fishers = [tree], [fisher]
    for seed in range(1, count):
        orders = cases.shuffles(wired, seed)
        models.append(wired.permute(tree, orders))
        fishers.append(wired.permute(fisher, orders))
    return model, wired, models, fishers


@pytest.mark.parametrize("name", cases.NETWORKS)
def test_permuted_copies_are_recovered(name):
    """K copies of a network in other orders merge into the network, whose function stays what it was."""
    model, wired, models, fishers = copies(name)
    found = fuse(models, fishers, wired)
    for key, value in models[0].items():
        torch.testing.assert_close(found.model[key], value, rtol=0, atol=1e-10)
    assert found.objective == pytest.approx(0, abs=1e-18)
    assert moved(found.aligned.orders)[""] > 0.5
    single = {n: t.float() if t.is_floating_point() else t for n, t in found.model.items()}
    spec = cases.spec_of(name)
    torch.testing.assert_close(
        cases.outputs(model, single, spec), cases.outputs(model, cases.tree_of(cases.network(name)), spec)
    )


def test_block_descent_recovers_a_shallow_network():
    """Deep copies are beyond it: it descends to a local optimum, which is why the order of layers is the default."""
    _, wired, models, fishers = copies("mlp")
    found = fuse(models, fishers, wired, order="blocks", iterations=30)
    plain = fuse(models, fishers, wired, alignment="identity")
    assert found.objective < 0.5 * plain.objective


@pytest.mark.parametrize("name", ["cnn", "resnet18, batch norm"])
def test_reference_may_be_any_copy(name):
    """From another copy the same network comes out in that copy's order."""
    _, wired, models, fishers = copies(name)
    found = fuse(models, fishers, wired, reference=2)
    for key, value in models[2].items():
        torch.testing.assert_close(found.model[key], value, rtol=0, atol=1e-10)
    broadcast = fuse(models, fishers, wired, reference=models[1])
    for key, value in models[1].items():
        torch.testing.assert_close(broadcast.model[key], value, rtol=0, atol=1e-10)


def strangers(name: str, count: int = 3):
    models = [cases.network(name, seed) for seed in range(count)]
    return cases.wiring(name), [cases.tree_of(m) for m in models], [cases.fisher_of(m, i) for i, m in enumerate(models)]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_of_strangers_all_but_the_reference_move(count):
    """What the tutorial says of `permuted`: about (K - 1)/K of K networks that have nothing in common."""
    wired, models, fishers = strangers("cnn", count)
    found = moved(fuse(models, fishers, wired).aligned.orders)[""]
    assert found == pytest.approx((count - 1) / count, abs=0.15)


def test_equal_fisher_is_wb_fusion():
    """With F = 1 everywhere FedFiOT's alternation is the Wasserstein barycentre's."""
    wired, models, fishers = strangers("cnn with biases")
    ones = [{n: torch.ones_like(t) for n, t in f.items()} for f in fishers]
    fused = fuse(models, ones, wired, rho=0.5, damping=1e-12, iterations=8)
    other, aligned = barycentre_fusion(models, list(ones[0]), wired, [1 / 3] * 3, iterations=8)
    assert all(
        torch.equal(a[g.name], b[g.name])
        for a, b in zip(fused.aligned.orders, aligned.orders, strict=True)
        for g in wired.groups
    )
    for key, value in other.items():
        torch.testing.assert_close(fused.model[key], value)


def test_identity_alignment_is_fisher_merging():
    wired, models, fishers = strangers("resnet18, group norm")
    fused = fuse(models, fishers, wired, rho=1.0, damping=1e-30, alignment="identity")
    plain = fisher_mean(models, fishers, [1.0] * 3, normalize=False, floor=1e-30)
    for key, value in plain.items():
        torch.testing.assert_close(fused.model[key], value)


def test_large_damping_is_the_plain_mean():
    wired, models, fishers = strangers("mlp")
    fused = fuse(models, fishers, wired, damping=1e12, alignment="identity")
    for key, value in mean(models, [1.0] * 3).items():
        torch.testing.assert_close(fused.model[key], value)


def test_shares_weigh_fisher_outside_tempering():
    weights = damped_weights({"w": torch.tensor([16.0, 0.0])}, 0.5, 0.25, 0.5)
    assert weights["w"].tolist() == [2.25, 0.25]  # 0.5 * 16^0.5 + 0.25


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["mlp", "cnn with biases"]))
def test_block_descent_never_raises_the_full_objective(seed, name):
    wired, models, fishers = strangers(name)
    rng = torch.Generator().manual_seed(seed)
    weights = [{n: torch.rand(t.shape, generator=rng) + 1e-3 for n, t in f.items()} for f in fishers]
    found = by_blocks(wired, models, weights, 0, passes=4)
    values = [v for pair in found.objectives.values() for v in pair][1:]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(values))
    centre = {
        n: t.double()
        for n, t in fuse(models, weights, wired, alignment="identity", rho=1.0, damping=1e-9).model.items()
    }
    identity = full_objective({n: centre[n] for n in weights[0]}, models, weights)
    assert values[-1] <= identity * (1 + 1e-6)


def test_objective_of_each_layer_falls():
    wired, models, fishers = strangers("resnet18, batch norm")
    found = by_layers(wired, models, fishers, 0)
    assert list(found.objectives) == [g.name for g in wired.groups]
    assert all(after <= before for before, after in found.objectives.values())


def test_a_group_without_weights_is_refused():
    wired, models, _ = strangers("mlp")
    with pytest.raises(InputError, match=r"units of 'hidden1.weight' .* cannot be aligned"):
        by_layers(wired, models, [{"head.bias": torch.ones(4)}] * 3, 0)


class TestMethod:
    """The method on uploads of networks in other orders."""

    def merge(self, method, name="cnn", examples=0, before=None, round=0):
        _, _, models, fishers = copies(name)
        where = cases.server(cases.spec_of(name), lambda: cases.network(name), examples)
        names = tuple(cases.names_of(cases.network(name)))
        uploads = [
            Upload(f"p{i}", {n: t.float() if t.is_floating_point() else t for n, t in m.items()}, names, 10 + i,
                   {"fisher": {n: t.float() for n, t in f.items()}})
            for i, (m, f) in enumerate(zip(models, fishers, strict=True))
        ]  # fmt: skip
        return method.merged(uploads, cases.context(where, before, round)), uploads

    def test_reference_is_the_client_with_most_examples(self):
        merged, uploads = self.merge(FedFiOT())
        for key in uploads[2].trained:
            torch.testing.assert_close(merged.model[key], uploads[2].model[key], rtol=1e-4, atol=1e-6)
        assert merged.metrics["permuted"] > 0.5
        assert merged.metrics["distance/p0"] == pytest.approx(0, abs=1e-3)
        assert merged.metrics["merge/fallback"] == 0

    def test_broadcast_reference_gives_its_order(self):
        _, _, models, _ = copies("cnn")
        before = {n: t.float() for n, t in models[1].items()}
        merged, uploads = self.merge(FedFiOT(reference="broadcast"), before=before, round=1)
        for key in uploads[1].trained:
            torch.testing.assert_close(merged.model[key], uploads[1].model[key], rtol=1e-4, atol=1e-6)

    def test_sweep_takes_the_best_on_the_servers_examples(self):
        method = FedFiOT(rho=(0.2, 0.7), damping=(1e-3, 1e-5))
        merged, _ = self.merge(method, examples=12)
        assert (merged.metrics["merge/rho"], merged.metrics["merge/damping"]) in itertools.product(
            method.rho, method.damping
        )
        assert 0 <= merged.metrics["merge/score"] <= 1

    def test_objective_fallback(self):
        published = FedFiOT(**FedFiOT.presets["as-published"])
        merged, _ = self.merge(published)
        aligned_is_lower = merged.metrics["objective/aligned"] < merged.metrics["objective/identity"]
        assert merged.metrics["merge/fallback"] == float(not aligned_is_lower) == 0

    def test_objective_fallback_returns_the_identity_merge(self):
        """Equal models: alignment cannot lower an objective of 0, and the merge is that model."""
        model = cases.network("cnn")
        where = cases.server(cases.spec_of("cnn"), lambda: cases.network("cnn"))
        uploads = cases.uploads([model] * 2, {"fisher": [cases.fisher_of(model)] * 2})
        merged = FedFiOT(fallback="objective").merged(uploads, cases.context(where))
        assert merged.metrics["merge/fallback"] == 1
        for key, value in uploads[0].model.items():
            torch.testing.assert_close(merged.model[key], value)

    def test_candidates_are_judged_as_they_would_be_returned(self):
        """With the published fallback every candidate's score is that of its identity merge, where that is returned."""
        models = [cases.network("cnn", seed) for seed in range(3)]
        where = cases.server(cases.spec_of("cnn"), lambda: cases.network("cnn"), 24)
        uploads = cases.uploads(models, {"fisher": [cases.fisher_of(m, i) for i, m in enumerate(models)]})
        worse = []
        for rho in (0.1, 1.0):
            method = FedFiOT(fallback="objective", rho=(rho,), order="blocks", iterations=1, alignment="identity")
            merged = method.merged(uploads, cases.context(where))
            worse.append(merged.metrics["merge/fallback"])
            assert merged.metrics["merge/score"] == where.score(merged.model)
        assert worse == [1, 1]
        for fallback in ("objective", "validation", "none"):
            merged = FedFiOT(fallback=fallback, rho=(0.1, 1.0)).merged(uploads, cases.context(where))
            assert merged.metrics["merge/score"] == where.score(merged.model)

    def test_batch_norms_are_judged_as_they_will_be_deployed(self):
        """The score of a model is that after its statistics are measured anew, whatever statistics it comes with."""
        name = "resnet18, batch norm"
        where = cases.server(cases.spec_of(name), lambda: cases.network(name), 40)
        settling = dataclasses.replace(where, settles=True)
        tree = cases.tree_of(cases.network(name))
        spoilt = {n: t * 0 + 5 if n.endswith("running_var") else t for n, t in tree.items()}
        assert settling.score(spoilt) == settling.score(tree) == where.score(where.settled(tree))

    @pytest.mark.parametrize("change", [{"alignment": "euclidean"}, {"aggregation": "mean"}, {"order": "blocks"}])
    def test_ablations_align_copies_too(self, change):
        merged, uploads = self.merge(FedFiOT(**change), name="mlp")
        assert merged.metrics["permuted"] > 0
        for key in uploads[2].trained:
            torch.testing.assert_close(merged.model[key], uploads[2].model[key], rtol=1e-4, atol=1e-6)

    def test_batch_norm_statistics_are_measured_anew(self):
        merged, uploads = self.merge(FedFiOT(fallback="none"), name="resnet18, batch norm", examples=16)
        method = FedFiOT(fallback="none", reestimate=False)
        kept, _ = self.merge(method, name="resnet18, batch norm", examples=16)
        key = "stem.norm.running_mean"
        torch.testing.assert_close(kept.model[key], uploads[2].model[key])
        images = cases.spec_of("resnet18, batch norm").example(16)
        stem = torch.nn.functional.conv2d(images, merged.model["stem.conv.weight"], padding=1)
        torch.testing.assert_close(merged.model[key], stem.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_upload_is_no_longer_than_fedavgs():
    task = tiny.small()
    method, plain = FedFiOT(), FedAvg()
    found = run(method, task, rounds=1).metrics[0]["bytes/up"]
    assert found <= run(plain, task, rounds=1).metrics[0]["bytes/up"]
    spec, kind, options = cases.NETWORKS["cnn with biases"]
    del kind, options
    state = method.init(cases.server(spec, lambda: cases.network("cnn with biases")).task, keyed_generator(0, "x"))
    layout = state.form.layout_of({"loss": float, "examples": int})
    data = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in layout.tensors.values())
    count = state.form.layout.size
    assert data == 4 * count + 8 * len(state.form.layout.names)


def test_few_rounds_report_the_share_of_permuted_neurons():
    result = run(FedFiOT(), tiny.small(), rounds=3)
    assert [0 <= line["permuted"] <= 1 for line in result.metrics] == [True] * 3


def test_independent_starts_differ_and_are_aligned():
    shared = run(FedFiOT(), tiny.small(), rounds=1).metrics[0]["permuted"]
    independent = run(FedFiOT(initialization="independent"), tiny.small(), rounds=1).metrics[0]["permuted"]
    assert independent > shared


class Shares(torch.nn.Module):
    """Two layers of one matrix between others."""

    def __init__(self):
        super().__init__()
        self.i, self.a, self.b, self.o = (torch.nn.Linear(*s) for s in ((5, 8), (8, 8), (8, 8), (8, 3)))
        self.b.weight = self.a.weight

    def forward(self, x):
        x = torch.relu(self.i(x))
        return self.o(torch.relu(self.b(torch.relu(self.a(x)))))


@pytest.mark.parametrize("way", ["layers", "blocks", "rebasin", "transport", "barycentre"])
def test_copies_of_a_network_with_tied_weights_are_recovered(way):
    """From state dicts with the shared matrix under both names: what comes out has both and computes the same."""
    torch.manual_seed(0)
    model, x = Shares().eval(), torch.randn(4, 5)
    wired = discover(model, x)
    own = {n: t.clone() for n, t in model.state_dict().items()}
    copy = wired.permute(own, cases.shuffles(wired, 1))
    names = [n for n, _ in model.named_parameters()]
    ones = {n: torch.ones_like(own[n]) for n in names}
    if way in ("layers", "blocks"):
        found = fuse([own, copy], [ones, ones], wired, order=way).model
    elif way == "rebasin":
        found = merge_many([own, copy], names, wired, [0.5, 0.5], torch.Generator().manual_seed(0))[0][1]
    elif way == "transport":
        found = transported(copy, own, names, wired)[0]
    else:
        found = by_layers(wired, [own, copy], [ones, ones], 0).models[1]
    assert found.keys() == own.keys()
    assert torch.equal(found["a.weight"], found["b.weight"])
    other = Shares().eval()
    other.load_state_dict(found)
    torch.testing.assert_close(other(x), model(x), rtol=0, atol=1e-5)


def test_two_values_for_a_tied_weight_are_refused():
    model = Shares().eval()
    wired = discover(model, torch.randn(4, 5))
    own = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(InputError, match=r"'b.weight' and 'a.weight' are one tensor of the network, but differ"):
        fuse([own | {"b.weight": own["b.weight"] + 1}], [{"i.weight": torch.ones(8, 5)}], wired)


def test_means_by_weights_keep_ties():
    """Models 1 and 4 of weights 2 and 1: (2 + 4) / 3 = 2 under both names, where the plain mean is 2.5."""
    models = [dict.fromkeys(("a", "b"), torch.tensor([value])) for value in (1.0, 4.0)]
    weights = [{"a": torch.tensor([weight])} for weight in (2.0, 1.0)]
    found = elementwise(models, weights, [1, 1])
    assert (float(found["a"]), float(found["b"])) == (2.0, 2.0)
    moved = added(models, {"a": torch.zeros(1), "b": torch.zeros(1)}, ["a"], [1, 1], scale=2.0)
    assert (float(moved["a"]), float(moved["b"])) == (5.0, 5.0)


def test_objectives_of_a_group():
    """One party's unit is 0, the other's 2, one coordinate of weight 1: the reference costs 4, the mean 1 + 1 = 2."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False), torch.nn.Linear(2, 1, bias=False)).eval()
    wired = discover(model, torch.randn(2, 1))
    models = [{"0.weight": torch.tensor([[v], [9.0]]), "1.weight": torch.ones(1, 2)} for v in (0.0, 2.0)]
    found = by_layers(wired, models, [{n: torch.ones_like(t) for n, t in m.items()} for m in models], 0)
    assert found.unaligned == {"0.weight": 2.0}
    assert found.objectives == {"0.weight": (4.0, 2.0)}
