"""Point 5 of the shared matrix: a run on Flower is, to the bit, the run of the local engine."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from tests.flower.fakes import federation
from tests.matrix.rows import ROWS
from tests.recsys import small

from fedfi.federation.run import run

ROUNDS = 3


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def numbers(result):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in result.metrics]


@pytest.mark.parametrize("row", [pytest.param(r, id=n, marks=r.marks) for n, r in ROWS.items() if r.task is tiny.small])
@pytest.mark.parametrize("model", [tiny.network, tiny.with_buffers], ids=["layer norm", "batch norm"])
def test_flower_changes_no_bit(row, model, tmp_path):
    if model is tiny.with_buffers and getattr(row.algorithm, "fisher_samples", "batch") == "example":
        pytest.skip("an example has no gradient of its own under batch norm")
    if model is tiny.with_buffers and row.private:
        pytest.skip("statistics of the data are refused, which clipping does not cover")
    local = run(row.algorithm, tiny.small(model=model), rounds=ROUNDS)
    here = federation(row.algorithm, lambda: tiny.small(model=model), tmp_path)
    result = run(row.algorithm, tiny.small(model=model), rounds=ROUNDS, engine=here.engine)
    assert result.failures == []
    assert same(local.model, result.model)
    assert numbers(local) == numbers(result)


@pytest.mark.parametrize("row", [pytest.param(r, id=n) for n, r in ROWS.items() if r.task is small.task])
@pytest.mark.parametrize("nodes", [1, 4])
def test_ratings_on_flower_change_no_bit(row, nodes, tmp_path):
    """A node does its users at once, as one process does all of them."""
    local = run(row.algorithm, small.task(), rounds=ROUNDS)
    here = federation(row.algorithm, small.task, tmp_path, nodes)
    result = run(row.algorithm, small.task(), rounds=ROUNDS, engine=here.engine)
    assert result.failures == []
    assert same(local.model, result.model)
    assert numbers(local) == numbers(result)
