"""Personalised baselines: first steps computed by hand, and what must not move."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from tests import tiny

from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError
from fedfi.federation.client import Client, Memory
from fedfi.federation.packet import Packet
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.federation.task import Task, Training
from fedfi.federation.workbench import Benches, Workbench
from fedfi.numerics.fisher import diagonal_fisher
from fedfi.personal.apfl import APFL
from fedfi.personal.ditto import Ditto
from fedfi.personal.fedala import FedALA
from fedfi.personal.fedbabu import FedBABU
from fedfi.personal.feddpa import FedDPA
from fedfi.personal.fedper import FedPer
from fedfi.personal.fedrep import FedRep
from fedfi.personal.finetune import FineTune
from fedfi.personal.lgfedavg import LGFedAvg
from fedfi.personal.local import Local
from fedfi.personal.parts import last_modules, names_of
from fedfi.personal.perfedavg import PerFedAvg
from fedfi.personal.pfedme import PFedMe


def work(method, task: Task, rounds: int = 1):
    """State and engine after some rounds, to look at what clients remember."""
    engine = LocalEngine(method, task)
    result = run(method, task, rounds=rounds, engine=engine)
    assert result.failures == []
    return result, engine


def memory(engine: LocalEngine, client: str):
    return engine._table.row(client)


def alone(steps: int) -> Task:
    """c0 of `tiny.by_hand`: x = 1 of class 0; from w = (a, -a) the gradient is (-q, q) with q = 1 / (1 + e^2a)."""
    data = tiny.federation(torch.tensor([[1.0], [1.0]]), torch.tensor([0, 1]), [[0]], [[1]])
    return Task(lambda: tiny.Zeros(1, 2), data, Training(learning_rate=1.0, batch_size=1, steps=steps))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def test_parts_of_a_module():
    net = tiny.with_buffers()
    assert last_modules(net, 1) == ["3"]
    assert names_of(net, "head") == {"3.weight", "3.bias"}
    body = {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert names_of(net, "body") == body
    assert names_of(net, "head", []) == set()
    assert names_of(net, "none") == set()
    assert names_of(net, "all") == body | {"3.weight", "3.bias"}
    with pytest.raises(InputError, match="unknown module '4'"):
        names_of(net, "head", ["4"])


def test_a_head_that_is_none_or_everything_is_refused():
    """Modules 0 (linear), 1 (norm), 2 (ReLU), 3 (linear)."""
    net = tiny.with_buffers()
    with pytest.raises(InputError, match=r"head: module '2' has no parameters .*choose from 0, 1, 3"):
        names_of(net, "body", ["3", "2"])
    with pytest.raises(InputError, match=r"unknown module '4'.*choose from 0, 1, 3"):
        names_of(net, "body", ["4"])
    for whole in (["0", "1", "3"], [""]):
        with pytest.raises(
            InputError, match=r"is the whole model, and leaves no body \(leave some of \['0', '1', '3'\] out"
        ):
            names_of(net, "body", whole)
    with pytest.raises(InputError, match="module '2' has no parameters"):
        run(FedPer(head=["2"]), tiny.small(model=tiny.with_buffers), rounds=1)


@pytest.mark.parametrize(("method", "shared"), [(FedPer, "the whole model"), (LGFedAvg, "nothing")])
def test_an_empty_head_is_said_before_anything_is_sent(method, shared, tmp_path):
    run(method(head=[]), tiny.small(), rounds=1, out=tmp_path / "run")
    first = json.loads((tmp_path / "run/events.jsonl").read_text().splitlines()[0])
    assert (first["event"], first["text"]) == (
        "warning",
        f"head = []: no module is the head, so that clients share {shared}",
    )
    assert method().notes_on_clients(["a"]) == Local().notes_on_clients(["a"]) == []


def test_a_model_that_is_all_head_is_said(tmp_path):
    for method, task, shared in [
        (FedPer(), tiny.by_hand(), "nothing"),
        (LGFedAvg(head=["0", "1", "3"]), tiny.small(model=tiny.with_buffers), "all of it"),
    ]:
        run(method, task, rounds=2, out=tmp_path / shared)
        events = [json.loads(e) for e in (tmp_path / shared / "events.jsonl").read_text().splitlines()]
        (warned,) = [e for e in events if e["event"] == "warning"]
        assert (warned["key"], warned["round"]) == ("head", 1)
        assert warned["text"].endswith(f"so that clients share {shared}")


def test_local_shares_nothing_and_moves_nothing_at_the_server():
    """c0 ends at (1/2, -1/2), c1 at (-1, 1), as at `tiny.by_hand`; the server keeps (0, 0)."""
    result, engine = work(Local(), tiny.by_hand())
    assert result.model["weight"].flatten().tolist() == [0, 0]
    assert memory(engine, "c0")["own:weight"].flatten().tolist() == [0.5, -0.5]
    assert memory(engine, "c1")["own:weight"].flatten().tolist() == [-1.0, 1.0]
    assert result.metrics[-1]["local/accuracy"] == 1.0


@pytest.mark.parametrize("method", [FedPer, FedRep, FedBABU])
def test_heads_never_leave_the_client(method):
    task = tiny.small()
    algorithm = method(participation=1.0)
    state = algorithm.init(task, keyed_generator(0, "server", "init"))
    jobs = list(algorithm.configure(state, 0, list(task.data.clients), keyed_generator(0, "x")))
    for reply in LocalEngine(algorithm, task).map("client_update", jobs, 0):
        assert set(reply.packet.tensors) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    after, engine = work(algorithm, task, rounds=2)
    assert torch.equal(after.model["3.weight"], state.model["3.weight"])
    heads = [memory(engine, c)["own:3.weight"] for c in task.data.clients]
    assert all(torch.equal(h, state.model["3.weight"]) for h in heads) == (method is FedBABU)


def test_lg_fedavg_shares_the_head_alone():
    task = tiny.small()
    result, engine = work(LGFedAvg(), task, rounds=2)
    first = LGFedAvg().init(task, keyed_generator(0, "server", "init")).model
    assert torch.equal(result.model["0.weight"], first["0.weight"])
    assert not torch.equal(result.model["3.weight"], first["3.weight"])
    bodies = [memory(engine, c)["own:0.weight"] for c in task.data.clients]
    assert not any(torch.equal(bodies[0], b) for b in bodies[1:])


def test_a_newcomer_gets_the_first_private_part_and_others_only_what_is_shared():
    task = tiny.small()
    method = FedPer()
    state = method.init(task, keyed_generator(0, "server", "init"))
    state.met["c1"] = True
    sent = dict(method.configure(state, 1, list(task.data.clients), keyed_generator(0, "x")))
    assert set(sent["c0"].tensors) - set(sent["c1"].tensors) == {"3.weight", "3.bias"}


def test_fedrep_fits_the_head_before_the_body_moves():
    """A head-only step from the global model, then a body step under the new head: done by hand with autograd."""
    task = tiny.small(clients=1, steps=1, epochs=None, batch_size=100)
    result, engine = work(FedRep(head_epochs=1), task)
    bench = Workbench(task.model())
    bench.load(FedRep().init(task, keyed_generator(0, "server", "init")).model)
    inputs, targets = task.data.clients["c0"].train.batch(torch.arange(6))
    net = bench.module

    with torch.no_grad():
        for p, g in list(zip(net.parameters(), gradients_of(net, task, inputs, targets), strict=True))[4:]:
            p -= 0.1 * g
        head = net[3].weight.clone()
        for p, g in list(zip(net.parameters(), gradients_of(net, task, inputs, targets), strict=True))[:4]:
            p -= 0.1 * g
    torch.testing.assert_close(result.model["0.weight"], net[0].weight.detach())
    torch.testing.assert_close(memory(engine, "c0")["own:3.weight"], head)


def gradients_of(net, task, inputs, targets):
    with torch.enable_grad():
        return torch.autograd.grad(task.loss(net(inputs), targets).mean(), list(net.parameters()))


def test_finetuning_is_what_is_judged():
    """The global model is (-1/4, 1/4); a step of c0 from there adds (q, -q), q = 1 / (1 + e^-1/2) = .6225."""
    method, task = FineTune(), tiny.by_hand()
    result, _ = work(method, task)
    state = result.state
    (packet,) = {id(p): p for _, p in method.configure_evaluation(state, ["c0", "c1"], None)}.values()
    benches = Benches(task, 0)
    bench = benches.whole
    client = Client("c0", task.data.clients["c0"], Memory(), task, benches, round=1, seed=0)
    method.client_evaluate(packet, client)
    q = sigmoid(0.5)
    torch.testing.assert_close(bench.vector.detach(), torch.tensor([-0.25 + q, 0.25 - q]))
    assert result.metrics[-1]["local/accuracy"] == 1.0


def test_ditto_by_hand():
    """c0 alone, two rounds of one step, lambda = 1, rate 1.

    Round 1: w and v both go from 0 by (1/2, -1/2); the pull is zero at the start. Round 2: the global model is
    (1/2, -1/2), at which v stands, so the pull is zero again and v moves by q = 1 / (1 + e): v = 1/2 + .26894.
    With two steps in round 1 the second step of v feels the pull: v = 1/2 + .26894 - 1/2.
    """
    _, engine = work(Ditto(penalty=1.0), alone(1), rounds=2)
    q = sigmoid(-1.0)
    torch.testing.assert_close(memory(engine, "c0")["model"], torch.tensor([0.5 + q, -0.5 - q]))
    _, engine = work(Ditto(penalty=1.0), alone(2), rounds=1)
    torch.testing.assert_close(memory(engine, "c0")["model"], torch.tensor([q, -q]))


def test_apfl_by_hand():
    """c0 alone, alpha = 1/2, rate 1, two steps.

    Step 1: v = w = 0: the mixture is 0, its gradient (-1/2, 1/2); v = 1/2 (1/2, -1/2) = (1/4, -1/4); v - w was 0, so
    alpha stays; w = (1/2, -1/2). Step 2: the mixture is a = 3/8, its gradient (-q, q), q = 1 / (1 + e^(3/4)) = .32082;
    v = 1/4 + q/2; <v - w, gradient> = (-1/4)(-q) + (1/4) q = q/2, so alpha = 1/2 - q/2.
    """
    _, engine = work(APFL(alpha=0.5), alone(2))
    q = sigmoid(-0.75)
    torch.testing.assert_close(memory(engine, "c0")["model"], torch.tensor([0.25 + q / 2, -0.25 - q / 2]))
    torch.testing.assert_close(float(memory(engine, "c0")["alpha"]), 0.5 - q / 2)
    _, engine = work(APFL(alpha=0.5, adaptive=False), alone(2))
    assert float(memory(engine, "c0")["alpha"]) == 0.5


def test_pfedme_by_hand():
    """c0 alone, one batch, one inner step, rate r = 1, lambda = 1: theta = (0 + 1/2 + 0) / 2 = 1/4.

    w moves by eta lambda (theta - w) = .5 * 1/4 = 1/8.
    """
    result, engine = work(PFedMe(penalty=1.0, inner_steps=1, rate=0.5), alone(1))
    torch.testing.assert_close(memory(engine, "c0")["model"], torch.tensor([0.25, -0.25]))
    torch.testing.assert_close(result.model["weight"].flatten(), torch.tensor([0.125, -0.125]))


def test_pfedme_comes_to_the_minimum_of_the_moreau_envelope():
    """Many inner steps: theta solves lambda (theta - w) = -grad f(theta), with q = 1 / (1 + e^2a): lambda a = q."""
    _, engine = work(PFedMe(penalty=2.0, inner_steps=200, rate=0.1), alone(1))
    a = float(memory(engine, "c0")["model"][0])
    assert 2.0 * a == pytest.approx(sigmoid(-2 * a), abs=1e-6)


def test_perfedavg_by_hand():
    """c0 alone: one example, so all batches are it. alpha = beta = 1.

    w~ = (1/2, -1/2); the gradient there is (-q, q), q = 1 / (1 + e). First order: w = (q, -q). Along (1, -1) the
    gradient's slope at w = 0 is -d q / d a = 2 q (1 - q) = 1/2, so the Hessian halves it: w = (q/2, -q/2).
    """
    q = sigmoid(-1.0)
    first, _ = work(PerFedAvg(), alone(1))
    torch.testing.assert_close(first.model["weight"].flatten(), torch.tensor([q, -q]))
    second, _ = work(PerFedAvg(order="hessian-free"), alone(1))
    torch.testing.assert_close(second.model["weight"].flatten(), torch.tensor([q / 2, -q / 2]), atol=1e-4, rtol=0)


def test_fedala_by_hand():
    """Weights are 1 until the models differ, then move by eta grad * (new - old), and stay in [0, 1].

    Two clients: after a round the global model is (-1/4, 1/4), c0's own (1/2, -1/2), so new - old = (-3/4, 3/4). At
    the mixture with W = 1, a = -1/4, c0's gradient is (-q, q), q = 1 / (1 + e^-1/2) = .62246. A step of size 1:
    W = 1 - q * 3/4 = .53316 for both. The mixture is 1/2 - .75 W, and training starts there.
    """
    task = tiny.by_hand()
    method = FedALA(examples=1.0, most_epochs=1)
    _, engine = work(method, task, rounds=2)
    weight = 1 - 0.75 * sigmoid(0.5)
    torch.testing.assert_close(memory(engine, "c0")["weights"], torch.tensor([weight, weight]))
    mixed = 0.5 - 0.75 * weight
    trained = mixed + sigmoid(-2 * mixed)
    torch.testing.assert_close(memory(engine, "c0")["model"], torch.tensor([trained, -trained]))


def test_feddpa_keeps_entries_of_high_fisher_information():
    """Entries whose scaled Fisher information at the own model exceeds tau start from it, the others elsewhere."""
    task = tiny.small(clients=2)
    method = FedDPA(threshold=0.3)
    _, engine = work(method, task)
    own, received = memory(engine, "c0")["model"].clone(), torch.zeros_like(memory(engine, "c0")["model"])
    benches = Benches(task, 0)
    bench = benches.whole
    client = Client("c0", task.data.clients["c0"], Memory({"model": own}), task, benches, round=1, seed=0)
    with torch.no_grad():
        bench.vector.copy_(own)
    bench.module.eval()
    batch = task.data.clients["c0"].train.batch(torch.arange(6))
    order = torch.randperm(6, generator=client.rng("fisher")).split(4)
    fisher = diagonal_fisher(bench.module, [(batch[0][o], batch[1][o]) for o in order], task.loss, kind="batch")
    expected = torch.cat([((f - f.min()) / (f.max() - f.min())).flatten() for f in map(fisher.get, bench.layout.names)])
    seen = {}

    def spy(_client, mask, **options):
        seen.setdefault("mask", mask.clone())
        seen.setdefault("start", bench.vector.detach().clone())
        raise StopIteration

    with torch.no_grad():
        bench.vector.copy_(received)
    from fedfi.personal import feddpa

    plain, feddpa.train_only = feddpa.train_only, spy
    try:
        with pytest.raises(StopIteration):
            method._train(client)
    finally:
        feddpa.train_only = plain
    assert torch.equal(seen["mask"], expected > 0.3)
    assert torch.equal(seen["start"], torch.where(expected > 0.3, own, received))


@pytest.mark.parametrize("optimizer", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adamw"}])
def test_frozen_entries_stay_to_the_bit_under_every_optimizer(optimizer):
    task = tiny.small(**optimizer)
    method = FedBABU()
    result, engine = work(method, task, rounds=3)
    first = method.init(task, keyed_generator(0, "server", "init")).model
    for client in task.data.clients:
        assert torch.equal(memory(engine, client)["own:3.weight"], first["3.weight"])
    assert not torch.equal(result.model["0.weight"], first["0.weight"])


def test_a_client_that_never_took_part_is_judged_with_the_first_private_part():
    result = run(FedPer(clients_per_round=1), tiny.small(), rounds=1)
    assert result.failures == []
    assert "local/accuracy_worst" in result.metrics[-1]


SCHEDULED = {"weight_decay": 0.5, "round_decay": 0.5, "schedule": "cosine", "clip_norm": 0.01}


def test_the_own_step_of_perfedavg_is_alpha_times_the_gradient_whatever_the_recipe():
    """From (1/4, -1/4), in round 4: the gradient is (-q, q), q = 1 / (1 + e^1/2); alpha = 1 is that of training."""
    task = alone(1)
    task = Task(task.model, task.data, Training(learning_rate=1.0, batch_size=1, steps=1, **SCHEDULED))
    benches = Benches(task, 0)
    client = Client("c0", task.data.clients["c0"], Memory(), task, benches, round=3, seed=0)
    PerFedAvg().client_evaluate(Packet({"weight": torch.tensor([[0.25], [-0.25]])}), client)
    q = sigmoid(-0.5)
    torch.testing.assert_close(benches.whole.vector.detach(), torch.tensor([0.25 + q, -0.25 - q]))


def test_the_outer_step_of_pfedme_is_eta_lambda_times_the_distance_whatever_the_recipe():
    """As by hand above, 1/8; the task's weight decay, schedule and clipping are of neither step."""
    task = alone(1)
    task = Task(task.model, task.data, Training(learning_rate=1.0, batch_size=1, steps=1, **SCHEDULED))
    result, _ = work(PFedMe(penalty=1.0, inner_steps=1, rate=0.5), task)
    torch.testing.assert_close(result.model["weight"].flatten(), torch.tensor([0.125, -0.125]))


def test_fedala_is_judged_by_the_mixture_of_its_next_round_and_remembers_nothing_of_it():
    """After round 1 of the example by hand above: W = 1 - 3/4 q, and the mixture is 1/2 - 3/4 W."""
    task, method = tiny.by_hand(), FedALA(examples=1.0, most_epochs=1)
    result, engine = work(method, task)
    packet = dict(method.configure_evaluation(result.state, ["c0"], None))["c0"]
    assert "weights" not in memory(engine, "c0")
    benches = Benches(task, 0)
    who = Client("c0", task.data.clients["c0"], Memory(memory(engine, "c0")), task, benches, round=0, seed=0)
    method.client_evaluate(packet, who)
    mixed = 0.5 - 0.75 * (1 - 0.75 * sigmoid(0.5))
    torch.testing.assert_close(benches.whole.vector.detach(), torch.tensor([mixed, -mixed]))


def test_fedala_fits_its_weights_under_batch_norm_whatever_the_number_of_examples():
    """Six clients of 6 to 11 examples: .8 of six are five, a batch of four and one left, which joins it."""
    result, _ = work(FedALA(), tiny.small(model=tiny.with_buffers), rounds=3)
    assert result.failures == []


@pytest.mark.parametrize("method", [FineTune(epochs=3, steps=2), FedBABU(epochs=3, steps=2, head=[])])
def test_finetuning_may_be_as_long_in_steps(method):
    """Two steps of c0 from (-1/4, 1/4), where one adds q = .6225: q, then q at a = .3725."""
    task = tiny.by_hand()
    benches = Benches(task, 0)
    client = Client("c0", task.data.clients["c0"], Memory(), task, benches, round=1, seed=0)
    method.client_evaluate(Packet({"weight": torch.tensor([[-0.25], [0.25]])}), client)
    a = -0.25 + sigmoid(0.5)
    a += sigmoid(-2 * a)
    torch.testing.assert_close(benches.whole.vector.detach(), torch.tensor([a, -a]))


def test_fedrep_fits_its_head_for_as_many_steps_as_it_is_told():
    """The one layer is the head: three steps of c0, the first of which goes to 1/2."""
    _, engine = work(FedRep(head_epochs=1, head_steps=3), alone(1))
    a = 0.5
    for _ in range(2):
        a += sigmoid(-2 * a)
    torch.testing.assert_close(memory(engine, "c0")["own:weight"].flatten(), torch.tensor([a, -a]))


def test_fedala_bears_losses_that_are_no_numbers():
    """They never settle, so that all epochs are made; here the gradients are 0, and the weights stay."""
    task, method = tiny.by_hand(), FedALA(examples=1.0, most_epochs=12)
    result, engine = work(method, task)
    packet = dict(method.configure_evaluation(result.state, ["c0"], None))["c0"]
    astray = dataclasses.replace(task, loss=lambda outputs, targets: outputs.sum(1) * 0.0 + math.nan)
    benches = Benches(astray, 0)
    who = Client("c0", task.data.clients["c0"], Memory(memory(engine, "c0")), astray, benches, round=0, seed=0)
    method.client_evaluate(packet, who)
    assert bool(benches.whole.vector.isfinite().all())
