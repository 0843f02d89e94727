from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfi.numerics.plans import exact_plan, sinkhorn_plan
from fedfi.numerics.transport import assign, assignment_costs, barycentre, objective, weighted_mean


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


W = [column(0, 4, 8), column(10, 2, 6)]
F = [column(3, 1, 3), column(1, 1, 3)]


def dense_costs(centre, values, weights):
    return (weights[None] * (centre[:, None] - values[None]).square()).sum(2)


class TestTable7OfFedFiOT:
    """The three-neuron example of the paper's appendix; damped Fisher values and all results are printed there."""

    def test_costs(self):
        first = assignment_costs(W[0], W[0], F[0])
        second = assignment_costs(W[0], W[1], F[1])
        assert first.tolist() == [[0, 16, 192], [48, 0, 48], [192, 16, 0]]
        assert second.tolist() == [[100, 4, 108], [36, 4, 12], [4, 36, 12]]

    def test_alternation(self):
        found = barycentre(W[0], W, F)
        assert found.objectives == [116, 9]
        assert found.centre.flatten().tolist() == [0.5, 5.5, 8.5]
        assert [p.tolist() for p in found.assignments] == [[0, 1, 2], [1, 2, 0]]

    def test_second_step(self):
        centre = column(0.5, 5.5, 8.5)
        for values, weights, best, next_best in ((W[0], F[0], 3.75, 39.75), (W[1], F[1], 5.25, 41.25)):
            costs = assignment_costs(centre, values, weights)
            totals = sorted(sum(float(costs[i, j]) for i, j in enumerate(p)) for p in itertools.permutations(range(3)))
            assert totals[:2] == [best, next_best]

    def test_from_the_other_client(self):
        found = barycentre(W[1], W, F)
        assert found.centre.flatten().tolist() == [8.5, 0.5, 5.5]
        assert found.objectives[-1] == 9

    @pytest.mark.parametrize(
        ("order", "weights", "centre", "total"),
        [
            ([0, 1, 2], "equal", [5, 3, 7], 108),
            ([0, 1, 2], "fisher", [2.5, 3, 7], 83),
            ([1, 2, 0], "equal", [1, 5, 9], 12),
            ([1, 2, 0], "fisher", [0.5, 5.5, 8.5], 9),
        ],
    )
    def test_comparison(self, order, weights, centre, total):
        values, fisher = [W[0], W[1][order]], [F[0], F[1][order]]
        ones = [torch.ones(3, 1, dtype=torch.float64)] * 2
        mean = weighted_mean(values, fisher if weights == "fisher" else ones)
        assert mean.flatten().tolist() == centre
        assert objective(mean, values, fisher) == total


sizes = st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10_000))


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_costs_equal_the_dense_formula(size):
    units, width, _, seed = size
    rng = torch.Generator().manual_seed(seed)
    centre, values = (torch.randn(units, width, generator=rng) for _ in range(2))
    weights = torch.rand(units, width, generator=rng)
    torch.testing.assert_close(
        assignment_costs(centre, values, weights), dense_costs(centre.double(), values.double(), weights.double())
    )


@settings(max_examples=40, deadline=None)
@given(sizes)
def test_assignment_is_the_best_permutation(size):
    units, _, _, seed = size
    costs = torch.rand(min(units, 5), min(units, 5), generator=torch.Generator().manual_seed(seed))
    best = min(sum(float(costs[i, j]) for i, j in enumerate(p)) for p in itertools.permutations(range(len(costs))))
    found = assign(costs)
    assert sorted(found.tolist()) == list(range(len(costs)))
    assert float(costs[torch.arange(len(costs)), found].sum()) == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(sizes, st.sampled_from([1e-4, 1e-2, 1.0]))
def test_theorem_1_of_fedfiot(size, damping):
    """J never increases, and squared steps add up to at most (J[0] - J[S]) / (K lambda)."""
    units, width, count, seed = size
    rng = torch.Generator().manual_seed(seed)
    values = [torch.randn(units, width, generator=rng) for _ in range(count)]
    weights = [torch.rand(units, width, generator=rng).pow(4) + damping for _ in range(count)]
    found = barycentre(values[0], values, weights)
    drops = [before - after for before, after in itertools.pairwise(found.objectives)]
    scale = 1e-9 * (1 + found.objectives[0])
    assert all(drop >= -scale for drop in drops)
    fallen = found.objectives[0] - found.objectives[-1]
    assert sum(step**2 for step in found.steps) <= (fallen + scale) / (count * damping)


def test_a_mean_without_weights_is_plain():
    zeros = [torch.zeros(2), torch.zeros(2)]
    assert weighted_mean([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])], zeros).tolist() == [2, 4]


def test_tolerance_stops_early():
    rng = torch.Generator().manual_seed(3)
    values = [torch.randn(30, 2, generator=rng) for _ in range(4)]
    weights = [torch.ones(30, 2)] * 4
    assert len(barycentre(values[0], values, weights, tolerance=100.0).steps) == 1
    assert len(barycentre(values[0], values, weights).steps) > 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: assignment_costs(torch.ones(2, 3), torch.ones(2, 4), torch.ones(2, 4)), "of one D"),
        (lambda: assignment_costs(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3, 3)), "two of shape"),
        (lambda: assignment_costs(torch.ones(2, 3), torch.ones(2, 3), -torch.ones(2, 3)), "weight is negative"),
        (lambda: assign(torch.ones(2, 3)), "square matrix"),
        (lambda: assign(torch.full((2, 2), float("nan"))), "finite numbers"),
        (lambda: barycentre(torch.ones(2, 3), [], []), "at least 1"),
        (lambda: barycentre(torch.ones(2, 3), [torch.ones(3, 3)], [torch.ones(3, 3)]), "the reference's"),
        (lambda: exact_plan(torch.ones(3)), "matrix"),
        (lambda: sinkhorn_plan(torch.ones(3, 3), 0.0), "positive"),
    ],
)
def test_bad_input(call, said):
    with pytest.raises(ValueError, match=said):
        call()


class TestPlans:
    def test_equal_widths_give_the_assignment(self):
        pytest.importorskip("ot")
        costs = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
        plan = exact_plan(costs)
        torch.testing.assert_close(plan, torch.eye(6, dtype=torch.float64)[assign(costs)])
        assert torch.equal(sinkhorn_plan(costs, 1e-3).argmax(1), assign(costs))

    @pytest.mark.parametrize("plan_of", [exact_plan, sinkhorn_plan])
    def test_unequal_widths_have_rows_of_mass_one(self, plan_of):
        pytest.importorskip("ot")
        plan = plan_of(torch.rand(4, 6, generator=torch.Generator().manual_seed(0)))
        torch.testing.assert_close(plan.sum(1), torch.ones(4, dtype=torch.float64))
        torch.testing.assert_close(plan.sum(0), torch.full((6,), 4 / 6, dtype=torch.float64), atol=2e-3, rtol=0)
