"""What may follow or precede any merge: each option against a derivation, alone and all together."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests import tiny
from tests.oneshot import cases
from torch import nn

from fedfi.data import Dataset
from fedfi.errors import InputError
from fedfi.federation.run import run
from fedfi.federation.task import cross_entropy
from fedfi.models import InputSpec
from fedfi.oneshot.average import Average
from fedfi.oneshot.bestclient import BestClient
from fedfi.oneshot.dense import DENSE
from fedfi.oneshot.ensemble import Ensemble
from fedfi.oneshot.fedbens import FedBEns
from fedfi.oneshot.fedfiot import FedFiOT
from fedfi.oneshot.fedfisher import FedFisher
from fedfi.oneshot.fedma import FedMA
from fedfi.oneshot.fishermerge import FisherMerge
from fedfi.oneshot.otfusion import OTFusion
from fedfi.oneshot.pfnm import PFNM
from fedfi.oneshot.priors import corrected
from fedfi.oneshot.rebasin import GitReBasin
from fedfi.oneshot.regmean import RegMean
from fedfi.oneshot.rescaling import rescaled, spreads
from fedfi.oneshot.statistics import measure
from fedfi.oneshot.taskarithmetic import TaskArithmetic
from fedfi.oneshot.ties import TIES
from fedfi.oneshot.uploads import Upload, masses, shares
from fedfi.oneshot.wbfusion import WBFusion

QUICK = {"distil_steps": 3}
ALL = {"class_prior": 1.0, "tune_weights": 1, "rescale": True, "distil": "server", **QUICK}
METHODS = [
    (Average, {}),
    (FedFiOT, {"rho": (0.3,)}),
    (OTFusion, {}),
    (WBFusion, {}),
    (GitReBasin, {}),
    (FisherMerge, {"fisher": "observed"}),
    (RegMean, {}),
    (FedFisher, {"steps": 2, "fisher": "observed"}),
    (TIES, {}),
    (TaskArithmetic, {}),
    (PFNM, {"grow": False}),
    (FedMA, {"grow": False}),
    (DENSE, {"stages": 1, "steps": 1, "generator_steps": 1, "batch": 4, "noise": 2}),
    (BestClient, {}),
    (Ensemble, {}),
    (FedBEns, {"curvature": "diag", "steps": 2}),
]
named = pytest.mark.parametrize(("kind", "options"), METHODS, ids=[m.__name__ for m, _ in METHODS])


def server(name: str, examples: int = 24):
    return cases.server(cases.spec_of(name), lambda: cases.network(name), examples)


def uploads(name: str, method, where, count: int = 2):
    models = [cases.network(name, seed) for seed in range(count)]
    found = []
    for i, upload in enumerate(cases.uploads(models, examples=[5 + i for i in range(count)])):
        measured = measure(method.measures(), models[i], where.examples, cross_entropy)
        found.append(dataclasses.replace(upload, statistics=measured))
    return found


@named
def test_every_method_takes_all_of_them_together(kind, options):
    where = server("mlp")
    method = kind(**options, **ALL)
    given = uploads("mlp", method, where)
    before = {n: torch.zeros_like(t) for n, t in given[0].model.items()}
    merged = method.merged(given, cases.context(where, before))
    assert merged.deployed is None
    assert {n: t.shape for n, t in merged.model.items()} == {n: t.shape for n, t in given[0].model.items()}
    assert all(bool(torch.isfinite(t).all()) for t in merged.model.values())
    assert sum(merged.metrics[f"weight/p{i}"] for i in range(2)) == pytest.approx(1)


@pytest.mark.parametrize("option", [{"rescale": True}, {"tune_weights": 1}], ids=["rescale", "tune_weights"])
@pytest.mark.parametrize("method", [Ensemble, PFNM], ids=["Ensemble", "PFNM"])
def test_what_is_about_one_network_is_refused_by_methods_that_deploy_another(method, option):
    where = server("mlp")
    chosen = method(**option)
    with pytest.raises(InputError, match=rf"{next(iter(option))} is about one network.*distil as well"):
        chosen.merged(uploads("mlp", chosen, where), cases.context(where))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"rescale": True}, "rescale measures units on the server's examples"),
        ({"tune_weights": 1}, "tune_weights judges on the server's examples"),
        ({"distil": "server"}, "distil = 'server' needs the server's examples"),
    ],
)
def test_the_servers_examples_are_asked_for(option, said):
    where, other = server("mlp"), server("mlp", 0)
    method = Average(**option)
    with pytest.raises(InputError, match=said):
        method.merged(uploads("mlp", method, where), cases.context(other))


class TestRescaling:
    @pytest.mark.parametrize(
        "name", ["mlp", "cnn with biases", "resnet18, group norm", "resnet18, batch norm", "transformer"]
    )
    def test_units_vary_as_the_clients_do(self, name):
        """After it every layer's units have the mean and the spread that theirs have on average."""
        where = server(name, 40)
        trees = [cases.tree_of(cases.network(name, seed)) for seed in range(2)]
        mean = {n: (a + trees[1][n]) / 2 if a.is_floating_point() else a for n, a in trees[0].items()}
        found = rescaled(where, mean, trees, None, [0.25, 0.75])
        inputs = where.inputs()
        layer = {
            "mlp": "hidden2",
            "cnn with biases": "fc1",
            "transformer": next((n[:-7] for n in mean if n.endswith("layer.1.intermediate.dense.weight")), ""),
        }.get(name, "stem.conv")
        wanted = [spreads(where.loaded(t), [layer], inputs)[layer] for t in trees]
        now = spreads(where.loaded(found), [layer], inputs)[layer]
        torch.testing.assert_close(now.std, 0.25 * wanted[0].std + 0.75 * wanted[1].std, rtol=1e-3, atol=1e-5)
        if f"{layer}.bias" in mean:
            torch.testing.assert_close(now.mean, 0.25 * wanted[0].mean + 0.75 * wanted[1].mean, rtol=1e-3, atol=1e-4)

    def test_a_model_among_copies_of_itself_stays_as_it_is(self):
        """Copies in other orders, with the orders given: means and spreads are the model's own."""
        name = "cnn with biases"
        where, wired = server(name), cases.wiring(name)
        tree = cases.tree_of(cases.network(name))
        orders = [cases.shuffles(wired, seed) for seed in (1, 2)]
        copies = [wired.permute(tree, order) for order in orders]
        back = [{n: places.argsort() for n, places in order.items()} for order in orders]
        found = rescaled(where, tree, copies, back, [0.5, 0.5])
        for key, value in tree.items():
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4)
        other = rescaled(where, tree, copies, None, [0.5, 0.5])
        assert not torch.allclose(other["fc1.weight"], tree["fc1.weight"], rtol=1e-2)

    def test_units_that_only_one_client_has_are_measured_there(self):
        where, wired = server("mlp"), cases.wiring("mlp")
        trees = [cases.tree_of(cases.network("mlp", seed)) for seed in range(2)]
        absent = {g.name: torch.full((g.units,), -1) for g in wired.groups}
        at_home = {g.name: torch.arange(g.units) for g in wired.groups}
        found = rescaled(where, trees[0], trees, [at_home, absent], [0.1, 0.9])
        for key, value in trees[0].items():
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4)


class TestClassPrior:
    def upload(self, tree, names, counts):
        return Upload("p", tree, names, int(sum(counts)), {"classes": {"counts": torch.tensor(counts)}})

    def test_biases_lose_the_log_of_the_frequencies(self):
        """Counts (7, 3, 1, 1) and one more each: frequencies 1/2, 1/4, 1/8, 1/8, so logs of 2: 1, 2, 3, 3, mean 9/4."""
        where, model = server("mlp", 0), cases.network("mlp")
        tree, names = cases.tree_of(model), tuple(cases.names_of(model))
        (found,) = corrected([self.upload(tree, names, [7, 3, 1, 1])], where, 2.0)
        moved = (found.model["head.bias"] - tree["head.bias"]) / torch.tensor(2.0).log() / 2
        torch.testing.assert_close(moved, torch.tensor([-1.25, -0.25, 0.75, 0.75]))
        assert all(torch.equal(found.model[n], t) for n, t in tree.items() if n != "head.bias")

    def test_a_head_without_biases_gets_it_by_what_is_nearest_to_one(self):
        where, model = server("cnn", 200), cases.network("cnn")
        tree, names = cases.tree_of(model), tuple(cases.names_of(model))
        (found,) = corrected([self.upload(tree, names, [7, 3, 1, 1])], where, 1.0)
        inputs = torch.cat(where.inputs())
        with torch.no_grad():
            moved = where.loaded(found.model)(inputs).double()
            moved -= where.loaded(tree)(inputs)
        wanted = torch.tensor([-1.25, -0.25, 0.75, 0.75]).double() * torch.tensor(2.0).double().log()
        torch.testing.assert_close(moved.mean(0), wanted, rtol=0.1, atol=0.02)

    def test_without_examples_such_a_head_is_refused(self):
        where, model = server("cnn", 0), cases.network("cnn")
        given = self.upload(cases.tree_of(model), tuple(cases.names_of(model)), [1, 2, 3, 4])
        with pytest.raises(InputError, match="head without biases needs the server's examples"):
            corrected([given], where, 1.0)

    def test_a_merge_takes_it_off_before_the_mean(self):
        """Counts (19, 0) and (0, 6) give frequencies (20, 1) / 21 and (1, 7) / 8; weights 19/25 and 6/25."""
        where = cases.server(InputSpec("tabular", (1,), 2), lambda: nn.Linear(1, 2))
        trees = [{"weight": torch.tensor([[1.0], [-1.0]]), "bias": torch.tensor(b)} for b in ([3.0, 0.0], [0.0, 1.0])]
        given = [
            dataclasses.replace(self.upload(tree, ("weight", "bias"), counts), party=str(i))
            for i, (tree, counts) in enumerate(zip(trees, ([19, 0], [0, 6]), strict=True))
        ]
        merged = Average(class_prior=1.0).merged(given, cases.context(where))
        logs = [torch.tensor([20.0, 1.0]).log(), torch.tensor([1.0, 7.0]).log()]
        expected = sum(w * (t["bias"] - x + x.mean()) for w, t, x in zip((0.76, 0.24), trees, logs, strict=True))
        torch.testing.assert_close(merged.model["bias"], expected)


class TestTuning:
    def test_a_useless_client_loses_its_weight(self):
        """Client 0 says class 0 of everything; the more client 1 weighs, the more of the examples are right."""
        spec = InputSpec("tabular", (2,), 2)
        inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(4, 1)
        held = Dataset(inputs, torch.tensor([0, 1]).repeat(4), spec).examples()

        def make():
            return nn.Linear(2, 2, bias=False)

        where = cases.server(spec, make)
        data = dataclasses.replace(where.task.data, validation=held)
        where = dataclasses.replace(where, task=dataclasses.replace(where.task, data=data))
        wrong, right = torch.tensor([[9.0, 9.0], [0.0, 0.0]]), 5 * torch.eye(2)
        given = [Upload(str(i), {"weight": w}, ("weight",), 10) for i, w in enumerate((wrong, right))]
        plain = Average().merged(given, cases.context(where))
        tuned = Average(tune_weights=3).merged(given, cases.context(where))
        assert where.score(plain.model) == 0.5
        assert tuned.metrics["tune/score"] == where.score(tuned.model) == 1
        # doubled or halved until 9 a < 5 (1 - a): one half, then one fifth or one third are tried; a < 5/14
        assert tuned.metrics["weight/0"] < 5 / 14
        assert tuned.metrics["weight/1"] == pytest.approx(1 - tuned.metrics["weight/0"])

    def test_weights_of_their_own_come_first(self):
        given = [Upload(str(i), {}, (), 10, weight=w) for i, w in enumerate((1.0, 3.0))]
        assert masses(given, "examples") == [1, 3]
        assert shares(given, "uniform") == [0.25, 0.75]


class TestDistilling:
    def test_the_student_comes_nearer_to_the_ensemble(self):
        where = server("mlp", 40)
        method = Average(distil="server", distil_steps=200, distil_rate=0.05)
        given = uploads("mlp", method, where)
        inputs = torch.cat(where.inputs())

        def apart(model):
            with torch.no_grad():
                ensemble = torch.stack([where.loaded(u.model)(inputs).softmax(1) for u in given]).mean(0)
                return float((where.loaded(model)(inputs).softmax(1) - ensemble).abs().mean())

        start = Average().merged(given, cases.context(where)).model
        student = method.merged(given, cases.context(where)).model
        assert apart(student) < 0.6 * apart(start)

    def test_generated_inputs_need_no_examples(self):
        where = server("mlp", 0)
        given = cases.uploads([cases.network("mlp", seed) for seed in range(2)])
        start = Average().merged(given, cases.context(where)).model
        method = Average(distil="generated", distil_steps=1)
        student = method.merged(given, cases.context(where)).model
        assert all(bool(torch.isfinite(t).all()) for t in student.values())
        assert any(not torch.equal(student[n], start[n]) for n in start)


def test_a_federation_takes_them():
    task = tiny.with_validation(tiny.small(model=tiny.with_buffers))
    result = run(FedFiOT(**ALL), task, rounds=2)
    assert result.failures == []
    assert result.metrics[-1]["tune/tries"] >= 1
    bens = run(FedBEns(models=2, steps=2, curvature="diag", distil="server", distil_steps=2), task, rounds=2)
    assert bens.failures == []
    assert 0 <= bens.metrics[-1]["global/accuracy"] <= 1


def test_a_class_that_nobody_has_seen_is_not_raised():
    """Of counts (6, 1, 0, 3), p = (7, 2, 1, 4) / 14: class 1 rises by log 7/2 against class 0, class 2 by nothing."""
    where, counts = server("mlp"), torch.tensor([6, 1, 0, 3])
    given = uploads("mlp", Average(class_prior=1.0), where)
    given = [dataclasses.replace(u, statistics={"classes": {"counts": counts}}) for u in given]
    after = corrected(given, where, 1.0)[0].model["head.bias"]
    moved = after - given[0].model["head.bias"]
    torch.testing.assert_close(moved - moved[0], torch.tensor([1, 7 / 2, 1, 7 / 4]).log())


def test_class_prior_is_at_most_all_of_it():
    with pytest.raises(InputError, match="class_prior"):
        Average(class_prior=1.5)
