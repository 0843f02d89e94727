"""Encrypted averaging: the same model as without, whoever decrypts it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests import tiny

from fedfi.averaging.fedavg import FedAvg
from fedfi.averaging.fedprox import FedProx
from fedfi.crypto.layout import PacketLayout
from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError
from fedfi.federation.client import Client, Memory
from fedfi.federation.run import run
from fedfi.federation.workbench import Benches
from fedfi.numerics.fisher import diagonal_fisher
from fedfi.numerics.selection import unpack_bits
from fedfi.personal.ditto import Ditto
from fedfi.personal.encrypted import Encrypted
from fedfi.personal.encryption import Encryption, Exchange
from fedfi.personal.fedmlhe import FedMLHE
from fedfi.personal.fedper import FedPer
from fedfi.personal.hefedavg import HEFedAvg
from fedfi.personal.maskcrypt import MaskCrypt
from fedfi.personal.private import Private
from fedfi.personal.tally import raw
from fedfi.submodel.heterofl import HeteroFL

CLEAR, SECRET = {"enabled": False, "packet_size": 8}, {"packet_size": 8}
ROUNDS = 3


def replicas(method, task, rounds=ROUNDS, **options):
    """Each client's idea of the global model after a run."""
    engine = LocalEngine(method, task)
    result = run(method, task, rounds=rounds, engine=engine, **options)
    models = {}
    for client in task.data.clients:
        ((_, packet),) = method.configure_evaluation(result.state, [client], None)
        memory = Memory(engine._table.row(client))
        benches = Benches(task, 0)
        who = Client(client, task.data.clients[client], memory, task, benches, round=rounds, seed=0)
        _, _, state = method._state(packet, who)
        models[client] = getattr(state, "inner", state).model
    return result, models


def near(a, b, most: float) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n].double(), b[n].double(), atol=most, rtol=0) for n in a)


@pytest.mark.parametrize(
    "encryption", [CLEAR, SECRET, {**SECRET, "parameters": "ckks-4096"}], ids=["plain", "bfv", "ckks"]
)
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_he_fedavg_is_fedavg_within_the_bound(encryption, weights):
    """Six clients of 6 to 11 examples of at most 16; weights sum to 51/16. The error of a mean is below 1e-5."""
    if encryption is not CLEAR:
        pytest.importorskip("tenseal")
    task = tiny.small()
    method = HEFedAvg(weights=weights, most_examples=16, encryption=encryption)
    result, models = replicas(method, task)
    plain = run(FedAvg(weights=weights), task, rounds=ROUNDS)
    assert result.failures == []
    bound = ROUNDS * method.exchange_of(result.state).fixed.error(6, 51 / 16) * 10  # errors of a round grow in the next
    assert bound < 1e-4
    assert all(near(m, plain.model, bound) for m in models.values())
    assert result.metrics[-1]["local/loss"] == pytest.approx(plain.metrics[-1]["local/loss"], abs=1e-4)
    assert not any(k.startswith("global/") for k in result.metrics[-1])


def test_encrypted_and_plain_runs_agree_to_the_bit():
    pytest.importorskip("tenseal")
    method = HEFedAvg(encryption=CLEAR)
    (_, plain), (_, hidden) = (
        replicas(m, tiny.small()) for m in (method, dataclasses.replace(method, encryption=SECRET))
    )
    assert all(torch.equal(plain[c][n], hidden[c][n]) for c in plain for n in plain[c])


@pytest.mark.parametrize("method", [FedMLHE, MaskCrypt])
def test_what_is_encrypted_makes_no_difference_to_the_mean(method):
    task = tiny.small()
    result, models = replicas(method(protected=0.3, encryption=CLEAR), task)
    _, full = replicas(HEFedAvg(encryption=CLEAR), task)
    assert result.failures == []
    assert all(torch.equal(models[c][n], full[c][n]) for c in models for n in models[c])
    # 56 + 16 + 27 parameters and the loss are 100 values, 13 packets of 8; .3 of them are 4
    assert int(unpack_bits(raw(result.state.protected), 13).sum()) == 4


def test_fedml_he_agrees_once_and_maskcrypt_each_round(monkeypatch):
    for method, times in ((FedMLHE, 1), (MaskCrypt, ROUNDS)):
        asked = []
        plain = method.client_negotiate
        monkeypatch.setattr(
            method,
            "client_negotiate",
            lambda self, p, c, plain=plain, asked=asked: (asked.append(c.round), plain(self, p, c))[1],
        )
        run(method(encryption=CLEAR), tiny.small(), rounds=ROUNDS)
        assert len(set(asked)) == times


@pytest.mark.parametrize("inner", [FedProx(proximal=0.1), FedPer(), Ditto()], ids=lambda a: type(a).__name__)
def test_any_linear_method_can_be_encrypted(inner):
    task = tiny.small()
    result, models = replicas(Encrypted(algorithm=inner, encryption=CLEAR, most_examples=16), task)
    plain = run(inner, task, rounds=ROUNDS)
    assert result.failures == []
    assert all(near(m, plain.model, 1e-4) for m in models.values())
    assert result.metrics[-1]["local/loss"] == pytest.approx(plain.metrics[-1]["local/loss"], abs=1e-3)


def test_a_method_that_is_not_linear_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="HeteroFL cannot be encrypted: its new model is not a weighted mean"):
        Encrypted(algorithm=HeteroFL())
    with pytest.raises(ValueError, match="is a str, expected a method"):
        Encrypted(algorithm="fedavg")


def test_batch_statistics_and_counters_come_along():
    task = tiny.small(model=tiny.with_buffers)
    _, models = replicas(HEFedAvg(encryption=CLEAR, most_examples=16), task)
    plain = run(FedAvg(), task, rounds=ROUNDS).model
    for model in models.values():
        assert near(model, plain, 1e-4)
        assert torch.equal(model["1.num_batches_tracked"], plain["1.num_batches_tracked"])


def test_values_beyond_the_clip_are_refused_and_not_cut():
    with pytest.raises(RuntimeError, match=r"clip = 0.01: a value is beyond it and would be cut"):
        run(HEFedAvg(encryption={"enabled": False, "clip": 0.01}), tiny.small(), rounds=1)


def test_fewer_than_three_are_refused():
    with pytest.raises(InputError, match="nearest valid: 3"):
        run(HEFedAvg(encryption=CLEAR), tiny.by_hand(), rounds=1)


def test_dropouts_move_on_and_too_many_leave_the_model(monkeypatch):
    plain = HEFedAvg.client_update

    def broken(self, packet, client):
        if client.id in gone:
            raise OSError("gone")
        return plain(self, packet, client)

    monkeypatch.setattr(HEFedAvg, "client_update", broken)
    gone = {"c1"}
    result, models = replicas(HEFedAvg(encryption=CLEAR), tiny.small())
    assert len(result.failures) == ROUNDS
    assert torch.equal(models["c1"]["0.weight"], models["c0"]["0.weight"])
    gone = {"c0", "c1", "c2", "c3"}
    result, models = replicas(HEFedAvg(encryption=CLEAR), tiny.small())
    assert result.state.number == 0


def test_as_many_sums_are_kept_as_somebody_needs():
    """Three of twelve a round: somebody is away for more than ten of sixteen; with all in it the last one is enough."""
    method = HEFedAvg(clients_per_round=3, encryption=CLEAR)
    result = run(method, tiny.small(clients=12), rounds=16)
    assert result.failures == []
    assert result.state.number == 16
    assert len(result.state.releases) == 16 - min(result.state.synced.values()) > 10
    assert len(result.state.keys) == len(result.state.releases)
    result = run(HEFedAvg(encryption=CLEAR), tiny.small(), rounds=4)
    assert len(result.state.releases) == 1  # the last, which nobody has got yet


def test_a_history_that_will_not_do_is_said():
    """100 clients, a tenth a round, 1000 rounds: ln(100,000) / -ln(.9) = 109.3."""
    clients = [f"c{i}" for i in range(100)]
    (note,) = HEFedAvg(participation=0.1, history=10).notes_on_clients(clients)
    assert note.startswith("history = 10: with 0.1 of 100 clients a round some are away for up to about 110 rounds")
    assert "(nearest that is enough: 110; " in note
    for options in ({"participation": 0.1}, {"participation": 0.1, "history": 110}, {"history": 1}):
        assert HEFedAvg(**options).notes_on_clients(clients) == []


def test_a_client_that_missed_too_much_says_so():
    result = run(HEFedAvg(clients_per_round=3, history=1, encryption=CLEAR), tiny.small(), rounds=4)
    assert any("missed release" in f.error and "raise `history`" in f.error for f in result.failures)


def test_fedml_he_agrees_on_the_sensitivity_of_the_first_model():
    """Votes by hand: exact Fisher information at the initialisation, summed over packets, the best four of each."""
    task = tiny.small()
    method = FedMLHE(protected=0.3, encryption=CLEAR)
    result = run(method, task, rounds=1)
    bench = Benches(task, 0).whole
    bench.load(result.state.inner.model)
    bench.module.eval()
    votes = torch.zeros(13)
    for client in task.data.clients.values():
        batch = client.train.batch(torch.arange(len(client.train)))
        fisher = bench.layout.join(diagonal_fisher(bench.module, [batch], task.loss, kind="exact")).double()
        packets = torch.cat([fisher, torch.zeros(13 * 8 - 99)]).view(13, 8).sum(1)
        votes[packets.argsort(descending=True)[:4]] += 1
    chosen = unpack_bits(raw(result.state.protected), 13)
    assert int(chosen.sum()) == 4
    assert votes[chosen].min() >= votes[~chosen].max()


def test_statistics_of_norm_layers_want_no_protection_of_maskcrypt():
    task = tiny.small(model=tiny.with_buffers)
    who = Client("c0", task.data.clients["c0"], Memory(), task, Benches(task, 0), round=0, seed=0)
    urgency = MaskCrypt().urgency(who, torch.full((99 + 16,), 2.0))  # and mean and variance of eight channels
    assert urgency.tolist() == [4.0] * 99 + [0.0] * 16


def test_a_private_method_stays_uniform_and_counts_its_budget_under_encryption():
    """Clients of 6 to 11 examples; with next to no noise the mean is the plain one."""
    pytest.importorskip("dp_accounting", reason="the extra 'dp' is not installed")
    from fedfi.privacy.accounting import Sampling, epsilon

    task = tiny.small()
    inner = Private(algorithm=FedAvg(weights="uniform"), where="client", clip=100.0, noise=1e-8)
    result, models = replicas(Encrypted(algorithm=inner, encryption=CLEAR), task)
    plain = run(FedAvg(weights="uniform"), task, rounds=ROUNDS).model
    assert result.failures == []
    assert all(near(m, plain, 1e-4) for m in models.values())
    inner = dataclasses.replace(inner, clip=0.1, noise=5.0)
    result = run(Encrypted(algorithm=inner, encryption=CLEAR, clients_per_round=3), task, rounds=2)
    spent = [line["privacy/epsilon"] for line in result.metrics]
    assert spent == [epsilon(5.0, rounds, 1e-5, Sampling(6, 6)) for rounds in (1, 2)]


def test_noise_of_a_server_that_cannot_read_is_refused():
    inner = Private(algorithm=FedAvg(weights="uniform"), noise=1.0)
    with pytest.raises(ValueError, match=r"where = 'server' cannot be encrypted: .*nearest valid: where = 'client'"):
        Encrypted(algorithm=inner)


def test_more_clients_than_a_sum_holds_are_refused_before_anything_is_encrypted():
    layout = PacketLayout(("w",), ((8,),), 8)
    with pytest.raises(InputError, match=r"1025 clients a round: .*nearest valid: 1024"):
        Exchange(Encryption(), layout, 1025, "0" * 16)
    Exchange(Encryption(), layout, 1024, "0" * 16)
    Exchange(Encryption(enabled=False), layout, 1025, "0" * 16)
