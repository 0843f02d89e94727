from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from tests import tiny

from fedfi.averaging.fedavg import FedAvg
from fedfi.averaging.server import Averaging
from fedfi.engines.local import LocalEngine
from fedfi.engines.table import MemoryTable
from fedfi.errors import RunError
from fedfi.federation.algorithm import Failure, Reply
from fedfi.federation.client import Client, Memory
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Layout, Packet
from fedfi.federation.record import RunDirectory
from fedfi.federation.run import run
from fedfi.federation.training import train_locally


def remembering(monkeypatch):
    """FedAvg whose clients count, in their memory, how often they were asked."""
    plain = FedAvg.client_update

    def client_update(self, packet, client: Client):
        seen = client.memory.get("seen", torch.zeros(2))
        client.memory["seen"] = seen + 1
        reply = plain(self, packet, client)
        return Packet(reply.tensors, {**reply.scalars, "seen": float(client.memory["seen"][0])})

    def reply_layout(self, state, packet):
        returned = [*state.trained, *state.buffers]
        return Layout.like({n: state.model[n] for n in returned}, loss=float, examples=int, seen=float)

    monkeypatch.setattr(FedAvg, "client_update", client_update)
    monkeypatch.setattr(FedAvg, "reply_layout", reply_layout)


@pytest.mark.parametrize("workers", [1, 2])
def test_memory_is_kept_between_rounds_and_across_a_resume(monkeypatch, tmp_path, workers):
    remembering(monkeypatch)

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(FedAvg(), tiny.small(), rounds=3, workers=workers, out=tmp_path / "run", observe=stop)
    run(FedAvg(), tiny.small(), rounds=3, workers=workers, out=tmp_path / "run", resume=True)
    lines = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    seen = [e["metrics"]["seen"] for e in lines if e["event"] == "replied" and e["round"] == 3]
    assert seen == [3.0] * 6


def test_a_failure_leaves_memory_as_it_was():
    memory = Memory({"a": torch.zeros(2)})
    memory["a"] = torch.ones(2)
    table = MemoryTable(["c"])
    table.commit("c", {"a": torch.zeros(2)})
    assert torch.equal(table.row("c")["a"], torch.zeros(2))
    assert torch.equal(memory["a"], torch.ones(2))


def test_a_memory_is_a_mapping():
    memory = Memory({"a": torch.zeros(1), "b": torch.zeros(1)})
    del memory["a"]
    assert (list(memory), len(memory), "a" in memory) == (["b"], 1, False)
    with pytest.raises(KeyError):
        memory["a"]
    with pytest.raises(KeyError):
        del memory["a"]
    memory["a"] = torch.ones(1)
    assert set(memory) == {"a", "b"}


def test_a_table_gives_views_and_refuses_another_shape():
    table = MemoryTable(["x", "y"])
    table.commit("y", {"v": torch.arange(3.0)})
    assert table.row("x") == {}
    assert table.row("y")["v"].data_ptr() == table.describe()["columns"]["v"][1].data_ptr()
    with pytest.raises(ValueError, match=r"client 'x': memory 'v' has shape \(2,\).*other clients' has \(3,\)"):
        table.commit("x", {"v": torch.zeros(2)})
    table.commit("y", {}, ["v"])
    assert table.row("y") == {}
    again = MemoryTable(["x", "y"])
    table.commit("x", {"v": torch.ones(3)})
    again.restore(table.describe())
    assert torch.equal(again.row("x")["v"], torch.ones(3))


def test_a_worker_that_dies_is_a_failure_and_is_replaced(monkeypatch):
    plain = FedAvg.client_update

    def client_update(self, packet, client):
        if client.id == "c1":
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, packet, client)

    monkeypatch.setattr(FedAvg, "client_update", client_update)
    result = run(FedAvg(), tiny.small(), rounds=2, workers=2)
    assert [(f.client, f.stage) for f in result.failures] == [("c1", "worker")] * 2
    assert "exit code -9" in result.failures[0].error
    assert result.metrics[-1]["clients/replied"] == 5


def test_replies_come_in_the_order_of_jobs_whoever_is_first(monkeypatch):
    plain = FedAvg.client_update

    def client_update(self, packet, client):
        time.sleep(0.2 if client.id == "c0" else 0)
        return plain(self, packet, client)

    monkeypatch.setattr(FedAvg, "client_update", client_update)
    task = tiny.small()
    engine = LocalEngine(FedAvg(), task, workers=2)
    try:
        model = Packet({n: t.clone() for n, t in task.model().state_dict().items()})
        jobs = [(c, model) for c in task.data.clients]
        assert [r.client for r in engine.map("client_update", jobs, 0)] == list(task.data.clients)
    finally:
        engine.close()


def test_an_abandoned_map_does_not_disturb_the_next():
    task = tiny.small()
    engine = LocalEngine(FedAvg(), task, workers=2)
    try:
        model = Packet({n: t.clone() for n, t in task.model().state_dict().items()})
        jobs = [(c, model) for c in task.data.clients]
        for _ in engine.map("client_update", jobs, 0):
            break
        replies = list(engine.map("client_update", jobs[::-1], 0))
        assert [r.client for r in replies] == list(task.data.clients)[::-1]
        assert all(isinstance(r, Reply) for r in replies)
    finally:
        engine.close()
    engine.close()


def test_no_process_outlives_the_run():
    run(FedAvg(), tiny.small(), rounds=1, workers=2)
    assert multiprocessing.active_children() == []


def test_large_packets_make_the_arena_grow():
    """0.9 MB fit the first piece of shared memory; 4 MB do not."""
    task = dataclasses.replace(
        tiny.small(), model=lambda: tiny.nn.Sequential(tiny.nn.Linear(6, 100_000), tiny.nn.Linear(100_000, 3))
    )
    task = dataclasses.replace(task, training=dataclasses.replace(task.training, learning_rate=1e-4))
    one = run(FedAvg(), task, rounds=1)
    two = run(FedAvg(), task, rounds=1, workers=2)
    assert all(torch.equal(one.model[n], two.model[n]) for n in one.model)


class Cohorts(Averaging):
    """FedAvg that does a round's clients in one call."""

    def train(self, client):
        return train_locally(client)

    def cohort_update(self, cohort: Cohort):
        """Means of a column of numbers: each client's count of rounds, and its row."""
        rounds = cohort.read("rounds", torch.zeros(1)) + 1
        cohort.write("rounds", rounds)
        like = cohort.packets[0].tensors
        for row, count in zip(cohort.rows.tolist(), rounds[:, 0].tolist(), strict=True):
            yield Packet({n: torch.full_like(t, float(row)) for n, t in like.items()}, {"loss": count, "examples": 1})


@pytest.mark.parametrize(("workers", "cohorts"), [(1, 128), (1, 4), (3, 1)])
def test_cohorts_work_on_columns_of_memory(workers, cohorts):
    """Replies are the rows 0 to 5, whose mean is 2.5; the column counts rounds, present for all."""
    algorithm, task = Cohorts(weights="uniform"), tiny.small()
    engine = LocalEngine(algorithm, task, workers=workers, cohorts=cohorts)
    result = run(algorithm, task, rounds=2, engine=engine)
    engine.close()
    start = run(FedAvg(), tiny.small(), rounds=1).model
    assert result.model.keys() == start.keys()
    assert [m["train/loss"] for m in result.metrics] == [1.0, 2.0]
    assert engine.memory()["columns"]["rounds"].tolist() == [[2.0]] * 6
    assert engine.memory()["present"]["rounds"].all()


def test_an_error_in_a_cohort_ends_the_run(monkeypatch):
    def fail(self, cohort):
        raise OSError("the disk is gone")

    monkeypatch.setattr(Cohorts, "cohort_update", fail)
    with pytest.raises(RunError, match=r"Cohorts, client_update of clients 'c0' to 'c5': OSError: the disk is gone"):
        run(Cohorts(), tiny.small(), rounds=1)


def test_an_unknown_client_is_a_failure():
    engine = LocalEngine(FedAvg(), tiny.small())
    (outcome,) = engine.map("client_update", [("nobody", Packet())], 0)
    assert isinstance(outcome, Failure)
    assert "no client 'nobody'" in outcome.error


def test_workers_die_with_a_killed_parent(tmp_path):
    """And so let go of the run directory's lock, which they inherit."""
    child = os.fork()
    if child == 0:
        plain = FedAvg.client_update

        def client_update(self, packet, client):
            (tmp_path / f"worker-{os.getpid()}").touch()
            time.sleep(0.05)
            return plain(self, packet, client)

        FedAvg.client_update = client_update
        run(FedAvg(), tiny.small(), rounds=1000, workers=2, out=tmp_path / "run")
        os._exit(0)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("worker-*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    workers = [int(p.name.removeprefix("worker-")) for p in tmp_path.glob("worker-*")]
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run(FedAvg(), tiny.small(), rounds=3, out=tmp_path / "other")
    RunDirectory(tmp_path / "run").lock()


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
