"""FedFIHE: what is shared, who may be added up, and what becomes of those that fail, lie, or stay away."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import torch
from tests import tiny

from fedfi.averaging.fedavg import FedAvg
from fedfi.crypto import keys
from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError
from fedfi.federation.client import Client, Memory
from fedfi.federation.packet import Packet
from fedfi.federation.run import run
from fedfi.federation.task import Task, Training
from fedfi.federation.workbench import Benches, Workbench
from fedfi.personal.fedfihe import FedFIHE
from fedfi.personal.fedmlhe import FedMLHE
from fedfi.personal.hefedavg import HEFedAvg
from fedfi.personal.sealing import Sealer
from fedfi.personal.tally import Release

CLEAR = {"enabled": False, "packet_size": 8}
SECRET = {"packet_size": 8}
ALL = {"sharing": 1.0, "quorum": 0.0, "take": "all", "weights": "uniform"}
TRAFFIC = {"seconds", "bytes/up", "bytes/down"}


def decisions(result):
    return [{k: v for k, v in line.items() if k not in TRAFFIC} for line in result.metrics]


def personal(method, task: Task, state, client: str, memory) -> torch.Tensor:
    """The model that a client would judge, as a vector."""
    benches = Benches(task, 0)
    bench = benches.whole
    ((_, packet),) = method.configure_evaluation(state, [client], None)
    who = Client(client, task.data.clients[client], Memory(memory), task, benches, round=99, seed=0)
    method.client_evaluate(packet, who)
    return bench.vector.detach().clone()


def everyone(method, task, rounds=1, **options):
    engine = LocalEngine(method, task)
    result = run(method, task, rounds=rounds, engine=engine, **options)
    models = {c: personal(method, task, result.state, c, engine._table.row(c)) for c in task.data.clients}
    return result, models


def three(targets=(0, 1, 0)) -> Task:
    """Three clients with x = 1, 2, 1 of classes 0, 1, 0: after a step from 0 they stand at 1/2, -1 and 1/2."""
    inputs = torch.tensor([[1.0], [2.0], [1.0], [1.0], [2.0], [1.0]])
    data = tiny.federation(inputs, torch.tensor([*targets, *targets]), [[0], [1], [2]], [[3], [4], [5]])
    return Task(lambda: tiny.Zeros(1, 2), data, Training(learning_rate=1.0, batch_size=1, steps=1))


def test_first_round_by_hand():
    """All share all: the mean of (1/2, -1/2), (-1, 1), (1/2, -1/2) is (0, 0), which all take over."""
    method = FedFIHE(**ALL, encryption={"enabled": False, "packet_size": 1})
    result, models = everyone(method, three())
    assert all(m.tolist() == [0, 0] for m in models.values())
    assert result.model["weight"].flatten().tolist() == [0, 0]
    assert result.metrics[-1]["packets/released"] == 2


def test_what_nobody_selected_stays_everybodys_own(monkeypatch):
    """All three select the first of two packets, whose mean is 0; the other one is -1/2, 1, -1/2 as trained."""
    monkeypatch.setattr(FedFIHE, "_mask", lambda self, packet, client: torch.tensor([True, False]))
    method = FedFIHE(sharing=0.5, quorum=0.0, weights="uniform", encryption={"enabled": False, "packet_size": 1})
    _, models = everyone(method, three())
    assert [m.tolist() for m in models.values()] == [[0, -0.5], [0, 1], [0, -0.5]]


@pytest.mark.parametrize("phases", ["one", "two"])
def test_a_shared_value_beyond_the_clip_is_refused_and_not_cut(phases):
    """c1 ends at (-1, 1), which is beyond 3/4; what nobody shares is as large as it likes."""
    encryption = {"enabled": False, "packet_size": 1, "clip": 0.75}
    result = run(FedFIHE(**ALL, phases=phases, encryption=encryption), three(), rounds=1)
    assert [f.client for f in result.failures] == ["c1"]
    said = "encryption.clip = 0.75: a value is beyond it and would be cut (nearest power of two that is enough: 1)"
    assert said in result.failures[0].error


def test_mixing_takes_a_part_of_the_mean():
    method = FedFIHE(**ALL, mixing=0.25, encryption={"enabled": False, "packet_size": 1})
    _, models = everyone(method, three())
    assert models["c0"].tolist() == [0.375, -0.375]
    assert models["c1"].tolist() == [-0.75, 0.75]


def test_two_voters_are_never_enough():
    """Two clients: nothing is ever summed, each keeps its own, and the run says so."""
    method = FedFIHE(**ALL, encryption={"enabled": False, "packet_size": 1})
    result, models = everyone(method, tiny.by_hand())
    assert models["c0"].tolist() == [0.5, -0.5]
    assert result.metrics[-1]["packets/released"] == 0
    with pytest.raises(ValueError, match="must be at least 3"):
        FedFIHE(least_voters=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"least_voters": 7}, "least_voters = 7: a packet needs 7 voters, and 6 clients take part in a round"),
        ({"clients_per_round": 2}, "least_voters = 3: a packet needs 3 voters, and 2 clients"),
        ({"phases": "two", "votes": "encrypted", "least_voters": 6}, "least_voters = 6 and spare = 1: .* needs 7"),
    ],
)
def test_too_few_clients_for_any_vote_are_said_at_the_start(options, said, tmp_path):
    run(FedFIHE(**options, encryption=CLEAR), tiny.small(), rounds=1, out=tmp_path / "run")
    warned = [json.loads(e) for e in (tmp_path / "run/events.jsonl").read_text().splitlines() if "warning" in e]
    assert re.search(said, warned[0]["text"])
    assert "round" not in warned[0]
    assert FedFIHE(**{**options, "least_voters": 3, "clients_per_round": 4}).notes_on_clients(["c"] * 6) == []


def test_released_packets_are_not_counted_where_the_server_cannot_know_them():
    method = FedFIHE(**ALL, phases="two", votes="encrypted", encryption=CLEAR)
    (line,) = run(method, tiny.small(), rounds=1).metrics
    assert line["ciphertexts/released"] > 0
    assert "packets/released" not in line


@pytest.mark.parametrize("phases", ["one", "two"])
def test_everything_shared_by_all_is_fedavg_within_the_bound(phases):
    """Six clients of equal weight: f = 25 digits of |w| <= 8, so a mean is off by less than 1e-6."""
    task = tiny.small()
    method = FedFIHE(**ALL, phases=phases, encryption=CLEAR)
    _, models = everyone(method, task)
    reference = run(FedAvg(weights="uniform"), task, rounds=1).model
    expected = Workbench(task.model()).layout.join(reference)
    for model in models.values():
        torch.testing.assert_close(model, expected, atol=1e-6, rtol=0)
    assert method.exchange_of(method.init(task, torch.Generator().manual_seed(0))).fixed.error(6, 6.0) < 1e-6


CASES = [
    {},
    {"phases": "two"},
    {"phases": "two", "votes": "encrypted"},
    {"consensus": "union", "share": "low"},
]


@pytest.mark.parametrize("case", CASES, ids=["one", "two", "encrypted votes", "union, low"])
@pytest.mark.parametrize("parameters", ["bfv-4096", "ckks-4096"])
def test_encrypted_and_plain_runs_decide_the_same_every_round(case, parameters):
    pytest.importorskip("tenseal")
    task = tiny.small()
    method = FedFIHE(sharing=0.3, **case, encryption=CLEAR)
    secret = dataclasses.replace(method, encryption={**SECRET, "parameters": parameters})
    (plain, models), (hidden, others) = everyone(method, task, rounds=2), everyone(secret, task, rounds=2)
    assert plain.failures == hidden.failures == []
    assert decisions(plain) == decisions(hidden)
    assert all(torch.equal(models[c], others[c]) for c in models)


@pytest.mark.parametrize("case", CASES[:3], ids=["one", "two", "encrypted votes"])
def test_workers_change_no_bit_of_an_encrypted_run(case):
    pytest.importorskip("tenseal")
    method = FedFIHE(sharing=0.3, **case, encryption=SECRET)
    one, two = (run(method, tiny.small(), rounds=2, workers=w) for w in (1, 2))
    assert one.failures == two.failures == []
    strip = [[{k: v for k, v in line.items() if k != "seconds"} for line in r.metrics] for r in (one, two)]
    assert strip[0] == strip[1]  # bytes too: ciphertexts are padded to one length


def test_union_grows_with_disagreement_and_the_vote_does_not():
    """Six clients that each want another packet: the union sums six, the vote none."""
    task = tiny.small()
    for consensus, released in [("union", 6), ("vote", 0)]:
        method = FedFIHE(sharing=0.1, consensus=consensus, encryption={"enabled": False, "packet_size": 10})

        def mask(self, packet, client):
            result = torch.zeros(self._at(packet, client.workbench).layout.packets, dtype=torch.bool)
            result[int(client.id[1:])] = True
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FedFIHE, "_mask", mask)
            result = run(method, task, rounds=1)
        assert result.metrics[-1]["packets/released"] == released


def failing(monkeypatch, work: str, *clients: str):
    plain = getattr(FedFIHE, work)

    def broken(self, packet, client):
        if client.id in clients:
            raise OSError("gone")
        return plain(self, packet, client)

    monkeypatch.setattr(FedFIHE, work, broken)


@pytest.mark.parametrize(("work", "case"), [("client_update", 0), ("client_negotiate", 1), ("client_update", 1)])
def test_dropouts_in_any_phase_are_survived(work, case, monkeypatch):
    failing(monkeypatch, work, "c1", "c4")
    method = FedFIHE(**ALL, **CASES[case], encryption=CLEAR)
    result, models = everyone(method, tiny.small())
    assert {f.client for f in result.failures} == {"c1", "c4"}
    assert result.metrics[-1]["packets/released"] > 0
    assert torch.equal(models["c0"], models["c5"])


def test_packets_that_fall_under_three_contributors_in_the_second_phase_are_dropped(monkeypatch):
    failing(monkeypatch, "client_update", "c0", "c1", "c2", "c3")
    result = run(FedFIHE(**ALL, phases="two", encryption=CLEAR), tiny.small(), rounds=1)
    assert result.metrics[-1]["packets/agreed"] > 0
    assert result.metrics[-1]["packets/released"] == 0


@pytest.mark.parametrize(("work", "asked", "replied"), [("client_negotiate", 6, 4), ("client_update", 6, 4)])
def test_who_failed_in_either_phase_was_asked(work, asked, replied, monkeypatch):
    failing(monkeypatch, work, "c1", "c4")
    for line in run(FedFIHE(**ALL, phases="two", encryption=CLEAR), tiny.small(), rounds=2).metrics:
        assert (line["clients/asked"], line["clients/replied"]) == (asked, replied)


def test_who_failed_to_agree_and_is_asked_again_counts_once(monkeypatch):
    """FedML-HE asks all six to agree, of which two fail, and then three to train."""
    plain = FedMLHE.client_negotiate

    def broken(self, packet, client):
        if client.id in ("c1", "c4"):
            raise OSError("gone")
        return plain(self, packet, client)

    monkeypatch.setattr(FedMLHE, "client_negotiate", broken)
    monkeypatch.setattr(FedMLHE, "sample", lambda self, clients, rng: ["c0", "c1", "c2"])
    (line,) = run(FedMLHE(protected=0.3, encryption=CLEAR), tiny.small(), rounds=1).metrics
    assert (line["clients/asked"], line["clients/replied"]) == (4, 3)  # c4 is gone


@pytest.mark.parametrize(("away", "released"), [(("c1",), 1), (("c1", "c2"), 0)])
def test_encrypted_votes_spare_one_dropout(away, released, monkeypatch):
    failing(monkeypatch, "client_update", *away)
    method = FedFIHE(**ALL, phases="two", votes="encrypted", encryption={"enabled": False, "packet_size": 40})
    result = run(method, tiny.small(), rounds=1)
    assert result.metrics[-1]["ciphertexts/released"] == released


def test_encrypted_votes_show_the_server_no_mask_and_always_as_many_payloads():
    task = tiny.small()
    method = FedFIHE(sharing=0.3, phases="two", votes="encrypted", encryption=CLEAR)
    sizes = set()
    plain = FedFIHE.aggregate

    def aggregate(self, state, round, replies, rng):
        def watched():
            for reply in replies:
                sizes.add(len(reply.packet.blobs["message"]))
                yield reply

        assert all(not m.any() for m in state.masks.values())
        return plain(self, state, round, watched(), rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedFIHE, "aggregate", aggregate)
        run(method, task, rounds=3)
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: dataclasses.replace(r, contributors=[c[:-1] for c in r.contributors]), "dropped, doubled"),
        (lambda r: dataclasses.replace(r, contributors=[[*c[:-1], "cX"] for c in r.contributors]), "exchanged"),
        (lambda r: dataclasses.replace(r, round=7), "is not that"),
    ],
)
def test_clients_notice_a_sum_that_is_not_that_of_its_contributors(change, said):
    task = tiny.small()
    method = FedFIHE(**ALL, encryption=CLEAR)
    state = run(method, task, rounds=1).state
    ((_, packet),) = method.configure_evaluation(state, ["c0"], None)
    (name,) = packet.blobs
    forged = change(Release.decode(packet.blobs[name])).encode()
    benches = Benches(task, 0)
    client = Client("c0", task.data.clients["c0"], Memory(), task, benches, round=1, seed=0)
    with pytest.raises(RuntimeError, match=said):
        method.client_evaluate(Packet(packet.tensors, packet.scalars, {name: forged}), client)


def test_a_client_that_was_away_catches_up():
    """Two of six a round: whoever comes back gets what it missed, as far as `history` reaches."""
    method = FedFIHE(**ALL, clients_per_round=3, history=2, encryption=CLEAR)
    result = run(method, tiny.small(), rounds=6)
    assert result.failures == []
    assert result.state.number == 6
    assert len(result.state.releases) == 2
    sent = dict(method.configure_evaluation(result.state, ["c0"], None))
    assert set(sent["c0"].blobs) <= {"release5", "release6"}


def test_masks_are_held():
    task = tiny.small()
    method, seen = FedFIHE(sharing=0.3, hold=3, encryption=CLEAR), []
    for rounds in range(1, 8):
        run(method, task, rounds=rounds, engine=(engine := LocalEngine(method, task)))
        seen.append(engine._table.row("c0")["made"].item())
    assert seen == [0, 0, 0, 3, 3, 3, 6]


@pytest.fixture
def keyring(tmp_path):
    pytest.importorskip("tenseal")
    pytest.importorskip("cryptography")
    keys.new(tmp_path / "keys", [f"c{i}" for i in range(6)])
    return tmp_path / "keys"


def test_signed_rounds_with_keys_of_a_folder(keyring, tmp_path):
    method = FedFIHE(sharing=0.3, encryption={**SECRET, "keys": str(keyring)})
    task, seen = tiny.small(), []
    plain = FedFIHE.aggregate

    def aggregate(self, state, round, replies, rng):
        def watched():
            for reply in replies:
                seen.append(reply.packet.encode())
                yield reply

        return plain(self, state, round, watched(), rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedFIHE, "aggregate", aggregate)
        result = run(method, task, rounds=2, out=tmp_path / "run")
    assert result.failures == []
    clear = run(dataclasses.replace(method, encryption=CLEAR), task, rounds=2)
    assert [x["train/loss"] for x in clear.metrics] == [x["train/loss"] for x in result.metrics]
    # no byte that the server received or stored holds the secret
    secret = keys.unlock(keyring, "c0")
    from fedfi.crypto import seal

    needles = [secret.seed, secret.seed[:16], secret.seed.hex().encode(), seal.saved(secret._secret)[100:132]]
    stored = [p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()]
    roster = (keyring / "roster.json").read_bytes()
    for content in [*seen, *stored, roster]:
        assert not any(needle in content for needle in needles)


def test_replayed_and_foreign_messages_are_refused_and_named(keyring, monkeypatch):
    method = FedFIHE(sharing=0.3, encryption={**SECRET, "keys": str(keyring)})
    plain, first = FedFIHE.client_update, {}

    def replaying(self, packet, client):
        reply = plain(self, packet, client)
        first.setdefault(client.id, reply)
        if client.id == "c1":
            return first["c1"]  # of the first round, for ever
        return first["c0"] if client.id == "c2" else reply  # what c0 said

    monkeypatch.setattr(FedFIHE, "client_update", replaying)
    result = run(method, tiny.small(), rounds=2)
    said = [(f.client, f.error) for f in result.failures]
    assert said[0][0] == "c2"
    assert "'c2': message of 'c2': is not signed by the sender" in said[0][1]
    assert ("c1", "client 'c1': message of 'c1': is of round 0, expected 1") in said


@pytest.mark.parametrize("phases", ["one", "two"])
def test_rotation_between_rounds_mixes_no_epochs_and_says_what_is_lost(keyring, phases, tmp_path):
    task = tiny.small()
    method = FedFIHE(**ALL, phases=phases, encryption={**SECRET, "keys": str(keyring)})

    def rotate(line):
        if line["round"] == 1:
            keys.rotate(keyring)

    result = run(method, task, rounds=3, observe=rotate, out=tmp_path / "run")
    assert result.failures == []
    events = [json.loads(e) for e in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    (warned,) = [e for e in events if e["event"] == "warning"]
    assert (warned["round"], warned["key"]) == (2, "keys")
    assert "1 release under earlier keys, which 6 clients had not taken in" in warned["text"]
    assert len(set(result.state.keys)) == 2
    ((_, packet),) = method.configure_evaluation(result.state, ["cX"], None)  # somebody who has seen neither
    assert set(packet.blobs) == {"release2", "release3"}


@pytest.mark.parametrize("method", [FedFIHE, HEFedAvg])
def test_keys_of_others_are_refused_at_the_start_and_strangers_are_named(method, keyring, tmp_path):
    keys.new(tmp_path / "others", ["Cleveland", "Hungary", "c3"])
    with pytest.raises(InputError, match=r"encryption.keys = .*others': of the 6 clients .*only 1 .*'Cleveland'"):
        run(method(encryption={**SECRET, "keys": str(tmp_path / "others")}), tiny.small(), rounds=1)
    keys.rotate(keyring, remove=["c4"])
    result = run(method(encryption={**SECRET, "keys": str(keyring)}), tiny.small(), rounds=1, out=tmp_path / "run")
    assert {f.client for f in result.failures} == {"c4"}
    assert f"1 of 6 clients ('c4') is no member of {keyring}" in (tmp_path / "run/events.jsonl").read_text()


def test_keys_of_other_parameters_are_refused(keyring):
    method = FedFIHE(encryption={"keys": str(keyring), "parameters": "ckks-4096"})
    with pytest.raises(InputError, match="nearest valid: 'bfv-4096'"):
        run(method, tiny.small(), rounds=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"encryption": {"packet_size": 5000}}, "nearest valid: 4094"),
        ({"encryption": {"enabled": False, "fraction_bits": 30}}, r"fraction_bits = 30: .*nearest valid: 25"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_encrypted(options, said):
    with pytest.raises(InputError, match=said):
        run(FedFIHE(**options), tiny.small(), rounds=1)


def test_encrypted_votes_need_two_phases():
    with pytest.raises(ValueError, match="needs phases = 'two'"):
        FedFIHE(votes="encrypted")


def spoiling(monkeypatch, work: str, *clients: str):
    """Payloads of these clients that are no ciphertexts, though their digests are right."""
    plain, seal = getattr(FedFIHE, work), Sealer.seal

    def spoiled(self, packet, client):
        with pytest.MonkeyPatch.context() as patch:
            if client.id in clients:
                patch.setattr(Sealer, "seal", lambda sealer, values: bytes(len(seal(sealer, values))))
            return plain(self, packet, client)

    monkeypatch.setattr(FedFIHE, work, spoiled)


def test_votes_that_are_no_ciphertexts_are_left_out_and_said(monkeypatch, tmp_path):
    pytest.importorskip("tenseal")
    spoiling(monkeypatch, "client_negotiate", "c1")
    method = FedFIHE(sharing=0.3, phases="two", votes="encrypted", encryption=SECRET)
    result = run(method, tiny.small(), rounds=1, out=tmp_path / "run")
    assert result.failures == []
    assert result.metrics[-1]["clients/replied"] == 5
    assert result.metrics[-1]["ciphertexts/released"] > 0
    assert "'c1', votes: not a ciphertext" in (tmp_path / "run/events.jsonl").read_text()


@pytest.mark.parametrize(("spare", "released"), [(0, 0), (1, 1)])
def test_a_payload_that_is_no_ciphertext_counts_as_away_where_votes_are_encrypted(spare, released, monkeypatch):
    """Nobody but clients knows which packets have three contributors without it."""
    pytest.importorskip("tenseal")
    spoiling(monkeypatch, "client_update", "c1")
    method = FedFIHE(**ALL, phases="two", votes="encrypted", spare=spare, encryption={"packet_size": 40})
    result, models = everyone(method, tiny.small())
    assert result.metrics[-1]["ciphertexts/released"] == released
    assert torch.equal(models["c0"], models["c5"]) == bool(released)
