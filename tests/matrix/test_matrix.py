"""What every method must pass; a method joins by one row in `rows.py`."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from tests import tiny
from tests.matrix.rows import ROWS

from fedfi.engines.local import LocalEngine
from fedfi.errors import RunError
from fedfi.federation import checkpoint
from fedfi.federation.algorithm import Failure, Negotiates, Reply
from fedfi.federation.packet import Packet, decode
from fedfi.federation.record import read_lines
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.personal.fedfihe import FedFIHE
from fedfi.personal.selective import Selective
from fedfi.recsys.central import Central
from fedfi.recsys.random import Random

ROUNDS = 4


def rows(condition=lambda row: True):
    return pytest.mark.parametrize(
        "row", [pytest.param(r, id=n, marks=r.marks) for n, r in ROWS.items() if condition(r)]
    )


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def numbers(result):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in result.metrics]


@rows(lambda row: row.first_round is not None)
def test_first_round_is_what_a_hand_computes(row):
    """The derivation stands at the row; the task's gradients at `tiny.by_hand`."""
    result = run(row.by_hand, tiny.by_hand(), rounds=1)
    assert result.failures == []
    torch.testing.assert_close(result.model["weight"].flatten(), torch.tensor(row.first_round))


@rows(lambda row: row.identity is not None)
@pytest.mark.parametrize("model", [tiny.network, tiny.with_buffers], ids=["layer norm", "batch norm"])
@pytest.mark.parametrize(
    "recipe",
    [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adamw"}],
    ids=["sgd", "momentum", "adamw"],
)
def test_full_capacity_is_fedavg_to_the_bit(row, model, recipe):
    one = run(row.identity, tiny.small(model=model, **recipe), rounds=ROUNDS)
    other = run(row.like, tiny.small(model=model, **recipe), rounds=ROUNDS)
    assert one.failures == []
    assert same(one.model, other.model)
    assert one.metrics[-1]["global/accuracy"] == other.metrics[-1]["global/accuracy"]


@rows()
def test_workers_change_no_bit(row):
    one = run(row.algorithm, row.task(), rounds=ROUNDS, workers=1)
    three = run(row.algorithm, row.task(), rounds=ROUNDS, workers=3)
    assert one.failures == three.failures == []
    assert same(one.model, three.model)
    assert numbers(one) == numbers(three)


def begun(row, order=lambda jobs: jobs):
    """An engine, the state of the first round and its jobs, after the vote, if any, which is asked for in `order`.

    Also what was exchanged in that vote: packets that were sent, and replies.
    """
    method, task = row.algorithm, row.task()
    engine = LocalEngine(method, task)
    clients = list(task.data.clients)
    state = method.init(task, keyed_generator(0, "server", "init"))
    sent, replies = [], []
    if isinstance(method, Negotiates):
        asked = method.configure_negotiation(state, 0, clients, keyed_generator(0, "vote"))
        sent = [(c, p.clone()) for c, p in asked]
        answers = {r.client: r for r in engine.map("client_negotiate", order(sent), 0)}
        assert not any(isinstance(a, Failure) for a in answers.values())
        replies = [dataclasses.replace(answers[c], sent=p) for c, p in sent]
        state, _ = method.negotiated(state, 0, iter(replies), keyed_generator(0, "votes"))
    jobs = [(c, p.clone()) for c, p in method.configure(state, 0, clients, keyed_generator(0, "x"))]
    assert jobs  # else what follows would test nothing
    return engine, state, jobs, sent, replies


@rows()
def test_a_job_gives_the_same_reply_wherever_and_whenever_it_is_done(row):
    """The replies of a round, asked for in reverse by another engine, are the same to the bit."""
    engine, _, jobs, _, votes = begun(row)
    other, _, again, _, others = begun(row, lambda jobs: reversed(jobs))
    forward = {r.client: r.packet.clone() for r in engine.map("client_update", jobs, 0)}
    assert [c for c, _ in jobs] == [c for c, _ in again]
    for vote, same_vote in zip(votes, others, strict=True):
        assert vote.packet.encode() == same_vote.packet.encode()
    for reply in other.map("client_update", reversed(again), 0):
        assert same(reply.packet.tensors, forward[reply.client].tensors)
        assert reply.packet.scalars == forward[reply.client].scalars
        assert reply.packet.blobs == forward[reply.client].blobs


@rows()
def test_replies_own_their_tensors(row):
    """A list of replies must not change when the workbench goes on to the next client."""
    engine, _, jobs, _, _ = begun(row)
    held = []
    for reply in engine.map("client_update", jobs, 0):
        held.append((reply.packet, reply.packet.clone()))
    assert all(same(packet.tensors, copy.tensors) for packet, copy in held)


@rows()
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_stop_and_resume_change_no_bit(row, stop, tmp_path):
    whole = run(row.algorithm, row.task(), rounds=ROUNDS, out=tmp_path / "whole")

    def interrupt(line):
        if line["round"] == stop:
            raise KeyboardInterrupt

    if stop:
        with pytest.raises(KeyboardInterrupt):
            run(row.algorithm, row.task(), rounds=ROUNDS, out=tmp_path / "parts", observe=interrupt)
    else:
        die_in_child(row.algorithm, tmp_path / "parts", "configure", 0, row.task)
    parts = run(row.algorithm, row.task(), rounds=ROUNDS, out=tmp_path / "parts", resume=True, workers=2)
    assert same(whole.model, parts.model)
    assert numbers(whole) == numbers(parts)
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "parts/model.safetensors").read_bytes()


PHASES = [
    "configure",
    "client_update",
    "reply_layout",
    "aggregated",
    "evaluate",
    "saving",
    "renaming",
    "saved",
]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["fedavg", "fedfibos", "fedfihe-two-phases", "maskcrypt"])
def test_kill_in_any_phase_and_resume_change_no_bit(name, phase, tmp_path):
    algorithm = ROWS[name].algorithm
    whole = run(algorithm, tiny.small(), rounds=ROUNDS, out=tmp_path / "whole")
    die_in_child(algorithm, tmp_path / "parts", phase, 2)
    parts = run(algorithm, tiny.small(), rounds=ROUNDS, out=tmp_path / "parts", resume=True)
    assert same(whole.model, parts.model)
    assert numbers(whole) == numbers(parts)


def die_in_child(algorithm, out: Path, phase: str, round: int, task=tiny.small) -> None:
    """Runs in a forked child that kills itself with signal 9 in the given phase of the given round."""
    child = os.fork()
    if child == 0:
        try:
            deadly(algorithm, phase, round)
            run(algorithm, task(), rounds=ROUNDS, out=out)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def deadly(algorithm, phase: str, round: int) -> None:
    """Patches this (child) process so that it dies on the way."""
    calls = {"n": 0}

    def die_at(owner, name, condition):
        plain = getattr(owner, name)

        def wrapped(*args, **kwargs):
            calls["n"] += 1
            if condition(*args):
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*args, **kwargs)

        setattr(owner, name, wrapped)

    kind = type(algorithm)
    if phase == "configure":
        die_at(kind, "configure", lambda self, state, r, *rest: r == round)
    elif phase == "client_update":
        die_at(kind, "client_update", lambda self, packet, client: client.round == round)
    elif phase == "reply_layout":  # after the first reply of the round has come
        die_at(kind, "reply_layout", lambda *args: calls["n"] > 3 * round + 1)
    elif phase == "aggregated":
        plain = kind.aggregate

        def aggregate(self, state, r, *rest):
            result = plain(self, state, r, *rest)
            if r == round:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        kind.aggregate = aggregate
    elif phase == "evaluate" and algorithm.central:
        die_at(LocalEngine, "evaluate", lambda *args: calls["n"] > round)
    elif phase == "evaluate":  # the server has no model to judge
        die_at(kind, "client_evaluate", lambda self, packet, client: client.round == round)
    elif phase == "saving":  # metrics are written, the checkpoint is not
        die_at(checkpoint, "save", lambda directory, rounds, content: rounds == round + 1)
    elif phase == "renaming":  # the checkpoint lies beside its place, half of it
        plain_write = checkpoint.write_atomically

        def half(path, content):
            if path.name.startswith(f"round-{round + 1:06d}"):
                path.with_name(f".{path.name}.part").write_bytes(content[: len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            plain_write(path, content)

        checkpoint.write_atomically = half
    else:
        plain_save = checkpoint.save

        def save(directory, rounds, content):
            path = plain_save(directory, rounds, content)
            if rounds == round + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return path

        checkpoint.save = save


class Broken:
    """A patch of a client's work, by name of the client."""

    def __init__(self, monkeypatch, algorithm, client: str, change, work: str = "client_update") -> None:
        plain = getattr(type(algorithm), work)

        def broken(self, packet, who):
            reply = plain(self, packet, who)
            return change(reply) if who.id == client else reply

        monkeypatch.setattr(type(algorithm), work, broken)


def one_by_one(algorithm, task, **options):
    """A run that asks client after client, also of methods that can do many at once."""
    return run(algorithm, task, engine=LocalEngine(algorithm, task, cohorts=0), **options)


def everyone(algorithm):
    return dataclasses.replace(algorithm, participation=1.0)


@rows()
def test_a_failing_client_is_reported_and_survived(row, monkeypatch, tmp_path):
    def fail(reply):
        raise OSError("the disk of c2 is gone")

    Broken(monkeypatch, row.algorithm, "c2", fail)
    result = one_by_one(everyone(row.algorithm), row.task(), rounds=2, out=tmp_path / "run")
    place = f"(test_matrix.py, line {fail.__code__.co_firstlineno + 1})"
    assert [(f.client, f.stage, f.error) for f in result.failures] == [
        ("c2", "client_update", f"OSError: the disk of c2 is gone {place}")
    ] * 2
    assert "in fail" in result.failures[0].traceback
    events = [e for e in read_lines(tmp_path / "run/events.jsonl") if e["event"] == "failure"]
    assert [(e["round"], e["client"]) for e in events] == [(1, "c2"), (2, "c2")]
    assert result.metrics[-1]["clients/replied"] == 5


@rows()
def test_too_few_replies_end_the_run(row, monkeypatch):
    def fail(reply):
        raise OSError("gone")

    Broken(monkeypatch, row.algorithm, "c2", fail)
    with pytest.raises(RunError, match=r"round 1: 5 of 6 clients delivered, 6 are needed.*'c2'.*gone"):
        one_by_one(everyone(row.algorithm), row.task(), rounds=2, min_replies=6)


def wrong(kind: str):
    """A change of a reply, and what the refusal must say."""

    def change(reply: Packet) -> Packet:
        name = next(n for n, t in reply.tensors.items() if t.is_floating_point())
        tensor = reply.tensors[name]
        other = {
            "shape": lambda: {name: torch.cat([tensor.flatten(), tensor.flatten()[:1]])},
            "broadcastable": lambda: {name: tensor.flatten()[:1]},
            "dtype": lambda: {name: tensor.double()},
            "nan": lambda: {name: torch.full_like(tensor, float("nan"))},
            "extra": lambda: {"more": tensor},
        }
        if kind == "missing":
            return Packet({n: t for n, t in reply.tensors.items() if n != name}, reply.scalars, reply.blobs)
        return Packet({**reply.tensors, **other[kind]()}, reply.scalars, reply.blobs)

    said = {
        "shape": r"tensor '.*' has shape \(.*\), expected \(.*\)",
        "broadcastable": r"tensor '.*' has shape \(1,\), expected \(.*\)",
        "dtype": r"tensor '.*' is torch.float64, expected torch.float32",
        "nan": r"tensor '.*' of shape \(.*\) holds \d+ non-finite",
        "extra": r"unexpected \['more'\]",
        "missing": r"missing \['.*'\]",
    }
    return change, said[kind]


@rows(lambda row: not row.silent and not isinstance(row.algorithm, Central | Random))  # those send bits, or nothing
@pytest.mark.parametrize("kind", ["shape", "broadcastable", "dtype", "nan", "extra", "missing"])
def test_a_wrong_reply_is_refused_and_never_broadcast(row, kind, monkeypatch):
    change, said = wrong(kind)
    algorithm = everyone(row.algorithm)
    with monkeypatch.context() as patch:

        def fail(reply):
            raise OSError("absent")

        Broken(patch, algorithm, "c2", fail)
        without = one_by_one(algorithm, row.task(), rounds=1)
    Broken(monkeypatch, algorithm, "c2", change)
    result = one_by_one(algorithm, row.task(), rounds=1)
    (failure,) = result.failures
    assert (failure.client, failure.stage) == ("c2", "reply")
    assert re.search(f"client 'c2': .*{said}", failure.error)
    assert same(result.model, without.model)


def wrong_blob(kind: str):
    """A change of a reply of blobs."""

    def change(reply: Packet) -> Packet:
        name = next(n for n, b in reply.blobs.items() if b)
        blob = reply.blobs[name]
        other = {
            "short": {name: blob[:-1]},
            "long": {name: blob + b"\0"},
            "flipped": {name: bytes([blob[0] ^ 1]) + blob[1:]},
            "extra": {"more": blob},
        }
        if kind == "missing":
            return Packet(reply.tensors, reply.scalars, {n: b for n, b in reply.blobs.items() if n != name})
        return Packet(reply.tensors, reply.scalars, {**reply.blobs, **other[kind]})

    return change


@rows(lambda row: row.silent and isinstance(row.algorithm, FedFIHE | Selective))  # messages, whose first byte is fixed
@pytest.mark.parametrize("kind", ["short", "long", "flipped", "extra", "missing"])
@pytest.mark.parametrize("work", ["client_negotiate", "client_update"])
def test_a_wrong_message_is_refused_and_its_sender_left_out(row, work, kind, monkeypatch):
    algorithm, change = everyone(row.algorithm), wrong_blob(kind)
    if work == "client_negotiate":
        if not any(
            algorithm.configure_negotiation(algorithm.init(row.task(), keyed_generator(0, "x")), 0, ["c2"], None)
        ):
            pytest.skip("there is no vote")
        if not isinstance(algorithm, FedFIHE) and kind == "flipped":
            pytest.skip("any bitmap of the right length is a vote")

    def fail(reply):
        raise OSError("absent")

    def decided(alter):
        with monkeypatch.context() as patch:
            Broken(patch, algorithm, "c2", alter, work)
            result = one_by_one(algorithm, row.task(), rounds=1)
        own = (
            "seconds",
            "bytes/up",
            "local/",
            "ranking/",
            "validation/",
        )  # the client, who knows of no refusal, trained
        return {k: v for k, v in result.metrics[-1].items() if not k.startswith(own)}, result.failures

    without, _ = decided(fail)
    found, (failure, *more) = decided(change)
    assert more == []
    assert (failure.client, failure.stage) == ("c2", "reply")
    assert found == without


@rows()
def test_packets_pass_through_their_encoding(row):
    """Every packet of a round, sent and returned, survives encoding to the bit, at the length it claims."""
    engine, _, jobs, asked, votes = begun(row)
    replies = list(engine.map("client_update", jobs, 0))
    assert not any(isinstance(r, Failure) for r in replies)
    for packet in [p for _, p in [*asked, *jobs]] + [r.packet for r in [*votes, *replies] if isinstance(r, Reply)]:
        encoded = packet.encode()
        assert len(encoded) == packet.nbytes
        again = decode(encoded)
        assert same(again.tensors, dict(packet.tensors))
        assert (again.scalars, again.blobs) == (dict(packet.scalars), dict(packet.blobs))
