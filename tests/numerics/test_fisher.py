"""Fisher estimates against plain loops over single examples with ordinary autograd."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from fedfi.numerics.fisher import coefficient_of_variation, diagonal_fisher, example_squares, masking_error


def losses(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none")


class WithEmbedding(nn.Module):
    """Mean of word embeddings and a linear head; one scalar parameter scales the logits."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, tokens):
        return self.scale * self.head(self.words(tokens).mean(1))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 9, 3)
    )


class WithAttention(nn.Module):
    """Self-attention through the fused function, and a linear head on the mean over positions."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))


def case(name):
    torch.manual_seed(3)
    if name == "attention":
        return WithAttention(), torch.randn(7, 5, 4), torch.randint(3, (7,))
    if name == "convolutional":
        return convolutional(), torch.randn(7, 2, 5, 5), torch.randint(3, (7,))
    if name == "batchnorm":
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).eval()
        return model, torch.randn(7, 4), torch.randint(3, (7,))
    return WithEmbedding(), torch.randint(11, (7, 6)), torch.randint(3, (7,))


CASES = ["convolutional", "batchnorm", "embedding", "attention"]


def gradient(model, value):
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(value, list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def example_loop(model, x, y):
    return [gradient(model, losses(model(x[i : i + 1]), y[i : i + 1])[0]) for i in range(len(x))]


def assert_close(found, expected, atol=1e-9):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=atol)


def parts(x, y, *ends):
    return [(x[a:b], y[a:b]) for a, b in zip((0, *ends), (*ends, len(x)), strict=True)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("chunk", [1, 3, 32])
def test_example_kind_is_the_mean_of_squares(name, chunk):
    model, x, y = case(name)
    rows = example_loop(model, x, y)
    expected = {n: torch.stack([row[n] ** 2 for row in rows]).mean(0) for n in rows[0]}
    # Batches of 5 and 2: the mean must be over the 7 examples, not over the two batches.
    assert_close(diagonal_fisher(model, parts(x, y, 5), losses, kind="example", chunk=chunk), expected)


@pytest.mark.parametrize("name", CASES)
def test_batch_kind_is_the_mean_over_batches(name):
    model, x, y = case(name)
    rows = [gradient(model, losses(model(a), b).mean()) for a, b in parts(x, y, 5)]
    expected = {n: (rows[0][n] ** 2 + rows[1][n] ** 2) / 2 for n in rows[0]}
    assert_close(diagonal_fisher(model, parts(x, y, 5), losses, kind="batch"), expected)


@pytest.mark.parametrize("name", CASES)
def test_batch_equals_example_for_batches_of_one(name):
    model, x, y = case(name)
    singles = parts(x, y, 1, 2, 3, 4, 5, 6)
    assert_close(
        diagonal_fisher(model, singles, losses, kind="batch"),
        diagonal_fisher(model, [(x, y)], losses, kind="example"),
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("chunk", [2, 32])
def test_exact_kind_is_the_expectation_over_labels(name, chunk):
    model, x, y = case(name)
    expected = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for i in range(len(x)):
        for label in range(3):
            log_p = model(x[i : i + 1]).log_softmax(1)[0, label]
            for n, g in gradient(model, log_p).items():
                expected[n] += log_p.detach().exp() * g**2 / len(x)
    assert_close(diagonal_fisher(model, parts(x, y, 5), losses, kind="exact", chunk=chunk), expected)


def test_exact_kind_of_logistic_regression():
    """Logits (w x, 0): d log p / dw is (1 - p) x or -p x: F = p (1 - p) x^2; w = 0, x = 2 gives 1.

    The second logit's weight has the same Fisher information, by symmetry.
    """
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    batch = (torch.tensor([[2.0]]), torch.tensor([0]))
    found = diagonal_fisher(model, [batch], losses, kind="exact")
    torch.testing.assert_close(found["weight"], torch.ones(2, 1))


@pytest.mark.parametrize("name", CASES)
def test_example_squares_gives_gradient_squares_and_loss(name):
    model, x, y = case(name)
    mean, squares, loss = example_squares(model, x, y, losses, chunk=3)
    # Softmax ignores a bias of the keys: that gradient is 0 but for rounding.
    assert_close(mean, gradient(model, losses(model(x), y).mean()), atol=1e-7)
    assert_close(squares, diagonal_fisher(model, [(x, y)], losses, kind="example"))
    torch.testing.assert_close(loss, losses(model(x), y).mean().detach())


@pytest.mark.parametrize("kind", ["batch", "example", "exact"])
@pytest.mark.parametrize("name", CASES)
def test_model_is_left_as_found(kind, name):
    model, x, y = case(name)
    if kind == "batch":
        model.train()  # BatchNorm would update its statistics
    losses(model(x), y).sum().backward()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    modes = [m.training for m in model.modules()]
    with torch.no_grad():  # an enclosing no_grad must not matter
        found = diagonal_fisher(model, [(x, y)], losses, kind=kind)
    assert all(bool(v.any()) and not v.requires_grad for v in found.values())
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert all(torch.equal(p.grad, grads[n]) and p.requires_grad for n, p in model.named_parameters())
    assert [m.training for m in model.modules()] == modes


@pytest.mark.parametrize("kind", ["batch", "example", "exact"])
def test_names_and_frozen_parameters(kind):
    model, x, y = case("embedding")
    every = diagonal_fisher(model, [(x, y)], losses, kind=kind)
    assert_close(diagonal_fisher(model, [(x, y)], losses, kind=kind, names=["scale"]), {"scale": every["scale"]})
    model.words.requires_grad_(False)
    assert list(diagonal_fisher(model, [(x, y)], losses, kind=kind)) == ["scale", "head.weight", "head.bias"]


@pytest.mark.parametrize("kind", ["batch", "example"])
def test_unused_and_tied_parameters(kind):
    """Logits W (W x) with one W in two places, and a parameter that is never used (Fisher 0)."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight
            self.unused = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.second(self.first(x))

    torch.manual_seed(0)
    model, x, y = Tied(), torch.randn(1, 3), torch.tensor([1])
    (expected,) = torch.autograd.grad(losses(model(x), y).sum(), [model.first.weight])
    found = diagonal_fisher(model, [(x, y)], losses, kind=kind)
    assert_close(found, {"unused": torch.zeros(2), "first.weight": expected**2})


def test_dropout_differs_between_examples():
    """With x = 1 and rate 1/2 the squared gradient of w drop(x) is 0 or 4; 64 equal draws: chance 2^-63."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1, bias=False))
    batch = (torch.ones(64, 1), torch.zeros(64))
    torch.manual_seed(0)
    value = float(diagonal_fisher(model, [batch], lambda o, _: o[:, 0], kind="example")["1.weight"])
    assert 0 < value < 4
    value = float(diagonal_fisher(model.eval(), [batch], lambda o, _: o[:, 0], kind="example")["1.weight"])
    assert value == 1


def test_half_precision_is_added_up_in_float32():
    """The gradient of w x is x = 2^-20; its square, 2^-40, underflows in float16."""
    model = nn.Linear(1, 1, bias=False).half()
    batch = (torch.full((1, 1), 2.0**-20, dtype=torch.float16), torch.zeros(1))
    for kind in ("batch", "example"):
        found = diagonal_fisher(model, [batch], lambda o, _: o[:, 0], kind=kind)["weight"]
        assert found.dtype == torch.float32
        assert found.item() == 2.0**-40


@pytest.mark.parametrize("kind", ["example", "exact"])
@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False).eval(), nn.SyncBatchNorm(4)]
)
def test_layers_that_mix_examples_are_refused(kind, layer):
    model = nn.Sequential(nn.Linear(4, 4), layer)
    with pytest.raises(ValueError, match=r"layer '1' \(.*BatchNorm.*model\.eval\(\)"):
        diagonal_fisher(model, [(torch.ones(2, 4), torch.zeros(2).long())], losses, kind=kind)


def test_wrong_arguments_are_refused():
    model, x, y = case("embedding")
    good = [(x, y)]
    wrong = [
        ({"batches": []}, "no batches"),
        ({"batches": [(x[:0], y[:0])]}, "at least 1"),
        ({"batches": [(x, y[:3])]}, "7 inputs and 3 targets"),
        ({"kind": "empirical"}, "kind is 'empirical'"),
        ({"chunk": 0}, "chunk is 0"),
        ({"names": ["head.wieght"]}, "head.wieght"),
        ({"names": []}, "no parameters"),
        ({"loss": cross_entropy}, r"shape \[\]; expected one value an example"),
        ({"loss": cross_entropy, "kind": "batch"}, r"shape \[\]; expected one value an example, \[7\]"),
    ]
    for change, message in wrong:
        arguments = {"batches": good, "loss": losses, "kind": "example"} | change
        with pytest.raises(ValueError, match=message):
            diagonal_fisher(model, **arguments)
    per_token = nn.Embedding(11, 3)
    with pytest.raises(ValueError, match=r"\[1, 6, 3\]; kind 'exact' expects logits \[1, C\]"):
        diagonal_fisher(per_token, good, losses, kind="exact")


def test_coefficient_of_variation():
    """(1, 3): mean 2, population deviation 1. One spike among n equal to 0: sqrt(n - 1)."""
    assert coefficient_of_variation(torch.tensor([1.0, 3.0])) == 0.5
    spike = torch.zeros(101)
    spike[7] = 1e-30
    assert math.isclose(coefficient_of_variation(spike), 10.0, rel_tol=1e-12)
    assert coefficient_of_variation(torch.zeros(3)) == 0.0
    for bad in (torch.zeros(0), torch.tensor([math.inf]), torch.tensor([1.0, -1.0])):
        with pytest.raises(ValueError, match="expected"):
            coefficient_of_variation(bad)


def test_masking_error():
    """Off the mask: (2 * 3)^2 + (1 * 5)^2 = 61; in float64 even 1e-25 squared twice does not vanish."""
    fisher, x = torch.tensor([7.0, 2.0, 1.0]), torch.tensor([1.0, -3.0, 5.0])
    assert masking_error(fisher, x, torch.tensor([True, False, False])) == 61.0
    assert masking_error(fisher, x, torch.ones(3, dtype=torch.bool)) == 0.0
    tiny = torch.full((1,), 1e-25)
    assert math.isclose(masking_error(tiny, tiny, torch.tensor([False])), 1e-100, rel_tol=1e-5)
    with pytest.raises(ValueError, match="boolean mask"):
        masking_error(fisher, x, torch.ones(3))
    with pytest.raises(ValueError, match="one shape"):
        masking_error(fisher, x[:1], torch.ones(3, dtype=torch.bool))
