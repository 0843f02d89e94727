"""Discovery: its memory, what it leaves alone, and modules that it cannot follow."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.channels import nets
from torch import nn

from fedfi.channels import architecture_key, discover
from fedfi.channels.discovering import forget
from fedfi.errors import InputError


@pytest.fixture(autouse=True)
def _forgotten():
    """Modules made in these tests differ by functions that the key cannot see."""
    forget()


def test_a_second_time_is_remembered():
    example = nets.images(6)
    first, second = nets.Depthwise(), nets.Depthwise()
    assert discover(first, example) is discover(second, example + 1)
    assert hash(discover(first, example)) == hash(architecture_key(second, example))


def test_what_the_key_sees():
    example = nets.rows(2, 5)
    base = architecture_key(nn.Linear(5, 3), example)
    frozen = nn.Linear(5, 3)
    frozen.bias.requires_grad_(False)
    others = [nn.Linear(5, 4), nn.Linear(5, 3, bias=False), nn.Linear(5, 3).double(), nn.Bilinear(5, 5, 3), frozen]
    keys = {architecture_key(other, example) for other in others}
    keys |= {architecture_key(nn.Linear(5, 3), x) for x in (nets.rows(3, 5), example.double(), {"input": example})}
    assert base not in keys
    assert len(keys) == len(others) + 3
    assert architecture_key(nn.Linear(5, 3), (example,)) == base
    untied = nets.Tied()
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    ids = nets.ids(11, 2, 5)
    assert architecture_key(untied, ids) != architecture_key(nets.Tied(), ids)


def test_the_module_is_left_as_it_was():
    module = nets.Depthwise().train()
    module.last.eval()
    modes = {name: each.training for name, each in module.named_modules()}
    before = {name: (id(tensor), tensor.clone()) for name, tensor in nets.tensors(module).items()}
    fast = torch.backends.mha.get_fastpath_enabled()
    state = torch.get_rng_state()
    discover(module, nets.images(7))
    assert {name: each.training for name, each in module.named_modules()} == modes
    for name, tensor in nets.tensors(module).items():
        assert id(tensor) == before[name][0]
        assert torch.equal(tensor, before[name][1])
        assert tensor.grad is None
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert torch.equal(torch.get_rng_state(), state)


def test_control_flow_that_depends_on_values():
    with pytest.raises(InputError, match=r"Untraceable cannot be traced \(in 'inner'\).*control flow") as caught:
        discover(nets.Untraceable(), nets.rows(2, 5))
    assert "\n" not in str(caught.value)


def test_an_example_that_does_not_fit():
    with pytest.raises(InputError, match=r"Linear cannot be traced"):
        discover(nn.Linear(5, 3), nets.rows(2, 4))
    with pytest.raises(InputError, match="the example must be a tensor, a tuple"):
        discover(nn.Linear(5, 3), [nets.rows(2, 5)])


def test_a_module_without_shapes_yet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of torch call lazy modules new
        module = nn.LazyLinear(3)
    with pytest.raises(InputError, match="has no shape yet"):
        discover(module, nets.rows(2, 5))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.softmax(1), "softmax acts along channels"),
        (lambda x: x * x.mean(1, keepdim=True), "mean reduces over channels"),
        (lambda x: x + torch.arange(6.0), "add meets content that differs"),
        (lambda x: x[:, torch.tensor([3, 1, 2, 0, 5, 4])], "index looks channels up by index"),
        (lambda x: x.sort(1).values, "sort acts along channels"),
        (lambda x: torch.fft.rfft(x).abs().repeat(1, 2)[:, :6], "fft_rfft is not understood"),
    ],
)
def test_what_freezes(function, reason):
    """Linear 5 to 6, something over the six channels, linear to 4, linear to 3: only the four are free."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(5, 6), nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, rows):
            return self.head(self.second(function(self.first(rows))).relu())

    module = Net()
    wiring = discover(module, nets.rows(2, 5))
    assert [group.name for group in wiring.groups] == ["second.weight"]
    assert reason in next(f.reason for f in wiring.frozen if f.name == "first.weight" and f.axis == 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.ones(6),
        lambda x: x * torch.arange(2.0)[:, None],
        lambda x: torch.where(x > 0, x, -1.0).clamp(max=2),
        lambda x: torch.nn.functional.pad(x, (0, 0, 1, 1))[1:-1],
        lambda x: x.reshape(2, 2, 3).transpose(1, 2).transpose(1, 2).flatten(1),
        lambda x: torch.stack([x, x * 2], 1).mean(1),
        lambda x: torch.maximum(x, x.flip(0)),
    ],
)
def test_what_does_not_freeze(function):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

        def forward(self, rows):
            return self.head(function(self.first(rows)))

    wiring = discover(Net(), nets.rows(2, 5))
    assert nets.named(wiring) == {
        "first.weight": (6, {("first.weight", 0): 1, ("first.bias", 0): 1, ("head.weight", 1): 1})
    }


def test_mixing_of_tokens():
    """A linear map over tokens (MLP-Mixer) is left whole; the channels beside it stay free."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.mix, self.head = nn.Linear(5, 6), nn.Linear(4, 4), nn.Linear(6, 3)

        def forward(self, rows):
            hidden = self.enter(rows)
            return self.head((hidden + self.mix(hidden.transpose(1, 2)).transpose(1, 2)).mean(1))

    module = Mixer()
    wiring = discover(module, nets.rows(2, 4, 5))
    assert list(nets.named(wiring)) == ["enter.weight"]
    nets.check(wiring, module, nets.rows(2, 4, 5))


def test_outputs_that_are_no_logits():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 4)

        def forward(self, rows):
            hidden = self.first(rows)
            return {"hidden": hidden, "made": self.second(hidden)}

    wiring = discover(Two(), nets.rows(2, 5))
    assert wiring.outputs == ()
    assert wiring.groups == ()


def test_a_recurrent_layer_stays_whole():
    """No rule follows it; the layers behind it are free, and it trains on as before."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.cell = nn.Embedding(10, 8), nn.LSTM(8, 6, batch_first=True)
            self.hidden, self.head = nn.Linear(6, 12), nn.Linear(12, 3)

        def forward(self, ids):
            return self.head(self.hidden(self.cell(self.embedding(ids))[0][:, -1]).relu())

    module, example = Recurrent(), nets.ids(10, 2, 5)
    wiring = discover(module, example)
    assert [(group.name, group.units) for group in wiring.groups] == [("hidden.weight", 12)]
    nets.check(wiring, module, example)
    module.train()(example).sum().backward()
    assert module.cell.weight_ih_l0.grad is not None


def test_writing_into_a_tensor():
    """The graph shows zeros that are never written to; only the check sees that channels 0 to 2 differ."""

    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(5, 3), nn.Linear(5, 6), nn.Linear(6, 4)

        def forward(self, rows):
            made = torch.zeros(len(rows), 6)
            made[:, :3] = self.first(rows)
            return self.head(self.second(rows) + made)

    wiring = discover(Writing(), nets.rows(2, 5))
    assert wiring.groups == ()
    reasons = {(f.name, f.axis): f.reason for f in wiring.frozen}
    assert reasons["second.weight", 0] == "exchanging these units changes the output"
    assert "copy" in reasons["first.weight", 0]


def test_a_wiring_is_shown_in_one_line() -> None:
    import torch
    from torch import nn

    from fedfi.channels import discover
    from fedfi.errors import InputError

    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    text = repr(discover(net, torch.zeros(2, 3)))
    assert text.startswith("Wiring(1 group of 8 units, ")
    assert text.endswith(" 4 parameters and buffers)")
    with pytest.raises(InputError, match=r"module is a int, expected a torch\.nn\.Module"):
        discover(3, torch.zeros(2, 3))
