"""The memory of wirings: what makes two modules one architecture, and what makes them two."""

from __future__ import annotations

import functools
import threading

import pytest
import torch
from tests.channels import nets
from torch import nn
from torch.nn import functional

from fedfi.channels import architecture_key, discover

ROWS = nets.rows(2, 5)


class Flagged(nn.Module):
    """What it computes depends on attributes that are not printed."""

    def __init__(self, skip=False, function=functional.relu, options=None):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.skip, self.function, self.options = skip, function, options or {}

    def forward(self, rows):
        hidden = self.function(self.first(rows))
        made = self.second(hidden)
        return self.head(made + hidden if self.skip else made)


def closing_over(value):
    def function(rows):
        return rows * value

    return function


def scaled(rows, by):
    return rows * by


class Callable:
    def __init__(self, power):
        self.power = power

    def __call__(self, rows):
        return rows**self.power


def hooked(kind):
    module = Flagged()
    getattr(module.first, f"register_{kind}")(lambda *given: None)
    return module


def over_channels(*given):
    return given[-1].softmax(-1)


def with_forward_of_its_own():
    module = Flagged()
    module.forward = lambda rows: module.head(module.first(rows))
    return module


def unregistered(size):
    module = Flagged()
    module.options = {"parts": [nn.Linear(size, size)]}
    return module


def parametrized():
    module = Flagged()
    nn.utils.parametrizations.weight_norm(module.first)
    return module


DIFFERENT = {
    "a flag": lambda: Flagged(skip=True),
    "a function of torch": lambda: Flagged(function=functional.gelu),
    "a function": lambda: Flagged(function=lambda rows: rows.sin()),
    "the same with another constant": lambda: Flagged(function=lambda rows: rows + 1),
    "and another": lambda: Flagged(function=lambda rows: rows + 2),
    "a closure": lambda: Flagged(function=closing_over(2)),
    "another closure": lambda: Flagged(function=closing_over(3)),
    "a partial": lambda: Flagged(function=functools.partial(scaled, by=2)),
    "another partial": lambda: Flagged(function=functools.partial(scaled, by=3)),
    "an object": lambda: Flagged(function=Callable(2)),
    "another object": lambda: Flagged(function=Callable(3)),
    "nested options": lambda: Flagged(options={"a": [1, {"b": 2}]}),
    "other nested options": lambda: Flagged(options={"a": [1, {"b": 3}]}),
    "a constant tensor": lambda: Flagged(options={"a": torch.zeros(6)}),
    "another constant tensor": lambda: Flagged(options={"a": torch.ones(6)}),
    "a hook": lambda: hooked("forward_hook"),
    "another kind of hook": lambda: hooked("forward_pre_hook"),
    "a forward pass of its own": with_forward_of_its_own,
    "a parametrization": parametrized,
}


def test_modules_that_differ_have_different_keys():
    keys = {"plain": architecture_key(Flagged(), ROWS)}
    keys |= {name: architecture_key(make(), ROWS) for name, make in DIFFERENT.items()}
    for name, key in keys.items():
        assert [other for other in keys if keys[other] == key] == [name]


@pytest.mark.parametrize("name", list(DIFFERENT))
def test_modules_that_are_alike_have_one_key(name):
    make = DIFFERENT[name]
    assert architecture_key(make(), ROWS) == architecture_key(make(), ROWS)


def test_a_skip_connection_behind_a_flag():
    """With the skip connection both layers make one stream; without it they are two groups."""
    assert list(discover(Flagged(), ROWS).sizes) == ["first.weight", "second.weight"]
    assert list(discover(Flagged(skip=True), ROWS).sizes) == ["first.weight"]


def test_a_hook_that_mixes_channels():
    free = Flagged()
    mixed = Flagged()
    mixed.second.register_forward_hook(over_channels)
    assert "second.weight" in discover(free, ROWS).sizes
    assert "second.weight" not in discover(mixed, ROWS).sizes


def test_a_class_that_is_defined_again():
    """As in a notebook: the same name, the same layers, another forward pass."""
    made = []
    for operation in ("relu()", "softmax(1)"):
        scope = {"nn": nn, "__name__": "notebook"}
        text = (
            "class Net(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.first, self.head = nn.Linear(5, 6), nn.Linear(6, 3)\n"
            f"    def forward(self, rows):\n        return self.head(self.first(rows).{operation})\n"
        )
        exec(text, scope)
        made.append(discover(scope["Net"](), ROWS).sizes)
    assert made == [{"first.weight": 6}, {}]


def test_a_function_that_the_class_names_is_defined_again():
    keys = []
    for operation in ("relu()", "softmax(1)"):
        scope = {"nn": nn, "__name__": "notebook"}
        exec(f"def squashed(rows):\n    return rows.{operation}\n", scope)
        text = "class Net(nn.Linear):\n    def forward(self, rows):\n        return squashed(super().forward(rows))\n"
        exec(text, scope)
        keys.append(architecture_key(scope["Net"](5, 3), ROWS))
    assert keys[0] != keys[1]


def test_what_has_no_content_is_known_by_its_identity():
    """A lock cannot be compared, so two modules that hold one each are two architectures, and one stays one."""
    first, second = (Flagged(options={"lock": threading.Lock()}) for _ in range(2))
    assert architecture_key(first, ROWS) == architecture_key(first, ROWS)
    assert architecture_key(first, ROWS) != architecture_key(second, ROWS)


def test_values_mode_and_running_make_no_difference():
    """What trains, the mode, gradients, and what a recurrent layer keeps of its weights."""
    module = nn.Sequential(nn.LSTM(5, 4, batch_first=True))
    before = architecture_key(module, nets.rows(2, 3, 5))
    module.eval()(nets.rows(2, 3, 5))[0].sum().backward()
    other = nn.Sequential(nn.LSTM(5, 4, batch_first=True))
    assert before == architecture_key(module, nets.rows(2, 3, 5)) == architecture_key(other, nets.rows(2, 3, 5))


def test_an_object_that_holds_itself():
    module = Flagged()
    module.options["self"] = module
    module.options["again"] = module.options
    assert architecture_key(module, ROWS) == architecture_key(module, ROWS)
    assert architecture_key(unregistered(4), ROWS) != architecture_key(unregistered(5), ROWS)
