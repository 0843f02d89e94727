"""A run on Flower is, to the bit, the run of the local engine: in short, and with memory on the clients."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tests import tiny
from tests.flower.fakes import federation
from tests.flower.remembering import Remembering

from fedfi.averaging.fedavg import FedAvg
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.submodel.fedfibos import FedFIbOS

MIX = {1.0: 0.25, 0.5: 0.25, 0.25: 0.5}
METHODS = {
    "fedavg": FedAvg(participation=0.5),
    "fedfibos": FedFIbOS(participation=0.5, capacities=MIX),
    "remembering": Remembering(participation=0.5),
}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def numbers(result):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in result.metrics]


@pytest.mark.parametrize("nodes", [1, 4, 6])
@pytest.mark.parametrize("name", METHODS)
def test_the_bits_are_those_of_the_local_engine(name, nodes, tmp_path):
    local = run(METHODS[name], tiny.small(), rounds=4)
    there = federation(METHODS[name], tiny.small, tmp_path, nodes)
    result = run(METHODS[name], tiny.small(), rounds=4, engine=there.engine)
    assert result.failures == []
    assert same(local.model, result.model)
    assert numbers(local) == numbers(result)


def test_a_reply_that_was_taken_is_held_by_nobody(tmp_path):
    """Replies are as large as models, and nobody should wait for the garbage collector."""
    there, method = federation(FedAvg(), tiny.small, tmp_path, 2), FedAvg()
    state = method.init(tiny.small(), keyed_generator(0, "server", "init"))
    jobs = list(method.configure(state, 0, there.engine.clients(), keyed_generator(0, "x")))
    there.engine.wait(10)
    gc.disable()
    try:
        taken = [weakref.ref(reply) for reply in there.engine.map("client_update", jobs, 0)]
        assert len(taken) == len(jobs)
        assert [ref() for ref in taken] == [None] * len(taken)
    finally:
        gc.enable()
