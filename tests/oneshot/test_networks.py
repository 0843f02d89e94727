"""Every method merges networks that are at hand, as it does in a federation."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oneshot import cases
from torch import nn

import fedfi
from fedfi import registry
from fedfi.errors import InputError
from fedfi.oneshot.method import Merging

SPEC = fedfi.InputSpec("tabular", (6,), 3)
PAGE = (Path(__file__).parents[2] / "docs/oneshot.md").read_text()
FAST: dict[str, dict[str, Any]] = {
    "dense": {"stages": 1, "generator_steps": 2, "steps": 2, "batch": 4},
    "fedbens": {"steps": 5, "check_every": 5},
    "fedfisher": {"steps": 5},
}
METHODS = [n for n in registry.entries() if issubclass(registry.algorithm(n), Merging)]


class Own(nn.Module):
    """A user's own network."""

    def __init__(self, hidden: int = 5, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(6, hidden), nn.Linear(hidden, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x).relu())
        return out


def data(seed: int = 0, count: int = 24) -> fedfi.Dataset:
    rng = torch.Generator().manual_seed(seed)
    return fedfi.Dataset(torch.randn(count, 6, generator=rng), torch.arange(count) % 3, SPEC)


def merged(name: str, networks: list[nn.Module], **options: Any) -> fedfi.MergedNetwork:
    method = registry.algorithm(name)(**FAST.get(name, {}))
    statistics = [fedfi.measure(method, n, data(i)) for i, n in enumerate(networks)]
    parties = ["a", "a", "b", "b"] if name == "fedbens" else None
    start = Own(seed=9) if method.takes_base else None
    return fedfi.merge(
        method, networks, inputs=SPEC, statistics=statistics, start=start, validation=data(7), parties=parties,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_every_method(name: str) -> None:
    networks: list[nn.Module] = [Own(seed=s) for s in range(4)]
    before = [{n: t.clone() for n, t in net.state_dict().items()} for net in networks]
    found = merged(name, networks, examples=[24, 24, 24, 30])
    outputs = found.module(data(8).inputs)
    assert outputs.shape == (24, 3)
    assert torch.isfinite(outputs).all()
    assert not found.module.training
    for network, values in zip(networks, before, strict=True):
        assert all(torch.equal(t, values[n]) for n, t in network.state_dict().items())


def test_it_is_the_method_of_a_federation() -> None:
    networks = [cases.network("cnn", seed) for seed in range(3)]
    statistics = [{"fisher": cases.fisher_of(n, i)} for i, n in enumerate(networks)]
    found = fedfi.merge(
        fedfi.FedFiOT(), networks, inputs=cases.spec_of("cnn"), statistics=statistics, examples=[3, 5, 4],
    )  # fmt: skip
    uploads = [
        fedfi.oneshot.uploads.Upload(str(i), cases.tree_of(n), tuple(cases.names_of(n)), count, statistics[i])
        for i, (n, count) in enumerate(zip(networks, [3, 5, 4], strict=True))
    ]
    server = cases.server(cases.spec_of("cnn"), lambda: cases.network("cnn"))
    expected = fedfi.FedFiOT().merged(uploads, cases.context(server))
    assert all(torch.equal(found.model[n], t) for n, t in expected.model.items())
    assert all(torch.equal(found.module.state_dict()[n], t) for n, t in expected.model.items())


def test_other_widths_are_carried() -> None:
    found = fedfi.merge(fedfi.OTFusion(), [Own(5), Own(8)], inputs=SPEC, examples=[9, 4])
    assert found.model["first.weight"].shape == (5, 6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"networks": []}, "networks: expected at least one network"),
        ({"networks": [Own().state_dict()]}, r"networks\[0\]: expected a torch.nn.Module, got OrderedDict"),
        ({"examples": [1]}, "examples has 1 entries for 2 networks"),
        ({"examples": [1, 0]}, r"examples\[1\] is 0, expected a number of examples of at least 1"),
        ({"statistics": [{}, {}]}, "holds nothing, but 'fisher' is needed"),
        ({"statistics": [{"fischer": {}}] * 2}, r"statistics\[0\]: unknown statistic 'fischer'; did you mean 'fisher'"),
        ({"parties": ["a", "a"]}, "party 'a' is there 2 times"),
        ({"networks": [Own(5), Own(6)]}, "'first.weight' has shape"),
        ({"start": Own(6)}, "start: 'first.weight' has shape"),
        ({"validation": data().examples(torch.arange(0))}, "validation holds no example"),
        ({"validation": torch.zeros(2, 6)}, "validation: expected a fedfi.Dataset or fedfi.Examples, got Tensor"),
        ({"inputs": fedfi.InputSpec("tabular", (7,), 3), "validation": data()}, "validation has examples of InputSpec"),
    ],
)
def test_what_does_not_fit(options: dict[str, Any], said: str) -> None:
    given = {"networks": [Own(), Own()], "inputs": SPEC, **options}
    with pytest.raises(InputError, match=said):
        fedfi.merge(fedfi.FedFiOT(), **given)


def test_values_that_are_none_are_named() -> None:
    broken = Own()
    with torch.no_grad():
        broken.last.bias[0] = torch.nan
    with pytest.raises(InputError, match=r"networks\[1\]: 'last.bias'"):
        fedfi.merge(fedfi.Average(), [Own(), broken], inputs=SPEC)


def test_the_page_lists_every_method_and_functions_that_are_there() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| `(fedfi\.\w+)` \| (.*) \| (.*) \|$", PAGE, flags=re.M)
    assert sorted(name for name, *_ in rows) == sorted(METHODS)
    for name, cls, *cells in rows:
        assert getattr(fedfi, cls.removeprefix("fedfi.")) is registry.algorithm(name)
        for path in re.findall(r"`(fedfi\.[\w.]+)`", " ".join(cells)):
            module, _, function = path.rpartition(".")
            assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("name", [n for n in METHODS if registry.algorithm(n)().measures()])
@pytest.mark.parametrize("spoil", ["lacks", "shape", "nan", "negative"])
def test_statistics_of_something_else_are_named(name: str, spoil: str) -> None:
    method = registry.algorithm(name)(**FAST.get(name, {}))
    statistics = [fedfi.measure(method, Own(), data()) for _ in range(2)]
    (kind, found), *_ = statistics[1].items()
    first = min(found)
    said = {"lacks": "lacks", "shape": "has shape", "nan": "not finite", "negative": "expected at least 0"}[spoil]
    if spoil == "lacks":
        del found[first]
    elif spoil == "negative":
        found[first] = -found[first]
    else:
        found[first] = found[first][:-1] if spoil == "shape" else torch.full(found[first].shape, torch.nan)
    with pytest.raises(InputError, match=rf"statistics\[1\]\['{kind}'\].*{said}"):
        fedfi.merge(method, [Own(), Own()], inputs=SPEC, statistics=statistics)


def test_numbers_below_zero_are_no_fisher_information() -> None:
    statistics = [fedfi.measure(fedfi.FedFiOT(), Own(), data()) for _ in range(2)]
    statistics[0]["fisher"]["last.bias"] -= 1
    with pytest.raises(InputError, match=r"statistics\[0\]\['fisher'\]\['last.bias'\] holds -"):
        fedfi.merge(fedfi.FedFiOT(), [Own(), Own()], inputs=SPEC, statistics=statistics)


def test_a_network_of_no_numbers_is_not_measured() -> None:
    broken = Own()
    with torch.no_grad():
        broken.last.bias[0] = torch.nan
    with pytest.raises(InputError, match=r"network: 'last.bias' holds 1 of 3 values"):
        fedfi.measure(fedfi.FedFiOT(), broken, data())


def test_a_merge_that_diverges_is_refused() -> None:
    with pytest.raises(InputError, match=r"the merge came to values of .* that are not finite"):
        fedfi.merge(
            fedfi.Average(distil="server", distil_rate=1e30), [Own(), Own(seed=1)], inputs=SPEC, validation=data()
        )
