"""Many clients of a node at once: blame for one of them alone, memory by client, nothing half done."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from tests.flower.fakes import federation
from tests.recsys import small

from fedfi.averaging.fedavg import FedAvg
from fedfi.engines.flower.together import outcomes_of, works_together
from fedfi.engines.workplace import Workplace
from fedfi.federation.algorithm import Failure
from fedfi.federation.packet import Packet
from fedfi.federation.run import run
from fedfi.recsys.fedrkg import FedRKG

METHOD = FedRKG(interval=1)


def jobs(clients, task):
    state = METHOD.init(task, torch.Generator().manual_seed(0))
    packet = Packet(state.mean, {"new": True, "upload": True})
    return [(c, packet) for c in clients]


def test_only_methods_that_can_do_so_work_together():
    assert works_together(Workplace(METHOD, small.task(), 0), "client_update")
    assert works_together(Workplace(METHOD, small.task(), 0), "client_evaluate")
    assert not works_together(Workplace(FedAvg(), tiny.small(), 0), "client_update")


def test_nobody_is_nothing():
    assert outcomes_of(Workplace(METHOD, small.task(), 0), "client_update", 0, [], {}) == {}


def test_who_else_is_there_changes_no_bit():
    task = small.task()
    place = Workplace(METHOD, task, 0)
    empty = {c: {} for c in task.data.clients}
    whole = outcomes_of(place, "client_update", 0, jobs(task.data.clients, task), empty)
    for client in task.data.clients:
        alone = outcomes_of(place, "client_update", 0, jobs([client], task), empty)[client]
        assert alone.changed.keys() == whole[client].changed.keys()
        assert all(torch.equal(alone.changed[n], t) for n, t in whole[client].changed.items())
        assert torch.equal(alone.reply.packet.tensors["items"], whole[client].reply.packet.tensors["items"])


def test_judging_changes_no_memory():
    task = small.task()
    place = Workplace(METHOD, task, 0)
    first = outcomes_of(place, "client_update", 0, jobs(["c1"], task), {"c1": {}})["c1"]
    judged = outcomes_of(place, "client_evaluate", 0, [("c1", Packet())], {"c1": first.changed})["c1"]
    assert not judged.changed
    assert not judged.removed
    assert "hr@10" in judged.reply.packet.scalars


def test_one_that_fails_does_not_take_the_others_along(tmp_path, monkeypatch):
    """On one machine an error in a cohort ends the run; here memory is a copy, so each can be tried alone."""
    whole = FedRKG.cohort_update

    def broken(self, cohort):
        if "c2" in cohort.ids:
            raise ValueError("c2's ratings are gone")
        return whole(self, cohort)

    there = federation(METHOD, small.task, tmp_path, 2)
    monkeypatch.setattr(FedRKG, "cohort_update", broken)
    result = run(METHOD, small.task(), rounds=1, engine=there.engine)
    assert [(f.client, f.stage) for f in result.failures] == [("c2", "client_update")]
    assert "c2's ratings are gone" in result.failures[0].error
    assert result.metrics[-1]["clients/replied"] == 5


def test_a_failure_has_a_trace(monkeypatch):
    def broken(self, cohort):
        raise ValueError("gone")

    monkeypatch.setattr(FedRKG, "cohort_update", broken)
    task = small.task()
    found = outcomes_of(Workplace(METHOD, task, 0), "client_update", 0, jobs(["c1"], task), {"c1": {}})["c1"].reply
    assert isinstance(found, Failure)
    assert "broken" in found.traceback


@pytest.mark.parametrize("nodes", [1, 3])
def test_users_that_come_back_find_their_tables(nodes, tmp_path):
    """Interrupted after the second of four rounds, in which half of the users take part; the same bits."""
    method, out = FedRKG(interval=2, participation=0.5), tmp_path / "run"
    first = federation(method, small.task, tmp_path, nodes)
    run(method, small.task(), rounds=2, engine=first.engine, out=out)
    again = federation(method, small.task, tmp_path, grid=first.grid)
    result = run(method, small.task(), rounds=4, engine=again.engine, out=out, resume=True)
    whole = run(method, small.task(), rounds=4)
    assert result.failures == []
    assert all(torch.equal(result.model[n], t) for n, t in whole.model.items())
