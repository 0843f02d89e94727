"""What a wiring does beside cutting: choosing units, packing them, counting, permuting."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.channels import nets
from torch import nn

from fedfi.channels import Wiring, discover
from fedfi.errors import InputError


def layers(*sizes):
    """Linear layers with ReLU between them."""
    parts = []
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after, bias=False), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


@pytest.fixture(scope="module")
def wiring() -> Wiring:
    """Groups ``0.weight`` of 10 units and ``2.weight`` of 3."""
    return discover(layers(4, 10, 3, 2), nets.rows(2, 4))


def flags(text):
    return torch.tensor([each == "1" for each in text])


def test_prefix(wiring):
    """ceil(10 w) and ceil(3 w); 0.1 of 10 is 1 though the float is above one tenth."""
    assert wiring.sizes == {"0.weight": 10, "2.weight": 3}
    for width, first, second in ((1, 10, 3), (0.34, 4, 2), (0.1, 1, 1), (1e-9, 1, 1), (1 - 0.7, 3, 1), (2 / 3, 7, 2)):
        assert wiring.counts(width) == {"0.weight": first, "2.weight": second}
        units = wiring.prefix(width)
        assert torch.equal(units["0.weight"], torch.arange(10) < first)
        assert torch.equal(units["2.weight"], torch.arange(3) < second)


def test_rolled(wiring):
    """(j + 2) mod 3 for j < 2 is 2, 0; (j + 9) mod 10 for j < 5 is 9, 0, 1, 2, 3."""
    assert torch.equal(wiring.rolled(0.5, 2)["2.weight"], flags("101"))
    assert torch.equal(wiring.rolled(0.5, 9)["0.weight"], flags("1111000001"))
    assert torch.equal(wiring.rolled(0.5, -1)["0.weight"], flags("1111000001"))


def test_random(wiring):
    draws = [wiring.random(0.5, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert all(int(units["0.weight"].sum()) == 5 for units in draws)
    assert torch.equal(draws[0]["0.weight"], draws[1]["0.weight"])
    assert not torch.equal(draws[0]["0.weight"], draws[2]["0.weight"])


@pytest.mark.parametrize("width", [0, -0.1, 1.01, float("nan")])
def test_a_width_out_of_range(wiring, width):
    for call in (wiring.prefix, lambda w: wiring.rolled(w, 1), wiring.ratio_for):
        with pytest.raises(InputError, match=r"width must be in \(0, 1\]"):
            call(width)


def test_pack(wiring):
    """13 bits, lowest first: 1100000001 and 101 are 3 and 2 + 4 + 16."""
    units = {"0.weight": flags("1100000001"), "2.weight": flags("101")}
    assert wiring.pack(units) == bytes([3, 2 + 4 + 16])
    found = wiring.unpack(bytes([3, 22]))
    assert all(torch.equal(found[name], units[name]) for name in units)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x03", "1 bytes for 13 bits"),
        (b"\x03\x16\x00", "3 bytes for 13 bits"),
        (b"\x03\xff", "padding bit"),
        (b"\x03\x00", "'2.weight' must keep 1 to 3 units, got 0"),
    ],
)
def test_packed_units_that_are_wrong(wiring, data, message):
    with pytest.raises(InputError, match=message):
        wiring.unpack(data)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ({"0.weight": torch.ones(10, dtype=torch.bool)}, "'2.weight' are missing"),
        ({"1.weight": torch.ones(10, dtype=torch.bool)}, "unknown group '1.weight'; did you mean"),
        ({"0.weight": torch.ones(10), "2.weight": flags("111")}, "must be flags"),
        ({"0.weight": torch.ones(9, dtype=torch.bool), "2.weight": flags("111")}, r"must be flags \[10\]"),
        ({"0.weight": torch.zeros(10, dtype=torch.bool), "2.weight": flags("111")}, "1 to 10 units, got 0"),
    ],
)
def test_units_that_are_wrong(wiring, units, message):
    for call in (wiring.pack, lambda u: wiring.mask("0.weight", u), lambda u: wiring.take({}, u)):
        with pytest.raises(InputError, match=message):
            call(units)


@given(st.integers(1, 2**10 - 1), st.integers(1, 2**3 - 1))
def test_a_slice_of_any_units(wiring, first, second):
    """The small tensor in row-major order is the full one at its mask, and the other way round."""
    units = {
        "0.weight": torch.tensor([bool(first >> i & 1) for i in range(10)]),
        "2.weight": torch.tensor([bool(second >> i & 1) for i in range(3)]),
    }
    tree = {name: torch.rand(shape) for name, shape in wiring.shapes.items()}
    nets.check_slice(wiring, tree, units)


def test_mask_by_hand(wiring):
    """The middle weight ``[3, 10]`` keeps rows 0 and 2 and columns 1 and 4."""
    units = {"0.weight": flags("0100100000"), "2.weight": flags("101")}
    mask = wiring.mask("2.weight", units)
    assert mask.nonzero().tolist() == [[0, 1], [0, 4], [2, 1], [2, 4]]


def test_take_and_put_are_differentiable(wiring):
    units = wiring.prefix(0.5)
    full = torch.rand(3, 10, requires_grad=True)
    small = wiring.take({"2.weight": full}, units)["2.weight"]
    small.sum().backward()
    assert torch.equal(full.grad, wiring.mask("2.weight", units).float())
    zeros, ones = torch.zeros(3, 10), torch.ones(2, 5, requires_grad=True)
    (wiring.put({"2.weight": zeros}, {"2.weight": ones}, units)["2.weight"] * 3).sum().backward()
    assert torch.equal(ones.grad, torch.full((2, 5), 3.0))
    assert torch.equal(zeros, torch.zeros(3, 10))


def test_weights(wiring):
    """Summed over two clients they count the holders."""
    names = ["0.weight", "2.weight"]
    total = wiring.weights(names, wiring.prefix(0.5))
    for name, each in wiring.weights(names, wiring.full(), 2.0).items():
        total[name] = total[name] + each
    assert total["2.weight"].tolist() == [[3.0] * 5 + [2.0] * 5] * 2 + [[2.0] * 10]


def test_wrong_trees(wiring):
    units = wiring.prefix(0.5)
    with pytest.raises(InputError, match=r"unknown tensor '0.wait'; did you mean '0.weight'"):
        wiring.take({"0.wait": torch.zeros(10, 4)}, units)
    with pytest.raises(InputError, match=r"'0.weight' has shape \[4, 10\], expected \[10, 4\]"):
        wiring.take({"0.weight": torch.zeros(4, 10)}, units)
    with pytest.raises(InputError, match=r"'0.weight' has shape \[10, 4\], expected \[5, 4\]"):
        wiring.put({"0.weight": torch.zeros(10, 4)}, {"0.weight": torch.zeros(10, 4)}, units)
    with pytest.raises(InputError, match=r"unknown tensor '2\.weight'"):
        wiring.put({"0.weight": torch.zeros(10, 4)}, {"2.weight": torch.zeros(2, 5)}, units)


def test_permute_by_hand(wiring):
    """Unit 0 becomes the old unit 2: rows of the second weight, columns of the third."""
    tree = {"2.weight": torch.arange(30.0).reshape(3, 10), "4.weight": torch.arange(6.0).reshape(2, 3)}
    moved = wiring.permute(tree, {"2.weight": torch.tensor([2, 0, 1])})
    assert moved["2.weight"][:, 0].tolist() == [20.0, 0.0, 10.0]
    assert moved["4.weight"].tolist() == [[2.0, 0.0, 1.0], [5.0, 3.0, 4.0]]


@pytest.mark.parametrize(
    ("order", "got"),
    [([0, 1], "$"), ([0, 0, 1], "holds 0 twice"), ([1, 2, 3], r"holds 3 \(units are 0 to 2\)")],
)
def test_no_permutation(wiring, order, got):
    with pytest.raises(InputError, match=rf"needs a permutation of 3 units.* got a tensor of torch.int64 \[.\].*{got}"):
        wiring.permute({}, {"2.weight": torch.tensor(order)})
    with pytest.raises(InputError, match="unknown group"):
        wiring.permute({}, {"3.weight": torch.tensor(order)})


def test_parameters_by_hand(wiring):
    """4 a + a b + 2 b for a of 10 and b of 3 units: 40 + 30 + 6 = 76."""
    assert wiring.parameters(wiring.full()) == 76
    assert wiring.parameters({"0.weight": 5, "2.weight": 2}) == 20 + 10 + 4
    assert wiring.parameters({"0.weight": 5, "2.weight": 2}, names=["2.weight"]) == 10
    assert wiring.ratio_for(0.5) == 34 / 76
    with pytest.raises(InputError, match="unknown tensor"):
        wiring.parameters(wiring.full(), names=["5.weight"])


def test_width_for(wiring):
    """Counts by width: .1: 1, 1: 7; .2: 2, 1: 12; .3: 3, 1: 17; 1/3: 4, 1: 22; .4: 4, 2: 28; .5: 5, 2: 34; ..."""
    for width, count in ((0.1, 7), (0.2, 12), (0.3, 17), (1 / 3, 22), (0.4, 28), (0.5, 34), (1, 76)):
        assert wiring.parameters(wiring.counts(width)) == count
        assert wiring.width_for(count / 76) == width
    assert wiring.width_for(27 / 76) == 1 / 3
    assert wiring.width_for(0.5) == 0.5  # 38 of 76; 0.6 would keep 24 + 12 + 4 = 40
    with pytest.raises(
        InputError, match=f"one unit a group is already {7 / 76:.6g}.*nearest valid: 0.0921053"
    ) as caught:
        wiring.width_for(6 / 76)
    assert wiring.width_for(float(str(caught.value).rpartition(": ")[2].rstrip(")"))) == 0.1  # as it is written
    for ratio, near in ((0, "any number above 0, such as 0.1"), (1.5, "1"), (float("nan"), "1")):
        for what, call in (("ratio", wiring.width_for), ("width", wiring.prefix)):
            with pytest.raises(InputError, match=rf"^{what} must be in .* \(nearest valid: {near}\)$"):
                call(ratio)


def test_width_for_some_parameters(wiring):
    """The last weight ``[2, 3]`` alone: two of its three columns up to a width of 2/3."""
    assert wiring.width_for(2 / 3, names=["4.weight"]) == 2 / 3


def test_roles(wiring):
    """Groups in the order of the computation, with who makes and who reads."""
    assert [[(m.name, m.axis, m.role) for m in group.members] for group in wiring.order] == [
        [("0.weight", 0, "out"), ("2.weight", 1, "in")],
        [("2.weight", 0, "out"), ("4.weight", 1, "in")],
    ]
    norms = discover(nets.Depthwise(), nets.images(6)).groups[0]
    roles = {(m.name, m.axis): m.role for m in norms.members}
    assert roles["norm.running_var", 0] == "along"
    assert roles["first.bias", 0] == "out"
    assert roles["last.weight", 1] == "in"


def test_no_groups():
    wiring = discover(nn.Linear(3, 2), nets.rows(2, 3))
    assert wiring.groups == ()
    assert wiring.unpack(wiring.pack({})) == {}
    assert wiring.width_for(1) == 1
    with pytest.raises(InputError, match="already 1 of"):
        wiring.width_for(0.5)


TREE = {"2.weight": torch.zeros(3, 10)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.prefix("half"), r"width must be a number in \(0, 1\], got a str, 'half'"),
        (lambda w: w.prefix(None), "width must be a number"),
        (lambda w: w.ratio_for([0.5]), "width must be a number"),
        (lambda w: w.width_for("a quarter"), "ratio must be a number"),
        (lambda w: w.rolled(0.5, 1.5), "shift must be a whole number, got a float, 1.5"),
        (lambda w: w.random(0.5, 3), "generator must be a torch.Generator, .* got a int, 3"),
        (lambda w: w.pack([True]), "units must map groups to flags, got a list"),
        (lambda w: w.pack({"0.weight": 3, "2.weight": 2}), r"must be flags \[10\], got a int, 3"),
        (lambda w: w.pack({0: flags("1")}), "a name in units must be a text, got a int, 0"),
        (lambda w: w.unpack("0316"), "packed units must be bytes"),
        (lambda w: w.mask(2, w.full()), "a tensor's name must be a text, got a int, 2"),
        (lambda w: w.mask(["2.weight"], w.full()), "a tensor's name must be a text"),
        (
            lambda w: w.take(torch.zeros(3, 10), w.full()),
            "tree must map names to tensors, got a tensor",
        ),
        (lambda w: w.take({"2.weight": [[0.0]]}, w.full()), "got a list, .* for '2.weight'"),
        (lambda w: w.put(TREE, [1], w.full()), "small must map names to tensors, got a list"),
        (lambda w: w.put(TREE, {"2.weight": 1.0}, w.full()), "small must map names to tensors, got a float"),
        (lambda w: w.put(None, {}, w.full()), "full must map names to tensors, got a NoneType"),
        (lambda w: w.put(TREE, TREE, None), "units must map groups to flags"),
        (lambda w: w.weights("2.weight", w.full()), "names must be a list of names, got a str"),
        (lambda w: w.weights([2], w.full()), "a name must be a text"),
        (lambda w: w.weights(["2.weight"], w.full(), "1"), "weight must be a number, got a str"),
        (lambda w: w.permute(TREE, torch.arange(3)), "permutations must map groups to permutations, got a tensor"),
        (lambda w: w.permute(TREE, {"2.weight": [2, 0, 1]}), "a tensor of whole numbers, got a list"),
        (lambda w: w.permute(TREE, {"2.weight": torch.tensor([2.0, 0.0, 1.0])}), "a tensor of whole numbers"),
        (lambda w: w.permute(TREE, {"2.weight": None}), "got a NoneType"),
        (lambda w: w.permute([1], {}), "tree must map names to tensors"),
        (lambda w: w.shrink(TREE, w.full()), "module must be a torch.nn.Module, got a dict"),
        (lambda w: w.shrink(nn.Linear, w.full()), "got the class Linear"),
        (lambda w: w.parameters(0.5), "units must map groups to flags"),
        (lambda w: w.parameters({"0.weight": 2.7, "2.weight": 2}), "must be a number of units or flags, got a float"),
        (lambda w: w.parameters(w.full(), names="2.weight"), "names must be a list of names"),
    ],
)
def test_arguments_of_the_wrong_kind(wiring, call, message):
    with pytest.raises(InputError, match=message):
        call(wiring)


def test_numbers_of_other_libraries(wiring):
    """numpy's numbers, and whole ones where a fraction may be whole."""
    assert wiring.counts(np.float32(0.5)) == wiring.counts(0.5)
    assert wiring.counts(1) == wiring.sizes
    assert wiring.parameters({"0.weight": np.int64(5), "2.weight": 2}) == 34
    assert torch.equal(wiring.rolled(0.5, np.int64(9))["0.weight"], wiring.rolled(0.5, 9)["0.weight"])
