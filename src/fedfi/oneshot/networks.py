"""Merging networks that are at hand: every method as a function, without a federation and without files."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedfi.arguments import named, whole
from fedfi.channels import discover
from fedfi.data.dataset import Dataset, Examples
from fedfi.errors import InputError
from fedfi.federation.algorithm import DeploysNetwork, Metrics
from fedfi.federation.evaluation import take_statistics
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.rng import keyed_generator
from fedfi.federation.workbench import Benches, Workbench
from fedfi.models.shapes import InputSpec
from fedfi.oneshot.acting import NETWORKS, chosen, unheeded_base, without_effect
from fedfi.oneshot.handed import (
    check_inputs,
    check_method,
    check_network,
    check_networks,
    check_same,
    examples_of,
    measured_of,
    names_of,
    numbers_of,
    tried,
)
from fedfi.oneshot.method import Context, Cures, Merging
from fedfi.oneshot.server import Server, task_of
from fedfi.oneshot.sound import check_values, load_weights
from fedfi.oneshot.statistics import check_statistic
from fedfi.oneshot.statistics import measure as compute
from fedfi.oneshot.uploads import Upload, check_alike, largest

Statistics = Mapping[str, Tree]
"""What was measured on one network: by kind, then by name."""
_CURES = Cures(
    start="start= of fedfi.merge",
    statistics="give statistics=[fedfi.measure(method, network, examples), ...], one of each network",
)


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


@named
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
        InputError: If there are no examples, the network does not make one number a class of them, or a statistic
            cannot be measured on it.
    """
    check_method(method)
    check_network("network", network)
    whole("seed", seed, 0)
    view = examples_of("examples", examples)
    task = task_of(lambda: copy.deepcopy(network), view.dataset.spec)
    module = copy.deepcopy(network)
    if method.measures():
        take_statistics(task, module, view)
    bench = Workbench(module)
    check_values(bench, module.state_dict(), "network", strict=True)
    tried(bench, "network", view.dataset.spec, view)
    rng = keyed_generator(seed, "measure")
    found = compute(method.measures(), bench.module, view, task.loss, limit=method.measure_on, rng=rng)
    for kind, statistic in found.items():
        check_statistic(kind, statistic, bench, view.dataset.spec, "what was measured on these examples")
    return found


@named
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
        inputs: What they are fed, and how many classes they tell apart.
        statistics: For each network what `measure` returned, for methods that need it.
        examples: How many examples each was trained on; by default 1 each.
        parties: Whose they are, for reports; FedBEns takes several of one party.
        start: What all of them were trained from, for task vectors.
        validation: Examples to choose candidates by, to measure batch norms on, and what else options need.
        seed: Of the method's draws.

    Raises:
        InputError: If something is of a wrong kind; if networks, what they are fed, statistics and numbers do not fit
            together; if the method needs what was not given, or was given what has no effect here.
    """
    check_method(method)
    count = len(check_networks(networks))
    check_inputs(inputs)
    numbers, names, measured = numbers_of(examples, count), names_of(parties, count), measured_of(statistics, count)
    whole("seed", seed, 0)
    view = None if validation is None else examples_of("validation", validation)
    if view is not None and view.dataset.spec != inputs:
        raise InputError(f"validation has examples of {view.dataset.spec}, but the networks are fed {inputs}")
    benches = _benches(networks, inputs, view)
    uploads = []
    for position, bench in enumerate(benches):
        for kind, found in measured[position].items():
            check_statistic(kind, found, bench, inputs, f"statistics[{position}]")
        trained = tuple(bench.layout.names)
        uploads.append(Upload(names[position], _tree(bench), trained, numbers[position], measured[position]))
    lead = largest(uploads)
    if method.takes_widths:
        uploads = _with_wirings(uploads, benches, lead, inputs)
    before = None if start is None else _started(start, networks[lead])
    check_alike(uploads, widths=method.takes_widths, mixtures=method.takes_mixtures)
    _check_effect(method, examples=view is not None, start=start is not None)
    task = task_of(lambda: copy.deepcopy(networks[lead]), inputs, view)
    server = Server(task, benches[lead], method.reestimate, "validation is not given")
    merged = method.merged(uploads, Context(server, before, 0, keyed_generator(seed, "merge"), _CURES))
    if merged.deployed is None or not isinstance(method, DeploysNetwork):
        return MergedNetwork(server.loaded(merged.model), merged.model, merged.metrics)
    bench = method.deploy(Packet(merged.deployed), Benches(task, seed))
    return MergedNetwork(bench.module.eval(), merged.model, merged.metrics)


def _benches(networks: Sequence[nn.Module], inputs: InputSpec, validation: Examples | None) -> list[Workbench]:
    """Copies of networks, if they are fed these inputs, tell so many classes apart, and are of one architecture."""
    benches, outputs = [], []
    for position, network in enumerate(networks):
        bench, who = Workbench(copy.deepcopy(network)), f"networks[{position}]"
        check_values(bench, bench.module.state_dict(), who, strict=True)
        outputs.append(tried(bench, who, inputs))
        if validation is not None and bench.vector.dtype != torch.float32:  # made-up inputs are of the network's type
            tried(bench, who, inputs, validation)
        benches.append(bench)
    check_same(benches, outputs, inputs)
    return benches


def _with_wirings(
    uploads: Sequence[Upload], benches: Sequence[Workbench], lead: int, inputs: InputSpec
) -> list[Upload]:
    """Uploads of other widths than the lead's with the wirings of their networks."""
    shapes, found = {n: t.shape for n, t in uploads[lead].model.items()}, []
    for upload, bench in zip(uploads, benches, strict=True):
        other = {n: t.shape for n, t in upload.model.items()} != shapes
        found.append(replace(upload, wiring=discover(bench.module.eval(), inputs.example())) if other else upload)
    return found


def _check_effect(method: Merging[Any], *, examples: bool, start: bool) -> None:
    """Checks that what was chosen has an effect here, as options of files must have."""
    if wrong := without_effect(method, chosen(method), examples=examples, base=start, where=NETWORKS):
        raise InputError(wrong)
    if start and (why := unheeded_base(method, type(method).__name__, NETWORKS)):
        raise InputError(f"start: {why}")


def _tree(bench: Workbench) -> Tree:
    return {name: value.clone() for name, value in bench.tree().items()}


def _started(start: nn.Module, network: nn.Module) -> Tree:
    check_network("start", start)
    bench = Workbench(copy.deepcopy(network))
    load_weights(bench, start.state_dict(), "start")
    check_values(bench, bench.module.state_dict(), "start", strict=True)
    return _tree(bench)
