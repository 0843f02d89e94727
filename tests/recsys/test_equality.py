"""Many clients at once equal a loop over plain autograd, whoever else is in the cohort."""

from __future__ import annotations

import pytest
import torch
from tests.recsys import small

from fedfi.engines.local import LocalEngine
from fedfi.federation.algorithm import Failure
from fedfi.federation.run import run
from fedfi.recsys.colr import CoLR
from fedfi.recsys.fedcia import FedCIA
from fedfi.recsys.fedmf import FedMF
from fedfi.recsys.fedncf import FedNCF
from fedfi.recsys.fedrap import FedRAP
from fedfi.recsys.fedrkg import FedRKG
from fedfi.recsys.gpfedrec import GPFedRec
from fedfi.recsys.pfedrec import PFedRec

METHODS = {
    "fedrkg": FedRKG(interval=2),
    "fedrkg-each-round": FedRKG(interval=1, participation=0.5),
    "fedrkg-pfedrec": FedRKG(backbone="pfedrec", interval=2, alternate=True),
    "fedrkg-ncf": FedRKG(backbone="ncf", interval=2),
    "fedrkg-ncf-alternate": FedRKG(backbone="ncf", interval=2, alternate=True),
    "fedrkg-no-gate": FedRKG(interval=2, gate=False, strength=3.0),
    "fedrkg-private": FedRKG(interval=1, clip=0.5, noise=0.1),
    "fedrkg-alone": FedRKG(interval=None),
    "fedrkg-warm": FedRKG(interval=2, warmup=1, participation=0.5),
    "fedrkg-bpr": FedRKG(interval=2, loss="bpr"),
    "fedrkg-softmax": FedRKG(backbone="pfedrec", interval=2, alternate=True, loss="softmax"),
    "fedrkg-ncf-bpr": FedRKG(backbone="ncf", interval=2, loss="bpr"),
    "fedmf": FedMF(),
    "fedncf-softmax": FedNCF(participation=0.5, loss="softmax"),
    "fedncf": FedNCF(participation=0.5),
    "pfedrec": PFedRec(),
    "gpfedrec": GPFedRec(participation=0.5),
    "gpfedrec-neighbours": GPFedRec(neighbours=2, layers=2, backbone="mf"),
    "fedrap": FedRAP(participation=0.5, independence=0.5, sparsity=0.3),
    "fedcia": FedCIA(participation=0.5, noise=0.01),
    "fedcia-rarely": FedCIA(interval=2),
    "colr": CoLR(rank=2, participation=0.5),
}
METHOD = pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS)


def close(a, b):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


@METHOD
@pytest.mark.parametrize("recipe", [{}, {"clip_norm": None, "epochs": 2, "batch_size": 256}], ids=["clip", "epochs"])
def test_cohorts_equal_client_after_client(algorithm, recipe):
    (many, table), (single, other) = small.both(algorithm, lambda: small.task(**recipe), rounds=4)
    assert many.failures == single.failures == []
    close(many.model, single.model)
    close(table["columns"], other["columns"])
    assert all(torch.equal(table["present"][n], other["present"][n]) for n in other["present"])
    for a, b in zip(many.metrics, single.metrics, strict=True):
        assert a.keys() == b.keys()
        assert {k: a[k] for k in a if "@" in k} == {k: b[k] for k in b if "@" in k}
        assert a["bytes/up"] == pytest.approx(b["bytes/up"], rel=0.01)  # the digits of a loss


@pytest.mark.parametrize("cohorts", [0, 2, 128])
def test_a_user_whose_scores_are_no_numbers_fails_alone(cohorts):
    """Its table has a NaN; the others are judged as without it."""
    algorithm, task = FedRKG(interval=None), small.task()
    engine = LocalEngine(algorithm, task, cohorts=cohorts)
    state = run(algorithm, task, rounds=1, engine=engine).state

    def judged():
        jobs = algorithm.configure_evaluation(state, engine.clients(), None)
        return list(engine.map("client_evaluate", jobs, 1))

    before = judged()
    engine.memory()["columns"]["items"][2, 5] = torch.nan
    after = judged()
    assert [isinstance(r, Failure) for r in after] == [False, False, True, False, False, False]
    assert (after[2].client, after[2].stage) == ("c2", "client_evaluate")
    assert [r.packet.scalars for r in after if r.client != "c2"] == [
        r.packet.scalars for r in before if r.client != "c2"
    ]


@METHOD
def test_the_order_of_clients_changes_no_score(algorithm):
    task = small.task()
    engine = LocalEngine(algorithm, task)
    state = run(algorithm, task, rounds=2, engine=engine).state

    def judged(clients):
        jobs = list(algorithm.configure_evaluation(state, clients, None))
        return {r.client: dict(r.packet.scalars) for r in engine.map("client_evaluate", jobs, 2)}

    assert judged(["c0", "c2", "c1", "c3"]) == judged(["c0", "c1", "c2", "c3"])


@METHOD
@pytest.mark.parametrize(("cohorts", "workers"), [(1, 1), (4, 1), (2, 3)])
def test_neither_cohorts_nor_threads_change_a_bit(algorithm, cohorts, workers):
    one, other = small.task(), small.task()
    whole = LocalEngine(algorithm, one)
    parts = LocalEngine(algorithm, other, cohorts=cohorts, workers=workers)
    first = run(algorithm, one, rounds=3, engine=whole)
    second = run(algorithm, other, rounds=3, engine=parts)
    parts.close()
    assert all(torch.equal(first.model[n], second.model[n]) for n in first.model)
    columns = whole.memory()["columns"]
    assert all(torch.equal(columns[n], parts.memory()["columns"][n]) for n in columns)
    assert [{**m, "seconds": 0} for m in first.metrics] == [{**m, "seconds": 0} for m in second.metrics]
