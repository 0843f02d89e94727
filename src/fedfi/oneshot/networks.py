"""Merging networks that are at hand: every method as a function, without a federation and without files."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedfi.channels import discover
from fedfi.data.dataset import Dataset, Examples
from fedfi.errors import InputError, counted
from fedfi.federation.algorithm import DeploysNetwork, Metrics
from fedfi.federation.evaluation import take_statistics
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.rng import keyed_generator
from fedfi.federation.workbench import Benches, Workbench
from fedfi.models.shapes import InputSpec
from fedfi.numerics.finite import all_finite
from fedfi.oneshot.method import Context, Merging
from fedfi.oneshot.server import Server, task_of
from fedfi.oneshot.sound import check_values, load_weights
from fedfi.oneshot.statistics import check_statistic
from fedfi.oneshot.statistics import measure as compute
from fedfi.oneshot.uploads import Upload, largest

Statistics = Mapping[str, Tree]
"""What was measured on one network: by kind, then by name."""


@dataclass(frozen=True, eq=False)
class MergedNetwork:
    """One network made of several.

    Attributes:
        module: The network, in evaluation mode: of the architecture that was merged, or a wider one (PFNM, FedMA), or
            several behind each other (ensembles).
        model: Parameters and buffers of one network of the first architecture, where a next round would start.
        metrics: What the method reports; a string is a note.
    """

    module: nn.Module
    model: Tree
    metrics: Metrics


def measure(
    method: Merging[Any], network: nn.Module, examples: Dataset | Examples, *, seed: int = 0
) -> dict[str, Tree]:
    """Measures what a method needs of a network, as a client would.

    Args:
        method: The method with its options; `measure_on` limits the examples that are used.
        network: The trained network; it is left as it is.
        examples: The examples that it was trained on.
        seed: Draws them, where `measure_on` is less than there are.

    Returns:
        The statistics by kind (`fisher`, `exact`, `gram`, `kfac`, `classes`, ...); none for methods that need none.

    Raises:
        InputError: If there are no examples, or a statistic cannot be measured on this network.
    """
    view = _examples("examples", examples)
    task = task_of(lambda: copy.deepcopy(network), view.dataset.spec)
    module = copy.deepcopy(network)
    if method.measures():
        take_statistics(task, module, view)
    bench = Workbench(module)
    _check_finite(bench, "network")
    rng = keyed_generator(seed, "measure")
    found = compute(method.measures(), bench.module, view, task.loss, limit=method.measure_on, rng=rng)
    for kind, statistic in found.items():
        check_statistic(kind, statistic, bench, view.dataset.spec, "what was measured on these examples")
    return found


def merge(
    method: Merging[Any],
    networks: Sequence[nn.Module],
    *,
    inputs: InputSpec,
    statistics: Sequence[Statistics] | None = None,
    examples: Sequence[int] | None = None,
    parties: Sequence[str] | None = None,
    start: nn.Module | None = None,
    validation: Dataset | Examples | None = None,
    seed: int = 0,
) -> MergedNetwork:
    """Merges networks.

    Args:
        method: The method with its options, such as ``fedfi.FedFiOT()``.
        networks: K networks of one architecture; they are left as they are.
        inputs: What they are fed.
        statistics: For each network what `measure` returned, for methods that need it.
        examples: How many examples each was trained on; by default 1 each.
        parties: Whose they are, for reports; FedBEns takes several of one party.
        start: What all of them were trained from, for task vectors.
        validation: Examples to choose candidates by, to measure batch norms on, and what else options need.
        seed: Of the method's draws.

    Raises:
        InputError: If networks, statistics and numbers do not fit together, or the method needs what was not given.
    """
    _check_counts(networks, statistics=statistics, examples=examples, parties=parties)
    benches = [Workbench(copy.deepcopy(network)) for network in networks]
    uploads = []
    for position, bench in enumerate(benches):
        _check_finite(bench, f"networks[{position}]")
        measured = {} if statistics is None else statistics[position]
        for kind, found in measured.items():
            check_statistic(kind, found, bench, inputs, f"statistics[{position}]")
        party = f"network {position}" if parties is None else parties[position]
        count = 1 if examples is None else examples[position]
        uploads.append(Upload(party, _tree(bench), tuple(bench.layout.names), count, measured))
    lead = largest(uploads)
    shapes = {n: t.shape for n, t in uploads[lead].model.items()}
    if method.takes_widths:
        for position, upload in enumerate(uploads):
            if {n: t.shape for n, t in upload.model.items()} != shapes:
                wiring = discover(benches[position].module.eval(), inputs.example())
                uploads[position] = replace(upload, wiring=wiring)
    view = None if validation is None else _examples("validation", validation)
    if view is not None and view.dataset.spec != inputs:
        raise InputError(f"validation has examples of {view.dataset.spec}, but the networks are fed {inputs}")
    before = None if start is None else _started(start, networks[lead])
    task = task_of(lambda: copy.deepcopy(networks[lead]), inputs, view)
    server = Server(task, benches[lead], method.reestimate, "validation is not given")
    merged = method.merged(uploads, Context(server, before, 0, keyed_generator(seed, "merge")))
    if merged.deployed is None or not isinstance(method, DeploysNetwork):
        return MergedNetwork(server.loaded(merged.model), merged.model, merged.metrics)
    bench = method.deploy(Packet(merged.deployed), Benches(task, seed))
    return MergedNetwork(bench.module.eval(), merged.model, merged.metrics)


def _tree(bench: Workbench) -> Tree:
    return {name: value.clone() for name, value in bench.tree().items()}


def _check_finite(bench: Workbench, source: str) -> None:
    check_values(bench, bench.module.state_dict(), source)
    for name, value in bench.parameters().items():
        if not all_finite(value):
            raise InputError(f"{source}: {name!r} holds values that are not finite")


def _started(start: nn.Module, network: nn.Module) -> Tree:
    bench = Workbench(copy.deepcopy(network))
    load_weights(bench, start.state_dict(), "start")
    _check_finite(bench, "start")
    return _tree(bench)


def _examples(what: str, given: Dataset | Examples) -> Examples:
    view = given.examples() if isinstance(given, Dataset) else given
    if not isinstance(view, Examples):
        raise InputError(f"{what}: expected a fedfi.Dataset or fedfi.Examples, got {type(given).__name__}")
    if not len(view):
        raise InputError(f"{what} holds no example, expected at least one")
    return view


def _check_counts(networks: Sequence[nn.Module], **given: Sequence[Any] | None) -> None:
    if not isinstance(networks, Sequence) or isinstance(networks, nn.Module) or not networks:
        raise InputError(f"networks: expected at least one network in a sequence, got {type(networks).__name__}")
    for position, network in enumerate(networks):
        if not isinstance(network, nn.Module):
            raise InputError(f"networks[{position}]: expected a torch.nn.Module, got {type(network).__name__}")
    for what, values in given.items():
        if values is not None and len(values) != len(networks):
            raise InputError(f"{what} has {len(values)} entries for {counted(len(networks), 'network')}")
    for position, number in enumerate(given["examples"] or ()):
        if not isinstance(number, int) or number < 1:
            raise InputError(f"examples[{position}] is {number!r}, expected a number of examples of at least 1")
