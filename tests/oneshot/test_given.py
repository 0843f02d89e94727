"""Plain functions of merging refuse what does not belong together, and name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedfi.channels import discover
from fedfi.errors import InputError
from fedfi.oneshot.fedfiot import fuse
from fedfi.oneshot.fedfisher import quadratic_slope
from fedfi.oneshot.fishermerge import fisher_mean
from fedfi.oneshot.growing import Process, grow
from fedfi.oneshot.means import elementwise, mean
from fedfi.oneshot.otfusion import transported
from fedfi.oneshot.rebasin import matched, merge_many
from fedfi.oneshot.regmean import regression_mean
from fedfi.oneshot.taskarithmetic import added
from fedfi.oneshot.ties import elected, ties_mean
from fedfi.oneshot.together import Together
from fedfi.oneshot.uploads import Upload
from fedfi.oneshot.wbfusion import barycentre_fusion

Tree = dict[str, Tensor]


def network(hidden: int = 4, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def tree(seed: int, hidden: int = 4) -> Tree:
    return dict(network(hidden, seed).state_dict())


WIRING = discover(network(), torch.zeros(1, 3))
NAMES = list(tree(0))
FISHERS = [{n: t.square() for n, t in tree(s).items()} for s in (0, 1)]
GRAMS = [{"0": torch.eye(3), "2": torch.eye(4)}] * 2

RULES: dict[str, Callable[[Any, Any], object]] = {
    "mean": mean,
    "elementwise": lambda models, party: elementwise(models, FISHERS, party),
    "fuse": lambda models, party: fuse(models, FISHERS, WIRING, party=party),
    "fisher_mean": lambda models, party: fisher_mean(models, FISHERS, party),
    "regression_mean": lambda models, party: regression_mean(models, GRAMS, party),
    "barycentre_fusion": lambda models, party: barycentre_fusion(models, NAMES, WIRING, party),
    "merge_many": lambda models, party: merge_many(models, NAMES, WIRING, party, torch.Generator()),
    "ties_mean": lambda models, party: ties_mean(models, tree(9), NAMES, party),
    "added": lambda models, party: added(models, tree(9), NAMES, party),
    "quadratic_slope": lambda models, party: quadratic_slope(models, FISHERS, party, "diagonal"),
}


@pytest.mark.parametrize("name", RULES)
def test_what_fits_is_merged(name: str) -> None:
    assert RULES[name]([tree(0), tree(1)], [0.25, 0.75]) is not None


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("models", "party", "said"),
    [
        ([], [], "models is empty"),
        ([network(), network()], [1, 1], r"models\[0\] is a module \(Sequential\); give its state_dict"),
        (tree(0), [1], "models: expected a sequence"),
        ([tree(0), tree(1, hidden=5)], [1, 1], r"models\[1\]\['0.weight'\] has shape \[5, 3\], models\[0\]"),
        ([tree(0), {**tree(1), "more": torch.zeros(1)}], [1, 1], r"differ in their tensors: 'more'"),
        ([tree(0), {**tree(1), "2.bias": torch.full((2,), torch.nan)}], [1, 1], r"holds values"),
        ([tree(0), tree(1)], [1], "party has 1 weight for 2 models"),
        ([tree(0), tree(1)], [0, 0], "all weights in party are 0"),
        ([tree(0), tree(1)], [1, -1], r"party\[1\] is -1, expected a number of at least 0"),
        ([tree(0), tree(1)], [1, float("nan")], r"party\[1\] is nan"),
        ([tree(0), tree(1)], 0.5, "party is 0.5, expected a list of weights, one a model"),
        ([tree(0), tree(1)], [1, None], r"party\[1\] is None, expected a number"),
        ([tree(0), tree(1)], "ab", "party is 'ab', expected a list of weights, one a model"),
        ([tree(0), tree(1)], torch.ones(2), r"party is a Tensor, .*its tolist\(\) is one"),
        ([tree(0), {n: t.double() for n, t in tree(1).items()}], [1, 1], r"is torch.float64, models\[0\]"),
    ],
)  # fmt: skip
def test_models_and_weights_that_do_not_fit(name: str, models: Any, party: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        RULES[name](models, party)


@pytest.mark.parametrize(
    ("fishers", "said"),
    [
        (FISHERS[:1], "fishers has 1 entries for 2 models"),
        ([FISHERS[0], {}], r"fishers\[1\] and fishers\[0\] differ in their entries: '0.bias'"),
        ([{"0.wieght": torch.ones(4, 3)}] * 2, "unknown parameter '0.wieght'; did you mean '0.weight'"),
        ([{"0.weight": torch.ones(3, 4)}] * 2, r"fishers\[0\]\['0.weight'\] has shape \[3, 4\]"),
        ([{"0.weight": torch.full((4, 3), float("inf"))}] * 2, r"fishers\[0\]\['0.weight'\] holds values"),
        (
            [FISHERS[0], {**FISHERS[1], "0.bias": -torch.ones(4)}],
            r"fishers\[1\]\['0.bias'\] holds -1, expected at least",
        ),
    ],
)
def test_diagonals_that_do_not_fit(fishers: Any, said: str) -> None:
    models = [tree(0), tree(1)]
    for rule in (lambda: fuse(models, fishers, WIRING), lambda: fisher_mean(models, fishers, [1, 1])):
        with pytest.raises(InputError, match=said):
            rule()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alignment": "fischer"}, "alignment: unknown choice 'fischer'; did you mean 'fisher'"),
        ({"aggregation": "median"}, "aggregation: unknown choice 'median'"),
        ({"order": "layer"}, "order: unknown choice 'layer'; did you mean 'layers'"),
        ({"rho": -1.0}, "rho is -1.0, expected above 0 and at most 1"),
        ({"rho": 0.0}, "rho is 0.0, expected above 0 and at most 1"),
        ({"rho": None}, "rho is None, expected a number"),
        ({"rho": "0.3"}, "rho is '0.3', expected a number"),
        ({"damping": float("inf")}, "damping is inf, expected above 0"),
        ({"iterations": 1.5}, "iterations is 1.5, expected a whole number"),
        ({"reference": "largest"}, "reference is 'largest', expected a whole number"),
        ({"reference": {}}, r"reference lacks .*'0.bias'.* of models\[0\]"),
        ({"reference": tree(0, hidden=5)}, r"reference\['0.weight'\] has shape \[5, 3\], models\[0\]"),
        ({"damping": 0.0}, "damping is 0.0, expected above 0"),
        ({"iterations": 0}, "iterations is 0, expected at least 1"),
        ({"reference": 2}, "reference is 2, expected at least 0 and at most 1"),
    ],
)
def test_options_of_fuse(options: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fuse([tree(0), tree(1)], FISHERS, WIRING, **options)


def test_other_options_and_statistics() -> None:
    models = [tree(0), tree(1)]
    with pytest.raises(InputError, match=r"off_diagonal is 2.0, expected at least 0 and at most 1"):
        regression_mean(models, GRAMS, [1, 1], off_diagonal=2.0)
    with pytest.raises(InputError, match=r"grams\[0\]\['0'\] has shape \[4, 4\], expected \[3, 3\]"):
        regression_mean(models, [{"0": torch.eye(4)}] * 2, [1, 1])
    with pytest.raises(InputError, match=r"grams: unknown layer '1'"):
        regression_mean(models, [{"1": torch.eye(4)}] * 2, [1, 1])
    with pytest.raises(InputError, match=r"keep is 0.0, expected above 0 and at most 1"):
        elected([torch.ones(3)], [1.0], keep=0.0)
    with pytest.raises(InputError, match=r"names: unknown tensor '0.wieght'"):
        ties_mean(models, tree(9), ["0.wieght"], [1, 1])
    with pytest.raises(InputError, match=r"start\['0.weight'\] has shape"):
        added(models, tree(9, hidden=5), NAMES, [1, 1])
    with pytest.raises(InputError, match=r"models\[1\]\['0.weight'\] has shape \[5, 3\]"):
        transported(tree(1, hidden=5), tree(0), NAMES, WIRING)
    for start, said in ((None, "start: expected tensors by name, got NoneType"), ({}, "start lacks '0.weight'")):
        for rule in (added, ties_mean):
            with pytest.raises(InputError, match=said):
                rule(models, start, NAMES, [1, 1])  # type: ignore[operator]
    with pytest.raises(InputError, match="party is None, expected a list of weights"):
        mean(models, None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"regularization is -1.0, expected above 0"):
        transported(tree(1), tree(0), NAMES, WIRING, regularization=-1.0)
    with pytest.raises(InputError, match=r"rng is 0, expected a torch.Generator"):
        merge_many(models, NAMES, WIRING, [1, 1], 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="kind: unknown choice 'kfca'; did you mean 'kfac'"):
        quadratic_slope(models, FISHERS, [1, 1], "kfca")  # type: ignore[arg-type]


def matching(model: Tree, wiring: Any, names: Any) -> object:
    return matched(model, tree(0), names, wiring, torch.Generator())


WIRED: dict[str, Callable[[Any, Any], object]] = {
    "fuse": lambda wiring, _: fuse([tree(0), tree(1)], FISHERS, wiring),
    "transported": lambda wiring, names: transported(tree(1), tree(0), names, wiring),
    "barycentre_fusion": lambda wiring, names: barycentre_fusion([tree(0), tree(1)], names, wiring, [1, 1]),
    "merge_many": lambda wiring, names: merge_many([tree(0), tree(1)], names, wiring, [1, 1], torch.Generator()),
    "matched": lambda wiring, names: matching(tree(1), wiring, names),
    "grow": lambda wiring, names: grow(
        wiring, [Upload(str(i), tree(i), tuple(names)) for i in (0, 1)], "forward", Process(), torch.Generator()
    ),
}


@pytest.mark.parametrize("name", WIRED)
@pytest.mark.parametrize(
    ("wiring", "said"),
    [
        (discover(network(5), torch.zeros(1, 3)), r"wiring is of another network: '0.weight' has shape \[5, 3\], but"),
        (
            discover(nn.Sequential(network()), torch.zeros(1, 3)),
            "wiring is of another network: .* is not there",
        ),
        (network(), r"wiring is a Sequential, expected the channel groups that fedfi.channels.discover"),
    ],
)
def test_channel_groups_of_another_network(name: str, wiring: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        WIRED[name](wiring, NAMES)


def test_class_counts_are_of_all_models_or_of_none() -> None:
    counted = {"classes": {"counts": torch.tensor([3, 5])}}
    uploads = [Upload("0", tree(0), tuple(NAMES), 1, counted), Upload("1", tree(1), tuple(NAMES))]
    with pytest.raises(InputError, match="upload of '1' holds nothing, but 'classes' is needed"):
        grow(WIRING, uploads, "forward", Process(), torch.Generator())


@pytest.mark.parametrize("name", ["transported", "barycentre_fusion", "merge_many", "matched"])
@pytest.mark.parametrize(
    ("names", "said"), [([], "names is empty, expected the names of"), (["2.bias"], "units of '0.weight'.* cannot be")]
)
def test_names_that_tell_no_units_apart(name: str, names: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        WIRED[name](WIRING, names)


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        (FISHERS[0], r"curvatures\[0\]\['0.weight'\] is no Kronecker factor, .*kind='diagonal' takes"),
        ({"0/inputs": torch.eye(4)}, r"curvatures\[0\] lacks '0/outputs', but holds '0/inputs'"),
        ({"1/inputs": torch.eye(4), "1/outputs": torch.eye(4)}, "the models have no layer '1'"),
        (
            {"0/inputs": torch.eye(4), "0/outputs": torch.eye(3)},
            r"\['0/outputs'\] has shape \[3, 3\], expected \[4, 4\]",
        ),
    ],
)
def test_factors_that_are_none(factors: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        quadratic_slope([tree(0), tree(1)], [factors] * 2, [1, 1], "kfac")


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_is_a_finite_number(scale: float) -> None:
    with pytest.raises(InputError, match=f"scale is {scale}, expected a finite number"):
        added([tree(0), tree(1)], tree(9), NAMES, [1, 1], scale=scale)
    assert added([tree(0), tree(1)], tree(9), NAMES, [1, 1], scale=-1.0)  # to forget is to subtract


@pytest.mark.parametrize(
    ("networks", "combine", "said"),
    [
        ([], "logits", "networks is empty"),
        ([tree(0)], "logits", r"networks\[0\] is a dict, expected a torch.nn.Module"),
        ([network()], "logit", "combine: unknown choice 'logit'; did you mean 'logits'"),
    ],
)
def test_networks_together(networks: Any, combine: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Together(networks, combine)


def test_large_numbers_that_add_up_to_more_than_fits_are_numbers() -> None:
    large = {n: torch.full_like(t, 1e38) for n, t in tree(0).items()}
    assert torch.isfinite(mean([large, large], [1, 1])["0.weight"]).all()
