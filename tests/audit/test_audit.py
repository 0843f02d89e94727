"""Attacks find what is in the clear and nothing of what is not."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from tests import tiny
from torch import nn

import fedfi
from fedfi.audit import inference
from fedfi.audit.auditing import _called, _method, _trained_on, attacked, write
from fedfi.audit.findings import Audit
from fedfi.audit.inversion import invert, psnr, ssim
from fedfi.audit.recorder import Recorder
from fedfi.audit.views import views
from fedfi.averaging.fedavg import FedAvg
from fedfi.cli import main
from fedfi.engines.local import LocalEngine
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.packet import decode
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.federation.task import Task, Training
from fedfi.federation.workbench import fresh_workbench
from fedfi.personal.encrypted import Encrypted
from fedfi.personal.fedfihe import FedFIHE
from fedfi.personal.fedmlhe import FedMLHE
from fedfi.personal.fedper import FedPer
from fedfi.personal.hefedavg import HEFedAvg
from fedfi.personal.local import Local
from fedfi.personal.selective import Selective
from fedfi.submodel.fedfibos import FedFIbOS

QUIET = Evaluate(levels=False, local=False)
CLEAR, SECRET = {"enabled": False, "packet_size": 8}, {"packet_size": 8}


@fedfi.method
class HalfOfTheBody(Selective):
    """What is in the clear of a method that does not share all: the first half of its packets is encrypted."""

    def inner(self):
        return FedPer()

    def ratio(self):
        return 0.5

    def urgency(self, client, update):
        raise NotImplementedError


def observed(method, task, rounds=1):
    seen = Recorder(LocalEngine(method, task))
    result = run(method, task, rounds=rounds, evaluate=QUIET, engine=seen)
    assert result.failures == []
    bench = fresh_workbench(task, keyed_generator(0, "server", "init"))
    first = {n: t.clone() for n, t in bench.tree().items()}
    return seen, result, bench, views(method, result.state, bench.layout, first, seen.observations)


def true_changes(task) -> dict[str, torch.Tensor]:
    """Start minus end of each client's first local training, as FedAvg sends it."""
    seen, _, bench, _ = observed(FedAvg(), task)
    return {o.client: bench.layout.join(decode(o.received).tensors) for o in seen.observations}


@pytest.mark.parametrize(
    ("method", "share"),
    [
        (FedAvg(), 1.0),
        (Local(), 0.0),
        (FedPer(), 72 / 99),  # the body: 6 x 8 + 8, and 8 + 8 of the norm
        (FedFIHE(sharing=0.31, encryption=CLEAR), None),  # 5 of 13 packets of 8; the last has 3 entries
        (FedFIHE(sharing=0.31, phases="two", encryption=CLEAR), None),
        (FedFIHE(sharing=0.31, phases="two", votes="encrypted", encryption=CLEAR), 0.0),
        (HEFedAvg(encryption=CLEAR), 0.0),
        (FedMLHE(protected=0.3, encryption=CLEAR), None),
        (Encrypted(algorithm=FedPer(), encryption=CLEAR), 0.0),
        (HalfOfTheBody(encryption=CLEAR), None),
    ],
    ids=[
        "fedavg",
        "local",
        "fedper",
        "fedfihe",
        "two phases",
        "encrypted votes",
        "he-fedavg",
        "fedml-he",
        "encrypted fedper",
        "half of the body",
    ],
)
def test_what_is_known_is_right_and_as_much_as_was_sent(method, share):
    task = tiny.small()
    truth = true_changes(task)
    _, _, _, found = observed(method, task)
    assert {v.client for v in found} == set(truth)
    for view in found:
        known = view.known
        assert share is None or float(known.double().mean()) == pytest.approx(share)
        torch.testing.assert_close(view.change[known], truth[view.client][known], atol=1e-5, rtol=0)
        assert not view.change[~known].any()
        if share is None:
            assert 0 < int(known.sum()) < 99


def test_ciphertexts_show_masks_alone():
    pytest.importorskip("tenseal")
    _, _, _, found = observed(FedFIHE(sharing=0.31, encryption=SECRET), tiny.small())
    assert not any(v.known.any() for v in found)
    assert all(int(v.packets.sum()) == 5 for v in found)
    _, _, _, found = observed(FedFIHE(sharing=0.31, phases="two", votes="encrypted", encryption=SECRET), tiny.small())
    assert all(v.packets is None for v in found)


def test_a_submodel_shows_its_entries_and_fisher_scores():
    _, _, bench, found = observed(FedFIbOS(participation=1.0, capacities={0.5: 1.0}), tiny.small())
    assert all(
        int(v.known[: bench.layout.pool].sum()) == 42 for v in found
    )  # half of 6 x 8 + 8 + 8 x 3 + 3, rounded up
    assert all(v.fisher.shape == (83,) for v in found)
    for view in found:  # training started from x * M
        start = bench.layout.join(view.start)
        assert torch.all(start[~view.known] == 0)
        assert torch.count_nonzero(start[view.known]) > 30


def digits(step: int = 1) -> Task:
    train, test = fedfi.load("digits")
    data = fedfi.federate(train, test, clients=6, partition={"by": "iid"}, seed=0)
    recipe = Training(learning_rate=0.1, batch_size=300, steps=step)
    return Task(lambda: fedfi.build("mlp", data.spec, {"hidden": [16]}), data, recipe)


def test_one_example_is_reconstructed_from_an_update_in_the_clear_and_not_from_ciphertexts():
    """A client with a single image and one step: its gradient gives the image away; nothing known, nothing found."""
    task = digits()
    clients = dict(task.data.clients)
    for name, data in clients.items():
        clients[name] = fedfi.ClientData(data.train.subset(torch.tensor([0])), data.test)
    import dataclasses

    task = dataclasses.replace(task, data=dataclasses.replace(task.data, clients=clients))
    found = {}
    for label, method in {"clear": FedAvg(), "hidden": HEFedAvg(encryption={"enabled": False})}.items():
        seen, result, *_ = observed(method, task)
        found[label] = attacked(label, method, task, seen, result.state, 0, clients=1, iterations=200)
    assert found["clear"].table["inversion/psnr"] > 20
    assert found["clear"].table["inversion/distance"] < 0.2
    assert found["hidden"].table["inversion/distance"] == 1.0
    assert not found["hidden"].table.keys() & {"inversion/psnr", "membership/auc"}  # of nothing there is no score
    assert len(found["hidden"].pictures) == 1
    assert found["hidden"].table["known/share"] == 0
    assert found["hidden"].table["inversion/floor"] < 12  # of noise
    assert found["clear"].table["inversion/psnr"] > found["clear"].table["inversion/floor"] + 8
    assert len(found["clear"].pictures) == 1


def test_brightness_that_a_norm_hides_does_not_run_away():
    """Group norm hides the scale of an image from its gradient; the search stays among images all the same."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(1, 8), nn.Sigmoid(), nn.Flatten(), nn.Linear(8 * 36, 2))
    image, target = torch.rand(1, 1, 8, 8), torch.tensor([1])
    parameters = dict(module.named_parameters())
    loss = nn.functional.cross_entropy(module(image), target)
    change = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    known = {n: torch.ones_like(t, dtype=torch.bool) for n, t in change.items()}
    bounds = (torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    found = {
        label: invert(
            module,
            {n: p.detach() for n, p in parameters.items()},
            change,
            known,
            lambda scores, targets: nn.functional.cross_entropy(scores, targets, reduction="none"),
            (1, 8, 8),
            target,
            iterations=150,
            variation=1e-4,
            bounds=limits,
            rng=torch.Generator().manual_seed(0),
        ).inputs
        for label, limits in {"within": bounds, "anywhere": None}.items()
    }
    assert float(found["within"].min()) >= 0
    assert float(found["within"].max()) <= 1
    error = {label: float((guess - image).square().mean()) for label, guess in found.items()}
    assert error["within"] < error["anywhere"] / 2


def test_labels_are_told_from_what_depends_on_them_and_not_from_noise():
    """40 clients of two labels; a feature that is the label is always told, noise as often as chance (+- 3 sd)."""
    rng = torch.Generator().manual_seed(0)
    labels, groups = [i % 2 for i in range(40)], [str(i) for i in range(40)]
    plain = inference.infer_labels([torch.tensor([float(x), 1.0]) for x in labels], labels, groups, 0)
    assert plain == inference.LabelAttack(1.0, 0.5, 40)
    noise = inference.infer_labels([torch.randn(20, generator=rng) for _ in labels], labels, groups, 0)
    assert abs(noise.accuracy - 0.5) < 0.24
    same = inference.infer_labels([torch.ones(3) for _ in labels], labels, groups, 0)
    assert same.accuracy == same.chance
    assert inference.infer_labels([torch.ones(3)] * 4, [0, 1, 0, 1], list("abcd"), 0) is None


def test_membership_by_hand():
    """Losses of members 0.1 and 0.5 against 0.3 and 0.5: wins are 1 + 1, 0 and a half, of four."""
    values = iter([torch.tensor([0.1, 0.5]), torch.tensor([0.3, 0.5])])
    examples = tiny.by_hand().data.clients["c0"].train
    net = tiny.Zeros(1, 2)
    model = {"weight": net.weight.detach()}
    assert inference.membership(net, model, examples, examples, lambda o, t: next(values)) == pytest.approx(2.5 / 4)


def test_picture_scores_by_hand():
    """A constant error of .1 is 20 dB; an image is like itself; its negative is not."""
    image = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert psnr(image, image + 0.1) == pytest.approx(20.0)
    assert psnr(image, image) == math.inf
    assert ssim(image, image) == pytest.approx(1.0)
    assert ssim(image, 1 - image) < 0


def test_the_page_has_table_and_pictures(tmp_path):
    image = torch.rand(1, 8, 8)
    found = Audit("<run>", "FedAvg", {"known/share": 1.0, "inversion/psnr": 12.5}, [("client 0", image, image)])
    write([found], tmp_path)
    assert "| <run> | FedAvg | 1.000 | 12.500 |" in (tmp_path / "audit.md").read_text()
    page = (tmp_path / "audit.html").read_text()
    assert "&lt;run&gt;" in page
    assert page.count("data:image/png;base64,") == 2


def test_the_command_audits_the_next_round_and_leaves_the_run_alone(tmp_path, capsys):
    file = tmp_path / "x.toml"
    file.write_text(
        'rounds = 1\n[data]\nname = "breast_cancer"\nclients = 6\n[model]\nname = "mlp"\nhidden = [4]\n'
        '[train]\nsteps = 2\n[algorithm]\nname = "fedfihe"\n'
        "sharing = 0.3\nencryption = { enabled = false, packet_size = 8 }\n"
    )
    directory = tmp_path / "run"
    assert main(["run", str(file), "--out", str(directory), "--quiet"]) == 0
    before = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}
    assert main(["audit", str(directory), "--clients", "1", "--iterations", "5"]) == 0
    out = capsys.readouterr().out
    assert "| run | FedFIHE |" in out
    after = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file() and "audit" not in p.parts}
    assert before == after
    assert main(["audit", str(directory), "--set", "train.steps=1", "--clients", "1", "--iterations", "2", "-q"]) == 0
    assert main(["audit", str(tmp_path / "none")]) == 2
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "run.toml").write_bytes((directory / "run.toml").read_bytes())
    capsys.readouterr()
    said = "has no checkpoint: what is audited is its first round"
    for run_directory in (begun, directory):
        assert main(["audit", str(run_directory), "--clients", "1", "--iterations", "1"]) == 0
        assert (said in capsys.readouterr().err) is (run_directory == begun)
    shutil.rmtree(directory / "checkpoints")
    assert main(["audit", str(directory)]) == 2
    error = capsys.readouterr().err
    assert f"{directory / 'checkpoints'}: holds no checkpoint" in error
    assert "fedfi-audit-" not in error


def test_the_labels_that_an_attack_is_given_are_those_of_what_was_trained_on():
    """One step on one example: the gradient of the example that is named is what the client sent."""
    task = tiny.small(steps=1, epochs=None, batch_size=1)
    _, _, bench, found = observed(FedAvg(), task, rounds=2)
    assert len(found) == 12
    for view in found:
        first, used = _trained_on(task, view, seed=0)
        assert first.tolist() == used.tolist()
        bench.load(view.start)
        inputs, targets = task.data.clients[view.client].train.batch(first)
        loss = task.loss(bench.module(inputs), targets).mean()
        named = dict(bench.module.named_parameters())
        gradient = bench.layout.join(dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)))
        torch.testing.assert_close(view.change, 0.1 * gradient, atol=1e-6, rtol=0)
    task = tiny.small(steps=3, epochs=None, batch_size=4)
    first, used = _trained_on(task, found[0], seed=0)
    assert set(first.tolist()) < set(used.tolist())


def test_runs_of_comparisons_and_wrapped_methods_have_telling_names(tmp_path):
    assert _called(tmp_path / "fedper" / "seed-1") == "fedper/seed-1"
    assert _called(tmp_path / "alone") == "alone"
    assert _method(Encrypted(algorithm=FedPer(), encryption=CLEAR)) == "Encrypted(FedPer)"
