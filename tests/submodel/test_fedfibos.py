from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests import tiny

from fedfi.engines.local import LocalEngine
from fedfi.engines.workplace import Job, Workplace
from fedfi.errors import InputError
from fedfi.federation.packet import Packet
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.federation.training import batch_positions
from fedfi.numerics.selection import unpack_bits
from fedfi.submodel.fedfibos import FedFIbOS
from fedfi.submodel.masked import receive, send, threshold_factor, train_masked

PUBLISHED = dict(FedFIbOS.presets["as-published"])
MIX = {0.5: 0.5, 0.25: 0.5}


def start(algorithm, task):
    state = algorithm.init(task, keyed_generator(0, "server", "init"))
    return state, list(task.data.clients)


def round_of(algorithm, task, state, number, clients):
    """One round by hand: the packets sent, the replies, and the next state."""
    jobs = list(algorithm.configure(state, number, clients, keyed_generator(0, "server", number, "configure")))
    sent = dict(jobs)
    replies = [
        dataclasses.replace(r, sent=sent[r.client])
        for r in LocalEngine(algorithm, task).map("client_update", jobs, number)
    ]
    after, metrics = algorithm.aggregate(state, number, iter(replies), keyed_generator(0, "x"))
    return sent, {r.client: r.packet for r in replies}, after, metrics


def masks(sent, state):
    return {c: unpack_bits(p.blobs["mask"], state.model.layout.pool) for c, p in sent.items()}


# -- the literal algorithm ---------------------------------------------------------------------------------------


def test_literal_masks_are_frozen_at_the_largest_initial_weights():
    """The induction of the class's docstring: with f-hat zero off the mask, a selected entry's average after r
    updates is at least alpha^r |x_0,i|, an unselected one's exactly alpha^r |x_0,j|, so the order never changes."""
    task = tiny.small()
    algorithm = FedFIbOS(participation=1.0, capacities=MIX, **PUBLISHED)
    state, clients = start(algorithm, task)
    first = None
    for number in range(6):
        sent, _, state, _ = round_of(algorithm, task, state, number, clients)
        found = masks(sent, state)
        first = first or found
        assert all(torch.equal(found[c], first[c]) for c in clients)
    k = math.ceil(0.5 * state.model.layout.pool)
    largest = torch.zeros(state.model.layout.pool, dtype=torch.bool)
    largest[state.averages.prior.argsort(descending=True)[:k]] = True
    assert any(torch.equal(m, largest) for m in first.values())


def test_literal_aggregation_wipes_out_what_nobody_holds():
    """Lines 10, 16 and 19: Delta_j = x_j at all A clients that do not hold j, so x_j - (1/A) A x_j = 0."""
    task = tiny.small()
    algorithm = FedFIbOS(participation=1.0, capacities={0.25: 1.0}, **PUBLISHED)
    state, clients = start(algorithm, task)
    sent, _, after, _ = round_of(algorithm, task, state, 0, clients)
    nobody = ~torch.stack(list(masks(sent, state).values())).any(0)
    assert nobody.any()
    assert bool((state.model.pool[nobody] != 0).all())
    torch.testing.assert_close(after.model.pool[nobody], torch.zeros(int(nobody.sum())), atol=1e-6, rtol=0)


def test_literal_delta_off_the_mask_is_x():
    """One client of two holds j: x_j - (1/2) (Delta_j + x_j)."""
    task = tiny.small(clients=2)
    algorithm = FedFIbOS(participation=1.0, capacities=MIX, **PUBLISHED)
    state, clients = start(algorithm, task)
    sent, replies, after, _ = round_of(algorithm, task, state, 0, clients)
    held = masks(sent, state)
    large, small = sorted(clients, key=lambda c: -int(held[c].sum()))
    only = held[large] & ~held[small]
    delta = torch.zeros(state.model.layout.pool).masked_scatter(
        held[large], replies[large].tensors["update"][: int(held[large].sum())]
    )
    x = state.model.pool
    torch.testing.assert_close(after.model.pool[only], (x - (delta + x) / 2)[only])


# -- the defaults ------------------------------------------------------------------------------------------------


def test_entries_that_nobody_holds_stay_bit_identical():
    task = tiny.small(momentum=0.9, weight_decay=0.1)
    algorithm = FedFIbOS(participation=1.0, capacities={0.25: 1.0}, floor=0.0)
    state, clients = start(algorithm, task)
    sent, _, after, _ = round_of(algorithm, task, state, 0, clients)
    held = torch.stack(list(masks(sent, state).values())).any(0)
    assert not held.all()
    assert torch.equal(after.model.pool[~held], state.model.pool[~held])
    assert not torch.equal(after.model.pool[held], state.model.pool[held])


def test_count_divides_by_the_holders():
    task = tiny.small(clients=2)
    algorithm = FedFIbOS(participation=1.0, capacities=MIX)
    state, clients = start(algorithm, task)
    sent, replies, after, _ = round_of(algorithm, task, state, 0, clients)
    expected = []
    for j in range(state.model.layout.pool):
        deltas = []
        for client, mask in masks(sent, state).items():
            if mask[j]:
                deltas.append(replies[client].tensors["update"][int(mask[:j].sum())])
        x = state.model.pool[j]
        expected.append(x - sum(deltas) / len(deltas) if deltas else x)
    torch.testing.assert_close(after.model.pool, torch.stack(expected))


@pytest.mark.parametrize(
    "recipe",
    [{"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adamw", "weight_decay": 0.1}, {"clip_norm": 0.1}],
    ids=str,
)
def test_off_the_mask_nothing_moves_under_any_optimizer(recipe):
    task = tiny.small(epochs=3, **recipe)
    algorithm = FedFIbOS(capacities={0.25: 1.0})
    state, _ = start(algorithm, task)
    client = Workplace(algorithm, task, 0).client(Job("client_update", "c1", 0, Packet()))
    packet = algorithm.packet_of(state, "c1", 0.25, None)
    mask = receive(packet, client.workbench)
    train_masked(client, mask, algorithm._measured_gradient(client, torch.zeros(len(mask))))
    pool = client.workbench.vector.detach()[: len(mask)]
    assert bool((pool[~mask] == 0).all())
    assert not torch.equal(pool[mask], packet.tensors["kept"][: int(mask.sum())])


def test_masked_training_equals_a_dense_reference():
    """SGD on a copy of the network whose weights are multiplied by the mask in every forward pass."""
    task = tiny.small()
    algorithm = FedFIbOS(participation=1.0, capacities={0.5: 1.0})
    state, clients = start(algorithm, task)
    sent, replies, _, _ = round_of(algorithm, task, state, 0, clients)
    mask = masks(sent, state)["c2"]
    layout, data = state.model.layout, task.data.clients["c2"].train
    x = state.model.vector.clone().requires_grad_(True)
    full = torch.cat([mask, torch.ones(layout.size - layout.pool, dtype=torch.bool)])
    client = Workplace(algorithm, task, 0).client(Job("client_update", "c2", 0, Packet()))
    squares, steps, model = torch.zeros(layout.pool), 0, tiny.network()
    for positions in batch_positions(len(data), task.training, client.rng("batches")):
        inputs, targets = data.batch(positions)
        effective = (x * full).detach().requires_grad_(True)
        outputs = torch.func.functional_call(model, layout.split(effective), (inputs,))
        (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(outputs, targets), effective)
        squares += slope[: layout.pool] ** 2 / len(positions)
        steps += 1
        with torch.no_grad():
            x -= 0.1 * slope * full
    update = state.model.vector - x.detach()
    torch.testing.assert_close(replies["c2"].tensors["update"], update[full], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(replies["c2"].tensors["fisher"], squares / steps, rtol=1e-4, atol=1e-9)


def test_batch_and_example_fisher_agree_on_batches_of_one():
    task = tiny.small(batch_size=1)
    replies = []
    for kind in ("batch", "example"):
        algorithm = FedFIbOS(participation=1.0, capacities=MIX, fisher_samples=kind)
        state, clients = start(algorithm, task)
        replies.append(round_of(algorithm, task, state, 0, clients)[1]["c4"])
    for name in ("update", "fisher"):
        torch.testing.assert_close(replies[0].tensors[name], replies[1].tensors[name], rtol=1e-4, atol=1e-8)


def test_the_average_follows_equation_nine():
    """First participation: f-hat itself (`replace`); second: .9 of it plus .1 of the new one."""
    task = tiny.small()
    algorithm = FedFIbOS(participation=1.0, capacities=MIX, fisher_storage="float32", ema=0.9)
    state, clients = start(algorithm, task)
    _, one, state, _ = round_of(algorithm, task, state, 0, clients)
    assert torch.equal(state.averages.rows.read("c0"), one["c0"].tensors["fisher"])
    _, two, state, _ = round_of(algorithm, task, state, 1, clients)
    expected = 0.9 * one["c0"].tensors["fisher"] + 0.1 * two["c0"].tensors["fisher"]
    torch.testing.assert_close(state.averages.rows.read("c0"), expected)


def test_an_active_average_ranks_unexplored_entries_by_their_prior_at_the_estimates_mean():
    task = tiny.small()
    algorithm = FedFIbOS(participation=1.0, capacities={0.25: 1.0}, fisher="active", fisher_storage="float32")
    state, clients = start(algorithm, task)
    sent, replies, state, _ = round_of(algorithm, task, state, 0, clients)
    mask = masks(sent, state)["c0"]
    own = state.averages.own("c0")
    assert torch.equal(own[mask], replies["c0"].tensors["fisher"])
    scale = replies["c0"].tensors["fisher"].double().sum() / state.averages.prior[mask].double().sum()
    torch.testing.assert_close(own[~mask], state.averages.prior[~mask] * scale.float())
    literal = FedFIbOS(participation=1.0, capacities={0.25: 1.0}, fisher="active", warm_start="raw")
    state, _ = start(literal, task)
    sent, _, state, _ = round_of(literal, task, state, 0, clients)
    off = ~masks(sent, state)["c0"]
    assert torch.equal(state.averages.own("c0")[off], state.averages.prior[off])


def test_aggregating_leaves_the_state_before_it_as_it_was():
    task = tiny.small()
    algorithm = FedFIbOS(participation=1.0, capacities=MIX)
    state, clients = start(algorithm, task)
    _, _, one, _ = round_of(algorithm, task, state, 0, clients)
    before = {c: one.averages.rows.read(c) for c in clients}
    first = round_of(algorithm, task, one, 1, clients)[2]
    again = round_of(algorithm, task, one, 1, clients)[2]
    assert all(torch.equal(one.averages.rows.read(c), before[c]) for c in clients)
    assert all(torch.equal(first.averages.rows.read(c), again.averages.rows.read(c)) for c in clients)
    assert len(state.averages.rows) == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"blend": 1.0}, "shared"), ({"blend": 0.25}, "mixed"), ({"fisher": "global"}, "shared")],
)
def test_blending_mixes_the_shared_average_into_scores_and_diagnostics(options, expected):
    task = tiny.small()
    algorithm = FedFIbOS(participation=1.0, capacities={0.5: 1.0}, fisher_storage="float32", **options)
    state, clients = start(algorithm, task)
    *_, state, metrics = round_of(algorithm, task, state, 0, clients)
    shared = state.averages.common()
    want = shared if expected == "shared" else 0.75 * state.averages.own("c0") + 0.25 * shared
    torch.testing.assert_close(algorithm._importance(state, "c0"), want)
    if expected == "shared":
        spread = float(shared.double().std(correction=0) / shared.double().mean())
        assert metrics["cv_fisher"] == pytest.approx(spread)


def test_per_example_fisher_refuses_batch_statistics_at_the_start():
    said = r"^algorithm.fisher_samples = .example.: layer '1' \(BatchNorm1d\) .*\(nearest valid: .batch.\)$"
    with pytest.raises(InputError, match=said):
        run(FedFIbOS(fisher_samples="example"), tiny.small(model=tiny.with_buffers), rounds=1)


def test_only_clients_that_took_part_have_rows():
    task = tiny.small(clients=10)
    result = run(FedFIbOS(participation=0.2, capacities=MIX), task, rounds=2)
    asked = {c for c in task.data.clients if c in result.state.averages.rows}
    assert 2 <= len(asked) <= 4
    shared = run(FedFIbOS(participation=0.2, capacities=MIX, fisher="global"), task, rounds=2)
    assert len(shared.state.averages.rows) == 0


def test_the_first_mask_of_a_newcomer_comes_from_the_shared_average():
    task = tiny.small()
    for first, expected in (("shared", "_shared"), ("magnitude", "prior")):
        algorithm = FedFIbOS(participation=0.5, capacities=MIX, first_mask=first)
        state, clients = start(algorithm, task)
        _, _, state, _ = round_of(algorithm, task, state, 0, clients)
        newcomer = next(c for c in clients if c not in state.averages.rows)
        want = state.averages.prior if expected == "prior" else state.averages.common()
        assert torch.equal(algorithm._importance(state, newcomer), want)


@pytest.mark.parametrize(
    ("bits", "kind", "size"), [(32, "dense", 4), (8, "dense", 1), (32, "active", 4), (8, "active", 1)]
)
def test_traffic_is_exactly_the_formula(bits, kind, size):
    """Down: d/8 bytes of mask, 4 bytes a kept value, 4 a norm parameter. Up: 4 bytes a kept value and a norm
    parameter, and `size` bytes a Fisher value, of which a dense client sends d and an active one k."""
    task = tiny.small()
    algorithm = FedFIbOS(participation=1.0, capacities={0.25: 1.0}, fisher=kind, fisher_bits=bits)
    state, clients = start(algorithm, task)
    sent, replies, _, _ = round_of(algorithm, task, state, 0, clients)
    d, norm = 6 * 8 + 8 + 8 * 3 + 3, 16
    k = math.ceil(0.25 * d)
    assert {p.data_nbytes for p in sent.values()} == {math.ceil(d / 8) + 4 * k + 4 * norm}
    measured = d if kind == "dense" else k
    assert {p.data_nbytes for p in replies.values()} == {4 * k + 4 * norm + size * measured}
    assert all(p.nbytes == len(p.encode()) for p in [*sent.values(), *replies.values()])


def test_the_threshold_factor_is_one_and_a_half_at_the_threshold():
    """1 + 2 t |w| / (|w| + t)^2 at |w| = t is 1 + 2 t^2 / 4 t^2 = 1.5; it is 1 at w = 0 and tends to 1 far out."""
    weights = torch.tensor([0.3, -0.3, 0.0, 3e6])
    torch.testing.assert_close(threshold_factor(weights, 0.3), torch.tensor([1.5, 1.5, 1.0, 1.0]))


def test_the_floor_keeps_every_layer_alive():
    """At ratio .0625 of a wide and a narrow layer, magnitude alone would keep nothing of the wide one."""

    def model():
        net = tiny.nn.Sequential(tiny.nn.Linear(6, 100, bias=False), tiny.nn.Linear(100, 3, bias=False))
        with torch.no_grad():
            net[0].weight.mul_(0.001)
        return net

    task = dataclasses.replace(tiny.small(), model=model)
    for floor, keeps in ((0.0, False), (0.5, True)):
        algorithm = FedFIbOS(participation=1.0, capacities={0.0625: 1.0}, floor=floor)
        state, clients = start(algorithm, task)
        sent, _, _, metrics = round_of(algorithm, task, state, 0, clients)
        assert all(bool(m[:600].any()) is keeps for m in masks(sent, state).values())
        notes = [v for v in metrics.values() if isinstance(v, str)]
        assert bool(notes) is not keeps
        assert (metrics["keep_lowest/0.0625"] > 0) is keeps


def test_diagnostics_at_the_start_compare_like_with_like():
    """Before anything is measured the mask is the magnitude's, so the Jaccard index is 1 at every level."""
    task = tiny.small()
    algorithm = FedFIbOS(participation=1.0, capacities=MIX)
    state, clients = start(algorithm, task)
    *_, state, metrics = round_of(algorithm, task, state, 0, clients)
    assert metrics["jaccard/0.5"] == metrics["jaccard/0.25"] == 1.0
    *_, metrics = round_of(algorithm, task, state, 1, clients)
    assert metrics["jaccard/0.25"] < 1.0
    assert metrics["cv_fisher"] > 0
    assert metrics["masking_error/0.25"] >= 0


def test_a_submodel_travels_whole():
    task = tiny.small(model=tiny.with_buffers)
    algorithm = FedFIbOS(capacities={0.5: 1.0})
    state, _ = start(algorithm, task)
    mask = torch.arange(state.model.layout.pool) % 2 == 0
    bench = Workplace(algorithm, task, 0).benches.whole
    assert torch.equal(receive(send(state.model, mask, {}), bench), mask)
    expected = state.model.tree()
    expected |= state.model.layout.split(state.model.vector * state.model.whole(mask))
    assert all(torch.equal(t, expected[n]) for n, t in bench.tree().items())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacities": {0.0: 1.0}}, "above 0"),
        ({"capacities": {1.5: 1.0}}, "at most 1"),
        ({"capacities": {0.5: 0.7}}, "sum to 0.7, expected 1"),
        ({"capacities": {}}, "at least one level"),
        ({"capacities": {"1.0": 0.5, "1": 1.0}}, "level 1.0 is given twice, also as 1"),
        ({"fisher": "sparse"}, "'dense', 'active', 'masked' or 'global'"),
        ({"participation": 0}, "above 0"),
        ({"ema": 1.0}, "below 1"),
        ({"flor": 0.5}, "flor"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        FedFIbOS(**options)
