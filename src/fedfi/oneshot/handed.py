"""What `fedfi.merge` and `fedfi.measure` are handed: things of the right kinds, and networks of the right inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedfi.arguments import described, expect, whole
from fedfi.data.dataset import Dataset, Examples
from fedfi.errors import InputError, counted, unknown
from fedfi.federation.algorithm import Algorithm
from fedfi.federation.rng import keyed_global_rng
from fedfi.federation.workbench import Workbench
from fedfi.importing import call
from fedfi.models.norms import has_static_norms
from fedfi.models.shapes import InputSpec, as_fed
from fedfi.oneshot.method import Merging

_KINDS = ("image", "tabular", "text")
_TRIED = 2  # examples that a network is tried on


def check_method(method: object) -> None:
    """Checks that something is a method that merges, with its options.

    Raises:
        InputError: Saying what to give instead.
    """
    if isinstance(method, Merging):
        return
    such = "expected an instance of a merging method, such as fedfi.FedFiOT()"
    if isinstance(method, type) and issubclass(method, Merging):
        such = f"expected an instance: {method.__name__}()"
    elif isinstance(method, str):
        such += f"; names are for files, and `fedfi show {method}` prints the import of the class"
    elif isinstance(method, Algorithm):
        such += "; this one works in rounds (fedfi.run), and fedfi.Average() takes the plain mean"
    raise InputError(f"method is {described(method)}, {such}")


def check_networks(networks: object) -> Sequence[nn.Module]:
    """Checks that there are networks.

    Returns:
        The networks.

    Raises:
        InputError: Naming the first that is none.
    """
    if not isinstance(networks, Sequence) or isinstance(networks, nn.Module | str) or not networks:
        listed = "; list(...) makes one of it" if isinstance(networks, nn.ModuleList | Iterator) else ""
        raise InputError(
            f"networks: expected at least one network in a sequence, got {type(networks).__name__}{listed}"
        )
    for position, network in enumerate(networks):
        check_network(f"networks[{position}]", network)
    return networks


def check_network(what: str, network: object) -> None:
    """Checks that something is a network; what is none may be its state dict.

    Raises:
        InputError: Saying what to give instead.
    """
    if not isinstance(network, nn.Module):
        hint = "; its load_state_dict(...) takes these tensors" if isinstance(network, Mapping) else ""
        raise InputError(f"{what}: expected a torch.nn.Module, got {type(network).__name__}{hint}")


def check_inputs(inputs: object) -> None:
    """Checks that something says what networks are fed.

    Raises:
        InputError: Saying what to give instead.
    """
    such = "a fedfi.InputSpec, such as fedfi.InputSpec('tabular', (6,), 3)"
    if isinstance(inputs, Dataset | Examples):
        such += f"; here that is the {'spec' if isinstance(inputs, Dataset) else 'dataset.spec'} of what was given"
    expect("inputs", inputs, InputSpec, such)
    assert isinstance(inputs, InputSpec)  # just checked
    if inputs.kind not in _KINDS:
        raise InputError(f"inputs: {unknown('kind of input', inputs.kind, _KINDS)}")


def each(what: str, values: object, networks: int, expected: str) -> Sequence[Any]:
    """One entry a network.

    Args:
        what: The argument.
        values: What was given.
        networks: How many networks there are.
        expected: What an entry is.

    Raises:
        InputError: If it is no sequence, or of another length.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        listed = "; its tolist() is one" if hasattr(values, "tolist") else ""
        raise InputError(f"{what} is {described(values)}, expected a list of {expected}, one a network{listed}")
    if len(values) != networks:
        raise InputError(f"{what} has {len(values)} entries for {counted(networks, 'network')}")
    return values


def numbers_of(examples: object, networks: int) -> list[int]:
    """How many examples each network was trained on; without any, 1 each.

    Raises:
        InputError: Naming the first that is no such number.
    """
    if examples is None:
        return [1] * networks
    given = each("examples", examples, networks, "numbers of examples")
    return [whole(f"examples[{i}]", number, 1, "a number of examples") for i, number in enumerate(given)]


def names_of(parties: object, networks: int) -> list[str]:
    """Whose each network is; by default each is of a party of its own.

    Raises:
        InputError: Naming the first that is no name.
    """
    if parties is None:
        return [f"network {position}" for position in range(networks)]
    given = each("parties", parties, networks, "names")
    for position, name in enumerate(given):
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"parties[{position}] is {described(name)}, expected the name of a party")
    return list(given)


def measured_of(statistics: object, networks: int) -> list[Mapping[str, Any]]:
    """What was measured on each network; without any, nothing.

    Raises:
        InputError: Naming the first that is not what `fedfi.measure` gives.
    """
    if statistics is None:
        return [{}] * networks
    given = each("statistics", statistics, networks, "what fedfi.measure gives")
    for position, found in enumerate(given):
        expect(f"statistics[{position}]", found, Mapping, "what fedfi.measure gives, statistics by kind")
    return list(given)


def examples_of(what: str, given: object) -> Examples:
    """Examples that a network can be fed.

    Raises:
        InputError: If they are something else, none, or rows of a table with values missing.
    """
    view = given.examples() if isinstance(given, Dataset) else given
    if not isinstance(view, Examples):
        raise InputError(f"{what}: expected a fedfi.Dataset or fedfi.Examples, got {type(given).__name__}")
    if not len(view):
        raise InputError(f"{what} holds no example, expected at least one")
    data = view.dataset
    if data.spec.kind == "tabular" and data.fill is None and bool(data.inputs[view.indices].isnan().any()):
        raise InputError(f"{what} has missing values, which no network takes; the data set's fitted() fills them")
    return view


def tried(bench: Workbench, who: str, inputs: InputSpec, examples: Examples | None = None) -> Tensor:
    """What a network makes of two inputs, if that is one number a class.

    Args:
        bench: The network; it is put into evaluation mode.
        who: What errors call it.
        inputs: What it is fed.
        examples: Examples to take; without any, made up ones, in the network's own type of number.

    Returns:
        Logits `[2, classes]`, or `[1, classes]` where there is one example.

    Raises:
        InputError: If it does not take the inputs, or makes something else of them.
    """
    module = bench.module.eval()
    if examples is None:
        given = as_fed(inputs.example(_TRIED), module)
    else:
        given = examples.batch(torch.arange(min(_TRIED, len(examples))))[0]
    given = given.to(bench.vector.device)
    shape = list(given.shape)
    try:
        with keyed_global_rng(0, "tried"), torch.no_grad():
            outputs = call(module, f"{who} on inputs {shape}", given)
    except InputError as error:
        own = bench.vector.dtype
        if given.is_floating_point() and given.dtype != own:
            raise InputError(
                f"{who} is of {own}, but examples are {given.dtype}: give it as network.to({given.dtype})"
            ) from error
        raise
    made = list(outputs.shape) if isinstance(outputs, Tensor) else described(outputs)
    expected = [len(given), inputs.classes]
    if made != expected:
        raise InputError(
            f"{who} makes {made} of inputs {shape}, expected logits {expected}, one number for each of"
            f" {counted(inputs.classes, 'class', 'classes')}"
        )
    assert isinstance(outputs, Tensor)  # it has a shape
    return outputs


def check_same(benches: Sequence[Workbench], outputs: Sequence[Tensor], inputs: InputSpec) -> None:
    """Checks that networks of the same names and shapes compute the same, given the same values.

    Args:
        benches: The networks; the first one's values are put back.
        outputs: What each made of the made-up inputs.
        inputs: What they are fed.

    Raises:
        InputError: Naming the first network that does not.
    """
    first, form = benches[0], [{n: (t.shape, t.dtype) for n, t in bench.tree().items()} for bench in benches]
    if has_static_norms(first.module):  # what they compute depends on the inputs that came before
        return
    before = {name: value.clone() for name, value in first.tree().items()}
    for position, (bench, own) in enumerate(zip(benches, outputs, strict=True)):
        if position == 0 or form[position] != form[0]:
            continue
        first.load(bench.tree())
        there = tried(first, "networks[0]", inputs)
        if not torch.allclose(own, there, rtol=1e-3, atol=1e-3 * float(there.abs().max().nan_to_num()), equal_nan=True):
            raise InputError(
                f"networks[0] with the values of networks[{position}] computes something else than that one; expected"
                " networks of one architecture, which differ in their values alone, not in activations, options, or"
                " buffers that a state dict does not hold"
            )
    first.load(before)
