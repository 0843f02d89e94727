"""Encrypted methods of which not every reply is summed, and none in every round: recommenders and submodels."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from tests import tiny
from tests.recsys import small

from fedfi.crypto.message import decode as decode_message
from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError
from fedfi.experiment import from_dict
from fedfi.federation.client import Client, Memory
from fedfi.federation.packet import decode
from fedfi.federation.run import run
from fedfi.federation.workbench import Benches
from fedfi.numerics.selection import unpack_bits
from fedfi.personal.encrypted import Encrypted
from fedfi.personal.encryption import Exchange
from fedfi.personal.private import Private
from fedfi.personal.sealing import Sealer
from fedfi.recsys.colr import CoLR
from fedfi.recsys.fedcia import FedCIA
from fedfi.recsys.feddae import FedDAE
from fedfi.recsys.fedmf import FedMF
from fedfi.recsys.fedncf import FedNCF
from fedfi.recsys.fedrap import FedRAP
from fedfi.recsys.fedrkg import FedRKG
from fedfi.recsys.gpfedrec import GPFedRec
from fedfi.recsys.pfedrec import PFedRec
from fedfi.submodel.fedfibos import FedFIbOS
from fedfi.submodel.fedlagc import FedLAGC
from fedfi.submodel.fiarse import FIARSE
from fedfi.submodel.heterofl import HeteroFL
from fedfi.submodel.importance import divided, undivided
from fedfi.submodel.magnitude import Magnitude

CLEAR, SECRET = {"enabled": False, "packet_size": 8, "clip": 32}, {"packet_size": 60, "clip": 32}
MIX = {1.0: 0.25, 0.5: 0.25, 0.25: 0.5}
TABLE = 30 * 4 * 4  # bytes of a user's item table


def around(inner, encryption=CLEAR, **options):
    """The method, encrypted, with its own participation."""
    sizes = {"participation": inner.participation, "clients_per_round": inner.clients_per_round}
    return Encrypted(algorithm=inner, encryption=encryption, **sizes, **options)


def remembered(method, task, rounds, **options):
    """A run, client after client, and what clients remember after it."""
    engine = LocalEngine(method, task, cohorts=0)
    return run(method, task, rounds=rounds, engine=engine, **options), engine.memory()


def ranked(result):
    return [{k: v for k, v in line.items() if k.startswith(("ranking/", "validation/"))} for line in result.metrics]


RECOMMENDERS = [
    FedRKG(interval=2),
    FedRKG(interval=2, clients_per_round=4, warmup=1),
    FedRKG(interval=2, clip=1.0, noise=0.5),
    PFedRec(clients_per_round=4),
    FedMF(),
    FedNCF(),
    FedRAP(),
    FedDAE(),
    FedCIA(interval=2),
]


@pytest.mark.parametrize("inner", RECOMMENDERS, ids=lambda m: f"{type(m).__name__}-{m.clients_per_round}")
def test_a_recommender_does_the_same_under_encryption(inner):
    """Tables, heads and gates of every client, guided by the decrypted mean; five rounds, two of them with guidance."""
    plain, plainly = remembered(inner, small.task(), 5)
    hidden, secretly = remembered(around(inner), small.task(), 5)
    assert plain.failures == hidden.failures == []
    for name, column in plainly["columns"].items():
        assert torch.equal(plainly["present"][name], secretly["present"][name])
        # six values within 32 leave 23 binary digits: an error of a mean below 2e-6, which rounds carry on
        torch.testing.assert_close(secretly["columns"][name], column, atol=1e-5, rtol=0)
    assert ranked(plain)
    assert ranked(hidden) == [pytest.approx(line, abs=1e-6) for line in ranked(plain)]


def test_gates_are_trained_and_tables_guided_under_encryption():
    _, never = remembered(around(FedRKG(interval=None)), small.task(), 3)
    _, guided = remembered(around(FedRKG(interval=2)), small.task(), 3)
    assert "gate" not in never["columns"]
    assert bool(guided["present"]["gate"].all())
    assert not torch.equal(never["columns"]["items"], guided["columns"]["items"])


def test_ciphertexts_do_what_whole_numbers_do():
    pytest.importorskip("tenseal")
    inner = FedRKG(interval=2, clients_per_round=4)
    _, clear = remembered(around(inner, {**SECRET, "enabled": False}), small.task(), 3)
    _, secret = remembered(around(inner, SECRET), small.task(), 3)
    assert all(torch.equal(clear["columns"][n], secret["columns"][n]) for n in ("items", "head/user", "gate"))


def test_rounds_without_exchange_send_nothing(monkeypatch):
    """Six clients: tables go up in rounds 2 and 4, their sum comes down in rounds 3 and 5; else requests alone."""
    replies = []
    plain = Encrypted.client_update

    def watched(self, packet, client):
        replies.append((client.round, plain(self, packet, client)))
        return replies[-1][1]

    monkeypatch.setattr(Encrypted, "client_update", watched)
    result = run(around(FedRKG(interval=2)), small.task(), rounds=5)
    assert [any(p.blobs for r, p in replies if r == round) for round in range(5)] == [False, True, False, True, False]
    assert all(p.tensors == {} and p.scalars == {} for _, p in replies)
    assert [line["bytes/up"] > 6 * TABLE for line in result.metrics] == [False, True, False, True, False]
    assert [line["bytes/down"] > 6 * TABLE for line in result.metrics] == [False, False, True, False, True]
    assert result.state.number == 2


def test_the_server_gets_no_number_of_a_table(monkeypatch):
    """No four bytes of what arrives at the server, or leaves it, are a row of a table, in floats or whole numbers."""
    pytest.importorskip("tenseal")
    sent, tables = [], []
    plain = Encrypted.client_update

    def watched(self, packet, client):
        reply = plain(self, packet, client)
        sent.extend([packet.encode(), reply.encode()])
        tables.append(client.memory["items"])
        return reply

    monkeypatch.setattr(Encrypted, "client_update", watched)
    method = around(FedRKG(interval=1), SECRET)
    result = run(method, small.task(), rounds=2)
    assert result.failures == []
    wire, fixed = b"".join(sent), method.exchange_of(result.state).fixed
    for table in tables:
        for row in table:
            assert row.numpy().tobytes() not in wire
            assert fixed.encode(row).to(torch.int32).numpy().tobytes() not in wire
    assert all(not decode(part).tensors for part in sent)


def test_a_private_recommender_perturbs_before_encryption_and_counts_its_budget():
    """Two releases of sigma = .5 in four rounds, whoever took part; a client's sum differs by noise from that without.

    The server's epsilon is that of the plain run with everybody in it.
    """
    inner = FedRKG(interval=2, clip=1.0, noise=0.5)
    plain, _ = remembered(inner, small.task(), 4)
    hidden, noisy = remembered(around(inner), small.task(), 4)
    spent = [line["privacy/epsilon"] for line in hidden.metrics]
    assert [line["privacy/releases"] for line in hidden.metrics] == [0, 1, 1, 2]
    assert spent[1] == spent[2] == plain.metrics[1]["privacy/epsilon"]
    assert spent[3] == plain.metrics[3]["privacy/epsilon"]
    _, silent = remembered(around(dataclasses.replace(inner, noise=0.0)), small.task(), 4)
    assert (noisy["columns"]["items"] - silent["columns"]["items"]).abs().max() > 0.05


def test_a_user_that_was_away_follows():
    """Three of six a round: who comes back is guided by the newest mean, as in the plain run."""
    inner = PFedRec(clients_per_round=3)
    result, _ = remembered(around(inner), small.task(), 6)
    assert result.failures == []
    result, _ = remembered(around(inner, history=1), small.task(), 6)
    assert any("raise `history`" in f.error for f in result.failures)


HALF = {"clients_per_round": 4, "capacities": MIX}
SUBMODELS = {
    "shared": FedFIbOS(**HALF),
    "all": FedFIbOS(participation=1.0, capacities=MIX),
    "dynamic": FedFIbOS(**HALF, level_mode="dynamic"),
    "plain": FedFIbOS(**HALF, aggregation="plain", first_mask="magnitude"),
    "as-published": FedFIbOS.preset("as-published", **HALF),
    "all-round": FedFIbOS.preset("all-round", **HALF),
    "global": FedFIbOS(**HALF, fisher="global", score="fisher2x2"),
    "blend": FedFIbOS(**HALF, blend=0.5, warm_start="rescale", fisher_bits=8),
    "fiarse": FIARSE(**HALF),
    "magnitude": Magnitude(**HALF),
    "fedlagc": FedLAGC(**HALF, keep_edges=False),
}


def trained(method, inner, monkeypatch, rounds=4):
    """A run, its clients' replicas (or the server's state), and what every client was given to train."""
    given, plain = {}, type(inner).client_update

    def watched(self, packet, client):
        given[client.round, client.id] = packet.clone()
        return plain(self, packet, client)

    task = tiny.small()
    engine = LocalEngine(method, task)
    with monkeypatch.context() as patch:
        patch.setattr(type(inner), "client_update", watched)
        result = run(method, task, rounds=rounds, engine=engine)
    assert result.failures == []
    states = replicas(method, task, engine, result) if isinstance(method, Encrypted) else []
    return result, states, given


def replicas(method, task, engine, result):
    """Each client with its replica of the inner method's state after a run."""
    states, rounds = [], len(result.metrics)
    for client, packet in method.configure_evaluation(result.state, list(task.data.clients), None):
        memory = Memory(engine._table.row(client))
        who = Client(client, task.data.clients[client], memory, task, Benches(task, 0), round=rounds, seed=0)
        states.append((client, method._state(packet, who)[2]))
    return states


@pytest.mark.parametrize("inner", SUBMODELS.values(), ids=SUBMODELS)
def test_a_submodel_does_the_same_under_encryption(inner, monkeypatch):
    """Every client holds the same entries at the same level as in the plain run, and ends with the same model."""
    plain, _, given = trained(inner, inner, monkeypatch)
    hidden, states, secretly = trained(around(inner), inner, monkeypatch)
    assert given.keys() == secretly.keys()
    for who, packet in given.items():
        assert packet.blobs == secretly[who].blobs
        assert packet.scalars == secretly[who].scalars
        torch.testing.assert_close(secretly[who].tensors["kept"], packet.tensors["kept"], atol=1e-5, rtol=0)
    for _, state in states:
        for name, value in plain.state.model.tree().items():
            # six numbers within 32 leave 23 binary digits, so that a mean over holders is off by 2^-24 at most
            torch.testing.assert_close(state.model.tree()[name], value, atol=1e-5, rtol=0)
    assert hidden.metrics[-1]["local/loss"] == pytest.approx(plain.metrics[-1]["local/loss"], abs=1e-4)
    assert not any(k.startswith(("global/", "levels/")) for k in hidden.metrics[-1])


def test_what_members_learn_of_submodels_is_said_at_the_start():
    clients = [str(i) for i in range(10)]
    said = Encrypted(algorithm=FedFIbOS(), participation=0.5).notes_on_clients(clients)
    assert any("fewer than 3 clients of a round hold" in note for note in said)
    assert not Encrypted(algorithm=FedMF(), participation=0.5).notes_on_clients(clients)


def test_a_mean_over_holders_is_off_by_rounding_alone(monkeypatch):
    """One round from the same model: an update is off by half of 2^-f, and by float32's own rounding of the model."""
    inner = FedFIbOS(participation=1.0, capacities=MIX)
    plain, _, _ = trained(inner, inner, monkeypatch, rounds=1)
    hidden, states, _ = trained(around(inner), inner, monkeypatch, rounds=1)
    bits = around(inner).exchange_of(hidden.state).fixed.bits
    vector = plain.state.model.vector
    assert all(((s.model.vector - vector).abs() <= 2.0**-bits / 2 + 2e-7 * (1 + vector.abs())).all() for _, s in states)


def test_what_nobody_holds_stays_to_the_bit_under_encryption(monkeypatch):
    inner = FedFIbOS(participation=1.0, capacities={0.25: 1.0})
    hidden, states, given = trained(around(inner), inner, monkeypatch, rounds=3)
    first = hidden.state.inner.model
    held = torch.stack([unpack_bits(p.blobs["mask"], first.layout.pool) for p in given.values()]).any(0)
    assert 0 < int(held.sum()) < len(held)
    for _, state in states:
        assert torch.equal(state.model.pool[~held], first.pool[~held])
        assert (state.model.pool[held] != first.pool[held]).any()


@pytest.mark.parametrize("forged", ["damaged", "missing"])
def test_who_sends_a_payload_that_cannot_be_read_is_in_no_sum(forged, monkeypatch):
    """Update, mask and Fisher digits lie in nine ciphertexts; the means are those without c1, whose last is no good."""
    if forged == "damaged":
        pytest.importorskip("tenseal")
    monkeypatch.setattr(Exchange, "per_ciphertext", lambda self: 1)
    task, plain = tiny.small(), Sealer.message
    method = around(SUBMODELS["all"], SECRET if forged == "damaged" else {**SECRET, "enabled": False})

    def broken(self, terms, *arguments, **options):
        content = plain(self, terms, *arguments, **options)
        if self.client.id != "c1":
            return content
        if self.client.id in gone:
            raise OSError("gone")
        said = decode_message(content, terms, sender="c1", round=self.client.round, phase=0, verify=None)
        payloads = said.payloads[:-1] + [bytes(terms.payload_bytes)] * (forged == "damaged")
        return self.signed(dataclasses.replace(said, indices=range(len(payloads)), payloads=payloads), terms)

    monkeypatch.setattr(Sealer, "message", broken)
    gone = {"c1"}
    engine = LocalEngine(method, task)
    without = dict(replicas(method, task, engine, run(method, task, rounds=2, engine=engine)))
    gone = set()
    engine = LocalEngine(method, task)
    result = run(method, task, rounds=2, engine=engine)
    assert result.state.number == 2
    assert result.failures == []
    for client, state in replicas(method, task, engine, result):
        if client != "c1":
            assert torch.equal(state.model.vector, without[client].model.vector)
            assert torch.equal(state.averages.shared, without[client].averages.shared)


def test_ciphertexts_of_submodels_do_what_whole_numbers_do(monkeypatch):
    pytest.importorskip("tenseal")
    inner = SUBMODELS["all-round"]
    _, clear, _ = trained(around(inner, {**SECRET, "enabled": False}), inner, monkeypatch, rounds=2)
    _, secret, _ = trained(around(inner, SECRET), inner, monkeypatch, rounds=2)
    for (_, a), (_, b) in zip(clear, secret, strict=True):
        assert torch.equal(a.model.vector, b.model.vector)
        assert torch.equal(a.averages.shared, b.averages.shared)


def test_only_a_client_has_its_own_average_of_fisher_information(monkeypatch):
    inner = FedFIbOS(participation=1.0, capacities=MIX)
    plain, _, _ = trained(inner, inner, monkeypatch)
    hidden, states, _ = trained(around(inner), inner, monkeypatch)
    assert len(hidden.state.inner.averages.rows) == 0
    for client, state in states:
        assert list(state.averages.rows) == [client]
        assert state.levels == {client: plain.state.levels[client]}
        torch.testing.assert_close(state.averages.own(client), plain.state.averages.own(client), atol=1e-5, rtol=2**-7)
        torch.testing.assert_close(state.averages.common(), plain.state.averages.common(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, True),
        ({"first_mask": "magnitude"}, False),
        ({"first_mask": "magnitude", "blend": 0.5}, True),
        ({"first_mask": "magnitude", "fisher": "global"}, True),
        ({"score": "magnitude"}, False),
    ],
)
def test_fisher_values_travel_only_where_masks_need_those_of_others(options, shares):
    inner = FedFIbOS(**options)
    layout = inner.summand_layout(inner.init(tiny.small(), torch.Generator().manual_seed(0)))
    assert any("fisher" in name for name in layout.tensors) == shares


def test_a_fixed_point_too_coarse_for_fisher_values_is_refused():
    """Six values within 8192 leave 15 binary digits; a digit of Fisher values has 16."""
    with pytest.raises(
        InputError, match=r"15 binary digits .* needs 16 \(nearest valid: clip = 4096, or fewer clients"
    ):
        run(around(SUBMODELS["all"], {**CLEAR, "clip": 8192}), tiny.small(), rounds=1)
    with pytest.raises(InputError, match=r"12 binary digits .* needs 16 \(nearest valid: fraction_bits = 16\)"):
        run(around(SUBMODELS["all"], {**CLEAR, "fraction_bits": 12}), tiny.small(), rounds=1)
    run(around(SUBMODELS["plain"], {**CLEAR, "fraction_bits": 12}), tiny.small(), rounds=1)


@pytest.mark.parametrize("name", ["plain", "fiarse"])
def test_a_clip_below_the_ones_of_a_mask_is_refused_before_the_first_round(name):
    said = r"encryption.clip = 0.5: every client of F\w+ sends values of 1, .* \(nearest valid: 1\)"
    with pytest.raises(InputError, match=said):
        run(around(SUBMODELS[name], {**CLEAR, "clip": 0.5}), tiny.small(), rounds=1)
    around(FedRKG(), {**CLEAR, "clip": 0.5}).init(small.task(), torch.Generator().manual_seed(0))


def test_digits_of_fisher_values_tell_them_over_ten_decades():
    """Means of digits that were rounded to multiples of 2^-20, as a fixed point rounds them."""
    values = torch.tensor([[0.0, 1e-11, 3e-7, 0.02, 1.5, 856.0], [1e-10, 5e-11, 1e-6, 0.0, 2.5, 20000.0]])
    digits = [torch.stack(parts) for parts in zip(*(divided(v) for v in values), strict=True)]
    assert max(float(d.abs().max()) for d in digits) <= 8
    rounded = [(d.double() * 2**20).round() / 2**20 for d in digits]
    torch.testing.assert_close(undivided([d.mean(0) for d in rounded]), values.mean(0), atol=1e-12, rtol=1e-6)


def test_no_fisher_value_is_below_zero_after_rounding():
    """Of 2^-40 the third digit is 2^-20; the second, 0, counts 2^-4, so that -2^-24 of it outweigh the value.

    Below zero an average would count as never observed.
    """
    digits = divided(torch.tensor([2.0**-40]))
    assert undivided([digits[0], digits[1] - 2.0**-24, digits[2]]).tolist() == [0.0]


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (HeteroFL(), "HeteroFL cannot be encrypted: its new model is not a weighted mean"),
        (GPFedRec(), "GPFedRec cannot be encrypted: its server compares the clients' tables"),
        (CoLR(), "CoLR cannot be encrypted: its server draws each round's subspace"),
    ],
)
def test_what_needs_more_than_a_mean_is_refused(inner, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Encrypted(algorithm=inner)


def test_private_points_to_the_options_of_recommenders():
    with pytest.raises(ValueError, match=r"FedRKG cannot be made private: .*nearest valid: its own options clip and"):
        Private(algorithm=FedRKG(), noise=1.0)
    for inner in (FedMF(), FedRAP(), FedCIA()):
        with pytest.raises(
            ValueError, match=r"cannot be made private: .*tables and not updates.*nearest valid: fedrkg"
        ):
            Private(algorithm=inner, noise=1.0)


def test_data_and_method_must_fit_through_the_wrapper():
    table = {"name": "fedrkg", "encrypted": {"encryption": {"enabled": False}}}
    with pytest.raises(ValueError, match="learns from ratings, but"):
        from_dict(
            {
                "rounds": 1,
                "data": {"name": "breast_cancer", "clients": 6},
                "model": {"name": "mlp"},
                "algorithm": table,
            }
        ).task()
