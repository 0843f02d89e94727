"""Every merge on models whose result is known: equal ones, copies in another order, or by formula."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests import tiny
from tests.oneshot import cases
from torch import nn

from fedfi.channels import discover
from fedfi.errors import InputError
from fedfi.federation.client import Client, Memory
from fedfi.federation.packet import Packet
from fedfi.federation.run import run
from fedfi.federation.task import cross_entropy
from fedfi.federation.workbench import Benches
from fedfi.models import build
from fedfi.numerics.kfac import Factors, kronecker_factors
from fedfi.numerics.nonparametric import match_units
from fedfi.oneshot.average import Average
from fedfi.oneshot.bestclient import BestClient
from fedfi.oneshot.dense import DENSE
from fedfi.oneshot.ensemble import Ensemble
from fedfi.oneshot.fedbens import FedBEns, median
from fedfi.oneshot.fedfiot import FedFiOT
from fedfi.oneshot.fedfisher import FedFisher, descend, quadratic_slope
from fedfi.oneshot.fedma import FedMA
from fedfi.oneshot.fishermerge import FisherMerge
from fedfi.oneshot.growing import Process, cut, grow, widened
from fedfi.oneshot.laplace import NEEDS, Component, log_posterior_slope
from fedfi.oneshot.otfusion import OTFusion, transported
from fedfi.oneshot.pfnm import PFNM
from fedfi.oneshot.rebasin import GitReBasin, merge_many
from fedfi.oneshot.regmean import RegMean, regression_mean
from fedfi.oneshot.statistics import measure
from fedfi.oneshot.taskarithmetic import TaskArithmetic
from fedfi.oneshot.ties import TIES, elected
from fedfi.oneshot.uploads import Upload
from fedfi.oneshot.wbfusion import WBFusion

NAME = "mlp"
SPEC = cases.spec_of(NAME)
PERMUTING = [WBFusion(), OTFusion(), OTFusion(ground="activations"), GitReBasin(), FedFiOT(fallback="none")]
METHODS = [
    *PERMUTING,
    OTFusion(plan="sinkhorn", regularization=1e-4),
    FisherMerge(),
    FisherMerge(fisher="observed"),
    RegMean(),
    Average(),
    FedFisher(steps=3, check_every=1),
    FedFisher(steps=3, check_every=1, fisher="observed"),
    FedFisher(steps=3, check_every=1, curvature="diagonal"),
    FedFisher(steps=3, check_every=1, curvature="diagonal", fisher="observed"),
    TIES(keep=1.0, scale=(1.0,)),
    TaskArithmetic(scale=(1.0,)),
    BestClient(),
    Ensemble(),
    PFNM(grow=False, sigma=1e-3, sigma0=0.1),
    FedMA(grow=False, sigma=1e-3, sigma0=0.1),
]
_named = {"ids": lambda m: type(m).__name__}


def server(examples: int = 12, name: str = NAME):
    return cases.server(cases.spec_of(name), lambda: cases.network(name), examples)


def data():
    return server().examples


def uploaded(models, method, examples=None):
    found = []
    for i, upload in enumerate(cases.uploads(models, examples=examples)):
        measured = measure(method.needs(), models[i].eval(), data(), cross_entropy)
        found.append(Upload(upload.party, upload.model, upload.trained, upload.examples, measured))
    return found


@pytest.mark.parametrize("method", METHODS, **_named)
def test_merging_equal_models_gives_that_model(method):
    model = cases.network(NAME)
    uploads = uploaded([model] * 3, method, [3, 4, 5])
    before = {n: torch.zeros_like(t) for n, t in uploads[0].model.items()}
    merged = method.merged(uploads, cases.context(server(), before))
    for key, value in uploads[0].model.items():
        torch.testing.assert_close(merged.model[key], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (WBFusion(), "resnet18, batch norm"),
        (WBFusion(), "transformer"),
        (OTFusion(), "cnn with biases"),
        (OTFusion(), "resnet18, group norm"),
        (GitReBasin(), "mlp"),
    ],
)
def test_permuting_methods_recover_copies(method, name):
    """Copies in other orders merge into the network of the largest client, in its order."""
    wired, model = cases.wiring(name), cases.network(name)
    tree, names = cases.tree_of(model), tuple(cases.names_of(model))
    models = [tree] + [wired.permute(tree, cases.shuffles(wired, seed)) for seed in (1, 2)]
    uploads = [Upload(f"p{i}", m, names, 5 if i else 9) for i, m in enumerate(models)]
    merged = method.merged(uploads, cases.context(server(0, name)))
    assert merged.metrics["permuted"] > 0.3
    for key, value in tree.items():
        torch.testing.assert_close(merged.model[key], value, rtol=1e-4, atol=1e-5)


def test_rebasin_brings_strangers_closer():
    """Weight matching climbs the inner products, whatever optimum it ends in."""
    name = "resnet18, batch norm"
    wired = cases.wiring(name)
    trees = [cases.tree_of(cases.network(name, seed)) for seed in range(3)]
    names = cases.names_of(cases.network(name))
    found, _ = merge_many(trees, names, wired, [1.0] * 3, torch.Generator().manual_seed(0))

    def likeness(models):
        return sum(float((a[n] * b[n]).sum()) for a, b in itertools.combinations(models, 2) for n in names)

    assert likeness(found) > likeness(trees)


def test_sinkhorn_plans_mix_units():
    """A plan of little blur carries a copy back as the exact one does, biases and next layer's inputs too."""
    wired, model = cases.wiring(NAME), cases.network(NAME)
    tree, names = cases.tree_of(model), cases.names_of(model)
    other = wired.permute(tree, cases.shuffles(wired, 1))
    back, _ = transported(other, tree, names, wired, regularization=1e-3)
    for key, value in tree.items():
        torch.testing.assert_close(back[key], value, rtol=1e-3, atol=1e-3)


def doubled(tree, wired, other, places):
    """A network whose units are those of another at `places` of each group, readers sharing what is there twice."""
    found = {n: t.double() for n, t in tree.items()}
    for mine, theirs in zip(wired.groups, other.groups, strict=True):
        index = places[mine.name]
        assert len(index) == theirs.units
        counts = torch.bincount(index, minlength=mine.units).double()
        for m in mine.members:
            tensor = found[m.name].movedim(m.axis, 0)
            parts = tensor.reshape(mine.units, m.positions.shape[1], *tensor.shape[1:])
            if m.role == "in":
                parts = parts / counts.view(-1, *[1] * (parts.ndim - 1))
            found[m.name] = parts[index].flatten(0, 1).movedim(0, m.axis)
    return {n: t.float() for n, t in found.items()}


@pytest.mark.parametrize(
    ("kind", "spec", "small", "large"),
    [
        ("mlp", cases.SMALL, {"hidden": (4, 3)}, {"hidden": (8, 6)}),
        ("cnn", cases.IMAGES, {"width": 0.125, "bias": True}, {"width": 0.25, "bias": True}),
    ],
    ids=["mlp", "cnn"],
)
@pytest.mark.parametrize("regularization", [None, 1e-3], ids=["exact", "sinkhorn"])
def test_a_network_of_other_widths_is_carried_with_its_function(kind, spec, small, large, regularization):
    """Twice as many units, each there twice and in any order: carried to the small network it is that network."""
    torch.manual_seed(0)
    model, wide = build(kind, spec, small), build(kind, spec, large)
    wired, other = discover(model.eval(), spec.example()), discover(wide.eval(), spec.example())
    tree, rng = cases.tree_of(model), torch.Generator().manual_seed(1)
    places = {
        g.name: torch.arange(g.units).repeat_interleave(h.units)[:: g.units][torch.randperm(h.units, generator=rng)]
        for g, h in zip(wired.groups, other.groups, strict=True)
    }
    assert all(torch.bincount(p).unique().numel() == 1 for p in places.values())
    twice = doubled(tree, wired, other, places)
    torch.testing.assert_close(cases.outputs(wide, twice, spec), cases.outputs(model, tree, spec))
    back, _ = transported(twice, tree, list(tree), wired, own=other, regularization=regularization)
    torch.testing.assert_close(cases.outputs(model, back, spec), cases.outputs(model, tree, spec), rtol=1e-3, atol=1e-3)
    if regularization is None:  # and from the small one to the large: every unit goes to both of its places
        there, _ = transported(tree, twice, list(tree), other, own=wired)
        for key, value in twice.items():
            torch.testing.assert_close(there[key], value, rtol=1e-4, atol=1e-5)


def test_networks_that_differ_in_more_than_widths_are_refused():
    one, other = cases.network("cnn"), cases.network("cnn with biases")
    with pytest.raises(InputError, match=r"differ in more than the widths of their channel groups"):
        transported(
            cases.tree_of(other),
            cases.tree_of(one),
            cases.names_of(one),
            cases.wiring("cnn"),
            own=cases.wiring("cnn with biases"),
        )


def test_best_client_keeps_its_own_statistics():
    name = "resnet18, batch norm"
    where = server(12, name)
    uploads = cases.uploads([cases.network(name, i) for i in range(2)])
    merged = BestClient().merged(uploads, cases.context(where))
    chosen = next(u for u in uploads if u.party == merged.metrics["merge/client"])
    assert all(torch.equal(merged.model[n], t) for n, t in chosen.model.items())


def test_activations_need_examples():
    uploads = cases.uploads([cases.network(NAME)] * 2)
    with pytest.raises(InputError, match=r"needs the server's examples"):
        OTFusion(ground="activations").merged(uploads, cases.context(server(0)))


class TestRegMean:
    def test_least_squares(self):
        """W minimises sum_k |X_k W - X_k W_k|^2, so the normal equations hold, with off-diagonals as they are."""
        torch.manual_seed(0)
        inputs = [torch.randn(20, 4).double() for _ in range(3)]
        models = [{"weight": torch.randn(2, 4).double()} for _ in range(3)]
        grams = [{"": x.T @ x} for x in inputs]
        merged = regression_mean(models, grams, [1.0] * 3, off_diagonal=1.0)
        stacked, targets = (
            torch.cat(inputs),
            torch.cat([x @ m["weight"].T for x, m in zip(inputs, models, strict=True)]),
        )
        expected = torch.linalg.lstsq(stacked, targets).solution.T
        torch.testing.assert_close(merged["weight"], expected, rtol=1e-4, atol=1e-5)

    def test_inputs_that_are_never_active_keep_the_mean(self):
        gram = {"": torch.diag(torch.tensor([2.0, 0.0]))}
        models = [{"weight": torch.tensor([[1.0, 5.0]])}, {"weight": torch.tensor([[3.0, 9.0]])}]
        merged = regression_mean(models, [gram, gram], [0.5, 0.5])
        torch.testing.assert_close(merged["weight"], torch.tensor([[2.0, 7.0]]))

    def test_off_diagonal_is_tuned(self):
        method = RegMean(off_diagonal=(0.9, 0.1))
        uploads = uploaded([cases.network(NAME, i) for i in range(2)], method)
        merged = method.merged(uploads, cases.context(server()))
        assert merged.metrics["merge/off_diagonal"] in method.off_diagonal


class TestTIES:
    def test_by_hand(self):
        """Of four coordinates two are kept: (4, -3, 0, 0), (2, 0, 0, -5), (-9, 0, 0, -1).

        Sums: -3, -3, 0, -6. Agreeing: -9 alone; -3 alone; none; the mean of -5 and -1.
        """
        vectors = [torch.tensor(v) for v in ([4.0, -3, 1, 2], [2.0, 1, 0, -5], [-9.0, 0.5, 0, -1])]
        assert elected(vectors, [1, 1, 1], keep=0.5).tolist() == [-9, -3, 0, -3]

    def test_needs_a_common_start(self):
        with pytest.raises(InputError, match=r"needs the model that all parties started from.*--base"):
            TIES().merged(cases.uploads([cases.network(NAME)]), cases.context(server(0)))


class TestFedFisher:
    def test_slope_is_the_gradient(self):
        torch.manual_seed(0)
        models = [{"weight": torch.randn(3, 4).double()} for _ in range(2)]
        roots = [(torch.randn(4, 4).double(), torch.randn(3, 3).double()) for _ in range(2)]
        factors = [{"/inputs": a @ a.T, "/outputs": g @ g.T} for a, g in roots]
        w = {"weight": torch.randn(3, 4).double().requires_grad_()}
        party = [0.3, 0.7]
        value = sum(
            p / 2 * d @ Factors(f["/inputs"], f["/outputs"]).dense() @ d
            for p, f, m in zip(party, factors, models, strict=True)
            for d in [(w["weight"] - m["weight"]).flatten()]
        )
        value.backward()
        found = quadratic_slope(models, factors, party, "kfac")({"weight": w["weight"].detach()})
        torch.testing.assert_close(found["weight"], w["weight"].grad)

    def test_the_models_labels_see_what_the_observed_ones_do_not(self):
        """Where the observed class has probability p, its slope is (1 - p): G is (1 - p)^2 and not p (1 - p)."""
        model = nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[6.0], [0.0]]))
        batch = [(torch.ones(4, 1), torch.zeros(4).long())]
        p = float(torch.tensor(6.0).sigmoid())
        observed, exact = (float(kronecker_factors(model, batch, f)[""].outputs[0, 0]) for f in (cross_entropy, None))
        assert observed == pytest.approx((1 - p) ** 2, rel=1e-4)
        assert exact == pytest.approx(p * (1 - p), rel=1e-4)
        assert FedFisher().needs() == ("exact-kfac",)

    def test_diagonal_optimum_is_the_fisher_mean(self):
        models = [{"w": torch.tensor([0.0, 4.0])}, {"w": torch.tensor([2.0, 0.0])}]
        fishers = [{"w": torch.tensor([3.0, 1.0])}, {"w": torch.tensor([1.0, 1.0])}]
        slope = quadratic_slope(models, fishers, [0.5, 0.5], "diagonal")
        found, _ = descend({"w": torch.ones(2)}, slope, steps=2000, learning_rate=0.01, check_every=100)
        torch.testing.assert_close(found["w"], torch.tensor([0.5, 2.0]), atol=1e-3, rtol=0)

    def test_first_step_of_the_optimiser(self):
        """From w = 1 with slope 0.3: m = 0.3, s = 0.09, so w moves by 0.1 * 0.3 / sqrt(0.09 + 0.01)."""
        found, _ = descend({"w": torch.ones(1)}, lambda w: {"w": torch.tensor([0.3])}, steps=1, learning_rate=0.1,
                           check_every=1)  # fmt: skip
        assert float(found["w"]) == pytest.approx(1 - 0.1 * 0.3 / 0.1**0.5)

    def test_the_best_checkpoint_is_kept(self):
        slope = quadratic_slope([{"w": torch.zeros(1)}], [{"w": torch.ones(1)}], [1.0], "diagonal")
        found, step = descend(
            {"w": torch.ones(1)}, slope, steps=200, learning_rate=0.1, check_every=1,
            score=lambda m: -abs(float(m["w"]) - 0.5),
        )  # fmt: skip
        assert 0 < step < 200
        assert abs(float(found["w"]) - 0.5) < 0.06


class TestFedBEns:
    @pytest.mark.parametrize("curvature", ["kron", "diag", "diag-full"])
    def test_slope_is_the_gradient_of_the_log_posterior(self, curvature):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
        x, y = torch.randn(9, 4).double(), torch.arange(9) % 3
        mixtures = []
        for _ in range(2):
            mixture = []
            for _ in range(2):
                with torch.no_grad():
                    for p in model.parameters():
                        p.add_(0.1 * torch.randn_like(p))
                found = kronecker_factors(model, [(x, y)], cross_entropy)
                factors = {f"{n}/{side}": getattr(f, side) for n, f in found.items() for side in ("inputs", "outputs")}
                fisher = {n: torch.rand_like(p) for n, p in model.named_parameters()}
                full = {"2": (j := torch.randn(12, 12).double()) @ j.T}
                tree = {n: p.detach().clone() for n, p in model.named_parameters()}
                upload = Upload("p", tree, tuple(tree), 3, {"kfac": factors, "fisher": fisher, "last": full})
                mixture.append(Component.of(upload, curvature, NEEDS["observed"][curvature], 0.5, 0.2))
            mixtures.append(mixture)
        w = {n: p.detach().clone() for n, p in model.named_parameters()}
        value, slope = log_posterior_slope(mixtures, w)
        step = 1e-6
        for name in ("0.weight", "2.weight", "2.bias"):
            moved = {**w, name: w[name].clone()}
            moved[name].view(-1)[1] += step
            other, _ = log_posterior_slope(mixtures, moved)
            assert (other - value) / step == pytest.approx(float(slope[name].view(-1)[1]), rel=1e-3, abs=1e-3)

    def test_one_model_is_its_own_mode(self):
        """Of one client and one model the mode of the posterior is that model."""
        method = FedBEns(models=1, steps=2, curvature="diag")
        uploads = uploaded([cases.network(NAME)], method)
        merged = method.merged(uploads, cases.context(server(0)))
        for key, value in uploads[0].model.items():
            torch.testing.assert_close(merged.deployed[f"networks.0.{key}"], value, atol=5e-3, rtol=0)

    def test_median(self):
        found = median([{"w": torch.tensor([float(v)])} for v in (5, 1, 3)])
        assert found["w"].tolist() == [3]

    def test_components_must_be_as_many(self):
        method = FedBEns(curvature="diag")
        a, b, c = uploaded([cases.network(NAME)] * 3, method)
        same = Upload("p0", b.model, b.trained, b.examples, b.statistics)
        with pytest.raises(InputError, match=r"as many models of each party, got {'p0': 2, 'p2': 1}"):
            method.merged([a, same, c], cases.context(server(0)))


class TestGrowing:
    def test_copies_are_matched_and_strangers_added(self):
        """Two far-apart sets stay apart; a copy in another order joins, unit by unit."""
        rng = torch.Generator().manual_seed(0)
        first = 20 * torch.randn(5, 8, generator=rng).double()
        order = torch.randperm(5, generator=rng)
        other = 20 * torch.randn(3, 8, generator=rng).double()
        ones = torch.ones(8)
        found = match_units([first, first[order], other], [ones] * 3, rng=rng, sigma=0.01)
        assert len(found.counts) == 8
        assert sorted(found.counts.tolist()) == [1, 1, 1, 2, 2, 2, 2, 2]
        assert torch.equal(found.assignments[0][order], found.assignments[1])
        torch.testing.assert_close(found.centres[found.assignments[0]], first, rtol=1e-4, atol=1e-3)

    def test_gain_is_the_formula(self):
        """One existing unit, one set to match: it joins exactly if the gain beats a new unit's, worked by hand.

        eta_i = 3, s_i = 2 (prior 1 and one unit of 3), eta_j = 3 or -3, s_j = 1; c = 1 of K = 2, so log 1 = 0.
        Joining: (3 + 3)^2 / 3 - 9 / 2 = 7.5, or 0 - 4.5. New: 9 / 2 + 2 log(7 / 2) = 7.005.
        """
        rng = torch.Generator().manual_seed(0)
        one = torch.ones(1)
        for value, count in ((3.0, 1), (-3.0, 2)):
            found = match_units([torch.tensor([[3.0]]), torch.tensor([[value]])], [one, one], rng=rng, sweeps=0)
            assert len(found.counts) == count

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    @pytest.mark.parametrize("name", ["mlp", "cnn with biases"])
    def test_copies_grow_to_the_network_itself(self, name, direction):
        wired, model = cases.wiring(name), cases.network(name)
        tree, names = {n: 10 * t for n, t in cases.tree_of(model).items()}, tuple(cases.names_of(model))
        models = [tree] + [wired.permute(tree, cases.shuffles(wired, seed)) for seed in (1, 2)]
        uploads = [Upload(f"p{i}", m, names, 5) for i, m in enumerate(models)]
        rng = torch.Generator().manual_seed(0)
        found = grow(wired, uploads, direction, Process(sigma=0.01, sigma0=1.0), rng)
        assert {n: c.tolist() for n, c in found.counts.items()} == {g.name: [3] * g.units for g in wired.groups}
        for key, value in tree.items():
            torch.testing.assert_close(found.model[key], value, rtol=1e-3, atol=1e-3)
        for key, value in cut(found, wired).items():
            torch.testing.assert_close(value, found.model[key])

    def test_a_grown_network_runs_and_is_deployed(self):
        method = PFNM(sigma=0.05)
        result = run(method, tiny.small(), rounds=2)
        widths = {n: tuple(t.shape) for n, t in result.model.items()}
        assert widths["0.weight"][0] > 8
        assert result.metrics[-1]["units/0.weight"] == widths["0.weight"][0]
        assert 0 <= result.metrics[-1]["global/accuracy"] <= 1

    def test_widening_what_cannot_be_is_refused(self):
        with pytest.raises(InputError, match=r"layer '1', a GroupNorm, cannot be made wider"):
            widened(nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4)), {"1.weight": (6,)})


def test_fedma_freezes_a_layer_more_each_round():
    task = tiny.small()
    benches = Benches(task, 0)
    for round, names in ((0, set()), (1, {"0.weight", "0.bias", "1.weight", "1.bias"})):
        client = Client("c0", task.data.clients["c0"], Memory(), task, benches, round=round, seed=0)
        method = FedMA()
        assert method.frozen(client) == names
        before = {n: t.clone() for n, t in client.workbench.tree().items()}
        reply = method.client_update(Packet(before), client)
        state = method.init(task, torch.Generator().manual_seed(0))
        after = state.form.unpack(reply, "c0").model
        assert {n for n in before if not torch.allclose(before[n], after[n], atol=1e-4)} == before.keys() - names


def test_ensemble_averages_probabilities(tmp_path):
    method, task = Ensemble(), tiny.small()
    result = run(method, task, rounds=1, out=tmp_path / "run")
    assert (tmp_path / "run/model.safetensors").exists()
    bench = method.deploy(Packet(result.model), Benches(task, 0))
    inputs, _ = task.data.test.batch()
    singles = [network.eval()(inputs).softmax(1) for network in bench.module.networks]
    torch.testing.assert_close(bench.module(inputs).exp(), torch.stack(singles).mean(0))
    assert len(singles) == 6


def test_best_client_is_the_best_on_the_servers_examples():
    where = server()
    uploads = cases.uploads([cases.network(NAME, i) for i in range(4)])
    scores = [where.score(u.model) for u in uploads]
    merged = BestClient().merged(uploads, cases.context(where))
    assert merged.metrics["merge/client"] == f"p{scores.index(max(scores))}"


@pytest.mark.parametrize("name", ["mlp", "resnet18, batch norm"])
def test_dense_runs_with_and_without_batch_norm(name):
    """The student learns what the ensemble says of generated images: the loss falls below the start's."""
    method = DENSE(stages=2, noise=4, batch=8, generator_steps=2, steps=4)
    uploads = cases.uploads([cases.network(name, i) for i in range(2)])
    merged = method.merged(uploads, cases.context(server(12, name)))
    assert 0 <= merged.metrics["merge/stage"] <= 2
    assert merged.model.keys() == uploads[0].model.keys()


@pytest.mark.parametrize("method", METHODS, **_named)
def test_models_that_differ_are_refused(method):
    small, large = cases.network(NAME), build("mlp", SPEC, {"hidden": (9, 8)})
    with pytest.raises(InputError, match=r"'p0' and \[8, 9\] at 'p1'|at 'p0' and \[8, 9\] at 'p1'"):
        method.merged(cases.uploads([small, large]), cases.context(server(0)))


def test_a_missing_statistic_is_named():
    with pytest.raises(InputError, match=r"upload of 'p0' holds nothing, but 'fisher' is needed"):
        FedFiOT().merged(cases.uploads([cases.network(NAME)]), cases.context(server(0)))


def test_methods_have_names():
    from fedfi import registry

    names = "fedfiot otfusion wbfusion pfnm fedma fishermerge regmean fedfisher dense fedbens ties task-arithmetic"
    found = [n for n, e in registry.entries().items() if e.family == "oneshot"]
    assert found == [*names.split(), "rebasin", "average", "ensemble", "best-client"]
    assert all(registry.algorithm(n)() is not None for n in found)
    assert len(set(itertools.chain(found))) == 16


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.gru(x.reshape(len(x), -1, 4))[0][:, -1])


def test_a_layer_without_gradients_an_example_is_named():
    for kind in ("fisher", "exact"):
        with pytest.raises(InputError, match="layer 'gru', a GRU, cannot be measured one example at a time"):
            measure((kind,), Recurrent(), data(), cross_entropy)
