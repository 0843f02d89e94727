"""Discovery: its memory, what it leaves alone, and modules that it cannot follow."""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings

import pytest
import torch
from tests.channels import nets
from torch import nn

from fedfi.channels import architecture_key, discover
from fedfi.errors import InputError


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
    with pytest.raises(
        InputError, match=r"Untraceable cannot be traced \(in 'inner'\).*control flow.*fiarse"
    ) as caught:
        discover(nets.Untraceable(), nets.rows(2, 5))
    assert "\n" not in str(caught.value)
    line = inspect.getsourcelines(nets.Branching.forward)[1] + 1
    assert f" (nets.py, line {line}): " in str(caught.value)
    assert "Guard" not in str(caught.value)


def test_nan_is_refused_whatever_was_seen_before():
    """Wirings are remembered by architecture, not by values."""
    module, example = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), nets.rows(2, 5)
    wiring = discover(module, example)
    with pytest.raises(InputError, match=r"the example .* is NaN everywhere"):
        discover(module, example * torch.nan)
    with torch.no_grad():
        module[0].weight.fill_(torch.nan)
    with pytest.raises(InputError, match=r"'0.weight' of Sequential holds 20 NaN"):
        discover(module, example)
    with torch.no_grad():
        module[0].weight.fill_(1.0)
    assert discover(module, example) is wiring


def test_an_example_that_does_not_fit():
    with pytest.raises(InputError, match=r"Linear cannot be traced"):
        discover(nn.Linear(5, 3), nets.rows(2, 4))
    with pytest.raises(InputError, match="the example must be a tensor, a tuple"):
        discover(nn.Linear(5, 3), [nets.rows(2, 5)])
    for example in (None, "rows", 3, nets.rows(2, 5).numpy()):
        with pytest.raises(InputError, match=f"the example must be .* got .*{type(example).__name__}"):
            discover(nn.Linear(5, 3), example)
    with pytest.raises(InputError, match=r"torch\.from_numpy makes a tensor of it"):
        discover(nn.Linear(5, 3), nets.rows(2, 5).numpy())


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


class Chained(nn.Module):
    """Convolution, layer norm over channels and positions, convolution, then a linear layer."""

    def __init__(self, channels, height, width):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.LayerNorm([channels, height, width])
        self.second = nn.Conv2d(channels, 6, 1)
        self.head = nn.Linear(6 * height * width, 4)

    def forward(self, images):
        return self.head(self.second(self.norm(self.first(images))).relu().flatten(1))


@pytest.mark.parametrize(("channels", "height", "width"), [(4, 8, 8), (8, 8, 8), (8, 4, 4), (4, 8, 3), (4, 16, 4)])
def test_a_layer_norm_over_channels_and_positions(channels, height, width):
    """Only its first axis is one of channels, however long the others are."""
    module = Chained(channels, height, width)
    example = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))
    wiring = discover(module, example)
    assert wiring.sizes == {"first.weight": channels, "second.weight": 6}
    nets.check(wiring, module, example)
    small = wiring.shrink(module, wiring.prefix(0.5))
    assert small.norm.normalized_shape == (channels // 2, height, width)


class Cast(nn.Module):
    """Part of it computes in another precision."""

    def __init__(self, dtype, weights=torch.float32):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 6), nn.Linear(6, 8), nn.Linear(8, 3)
        self.dtype = dtype
        self.second.to(weights)

    def forward(self, rows):
        hidden = self.first(rows).to(self.dtype).relu()
        return self.head(self.second(hidden.to(self.second.weight.dtype)).to(self.head.weight.dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_a_cast_inside(dtype, weights):
    """Rounding to 8 bits would hide an exchange that is right, or two precisions would not meet."""
    wiring = discover(Cast(dtype, weights), nets.rows(2, 5))
    assert wiring.sizes == {"first.weight": 6, "second.weight": 8}


def test_all_in_half_precision():
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).bfloat16()
    wiring = discover(module, nets.rows(2, 5).bfloat16())
    assert wiring.sizes == {"0.weight": 6}
    assert wiring.shrink(module, wiring.prefix(0.5))[0].weight.dtype == torch.bfloat16


def test_autocast_inside():
    class Cheap(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

        def forward(self, rows):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.head(self.first(rows).relu()).float()

    assert discover(Cheap(), nets.rows(2, 5)).sizes == {"first.weight": 6}


def test_a_wrong_group_shows_in_any_precision():
    """Channel 0 is doubled in half precision, in a way that the graph does not show."""

    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(5, 3), nn.Linear(5, 6), nn.Linear(6, 4)

        def forward(self, rows):
            made = torch.zeros(len(rows), 6, dtype=torch.bfloat16)
            made[:, :3] = self.first(rows).bfloat16()
            return self.head(self.second(rows) + made.float())

    assert discover(Single(), nets.rows(2, 5)).groups == ()


def not_a_number():
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        module[2].weight[0, 0] = torch.nan
    return module


class Rooted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, rows):
        return self.head(self.first(-rows.abs() - 1).relu()).log() * float("nan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (not_a_number, "'2.weight' of Sequential holds 1 NaN"),
        (lambda: nn.DataParallel(nn.Linear(5, 3)), "DataParallel, which hides the Linear .* attribute 'module'"),
        (lambda: torch.compile(nn.Linear(5, 3)), "OptimizedModule, which hides the Linear .* attribute '_orig_mod'"),
        (lambda: nn.Sequential(nn.DataParallel(nn.Linear(5, 3))), r"DataParallel \('0'\), which hides the Linear"),
        (lambda: torch.jit.script(nn.Linear(5, 3)), "TorchScript"),
        (lambda: nn.Linear(5, 3, device="meta"), "'weight' of Linear is on the device 'meta'"),
        (lambda: nn.Linear, "got the class Linear"),
        (lambda: None, "got a NoneType"),
        (Rooted, "makes no finite number"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_modules_that_are_refused(make, message):
    with pytest.raises(InputError, match=message) as caught:
        discover(make(), nets.rows(2, 5))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "example"),
    [
        (nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), torch.ones(2, 5, dtype=torch.long)),
        (nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 3, 1)), torch.ones(2, 3, 4, 4, dtype=torch.uint8)),
        (nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), torch.ones(2, 5, dtype=torch.bool)),
        (nn.Sequential(nn.Embedding(4, 6), nn.Linear(6, 3)), torch.rand(2, 5)),
        (nn.Sequential(nn.Embedding(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.full((2, 5), 9)),
    ],
)
def test_an_example_of_the_wrong_kind(module, example):
    with pytest.raises(InputError, match=r"Sequential (cannot be traced|does not run)") as caught:
        discover(module, example)
    assert "\n" not in str(caught.value)


def test_a_module_that_is_compiled_in_place():
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    module.compile(backend="eager")
    wiring = discover(module, nets.rows(2, 5))
    assert wiring.sizes == {"0.weight": 6}
    assert module._compiled_call_impl is not None
    assert wiring.shrink(module, wiring.prefix(0.5))(nets.rows(2, 5)).shape == (2, 3)


def test_infinite_numbers_of_a_mask():
    """A causal mask of zeros and -inf is a buffer."""

    class Masked(nn.Module):
        def __init__(self, wrong):
            super().__init__()
            self.first, self.head = nn.Linear(5, 6), nn.Linear(6, 3)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))
            self.wrong = wrong

        def forward(self, rows):
            hidden = self.first(rows)
            if self.wrong:
                made = torch.zeros(len(rows), 6)
                made[:, :3] = hidden[:, :3].detach()  # the graph shows zeros that nothing is written to
                hidden = hidden + made
            return self.head(hidden) + self.mask

    assert discover(Masked(False), nets.rows(2, 5)).sizes == {"first.weight": 6}
    assert discover(Masked(True), nets.rows(2, 5)).sizes == {"first.weight": 3}  # the other half


def test_several_threads():
    """One module in all of them, and one of its own in each: modes and switches are put back, results are right."""
    shared, example = nets.Depthwise().train(), nets.images(5)
    rows, found, errors = nets.rows(2, 5), [], []

    def work(width):
        try:
            own = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))
            for _ in range(2):
                found.append((discover(own, rows).sizes, {"0.weight": width}))
                wiring = discover(shared, example)
                found.append((wiring.sizes, None))
                small = wiring.shrink(shared, wiring.prefix(width / 8))
                assert all(each.training for each in small.modules())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(width,)) for width in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    expected = discover(nets.Depthwise(), example).sizes
    assert all(sizes == (wanted or expected) for sizes, wanted in found)
    assert all(each.training for each in shared.modules())
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(
    "module", [nets.Untraceable(), nets.Depthwise(), nets.Unknown()], ids=lambda m: type(m).__name__
)
def test_nothing_is_said_on_stderr(module, capfd):
    example = nets.images(5) if isinstance(module, nets.Depthwise) else nets.rows(2, 5)
    with contextlib.suppress(InputError):
        discover(module, example)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("norm", [nn.LayerNorm([8, 8]), nn.LayerNorm(8), nn.RMSNorm([4, 8, 8]), nn.GroupNorm(1, 4)])
def test_other_norms_over_maps(norm):
    """Over positions each channel is normed by itself, by weights that all share."""
    module = nn.Sequential(nn.Conv2d(3, 4, 1), norm, nn.ReLU(), nn.Conv2d(4, 6, 1), nn.Flatten(), nn.Linear(6 * 64, 3))
    wiring = discover(module, nets.images(8))
    assert wiring.sizes == {"0.weight": 4, "3.weight": 6}
    nets.check(wiring, module, nets.images(8))


def test_a_wiring_is_shown_in_one_line():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    text = repr(discover(net, torch.zeros(2, 3)))
    assert text.startswith("Wiring(1 group of 8 units, ")
    assert text.endswith(" 4 parameters and buffers)")
    with pytest.raises(InputError, match=r"channels are found in a torch\.nn\.Module, got a int"):
        discover(3, torch.zeros(2, 3))
