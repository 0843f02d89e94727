from __future__ import annotations

import dataclasses

import pytest
import torch
from tests import tiny
from torch import nn

from fedfi.averaging.fedavg import FedAvg
from fedfi.channels import discover
from fedfi.engines.workplace import Job, Workplace
from fedfi.errors import InputError, RunError
from fedfi.federation.algorithm import Reply
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Packet
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.federation.task import Task
from fedfi.federation.training import batch_positions
from fedfi.federation.workbench import Workbench
from fedfi.models import InputSpec, build
from fedfi.submodel.fedbrb import FedBRB
from fedfi.submodel.feddropout import FederatedDropout
from fedfi.submodel.fedfibos import FedFIbOS
from fedfi.submodel.fedrolex import FedRolex
from fedfi.submodel.fiarse import FIARSE
from fedfi.submodel.fjord import FjORD
from fedfi.submodel.heterofl import HeteroFL
from fedfi.submodel.holders import HolderMean
from fedfi.submodel.magnitude import Magnitude
from fedfi.submodel.model import Model
from fedfi.submodel.scaling import cut_layers
from fedfi.submodel.structured import masked_loss_gradient, own_rows

PLAIN = {"scaler": False, "masked_loss": False, "label_rows": False}
IMAGES = InputSpec("image", (3, 32, 32), 10)


def begin(algorithm, task):
    state = algorithm.init(task, keyed_generator(0, "server", "init"))
    return state, Workplace(algorithm, task, 0)


def update(algorithm, place, packet, name="c2"):
    outcome = place.do(Job("client_update", name, 0, packet))
    assert isinstance(outcome.reply, Reply), outcome.reply
    return outcome.reply.packet


def no_norm(features: int = 6, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, classes))


# -- index sets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1.0, 0.5, 0.25, 0.125, 0.0625])
def test_heterofl_keeps_the_first_channels_of_resnet18(width):
    """[0 : ceil(r C)] of every layer's outputs and of the next one's inputs; the image's channels and the classes
    stay. Residual streams of a stage share one set."""
    model = build("resnet18", IMAGES, {"norm": "batch"})
    wiring = discover(model, IMAGES.example())
    units = HeteroFL().units(wiring, width, 5, keyed_generator(0, "x"))
    expected = {}
    for name, tensor in model.state_dict().items():
        kept = []
        for axis, size in enumerate(tensor.shape):
            whole = axis > 1 or (name == "stem.conv.weight" and axis == 1) or (name.startswith("head.") and axis == 0)
            kept.append(size if whole else -(-int(width * 10000) * size // 10000))
        expected[name] = kept
    for name, shape in expected.items():
        mask = wiring.mask(name, units)
        corner = torch.zeros(mask.shape, dtype=torch.bool)
        corner[tuple(slice(k) for k in shape)] = True
        assert torch.equal(mask, corner), name


@pytest.mark.parametrize("width", [0.5, 0.25, 0.125, 0.0625])
def test_fedrolex_covers_a_band_of_square_layers(width):
    """Windows of w = rn channels on both sides at the same start reach |i - j| < w around the circle:
    (2w - 1) / n of a square layer; with n = 64, 98.4, 48.4, 23.4 and 10.9 %."""
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    wiring = discover(net, torch.randn(2, 4))
    algorithm = FedRolex(**PLAIN)
    reached = torch.zeros(64, 64, dtype=torch.bool)
    for number in range(64):
        reached |= wiring.mask("2.weight", algorithm.units(wiring, width, number, keyed_generator(0, "x")))
    assert reached.double().mean().item() == pytest.approx((2 * 64 * width - 1) / 64)
    assert round(100 * (2 * 64 * width - 1) / 64, 1) == {0.5: 98.4, 0.25: 48.4, 0.125: 23.4, 0.0625: 10.9}[width]


def test_fedrolex_windows_are_those_of_the_round():
    """{(j + t) mod n : j < ceil(r n)}, for all layers at once."""
    wiring = discover(no_norm(), torch.randn(2, 6))
    for number in range(10):
        units = FedRolex().units(wiring, 0.3, number, keyed_generator(0, "x"))
        for kept in units.values():
            assert sorted(kept.nonzero().flatten().tolist()) == sorted((j + number) % 8 for j in range(3))


def test_two_residual_inputs_share_one_set():
    """In ResNet-18 a block's last convolution and its shortcut add up, so one group makes the outputs of both."""
    wiring = discover(build("resnet18", IMAGES, {"width": 0.25}), IMAGES.example())
    made = [{m.name for m in group.members if m.role == "out" and "conv" in m.name} for group in wiring.groups]
    streams = [names for names in made if len(names) > 1]
    assert len(streams) == 4
    units = FederatedDropout().units(wiring, 0.5, 0, keyed_generator(0, "x"))
    for names in streams:
        rows = [wiring.mask(name, units).flatten(1).any(1) for name in sorted(names)]
        assert all(torch.equal(r, rows[0]) for r in rows)


def test_dropout_draws_anew_for_each_client_and_round():
    task = tiny.small(model=no_norm)
    algorithm = FederatedDropout(participation=1.0, capacities={0.5: 1.0}, ratio="width")
    state, _ = begin(algorithm, task)
    clients = list(task.data.clients)
    one = dict(algorithm.configure(state, 0, clients, keyed_generator(0, "a")))
    two = dict(algorithm.configure(state, 1, clients, keyed_generator(0, "b")))
    assert len({p.blobs["units"] for p in [*one.values(), *two.values()]}) > len(clients)


# -- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [PLAIN, PLAIN | {"scaler": True}, PLAIN | {"masked_loss": True}], ids=str)
def test_a_client_trains_the_small_network(devices):
    """SGD by hand on the first 4 of 8 channels; with the scaler each hidden layer's output is divided by .5; with the
    masked loss logits of absent classes are zero."""
    task = tiny.small(model=no_norm, epochs=2)
    algorithm = HeteroFL(participation=1.0, capacities={0.5: 1.0}, ratio="width", **devices)
    state, place = begin(algorithm, task)
    packet = algorithm._submodel(state, 0.5, keyed_generator(0, "x"))
    reply = update(algorithm, place, packet)
    layout, data = state.model.layout, task.data.clients["c2"].train
    full = layout.split(state.model.vector)
    cut = {"0.weight": (4, 6), "0.bias": (4,), "2.weight": (4, 4), "2.bias": (4,), "4.weight": (3, 4), "4.bias": (3,)}
    w = {n: full[n][tuple(slice(k) for k in shape)].clone().requires_grad_(True) for n, shape in cut.items()}
    start = {n: t.detach().clone() for n, t in w.items()}
    rate = 0.5 if devices["scaler"] else 1.0
    have = data.class_counts() > 0
    client = place.client(Job("client_update", "c2", 0, Packet()))
    for positions in batch_positions(len(data), task.training, client.rng("batches")):
        inputs, targets = data.batch(positions)
        hidden = torch.relu((inputs @ w["0.weight"].T + w["0.bias"]) / rate)
        hidden = torch.relu((hidden @ w["2.weight"].T + w["2.bias"]) / rate)
        logits = hidden @ w["4.weight"].T + w["4.bias"]
        if devices["masked_loss"]:
            logits = logits * have
        slopes = torch.autograd.grad(nn.functional.cross_entropy(logits, targets), list(w.values()))
        with torch.no_grad():
            for tensor, slope in zip(w.values(), slopes, strict=True):
                tensor -= 0.1 * slope
    expected = torch.cat([(start[n] - w[n].detach()).flatten() for n in layout.names])
    torch.testing.assert_close(reply.tensors["update"], expected, rtol=1e-4, atol=1e-6)


def test_the_scaler_sits_on_the_layers_that_are_cut():
    wiring = discover(no_norm(), torch.randn(2, 6))
    assert cut_layers(wiring) == ["0", "2"]


# -- averaging -----------------------------------------------------------------------------------------------------


def test_entries_are_averaged_over_their_holders_and_others_stay():
    task = tiny.small(clients=2, model=tiny.with_buffers)
    algorithm = HeteroFL(participation=1.0, capacities={1.0: 0.5, 0.5: 0.5}, ratio="width", **PLAIN)
    state, place = begin(algorithm, task)
    sent = dict(algorithm.configure(state, 0, list(task.data.clients), keyed_generator(0, "x")))
    replies = [Reply(c, update(algorithm, place, p, c), sent=p) for c, p in sent.items()]
    after, _ = algorithm.aggregate(state, 0, iter(replies), keyed_generator(0, "x"))
    whole, small = sorted(replies, key=lambda r: -len(r.packet.tensors["update"]))
    x, new = state.model.layout.split(state.model.vector), state.model.layout.split(after.model.vector)
    big = state.model.layout.split(whole.packet.tensors["update"])
    cut = {"0.weight": (4, 6), "0.bias": (4,), "1.weight": (4,), "1.bias": (4,), "3.weight": (3, 4), "3.bias": (3,)}
    first = 0
    for name in state.model.layout.names:
        shape = cut[name]
        count = torch.Size(shape).numel()
        little = small.packet.tensors["update"][first : first + count].view(shape)
        first += count
        corner = tuple(slice(k) for k in shape)
        expected = x[name] - big[name]
        expected[corner] = x[name][corner] - (big[name][corner] + little) / 2
        torch.testing.assert_close(new[name], expected)
    means = whole.packet.tensors["buffer:1.running_mean"].clone()
    means[:4] = (means[:4] + small.packet.tensors["buffer:1.running_mean"]) / 2
    torch.testing.assert_close(after.model.constants["1.running_mean"], means)


def test_what_nobody_holds_stays_bit_identical():
    task = tiny.small(model=tiny.with_buffers, momentum=0.9, weight_decay=0.1)
    algorithm = HeteroFL(participation=1.0, capacities={0.5: 1.0}, ratio="width")
    result = run(algorithm, task, rounds=2)
    state, _ = begin(algorithm, task)
    before, after = state.model.tree(), result.model
    assert torch.equal(after["0.weight"][4:], before["0.weight"][4:])
    assert torch.equal(after["3.weight"][:, 4:], before["3.weight"][:, 4:])
    assert torch.equal(after["1.running_var"][4:], before["1.running_var"][4:])
    assert not torch.equal(after["0.weight"][:4], before["0.weight"][:4])


def test_rows_of_a_class_come_from_clients_that_have_it():
    task = tiny.small(model=no_norm)
    algorithm = HeteroFL(participation=1.0, capacities={1.0: 1.0}, masked_loss=False, scaler=False)
    state, _ = begin(algorithm, task)
    speaks = state.model.layout.split(own_rows(state.wiring, state.model, torch.tensor([True, False, True])))
    assert speaks["4.weight"].all(1).tolist() == [True, False, True]
    assert speaks["4.bias"].tolist() == [True, False, True]
    assert bool(speaks["0.weight"].all())
    assert bool(speaks["2.weight"].all())


def test_a_parameter_ratio_is_met_from_below():
    """Under ratio = "params" the network is the widest prefix with at most that share of all parameters."""
    task = tiny.small(model=no_norm)
    total = 6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3
    algorithm = HeteroFL(participation=1.0, capacities={0.5: 1.0})
    state, _ = begin(algorithm, task)
    packet = algorithm._submodel(state, 0.5, keyed_generator(0, "x"))

    def size(channels: int) -> int:
        return 6 * channels + channels + channels**2 + channels + 3 * channels + 3

    best = max(c for c in range(1, 9) if size(c) <= 0.5 * total)
    assert len(packet.tensors["kept"]) == size(best)


def test_traffic_is_the_small_network_and_a_bit_a_channel():
    """At width .5: 4 x 6 + 4 + 4 x 4 + 4 + 3 x 4 + 3 = 63 parameters; 16 channels are 2 bytes."""
    task = tiny.small(model=no_norm)
    algorithm = HeteroFL(participation=1.0, capacities={0.5: 1.0}, ratio="width", label_rows=False)
    state, place = begin(algorithm, task)
    packet = algorithm._submodel(state, 0.5, keyed_generator(0, "x"))
    assert packet.data_nbytes == 4 * 63 + 2
    assert update(algorithm, place, packet).data_nbytes == 4 * 63


def test_a_network_without_a_classifier_needs_no_label_rows():
    class Odd(nn.Module):
        def __init__(self, features: int = 6) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(features, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.out(torch.relu(self.hidden(x))).log_softmax(1).sin()

    task = tiny.small(model=Odd)
    with pytest.raises(InputError, match="label_rows = false"):
        run(HeteroFL(capacities={1.0: 1.0}), task, rounds=1)


def test_static_norms_need_examples_at_the_server():
    def model():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 3))

    with pytest.raises(InputError, match=r"data.validation is 0 \(nearest valid: 1"):
        run(HeteroFL(), tiny.small(model=model), rounds=1)


@pytest.mark.parametrize("kind", [FedRolex, FederatedDropout])
def test_buffers_that_are_not_saved_are_cut_like_the_others(kind):
    """A table that does not travel belongs to the client's own channels, whichever it had before."""

    class Shifted(nn.Module):
        def __init__(self, features: int = 6) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(features, 8), nn.Linear(8, 3)
            self.register_buffer("shift", torch.arange(8.0) / 4, persistent=False)

        def forward(self, x):
            return self.out(torch.relu(self.hidden(x) + self.shift))

    algorithm = kind(participation=1.0, capacities={1.0: 0.5, 0.5: 0.5}, ratio="width")
    runs = [run(algorithm, tiny.small(model=Shifted), rounds=3, workers=workers) for workers in (1, 3)]
    lines = [[{k: v for k, v in line.items() if k != "seconds"} for line in result.metrics] for result in runs]
    assert lines[0] == lines[1]
    assert all(torch.equal(runs[0].model[n], runs[1].model[n]) for n in runs[0].model)


def test_a_submodel_is_judged_as_it_was_trained():
    """A client of width w trains (W x + b) / w; folded into the layer, it is (W / w) x + b / w."""
    task = tiny.small(model=no_norm)
    algorithm = HeteroFL(participation=1.0, capacities={0.5: 1.0}, ratio="width")
    state, place = begin(algorithm, task)
    packet = algorithm._submodel(state, 0.5, keyed_generator(0, "x"))
    plain = HeteroFL(participation=1.0, capacities={0.5: 1.0}, ratio="width", scaler=False)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    w = {n: t.clone() for n, t in plain.place(packet, place.benches).tree().items()}
    hidden = torch.relu((x @ w["0.weight"].T + w["0.bias"]) / 0.5)
    hidden = torch.relu((hidden @ w["2.weight"].T + w["2.bias"]) / 0.5)
    judged = algorithm.place(packet, place.benches).module.eval()
    torch.testing.assert_close(judged(x), hidden @ w["4.weight"].T + w["4.bias"])


def test_a_scaler_that_cannot_reach_attention_is_refused():
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Linear(2, 8), nn.Linear(8, 3)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            tokens = self.embed(x.view(-1, 3, 2))
            return self.out(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))

    with pytest.raises(InputError, match="set scaler = false"):
        run(HeteroFL(), tiny.small(model=Attending), rounds=1)


@pytest.mark.parametrize(
    "algorithm", [HeteroFL(participation=1.0), Magnitude(participation=1.0)], ids=["cut", "masked"]
)
def test_counters_below_zero_survive(algorithm):
    class Counting(nn.Module):
        def __init__(self, features: int = 6) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(features, 32), nn.Linear(32, 3)
            self.register_buffer("offset", torch.tensor([-5, 3]))

        def forward(self, x):
            return self.out(torch.relu(self.hidden(x)))

    assert run(algorithm, tiny.small(model=Counting), rounds=2).model["offset"].tolist() == [-5, 3]


class Flat(nn.Module):
    """Inputs to logits, with nothing between them."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x)


class Rigid(nn.Module):
    """A size is fixed in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)).view(-1, 8))


@pytest.mark.parametrize("ratio", ["width", "params"])
@pytest.mark.parametrize(("model", "said"), [(Flat, "no channels of Flat can be cut"), (Rigid, "fixed")])
def test_what_cannot_be_cut_is_said_before_the_first_round(model, said, ratio):
    with pytest.raises(InputError, match=said):
        run(HeteroFL(capacities={1.0: 0.5, 0.5: 0.5}, ratio=ratio), tiny.small(model=model), rounds=1)


def test_norms_alone_leave_nothing_to_select():
    def model():
        net = tiny.network()
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name.startswith("1."))
        return net

    with pytest.raises(InputError, match="there is nothing to select"):
        run(Magnitude(), tiny.small(model=model), rounds=1)


class More(nn.Module):
    """Five logits of three classes: two that no example has."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


@pytest.mark.parametrize("devices", [{"masked_loss": True}, {"label_rows": True}], ids=str)
def test_more_logits_than_classes(devices):
    """What nobody has an example of is masked, and its row stays as it was; without the mask it is pushed down."""
    algorithm = HeteroFL(participation=1.0, capacities={1.0: 0.5, 0.5: 0.5}, **PLAIN | devices)
    result = run(algorithm, tiny.small(model=More), rounds=2)
    assert result.failures == []
    before = begin(algorithm, tiny.small(model=More))[0].model.tree()
    assert torch.equal(result.model["out.weight"][3:], before["out.weight"][3:])
    assert torch.equal(result.model["out.bias"][3:], before["out.bias"][3:])
    assert not torch.equal(result.model["out.weight"][:3], before["out.weight"][:3])


def test_masked_logits_have_classes_on_their_second_axis():
    """Logits [batch, classes, positions], with as many positions as classes: the mask must not lie along them."""

    class Each(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 9, bias=False)

        def forward(self, x):
            return self.out(x).view(-1, 3, 3)

    task = tiny.small(model=Each)
    task = Task(task.model, task.data, task.training, lambda made, goal: made.square().sum((1, 2)))
    client = Workplace(HeteroFL(), task, 0).client(Job("client_update", "c0", 0, Packet()))
    positions = [i for i in range(len(client.data.train)) if client.data.train.targets[i] != 1]
    mine = dataclasses.replace(client.data, train=client.data.train.subset(torch.tensor(positions)))
    client = dataclasses.replace(client, data=mine)
    masked_loss_gradient(client)(*client.data.train.batch())
    slopes = client.workbench.gradient.view(3, 3, 6)
    assert bool((slopes[1] == 0).all())
    assert bool((slopes[[0, 2]] != 0).any(-1).all())


@pytest.mark.parametrize("devices", [{"masked_loss": True}, {"label_rows": True}], ids=str)
def test_fewer_logits_than_classes(devices):
    def model():
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    task = tiny.small(model=model)
    with pytest.raises(InputError, match=f"{next(iter(devices))} = true needs .*2"):
        HeteroFL(**PLAIN | devices).init(task, keyed_generator(0, "server", "init"))


def test_logits_that_cannot_be_masked():
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.out(torch.relu(self.hidden(x)))[:, 0]

    with pytest.raises(InputError, match=r"masked_loss = true needs logits \[batch, 3\], but Flat makes \[2\]"):
        HeteroFL(label_rows=False).init(tiny.small(model=Flat), keyed_generator(0, "server", "init"))


def test_a_scaler_that_would_divide_another_layer_is_refused():
    """Folding divides the parameters of the layer that is cut; the tied output layer would be divided with it."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.out = nn.Linear(6, 3), nn.Linear(8, 3, bias=False)
            self.embed = nn.Embedding(3, 8)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(self.embed(self.enter(x).argmax(1)))

    with pytest.raises(InputError, match=r"is also .*, the parameter of another layer; set scaler = false"):
        run(HeteroFL(label_rows=False, masked_loss=False), tiny.small(model=Tied), rounds=1)


def test_a_scaler_that_does_not_see_an_output_is_refused():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.out = nn.Parameter(torch.randn(6, 8)), nn.Linear(8, 3)

        def forward(self, x):
            return self.out(torch.relu(x @ self.enter))

    with pytest.raises(InputError, match="'enter' is not the weight or bias of a layer; set scaler = false"):
        run(HeteroFL(), tiny.small(model=Bare), rounds=1)


class TiedByHand(nn.Module):
    """As in GPT: logits are h E^T, without a layer that would show that the embedding is read once more."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden = nn.Embedding(6, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.hidden(self.embed(x.argmax(1)))
        return (h @ self.embed.weight.T)[:, :3]


class Uncalled(nn.Module):
    """The layer's parameters are used, the layer is not."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.relu(nn.functional.linear(x, self.hidden.weight, self.hidden.bias)))


class Dense(nn.Linear):
    """A layer with an activation of its own: f(2 z) is not 2 f(z), unless f is a rectifier."""

    def __init__(self, activation, features: int, units: int, zero: bool = False) -> None:
        super().__init__(features, units)
        self.activation = activation
        if zero:
            nn.init.zeros_(self.weight)

    def forward(self, x):
        return self.activation(super().forward(x))


class Paired(nn.Module):
    """A layer that makes more than one tensor, which a hook cannot divide."""

    class Twice(nn.Linear):
        def forward(self, x):
            made = super().forward(x)
            return made, made.relu()

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = Paired.Twice(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.hidden(x)[1])


def with_dense(activation, zero: bool = False) -> nn.Module:
    return nn.Sequential(Dense(activation, 6, 8, zero), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (TiedByHand, "'embed' does more"),
        (Uncalled, "'hidden' is never called"),
        (Paired, "'hidden' does more"),
        (lambda: with_dense(torch.tanh), "'0' does more"),
        (lambda: with_dense(torch.tanh, zero=True), "'0' does more"),
    ],
    ids=["tied by hand", "uncalled", "a pair", "activation inside", "zeros hide nothing"],
)
@pytest.mark.parametrize("algorithm", [HeteroFL, FedRolex])
def test_a_scaler_that_would_train_another_network_than_it_judges_is_refused(model, said, algorithm):
    """At width w a client trains f(z) / w, and f(z / w) would be judged and exported."""
    task = tiny.small(model=model)
    bare = {"masked_loss": False, "label_rows": False, "ratio": "width"}
    with pytest.raises(InputError, match=rf"scaler = true .*{said}.*; set scaler = false"):
        algorithm(**bare).init(task, keyed_generator(0, "server", "init"))
    algorithm(scaler=False, **bare).init(task, keyed_generator(0, "server", "init"))
    algorithm(capacities={1.0: 1.0}, **bare).init(task, keyed_generator(0, "server", "init"))  # nothing is divided


def test_a_layer_with_a_rectifier_inside_can_be_scaled():
    """max(0, z) / w = max(0, z / w)."""
    HeteroFL(ratio="width").init(tiny.small(model=lambda: with_dense(torch.relu)), keyed_generator(0, "server", "init"))


# -- buffers that are constants ------------------------------------------------------------------------------------


class Causal(nn.Module):
    """A mask of -inf is a buffer that travels with the others."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x))) + self.mask[2]


HALVES = {"participation": 1.0, "capacities": {1.0: 0.5, 0.5: 0.5}}
FAMILY = [
    *(kind(**HALVES, **PLAIN) for kind in (HeteroFL, FedRolex, FedBRB)),
    *(kind(**HALVES) for kind in (FjORD, FederatedDropout, FIARSE, Magnitude, FedFIbOS)),
    FedAvg(),
]


@pytest.mark.parametrize("algorithm", FAMILY, ids=lambda a: type(a).__name__)
def test_a_mask_of_minus_infinity_travels(algorithm):
    result = run(algorithm, tiny.small(model=Causal), rounds=2)
    assert result.failures == []
    assert torch.equal(result.model["mask"], Causal().mask)
    assert all(bool(t.isfinite().all()) for n, t in result.model.items() if n != "mask")


def test_a_buffer_that_became_infinite_is_refused():
    class Broken(Causal):
        def forward(self, x):
            if self.training:
                self.mask[0, 0] = torch.inf
            return super().forward(x)

    result = run(HeteroFL(**HALVES, **PLAIN), tiny.small(model=Causal), rounds=1)
    assert result.failures == []
    with pytest.raises(RunError, match=r"'buffer:mask' of shape \(3, 3\) holds 1 non-finite"):
        run(HeteroFL(**HALVES, **PLAIN), tiny.small(model=Broken), rounds=1)


# -- kinds of numbers ----------------------------------------------------------------------------------------------


def with_buffer(values, persistent: bool = True):
    """A network with a buffer `[8]` of another kind than its parameters."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
            self.register_buffer("gate", values.clone(), persistent=persistent)

        def forward(self, x):
            hidden = torch.relu(self.hidden(x))
            return self.out(hidden * self.gate.float() if self.gate.is_floating_point() else hidden)

    return Gated


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, torch.int16, torch.bool])
@pytest.mark.parametrize("algorithm", [FedAvg, HeteroFL, FjORD, Magnitude], ids=lambda each: each.__name__)
def test_a_mean_has_the_type_of_what_it_is_of(algorithm, kind):
    """Else the second round's replies would not fit what was sent."""
    levels = {} if algorithm is FedAvg else {"ratio": "width", "capacities": {1.0: 0.5, 0.5: 0.5}}
    values = torch.ones(8).to(kind)
    result = run(algorithm(participation=1.0, **levels), tiny.small(model=with_buffer(values)), rounds=2)
    assert not result.failures
    assert result.model["gate"].dtype == kind
    assert result.model["gate"].equal(values)


@pytest.mark.parametrize("algorithm", [HeteroFL, FjORD, Magnitude], ids=lambda each: each.__name__)
def test_complex_buffers_are_refused_before_the_first_round(algorithm):
    values = torch.polar(torch.ones(8), torch.arange(8.0))
    with pytest.raises(InputError, match=r"buffer 'gate' is of complex numbers, .*view_as_real.*persistent=False"):
        run(algorithm(ratio="width"), tiny.small(model=with_buffer(values)), rounds=1)
    assert not run(algorithm(ratio="width"), tiny.small(model=with_buffer(values, persistent=False)), rounds=1).failures


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_sums_of_half_precision_neither_stop_counting_nor_overflow(kind):
    """In bfloat16, 256 + 1 = 256; in float16, 300 x 500 is infinite. The mean of 300 updates of 500 is 500."""
    bench = Workbench(nn.Linear(2, 2, bias=False).to(kind))
    start = Model.of(bench)
    holders, weighted = HolderMean(start), WeightedMean()
    update = torch.full((4,), 500.0, dtype=kind)
    for _ in range(300):
        holders.add(torch.ones(4, dtype=torch.bool), update, {})
        weighted.add({"x": update})
    after = holders.next().vector
    assert after.dtype == kind
    assert after.equal((start.vector.float() - 500).to(kind))
    assert weighted.mean()["x"].equal(update)
