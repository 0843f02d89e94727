"""What `fedfi.merge` and `fedfi.measure` refuse, before anything is merged, and in the words of Python."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import torch
from tests.oneshot import cases
from tests.oneshot.test_networks import FAST, METHODS, SPEC, Own, data
from torch import nn

import fedfi
from fedfi import registry
from fedfi.errors import InputError
from fedfi.oneshot.sound import check_merged
from fedfi.oneshot.uploads import Merged


class Normed(nn.Module):
    """A network with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(self.first(x)))
        return out


class Curved(Own):
    """The names and shapes of `Own`, and another function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x).tanh())
        return out


def spec(width: int = 6, classes: int = 3) -> fedfi.InputSpec:
    return fedfi.InputSpec("tabular", (width,), classes)


def merge(method: Any, networks: Any = None, **options: Any) -> fedfi.MergedNetwork:
    networks = [Own(), Own(seed=1)] if networks is None else networks
    return fedfi.merge(method, networks, **{"inputs": SPEC, **options})


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        (fedfi.FedFiOT, {}, r"method is the class FedFiOT, expected an instance: FedFiOT\(\)"),
        ("fedfiot", {}, "method is 'fedfiot', .*names are for files, and `fedfi show fedfiot` prints the import"),
        (fedfi.FedAvg(), {}, r"method is a FedAvg, .*works in rounds \(fedfi.run\), and fedfi.Average\(\) takes"),
        (None, {}, r"method is None, expected an instance of a merging method, such as fedfi.FedFiOT\(\)"),
        (fedfi.Average(), {"inputs": (6,)}, r"inputs is a tuple, expected a fedfi.InputSpec, such as fedfi.InputSpec"),
        (
            fedfi.Average(),
            {"inputs": fedfi.InputSpec("table", (6,), 3)},
            "inputs: unknown kind of input 'table'; did you",
        ),  # type: ignore[arg-type]
        (fedfi.Average(), {"networks": nn.ModuleList([Own()])}, r"got ModuleList; list\(...\) makes one of it"),
        (fedfi.Average(), {"networks": iter([Own()])}, r"got list_iterator; list\(...\) makes one of it"),
        (fedfi.Average(), {"networks": nn.Sequential(Own())}, "at least one network in a sequence, got Sequential$"),
        (fedfi.Average(), {"inputs": data()}, "inputs is a Dataset, .*here that is the spec of what was given"),
        (fedfi.Average(), {"inputs": data().examples()}, "inputs is an Examples, .*here that is the dataset.spec"),
        (fedfi.TIES(), {"start": Own().state_dict()}, r"start: expected a torch.nn.Module, .*its load_state_dict\("),
        (fedfi.FedFiOT(), {"statistics": [{}, None]}, r"statistics\[1\] is None, expected what fedfi.measure gives"),
        (fedfi.FedFiOT(), {"statistics": {}}, "statistics is a dict, expected a list of what fedfi.measure gives"),
        (
            fedfi.FedFiOT(),
            {"statistics": [{"fisher": None}] * 2},
            r"statistics\[0\]\['fisher'\] is None, expected tens",
        ),
        (fedfi.Average(), {"examples": 100}, "examples is 100, expected a list of numbers of examples, one a network"),
        (fedfi.Average(), {"examples": torch.ones(2)}, r"examples is a Tensor, .*its tolist\(\) is one"),
        (fedfi.Average(), {"examples": [True, 1]}, r"examples\[0\] is True, expected a number of examples"),
        (fedfi.Average(), {"examples": [2.5, 1]}, r"examples\[0\] is 2.5, .* \(nearest valid: 2\)"),
        (fedfi.Average(), {"examples": [10**400, 1]}, r"examples\[0\] is an int, .*nearest valid: 9223372036854775807"),
        (fedfi.Average(), {"parties": "ab"}, "parties is 'ab', expected a list of names, one a network"),
        (fedfi.Average(), {"parties": ["a", None]}, r"parties\[1\] is None, expected the name of a party"),
        (fedfi.Average(), {"parties": ["a", " "]}, r"parties\[1\] is ' ', expected the name of a party"),
        (fedfi.Average(), {"seed": "x"}, "seed is 'x', expected a whole number of at least 0"),
        (fedfi.Average(), {"seed": -1}, r"seed is -1, .*\(nearest valid: 0\)"),
        (fedfi.Average(), {"input": SPEC}, "merge: unknown argument 'input'; did you mean 'inputs'"),
    ],
)
def test_things_of_another_kind(method: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        merge(method, **options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((fedfi.FedFiOT, Own(), data()), r"method is the class FedFiOT, expected an instance: FedFiOT\(\)"),
        ((fedfi.FedFiOT(), Own().state_dict(), data()), "network: expected a torch.nn.Module, got OrderedDict"),
        ((fedfi.FedFiOT(), Own(), data().inputs), "examples: expected a fedfi.Dataset or fedfi.Examples, got Tensor"),
    ],
)
def test_things_of_another_kind_are_not_measured(arguments: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fedfi.measure(*arguments)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((6, 3), r"InputSpec: shape is 6, expected the sizes of one example, such as \(3, 32, 32\)"),
        ((("6",), 3), r"InputSpec: shape\[0\] is '6', expected a size of at least 0"),
        (((6,), "3"), "InputSpec: classes is '3', expected a whole number of at least 0"),
        (((6,), 2.5), r"InputSpec: classes is 2.5, .* \(nearest valid: 2\)"),
    ],
)
def test_sizes_are_whole_numbers(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fedfi.InputSpec("tabular", *given)
    assert fedfi.InputSpec("tabular", [np.int64(6)], np.int64(3)) == SPEC  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    given = np.array([3, 5])
    found = merge(fedfi.Average(), examples=list(given))
    assert torch.equal(found.model["last.bias"], merge(fedfi.Average(), examples=[3, 5]).model["last.bias"])


@pytest.mark.parametrize("method", [fedfi.Average(), fedfi.FedFiOT(), fedfi.DENSE(), fedfi.PFNM()])
@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (
            spec(classes=5),
            r"networks\[0\] makes \[2, 3\] of inputs \[2, 6\], expected logits \[2, 5\].* 5 classes",
        ),
        (spec(classes=2), r"networks\[0\] makes \[2, 3\] of inputs \[2, 6\], expected logits \[2, 2\]"),
        (spec(width=7), r"networks\[0\] on inputs \[2, 7\] failed: RuntimeError"),
    ],
)
def test_inputs_of_another_network(method: Any, inputs: fedfi.InputSpec, said: str) -> None:
    with pytest.raises(InputError, match=said):
        merge(method, inputs=inputs)


@pytest.mark.parametrize("name", ["fedfiot", "regmean", "fishermerge", "fedfisher", "fedbens", "pfnm"])
@pytest.mark.parametrize(
    ("inputs", "said"),
    [(spec(classes=5), r"network makes \[2, 3\] of .*expected logits \[2, 5\]"), (spec(width=7), "inputs.*failed")],
)
def test_examples_of_another_network(name: str, inputs: fedfi.InputSpec, said: str) -> None:
    examples = fedfi.Dataset(torch.zeros(10, *inputs.shape), torch.arange(10) % inputs.classes, inputs)
    with pytest.raises(InputError, match=said):
        fedfi.measure(registry.algorithm(name)(), Own(), examples)  # type: ignore[arg-type]


def test_networks_of_another_function() -> None:
    with pytest.raises(InputError, match=r"networks\[0\] with the values of networks\[1\] computes something else"):
        merge(fedfi.Average(), [Own(), Curved()])


@pytest.mark.parametrize("name", ["pfnm", "fedma", "fedfiot", "regmean"])
@pytest.mark.parametrize("lacking", [[0, 1], [1]])
def test_statistics_that_are_missing_are_asked_for(name: str, lacking: list[int]) -> None:
    method: Any = registry.algorithm(name)()
    statistics = [{} if i in lacking else fedfi.measure(method, Own(), data()) for i in range(2)]
    said = rf"'network {lacking[0]}' holds nothing, but '\w+' is needed; give statistics=\[fedfi.measure\("
    for given in [statistics] + ([None] if lacking == [0, 1] else []):  # type: ignore[list-item]
        with pytest.raises(InputError, match=said):
            merge(method, statistics=given)


@pytest.mark.parametrize("method", [fedfi.TIES(), fedfi.TaskArithmetic()])
def test_a_start_that_is_missing_is_asked_for(method: Any) -> None:
    with pytest.raises(InputError, match=r"the model that all parties started from \(start= of fedfi.merge\)"):
        merge(method)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (fedfi.FedFiOT(upload_bits=32), r"FedFiOT\(upload_bits=32\): acts in rounds of a federation, not on networks"),
        (fedfi.FedFiOT(participation=0.5), "leave out the networks that are not to count"),
        (fedfi.FedFiOT(initialization="independent"), "that of start= is the start"),
        (fedfi.Average(measure_on=5), "acts where something is measured, but this method needs nothing"),
        (fedfi.FedFiOT(rho=(0.3, 0.2)), "of 2 candidates the best on examples is taken, but validation is not given"),
        (fedfi.FedFiOT(reference="broadcast"), "needs the model that all parties started from, but start is not given"),
        (fedfi.FedFiOT(alignment="identity", iterations=3), "acts with alignment='fisher' or alignment='euclidean' al"),
        (fedfi.Average(distil_steps=3), r"Average\(distil_steps=3\): acts with distil='server' or distil='generated'"),
        (fedfi.Average(rescale=True), r"Average\(rescale=True\): needs examples to judge on, but validation is not g"),
        (fedfi.Average(tune_weights=1), r"tune_weights judges on the server's examples, .*\(validation is not given\)"),
        (fedfi.FedBEns(models=2), "each model is a network of its own, with the same name in parties="),
    ],
)
def test_options_without_effect(method: Any, said: str) -> None:
    statistics = [fedfi.measure(method, Own(), data())] * 2
    with pytest.raises(InputError, match=said):
        merge(method, statistics=statistics)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (fedfi.Average(), "start: Average does not look at a common start"),
        (fedfi.FedFiOT(), r"start: FedFiOT with reference='largest' .*FedFiOT\(reference='broadcast'\) does"),
    ],
)
def test_a_start_without_effect(method: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        merge(method, start=Own(seed=3), statistics=[fedfi.measure(method, Own(), data())] * 2)


@pytest.mark.parametrize(
    "method", [fedfi.FedFiOT(measure_on=5), fedfi.FedFiOT.preset("as-published"), fedfi.Ensemble(combine="logits")]
)
def test_what_has_an_effect_is_taken(method: Any) -> None:
    """Examples are limited where they are measured, presets are whole, and an ensemble runs here."""
    assert merge(method, statistics=[fedfi.measure(method, Own(), data())] * 2).module(data().inputs).shape == (24, 3)


@pytest.mark.parametrize("name", METHODS)
def test_numbers_of_a_norm_that_are_none(name: str) -> None:
    broken = Normed()
    with torch.no_grad():
        broken.norm.running_mean[0] = torch.nan  # type: ignore[index]
    with pytest.raises(InputError, match=r"networks\[1\]: 'norm.running_mean' holds 1 of 4 values that are not finite"):
        merge(registry.algorithm(name)(**FAST.get(name, {})), [Normed(), broken])


class Masked(Own):
    """A network with a buffer that holds minus infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mask", [0.0, -torch.inf], None),
        ("networks.0.mask", [0.0, -torch.inf], None),
        ("mask", [-torch.inf, -torch.inf], "'mask'"),
        ("mask", [torch.nan, -torch.inf], "'mask'"),
        ("last.bias", [0.0, 0.0, torch.inf], "'last.bias'"),
        ("networks.1.last.bias", [0.0, 0.0, torch.nan], "'networks.1.last.bias'"),
    ],
)
def test_a_merge_comes_to_numbers_where_parties_have_some(name: str, value: list[float], said: str | None) -> None:
    upload = cases.uploads([Masked()])[0]
    deployed = {name: torch.tensor(value)} if name.startswith("networks.") else None
    merged = Merged(dict(upload.model) if deployed else {**upload.model, name: torch.tensor(value)}, deployed=deployed)
    if said is None:
        check_merged(merged, [upload])
    else:
        with pytest.raises(InputError, match=f"the merge came to values of {said} that are not finite"):
            check_merged(merged, [upload])


@pytest.mark.parametrize("name", ["resnet18, batch norm", "transformer"])
def test_images_and_texts_are_tried(name: str) -> None:
    networks, inputs = [cases.network(name, seed) for seed in range(2)], cases.spec_of(name)
    assert merge(fedfi.Average(), networks, inputs=inputs, validation=cases.server(inputs, Own, 4).examples)
    with pytest.raises(InputError, match=r"expected logits \[2, 7\]"):
        merge(fedfi.Average(), networks, inputs=dataclasses.replace(inputs, classes=7))


def test_static_norms_are_tried() -> None:
    networks = [fedfi.build("resnet18", cases.SMALL, width=0.1, norm="static") for _ in range(2)]
    assert fedfi.measure(fedfi.FedFiOT(), networks[0], cases.server(cases.SMALL, Own, 4).examples)  # type: ignore[arg-type]
    assert merge(fedfi.Average(), networks, inputs=cases.SMALL)


def test_missing_values_are_not_fed() -> None:
    holes = fedfi.Dataset(torch.full((6, 6), torch.nan), torch.arange(6) % 3, SPEC)
    with pytest.raises(InputError, match=r"validation has missing values, .*the data set's fitted\(\) fills them"):
        merge(fedfi.Average(), [Normed(), Normed()], validation=holes)
    with pytest.raises(InputError, match="examples has missing values"):
        fedfi.measure(fedfi.FedFiOT(), Own(), holes)
    assert merge(fedfi.Average(), validation=holes.fitted())


def test_numbers_of_another_type() -> None:
    """Without data they are merged as they are; data are of 32 bits; two types are no one network."""
    double = [Own().double(), Own(seed=1).double()]
    for method in (fedfi.Average(), fedfi.OTFusion(), fedfi.DENSE(**FAST["dense"])):
        assert merge(method, double).model["last.bias"].dtype == torch.float64
    said = r"is of torch.float64, but examples are torch.float32: give it as network.to\(torch.float32\)"
    with pytest.raises(InputError, match=f"network {said}"):
        fedfi.measure(fedfi.FedFiOT(), double[0], data())
    with pytest.raises(InputError, match=rf"networks\[0\] {said}"):
        merge(fedfi.Average(), double, validation=data())
    with pytest.raises(InputError, match=r"is torch.float32 at 'network 0' and torch.float64 at 'network 1'"):
        merge(fedfi.Average(), [Own(), double[1]])


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (fedfi.DENSE(stages=10**6, tune_weights=1), "tune_weights judges on the server's examples"),
        (fedfi.FedBEns(steps=10**6, rescale=True), "rescale is about one network of the clients' widths"),
        (fedfi.PFNM(sweeps=10**6, tune_weights=1), "tune_weights is about one network"),
    ],
)
def test_conditions_are_looked_at_before_the_merge(method: Any, said: str) -> None:
    validation = None if isinstance(method, fedfi.DENSE) else data(7)
    statistics = [fedfi.measure(method, Own(), data())] * 2
    begun = time.monotonic()
    with pytest.raises(InputError, match=said):
        merge(method, statistics=statistics, validation=validation)
    assert time.monotonic() - begun < 5
