"""Networks of the channel tests, small and without any data, and what must hold for each of them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from fedfi.channels.verifying import outputs


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.hidden = nn.Linear(8, 12)
        self.back = nn.Linear(12, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        tokens = self.embedding(ids)
        return self.head(tokens + self.back(functional.gelu(self.hidden(tokens))))


class HardView(nn.Module):
    """Its view knows the number of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.head = nn.Linear(6 * 4, 3)

    def forward(self, images):
        return self.head(functional.relu(self.conv(images)).view(-1, 6 * 4))


class Depthwise(nn.Module):
    """Pointwise, depthwise with two outputs a channel, pointwise."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 1)
        self.deep = nn.Conv2d(6, 12, 3, padding=1, groups=6)
        self.norm = nn.BatchNorm2d(12)
        self.last = nn.Conv2d(12, 4, 1)

    def forward(self, images):
        return self.last(functional.relu(self.norm(self.deep(self.first(images))))).mean((2, 3))


class Shuffle(nn.Module):
    """A grouped convolution, a channel shuffle, a grouped convolution: all in two blocks that meet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.shuffle = nn.ChannelShuffle(2)
        self.third = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        maps = self.third(self.shuffle(functional.relu(self.second(self.first(images)))))
        return self.head(maps.mean((2, 3)))


class Concatenated(nn.Module):
    """Two branches side by side, added to a third one as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 4, 1)
        self.right = nn.Conv2d(3, 6, 1)
        self.both = nn.Conv2d(3, 10, 1)
        self.head = nn.Linear(10, 4)

    def forward(self, images):
        joined = torch.cat([self.left(images), self.right(images)], dim=1)
        return self.head(functional.relu(joined + self.both(images)).mean((2, 3)))


class Fused(nn.Module):
    """Attention with one projection for queries, keys and values, and a head size of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 12)
        self.norm = nn.LayerNorm(12)
        self.qkv = nn.Linear(12, 36)
        self.out = nn.Linear(12, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, tokens):
        hidden = self.enter(tokens)
        query, key, value = self.qkv(self.norm(hidden)).unflatten(-1, (3, -1, 4)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.head((hidden + self.out(mixed.transpose(1, 2).flatten(2))).mean(1))


class Misleading(nn.Module):
    """As many usual attentions: heads by number, their size by the width of the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.enter = nn.Linear(5, 16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens):
        hidden = self.enter(tokens)
        batch, count, width = hidden.shape
        qkv = self.qkv(hidden).reshape(batch, count, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, count, width)
        return self.head((hidden + self.out(mixed)).mean(1))


class Unknown(nn.Module):
    """A Fourier transform over channels, which no rule follows, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.second = nn.Linear(6, 7)
        self.head = nn.Linear(7, 3)

    def forward(self, rows):
        return self.head(functional.relu(self.second(torch.fft.rfft(self.first(rows)).abs().repeat(1, 2)[:, :6])))


class Untraceable(nn.Module):
    """Its control flow depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Branching()

    def forward(self, rows):
        return self.inner(rows)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, rows):
        return self.layer(rows) if rows.sum() > 0 else -self.layer(rows)


class Halves(nn.Module):
    """Two halves of one layer that go through different functions and side by side into the next."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, rows):
        left, right = self.first(rows).chunk(2, 1)
        return self.head(torch.cat([left.relu(), right.sigmoid()], 1))


class Gated(nn.Module):
    """A gated linear unit: channel j of one half meets channel j of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.norm = nn.LayerNorm(4, elementwise_affine=False)
        self.head = nn.Linear(4, 3)

    def forward(self, rows):
        return self.head(self.norm(functional.glu(self.first(rows))))


def images(size: int = 32, channels: int = 3, count: int = 2) -> torch.Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1))


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def ids(count: int, *shape: int) -> torch.Tensor:
    return torch.randint(2, count, shape, generator=torch.Generator().manual_seed(3))


def tensors(module):
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def call(module, example):
    if isinstance(example, dict):
        return outputs(module(**example))[0]
    return outputs(module(*example) if isinstance(example, tuple) else module(example))[0]


def randomise(module):
    """Makes every constant parameter and statistic tell its channels apart."""
    generator = torch.Generator().manual_seed(4)
    for name, tensor in tensors(module).items():
        if tensor.is_floating_point() and tensor.ndim == 1:
            tensor.data = torch.rand(tensor.shape, generator=generator) + 0.5 * name.endswith("var")
    return module


def check(wiring, module, example, widths=(1.0, 0.5, 0.3), *, atol=1e-3):
    """What holds for every network: permutations, slices, their counts, and the smaller module."""
    generator = torch.Generator().manual_seed(5)
    module = randomise(module).eval()
    tree = {name: tensor.detach() for name, tensor in tensors(module).items()}
    with torch.no_grad():
        before = call(module, example)
        order = {group.name: torch.randperm(group.units, generator=generator) for group in wiring.groups}
        moved = wiring.permute(tree, order)
        args, kwargs = ((), example) if isinstance(example, dict) else (
            example if isinstance(example, tuple) else (example,), {})  # fmt: skip
        after = outputs(functional_call(module, moved, args, kwargs))[0]
    scale = float(before.abs().max())
    torch.testing.assert_close(after, before, rtol=0, atol=atol * scale)
    back = wiring.permute(moved, {name: each.argsort() for name, each in order.items()})
    assert all(torch.equal(back[name], tree[name]) for name in tree)
    for width in widths:
        for units in (wiring.prefix(width), wiring.rolled(width, 3), wiring.random(width, generator)):
            check_slice(wiring, tree, units)
        check_small(wiring, module, example, wiring.prefix(width))
    same = wiring.shrink(module, wiring.full())
    assert type(same) is type(module)
    with torch.no_grad():
        assert torch.equal(call(same.eval(), example), before)


def check_slice(wiring, tree, units):
    small = wiring.take(tree, units)
    count = 0
    for name, tensor in tree.items():
        mask = wiring.mask(name, units)
        assert mask.shape == tensor.shape
        assert torch.equal(small[name].flatten(), tensor[mask])  # row-major order
        count += int(mask.sum()) if name in wiring.trained else 0
    assert wiring.parameters(units) == count
    again = wiring.put(tree, small, units)
    assert all(torch.equal(again[name], tree[name]) for name in tree)
    put = wiring.put({n: torch.zeros_like(t) for n, t in tree.items()}, small, units)
    assert all(torch.equal(put[n], torch.where(wiring.mask(n, units), t, 0)) for n, t in tree.items())
    assert all(torch.equal(v, units[n]) for n, v in wiring.unpack(wiring.pack(units)).items())
    assert len(wiring.pack(units)) == math.ceil(sum(g.units for g in wiring.groups) / 8)


def check_small(wiring, module, example, units):
    small = wiring.shrink(module, units)
    expected = wiring.take(tensors(module), units)
    found = tensors(small)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    trained = sum(p.numel() for p in small.parameters() if p.requires_grad)
    assert trained == wiring.parameters({name: int(flags.sum()) for name, flags in units.items()})
    small.train()
    result = call(small, example)
    result.square().sum().backward()
    assert result.isfinite().all()
    assert any(p.grad is not None for p in small.parameters())


def named(wiring):
    """The groups as plain data: units, and positions a unit by tensor and axis."""
    return {g.name: (g.units, {(m.name, m.axis): m.positions.shape[1] for m in g.members}) for g in wiring.groups}
