import subprocess
import sys
import types

import pytest
import torch
from torch import nn

import fedfi.models.factory
from fedfi.errors import InputError
from fedfi.models import InputSpec, available, build

CIFAR = InputSpec("image", (3, 32, 32), 10)


@pytest.fixture
def module(monkeypatch):
    """A module of a user's, importable as ``own_models``."""
    module = types.ModuleType("own_models")
    monkeypatch.setitem(sys.modules, "own_models", module)
    return module


def test_available():
    summaries = available()
    assert list(summaries) == ["mlp", "cnn", "small_cnn", "resnet18", "roberta", "item_table"]
    assert all(text and "\n" not in text for text in summaries.values())


@pytest.mark.parametrize("name", ["mlp", "cnn", "small_cnn", "resnet18"])
def test_each_builds_from_the_global_generator(name):
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build(name, CIFAR, {} if name == "mlp" else {"width": 0.1}).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_lists_become_tuples():
    """3072 * 8 + 8 * 4 + 4 * 10 weights."""
    model = build("mlp", CIFAR, {"hidden": [8, 4], "bias": False})
    assert sum(p.numel() for p in model.parameters()) == 3072 * 8 + 32 + 40


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, r"unknown model 'resnet'; did you mean 'resnet18'\?"),
        ("mlp", {"hiden": [8]}, r"model 'mlp': hiden: unknown option 'hiden'; did you mean 'hidden'\?"),
        ("mlp", {"spec": 1}, "unknown option 'spec'"),
        ("mlp", {"hidden": 8}, "model 'mlp': hidden = 8: must be a list"),
        ("mlp", {"hidden": [8, "x"]}, r'hidden\.1 = "x": must be a whole number'),
        ("cnn", {"width": "wide"}, 'width = "wide": must be a number'),
        ("mlp", {"hidden": [True]}, r"hidden\.0 = true: must be a whole number"),
        ("mlp", {"hidden": [0]}, r"hidden\.0 = 0: must be at least 1 \(nearest valid: 1\)"),
        ("mlp", {"bias": 0}, "bias = 0: must be true or false"),
        ("mlp", {"hidden": [10**13]}, "model 'mlp' needs more memory than there is"),
        ("mlp", {"hidden": [10**18]}, "model 'mlp' needs more memory than there is"),
        ("mlp", {"hidden": [10**25]}, "must be a 64-bit whole number"),
        ("cnn", {"width": -1}, "width = -1: must be above 0"),
        ("resnet18", {"norm": "groups"}, r'norm = "groups": must be .*nearest valid: "group"'),
        ("no.such.module:net", {}, "'no.such.module' cannot be imported"),
        (":net", {}, "expected package.module:name"),
        (
            "fedfi.models.mlp:mpl",
            {},
            r"module 'fedfi.models.mlp': unknown name 'mpl'; did you mean 'mlp'\?",
        ),
    ],
)
def test_errors_are_one_line(name, options, message):
    with pytest.raises(InputError, match=message) as caught:
        build(name, CIFAR, options)
    assert "\n" not in str(caught.value)


def test_a_function_by_path():
    assert build("fedfi.models.mlp:mlp", CIFAR, {"hidden": []})(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "nets_of_mine.py").write_text(
        "from torch import nn\ndef net(spec, units: int = 2): return nn.Linear(units, spec.classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    assert build("nets_of_mine:net", CIFAR, {"units": 5}).in_features == 5
    assert sys.path == path
    monkeypatch.delitem(sys.modules, "nets_of_mine")


def test_a_class_and_annotations_that_cannot_be_checked(module):
    class Net(nn.Linear):
        def __init__(self, spec, dtype: torch.dtype, units: "Nowhere" = 3, **rest):  # noqa: F821
            super().__init__(units, spec.classes, dtype=dtype)
            self.rest = rest

    module.Net = Net
    model = build("own_models:Net", CIFAR, {"dtype": torch.float64, "other": 1})
    assert (model.weight.dtype, model.in_features, model.rest) == (torch.float64, 3, {"other": 1})


def test_a_missing_option(module):
    module.net = lambda spec, units: nn.Linear(units, 2)
    with pytest.raises(InputError, match="model 'own_models:net': units: is missing"):
        build("own_models:net", CIFAR, {})


def test_a_class_that_takes_something_else_first(module):
    class Net(nn.Linear):
        def __init__(self, channels, classes):
            super().__init__(channels, classes)

    module.Net = Net
    with pytest.raises(
        InputError, match=r"'channels', the first of the class Net, .* such as def net\(spec\): return Net"
    ):
        build("own_models:Net", CIFAR, {})


def test_a_function_without_options(module):
    module.net = lambda spec: nn.Linear(1, 2)
    with pytest.raises(InputError, match="units: the model has no options"):
        build("own_models:net", CIFAR, {"units": 1})


def test_a_function_that_takes_nothing(module):
    module.net = lambda: nn.Linear(1, 2)
    with pytest.raises(InputError, match="must take the input specification"):
        build("own_models:net", CIFAR, {})


def test_a_function_that_makes_no_module(module):
    module.net = lambda spec: {"weight": 1}
    with pytest.raises(InputError, match=r"must return a torch.nn.Module, got dict"):
        build("own_models:net", CIFAR, {})


class Odd(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.first, self.second = nn.Linear(1, 2), nn.Linear(2, 2).double()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda spec: 1 / 0, r"model 'own_models:net' failed: ZeroDivisionError: .*\(test_factory.py, line \d+\)"),
        (lambda spec: torch.empty(10**14), r"model 'own_models:net' needs more memory than there is"),
        (lambda spec: nn.Sequential(nn.LazyLinear(3)), "Sequential: '0.weight' has no shape yet"),
        (Odd, r"Odd: 'first.weight' is torch.float32, 'second.weight' is torch.float64; make all"),
    ],
)
def test_what_a_factory_may_do_wrong(module, net, message):
    module.net = net
    with pytest.raises(InputError, match=message) as caught:
        build("own_models:net", CIFAR, {})
    assert "\n" not in str(caught.value)


def test_frozen_parameters_may_differ_in_dtype(module):
    module.net = Odd
    odd = Odd(CIFAR)
    odd.second.requires_grad_(False)
    module.net = lambda spec: odd
    assert build("own_models:net", CIFAR, {}) is odd


def test_a_module_that_raises_at_import(tmp_path, monkeypatch):
    (tmp_path / "nets_that_raise.py").write_text("\nraise RuntimeError('no\\nway')\n")
    (tmp_path / "nets_misspelt.py").write_text("def net(:\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"imported: RuntimeError: no \(nets_that_raise.py, line 2\)"):
        build("nets_that_raise:net", CIFAR, {})
    with pytest.raises(InputError, match=r"imported: SyntaxError: .*\(nets_misspelt.py, line 1\)"):
        build("nets_misspelt:net", CIFAR, {})
    with pytest.raises(InputError, match=rf"No module named 'nets_nowhere' \(looked in {tmp_path}\)"):
        build("nets_nowhere:net", CIFAR, {})


def test_importing_does_not_import_transformers(fresh_modules):
    assert fedfi.models.factory.__name__ in fresh_modules
    assert "transformers" not in fresh_modules


@pytest.fixture
def fresh_modules():
    """Names of the modules of a fresh interpreter that has imported the models."""
    code = "import sys, fedfi.models; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_options_by_name_are_those_of_the_table() -> None:
    import fedfi

    spec = fedfi.InputSpec("tabular", (4,), 3)
    assert str(fedfi.build("mlp", spec, hidden=[8])) == str(fedfi.build("mlp", spec, {"hidden": [8]}))
    with pytest.raises(fedfi.InputError, match="unknown option 'hiden'; did you mean 'hidden'"):
        fedfi.build("mlp", spec, hiden=[8])
    with pytest.raises(fedfi.InputError, match="hidden: is given twice"):
        fedfi.build("mlp", spec, {"hidden": [8]}, hidden=[8])
    with pytest.raises(fedfi.InputError, match="build: spec is missing"):
        fedfi.build("mlp")
