"""Closed forms against per-example gradients and dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedfi.models import InputSpec, build
from fedfi.numerics.diagonal import closed_layers, empirical_fisher, exact_fisher
from fedfi.numerics.fisher import diagonal_fisher
from fedfi.numerics.kfac import gram_matrices, kronecker_factors, root


def loss(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def images(count=6, size=8):
    rng = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, size, size, generator=rng), torch.arange(count) % 3


class Odd(nn.Module):
    """A layer called twice, tied parameters, and a parameter outside any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(5, 6), nn.Linear(6, 6)
        self.tied, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.other = nn.Linear(6, 6)
        self.other.weight = self.tied.weight
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.head(self.other(torch.tanh(self.tied(x))) * self.scale)


SPEC = InputSpec("image", (3, 8, 8), 3)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3, groups=3, dilation=1),
        nn.GroupNorm(2, 6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, 1, padding_mode="circular", padding=1),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


def transformer():
    spec = InputSpec("text", (7,), 3, vocabulary=11, padding=1)
    return build("roberta", spec, {"layers": 1, "hidden": 8, "heads": 2, "intermediate": 12})


NETWORKS = {
    "mlp": lambda: build("mlp", SPEC, {"hidden": (7, 5)}),
    "convolutions": convolutions,
    "odd": Odd,
    "transformer": transformer,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_closed_form_equals_per_example_gradients(name):
    torch.manual_seed(0)
    model = NETWORKS[name]().double().eval()
    x, y = images()
    if name == "transformer":
        x = torch.randint(0, 11, (6, 7))
    elif name == "odd":
        x = x.flatten(1)[:, :5]
    x = x if name == "transformer" else x.double()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]
    fast = empirical_fisher(model, batches, loss)
    slow = diagonal_fisher(model, batches, loss, kind="example")
    assert fast.keys() == slow.keys()
    for key in slow:
        torch.testing.assert_close(fast[key], slow[key], msg=key)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ["mlp", "odd"])
def test_exact_fisher_equals_the_general_one(name):
    torch.manual_seed(0)
    model = NETWORKS[name]().double().eval()
    x, y = images()
    x = (x.flatten(1)[:, :5] if name == "odd" else x).double()
    fast = exact_fisher(model, [(x[:4], y[:4]), (x[4:], y[4:])])
    slow = diagonal_fisher(model, [(x, y)], loss, kind="exact")
    for key in slow:
        torch.testing.assert_close(fast[key], slow[key], msg=key)


def test_odd_layers_are_left_to_the_general_way():
    assert closed_layers(Odd()) == ["first", "twice", "head"]  # and `twice` is found to be called twice


def test_batch_norm_in_training_is_refused():
    with pytest.raises(ValueError, match="batch statistics"):
        empirical_fisher(
            nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), [(torch.ones(2, 5), torch.ones(2).long())], loss
        )


@pytest.mark.parametrize("bias", [True, False])
def test_kronecker_factors_of_one_example_are_the_outer_product_of_its_gradient(bias):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=bias), nn.Tanh(), nn.Linear(3, 3, bias=bias))
    x, y = torch.randn(1, 4), torch.tensor([1])
    factors = kronecker_factors(model, [(x, y)], loss)
    loss(model(x), y).sum().backward()
    for name in ("0", "2"):
        layer = model.get_submodule(name)
        gradient = layer.weight.grad
        if bias:
            gradient = torch.cat([gradient, layer.bias.grad[:, None]], 1)
        flat = gradient.flatten()
        torch.testing.assert_close(factors[name].dense(), torch.outer(flat, flat))
        other = torch.randn_like(gradient)
        torch.testing.assert_close(factors[name].times(other).flatten(), torch.outer(flat, flat) @ other.flatten())


def test_kronecker_factors_are_means_over_examples_and_positions():
    """A = mean_b sum_t a a^T and G = mean_b 1/T sum_t g g^T, position by position, for a convolution."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 64, 3))
    x, y = images(4)
    found = kronecker_factors(model, [(x[:2], y[:2]), (x[2:], y[2:])], loss)["0"]
    patches = functional.unfold(x, 3, padding=1)
    patches = torch.cat([patches, torch.ones(4, 1, 64)], 1)
    outputs = model[0](x)
    slopes = torch.autograd.grad(loss(model[2](outputs.flatten(1)), y).sum(), outputs)[0].flatten(2)
    torch.testing.assert_close(found.inputs, torch.einsum("bit,bjt->ij", patches, patches) / 4, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.outputs, torch.einsum("bit,bjt->ij", slopes, slopes) / (4 * 64))


def test_factors_of_the_models_labels_weigh_classes_by_their_probability():
    """G = mean_b sum_y p(y|x_b) g_by g_by^T, with the slope of log p(y|x) by the logits: onehot(y) - p."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(6, 4).double()
    found = kronecker_factors(model, [(x[:4], torch.zeros(4)), (x[4:], torch.zeros(2))], None)
    with torch.no_grad():
        p = model(x).softmax(1)
    slopes = torch.eye(3).double() - p[:, None]  # [b, y, class]
    torch.testing.assert_close(found["2"].outputs, torch.einsum("by,byi,byj->ij", p, slopes, slopes) / 6)
    observed = kronecker_factors(model, [(x, torch.zeros(6).long())], loss)
    for name in ("0", "2"):
        torch.testing.assert_close(found[name].inputs, observed[name].inputs)


def test_gram_matrices():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(9, 4)
    found = gram_matrices(model, [x[:5], x[5:]])
    hidden = torch.relu(model[0](x)).detach()
    torch.testing.assert_close(found["0"], x.T @ x / 9)
    torch.testing.assert_close(found["2"], hidden.T @ hidden / 9)


def test_root():
    torch.manual_seed(0)
    basis = torch.randn(6, 2)
    matrix = basis @ basis.T
    found = root(matrix, 2)
    torch.testing.assert_close(found @ found.T, matrix, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="rank from 1 to n"):
        root(matrix, 7)
