"""Differentially private rounds: what is clipped, where noise goes, what it is said to be worth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests import tiny

from fedfi.averaging.fedavg import FedAvg
from fedfi.averaging.fedprox import FedProx
from fedfi.averaging.server import Averaging
from fedfi.errors import InputError
from fedfi.federation.algorithm import method
from fedfi.federation.record import read_lines
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.federation.training import train_locally
from fedfi.personal.encrypted import Encrypted
from fedfi.personal.fedper import FedPer
from fedfi.personal.private import Private
from fedfi.privacy.accounting import Sampling, epsilon
from fedfi.recsys.fedcia import FedCIA
from fedfi.recsys.fedrkg import FedRKG
from fedfi.submodel.fedfibos import FedFIbOS
from fedfi.submodel.fiarse import FIARSE
from fedfi.submodel.heterofl import HeteroFL
from fedfi.submodel.ranking import best

pytest.importorskip("dp_accounting", reason="the extra 'dp' is not installed")
UNIFORM = FedAvg(weights="uniform")
LOCAL = {"noise": 0.1, "where": "client"}
APART = FedFIbOS(
    participation=1.0, capacities={1.0: 0.25, 0.5: 0.25, 0.25: 0.5}, aggregation="plain", first_mask="magnitude"
)


@method
class Mine(Averaging):
    """A method of one's own, which says nothing of what clients keep."""

    def train(self, client):
        return train_locally(client)


def test_without_noise_to_speak_of_the_round_is_that_of_clipped_updates():
    """Updates -(1/2, -1/2) and -(-1, 1) of norms .707 and 1.414; clipped to .7 they are .7 along the diagonal each.

    Their mean is zero.
    """
    result = run(Private(algorithm=UNIFORM, clip=0.7, noise=1e-6), tiny.by_hand(), rounds=1)
    torch.testing.assert_close(result.model["weight"].flatten(), torch.zeros(2), atol=1e-5, rtol=0)
    result = run(Private(algorithm=UNIFORM, clip=100.0, noise=1e-9), tiny.by_hand(), rounds=1)
    torch.testing.assert_close(result.model["weight"].flatten(), torch.tensor([-0.25, 0.25]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("where", "deviation"), [("server", 3.0 * 2.0 / 6), ("client", 3.0 * 2.0 / 6**0.5)])
def test_noise_on_the_mean(where, deviation):
    """z C = 6 on the sum of six is 1 on their mean; on each of six, 6 / sqrt(6). 99 entries: within a third."""
    private = Private(algorithm=UNIFORM, clip=2.0, noise=3.0, where=where)
    noisy = run(private, tiny.small(), rounds=1).model
    plain = run(Private(algorithm=UNIFORM, clip=2.0, noise=1e-9), tiny.small(), rounds=1).model
    found = torch.cat([(noisy[n] - plain[n]).flatten() for n in noisy]).std().item()
    assert found == pytest.approx(deviation, rel=0.33)


def test_epsilon_is_reported_each_round_and_keeps_the_budget():
    private = Private(algorithm=UNIFORM, epsilon=8.0, rounds=3, clients_per_round=3)
    result = run(private, tiny.small(), rounds=3)
    spent = [line["privacy/epsilon"] for line in result.metrics]
    assert spent == sorted(spent)
    assert 7.8 < spent[-1] <= 8.0
    assert spent[1] == epsilon(result.state.multiplier, 2, 1e-5, Sampling(6, 3))
    assert all("train/loss" not in line for line in result.metrics)


def test_a_delta_that_promises_nothing_is_said():
    """6 clients: a mechanism that publishes one of them whole has delta 1/6."""
    private = Private(algorithm=UNIFORM, noise=1.0, delta=0.9)
    (note,) = private.notes_on_clients([f"c{i}" for i in range(6)])
    assert note.startswith("delta = 0.9 with 6 clients")
    assert replace(private, delta=0.1).notes_on_clients([f"c{i}" for i in range(6)]) == []


def test_noise_that_reaches_the_clip_of_encryption_is_said():
    """z C = 2 against R = 8 are four standard deviations: one value in 16,000 is beyond, and its client fails."""
    local = Private(algorithm=UNIFORM, noise=2.0, where="client")
    (note,) = Encrypted(algorithm=local).notes_on_clients(["c0", "c1", "c2"])
    assert note.startswith("encryption.clip = 8: the clients' noise has standard deviation 2, and a client")
    assert note.endswith("(nearest that is enough: 14)")  # 1 + 6.5 * 2
    assert Encrypted(algorithm=local, encryption={"clip": 14.0}).notes_on_clients(["c0", "c1", "c2"]) == []
    assert Encrypted(algorithm=replace(local, noise=1e-6)).notes_on_clients(["c0", "c1", "c2"]) == []
    budget = Private(algorithm=UNIFORM, epsilon=1.0, rounds=10, where="client")
    assert Encrypted(algorithm=budget).notes_on_clients(["c0", "c1", "c2"])


def test_noise_of_recommenders_that_reaches_the_clip_of_encryption_is_said():
    """Gaussian: 6.5 * .5 * 8 = 26 on an update within 8. Laplace of scale 1: a deviation of 1.41, and 15.5 at most."""
    for inner, said, enough in (
        (FedRKG(clip=8.0, noise=0.5), "deviation 4, ", "34)"),
        (FedCIA(noise=1.0), "deviation 1.41, ", "15.5, and what the noise is put on)"),
    ):
        (note,) = Encrypted(algorithm=inner).notes_on_clients(["c0", "c1", "c2"])
        assert said in note
        assert note.endswith(f"(nearest that is enough: {enough}")
        assert Encrypted(algorithm=inner, encryption={"clip": 34.0}).notes_on_clients(["c0", "c1", "c2"]) == []
    assert Encrypted(algorithm=FedRKG()).notes_on_clients(["c0", "c1", "c2"]) == []


def test_local_privacy_is_not_amplified_by_sampling():
    local = run(Private(algorithm=UNIFORM, noise=5.0, where="client", clients_per_round=1), tiny.small(), rounds=1)
    assert local.metrics[-1]["privacy/epsilon"] == epsilon(5.0, 1, 1e-5, Sampling(6, 6))


def test_nothing_but_the_update_leaves():
    task = tiny.small()
    private = Private(algorithm=UNIFORM, noise=1.0, where="client")
    seen = []
    plain = Private.aggregate

    def aggregate(self, state, round, replies, rng):
        def watched():
            for reply in replies:
                seen.append(dict(reply.packet.scalars))
                yield reply

        return plain(self, state, round, watched(), rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Private, "aggregate", aggregate)
        run(private, task, rounds=1)
    assert seen == [{"loss": 0.0, "examples": 1}] * 6


def test_system_noise_differs_from_run_to_run_and_keyed_noise_does_not():
    keyed = [run(Private(algorithm=UNIFORM, noise=1.0), tiny.small(), rounds=1).model["0.bias"] for _ in range(2)]
    system = [
        run(Private(algorithm=UNIFORM, noise=1.0, source="system"), tiny.small(), rounds=1).model["0.bias"]
        for _ in range(2)
    ]
    assert torch.equal(*keyed)
    assert not torch.equal(*system)


def test_private_and_encrypted_go_together():
    """Noise before encryption: local privacy, hidden from the server besides."""
    inner = Private(algorithm=FedPer(weights="uniform"), noise=0.1, where="client")
    result = run(Encrypted(algorithm=inner, encryption={"enabled": False}), tiny.small(), rounds=2)
    assert result.failures == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algorithm": HeteroFL()}, "HeteroFL cannot be made private: its new model is not a weighted mean"),
        ({"algorithm": FIARSE()}, "FIARSE cannot be made private: what its clients send differs in shape"),
        ({"algorithm": FedFIbOS()}, "FedFIbOS cannot be made private: .*nearest valid: aggregation = 'plain'"),
        ({"algorithm": APART, "where": "client"}, "where = 'client': .*nearest valid: where = 'server'"),
        ({"algorithm": replace(APART, start="masked")}, "nearest valid: start = 'full'"),
        ({"algorithm": replace(APART, first_mask="shared")}, "nearest valid: first_mask = 'magnitude'"),
        ({"algorithm": replace(APART, blend=0.5)}, "nearest valid: blend = 0"),
        ({"algorithm": replace(APART, fisher="global")}, "nearest valid: fisher = 'dense'"),
        ({"algorithm": replace(APART, fisher_bits=8)}, "nearest valid: fisher_bits = 32"),
        ({"algorithm": FedAvg()}, "FedAvg weighs clients by examples: .*nearest valid: weights = 'uniform'"),
        ({"algorithm": UNIFORM, "noise": None}, "give noise, or epsilon"),
        ({"algorithm": UNIFORM, "epsilon": 1.0, "rounds": 3}, "give noise, or epsilon"),
    ],
)
def test_what_cannot_be_private_is_refused_with_the_reason(options, said):
    with pytest.raises(ValueError, match=said):
        Private(**{"noise": 1.0, **options})


def test_a_private_submodel_without_noise_to_speak_of_is_the_plain_one():
    """Masks from what each client has measured itself, in the first round from |x_0|; divided by all clients."""
    task = tiny.small()
    plain = run(APART, task, rounds=3)
    private = run(Private(algorithm=APART, clip=100.0, noise=1e-9), task, rounds=3)
    assert private.failures == []
    for name, value in plain.model.items():
        torch.testing.assert_close(private.model[name], value, atol=1e-5, rtol=0)
    assert private.metrics[-1]["local/loss"] == pytest.approx(plain.metrics[-1]["local/loss"], abs=1e-4)
    assert not any(k.startswith(("train/", "masks/", "levels/")) for k in private.metrics[-1])
    own = private.state.inner.averages
    assert sorted(own.rows) == sorted(task.data.clients)
    assert torch.equal(own.shared, torch.full_like(own.shared, -1))  # nobody measured for others


def test_noise_is_on_entries_that_nobody_held():
    """z C = 6 on the sum of six is 1 on the mean; of 83 selectable entries about 62 are held by nobody."""
    task, inner = tiny.small(), replace(APART, capacities={0.25: 1.0})
    first = inner.init(task, keyed_generator(0, "server", "init")).model
    held = best(first.layout, first.pool.abs(), 0.25, scope="global", floor=inner.floor, ties=first.pool.abs())
    model = run(Private(algorithm=inner, clip=2.0, noise=3.0), task, rounds=1).state.inner.model
    moved = (model.pool - first.pool)[~held]
    assert len(moved) > 50
    assert bool((moved != 0).all())
    assert moved.std().item() == pytest.approx(1.0, rel=0.33)


def test_a_private_submodel_clips_dense_updates_and_counts_epsilon():
    task = tiny.small()
    private = Private(algorithm=replace(APART, clients_per_round=3), clip=1e-3, noise=1.5)
    quiet = replace(private, noise=1e-6)
    first = APART.init(task, keyed_generator(0, "server", "init")).model.vector
    moved = run(quiet, task, rounds=1).state.inner.model.vector - first
    assert 0 < moved.norm().item() <= 1e-3 + 1e-6
    result = run(private, task, rounds=2)
    assert [line["privacy/epsilon"] for line in result.metrics] == [
        epsilon(1.5, rounds, 1e-5, Sampling(6, 6)) for rounds in (1, 2)
    ]


@pytest.mark.parametrize(
    ("inner", "drawn"),
    [(UNIFORM, 3), (FedProx(weights="uniform"), 3), (FedPer(weights="uniform"), 6), (Mine(weights="uniform"), 6)],
    ids=lambda value: type(value).__name__,
)
def test_being_drawn_seldom_counts_only_where_nothing_of_a_client_is_kept(inner, drawn):
    """FedPer's heads depend on when a client was drawn; of a method of one's own it is not known."""
    private = Private(algorithm=inner, noise=1.5, clients_per_round=3)
    spent = private.spent(private.init(tiny.small(), keyed_generator(0, "server", "init")), 2)["privacy/epsilon"]
    assert spent == epsilon(1.5, 2, 1e-5, Sampling(6, drawn))


def test_a_private_submodel_says_nothing_of_its_losses(tmp_path):
    run(Private(algorithm=APART, noise=1.0), tiny.small(), rounds=1, out=tmp_path / "run")
    replied = [e for e in read_lines(tmp_path / "run/events.jsonl") if e["event"] == "replied"]
    assert [e["metrics"] for e in replied] == [{"loss": 0.0, "examples": 1}] * 6


@pytest.mark.parametrize("inner", [UNIFORM, APART], ids=lambda m: type(m).__name__)
def test_an_update_that_is_no_number_counts_as_zero(inner, monkeypatch):
    """c1 sends NaN: it is no failure, and the mean is over six, of which one is zero."""
    plain = type(inner).client_update

    def broken(self, packet, client):
        reply = plain(self, packet, client)
        if client.id != "c1":
            return reply
        return replace(reply, tensors={n: torch.full_like(t, wrong) for n, t in reply.tensors.items()})

    monkeypatch.setattr(type(inner), "client_update", broken)
    models = []
    for value in (float("nan"), 0.0):
        wrong = value
        result = run(Private(algorithm=inner, noise=1e-6, clip=1.0), tiny.small(), rounds=1)
        assert result.failures == []
        models.append(result.model)
    assert all(torch.equal(models[0][n], models[1][n]) for n in models[0])


def test_who_takes_part_is_what_the_method_says():
    """FedFIbOS' own default is a tenth; what a wrapper says goes before a default, but not before another number."""
    inner = replace(APART, participation=0.1)
    assert Private(algorithm=inner, noise=1.0).participation == 0.1
    assert Private(algorithm=replace(UNIFORM, clients_per_round=3), noise=1.0).clients_per_round == 3
    assert Private(algorithm=inner, noise=1.0, participation=0.5).participation == 0.5
    assert Encrypted(algorithm=FedFIbOS()).participation == 0.1
    local = Private(algorithm=FedAvg(weights="uniform", participation=0.5), **LOCAL)
    assert Encrypted(algorithm=local).participation == 0.5
    assert Encrypted(algorithm=FedPer(), clients_per_round=4).clients_per_round == 4
    said = r"participation = 0.5, but the FedAvg that is encrypted has clients_per_round = 3 \(nearest valid: clients"
    with pytest.raises(InputError, match=said):
        Encrypted(algorithm=FedAvg(clients_per_round=3), participation=0.5)


def test_a_wrapper_around_a_wrapper_takes_the_sizes_of_the_innermost():
    inner = Private(algorithm=FedAvg(weights="uniform", clients_per_round=3), **LOCAL)
    result = run(Encrypted(algorithm=inner, encryption={"enabled": False}), tiny.small(), rounds=2)
    assert result.failures == []
    assert result.state.contributors == 3


def test_statistics_of_the_data_are_refused():
    with pytest.raises(InputError, match=r"running_mean.* is a statistic of the data"):
        run(Private(algorithm=APART, noise=1.0), tiny.small(model=tiny.with_buffers), rounds=1)
    with pytest.raises(InputError, match=r"running_mean.* is a statistic of the data"):
        run(Private(algorithm=UNIFORM, noise=1.0), tiny.small(model=tiny.with_buffers), rounds=1)
