"""`fedfi export`: a run's model, or the submodel of a level, as a file to deploy."""

from __future__ import annotations

import base64
import copy
import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedfi import registry
from fedfi.channels import changed_attributes
from fedfi.channels.tracing import quiet
from fedfi.cli.exits import quoted
from fedfi.cli.outputs import refuse_within_record
from fedfi.cli.running import remembered
from fedfi.data.inputs import FILE, METADATA
from fedfi.errors import InputError, PlaceError, unknown
from fedfi.experiment import Experiment, of_run
from fedfi.federation.algorithm import DefinesLevels, DeploysNetwork, HasLevels
from fedfi.federation.checkpoint import serialised, write_output
from fedfi.federation.evaluation import take_statistics
from fedfi.federation.packet import Packet
from fedfi.federation.samedata import check_same_data
from fedfi.federation.saved import last_state
from fedfi.federation.task import Task
from fedfi.federation.workbench import Benches
from fedfi.importing import importing_from
from fedfi.models.norms import has_static_norms, keep_statistics, running_norms

_SUFFIXES = (".safetensors", ".pt2")


def export(directory: Path, capacity: str | None, out: Path, quiet: bool) -> None:
    """Writes the model of a run's newest checkpoint.

    Args:
        directory: The run directory.
        capacity: A level; None for the whole model.
        out: A ``.safetensors`` file, or a ``.pt2`` program of `torch.export`; either holds what is in `inputs.json`.
        quiet: Say nothing.

    Raises:
        InputError: If the directory is no run or holds no trained model, has no such level, or its run.toml is not what
            it began with; or if the kind of file is unknown.
    """
    if out.suffix not in _SUFFIXES:
        raise InputError(f"--out {out}: " + unknown("kind of file", out.suffix, _SUFFIXES))
    refuse_within_record(out, [directory])
    with importing_from(*remembered([directory]), Path.cwd()):
        experiment = of_run(directory)
        if not experiment.method.central:
            raise InputError(
                f"{directory}: has no trained model to export: under {_keeper(experiment)} trained models are the"
                " clients' own, and the server only knows the initialisation"
            )
        if experiment.method.data_kind == "ratings" and out.suffix == ".pt2":
            raise InputError(
                f"--out {out}: a recommender's model is a table of items, no program: write the table to a .safetensors"
                f" file, or ask the run: `fedfi recommend {quoted(directory)} --out FILE.csv`"
            )
        _export(experiment, directory, capacity, out, quiet)


def _keeper(experiment: Experiment) -> str:
    """What keeps the model from the server: the method, or the innermost of the tables around it that does."""
    method, wrappers = experiment.method, {registry.wrapper(name): name for name in registry.wrappers()}
    while (inner := getattr(method, "algorithm", None)) is not None and not inner.central:
        method = inner
    wrapper = wrappers.get(type(method))
    return f"algorithm.{wrapper}" if wrapper else f"algorithm {experiment.settings.algorithm['name']!r}"


def _export(experiment: Experiment, directory: Path, capacity: str | None, out: Path, quiet: bool) -> None:
    task = experiment.task()
    module, about = _module(experiment, task, directory, capacity)
    module.eval()
    if (inputs := _inputs(directory, task)) is not None:
        about[METADATA] = inputs
    renew = experiment.method.mixes_networks() and bool(running_norms(module))
    if (renew or has_static_norms(module)) and task.examples.validation is not None:
        check_same_data(directory, task.data)
        take_statistics(task, module, task.examples.validation, renew=renew)
        keep_statistics(module)
    program = out.suffix == ".pt2"
    content = _program(module, task.data.spec.example(), about) if program else serialised(module.state_dict(), about)
    write_output(out, content)
    if not quiet:
        count = sum(p.numel() for p in module.parameters())
        held = sum(int((p != 0).sum()) for p in module.parameters())
        untrained = "" if int(about["round"]) else ": nothing is trained yet"
        print(f"{out}: {count:,} parameters, {held:,} of them not zero, after round {about['round']}{untrained}")


def _inputs(directory: Path, task: Task) -> str | None:
    """What makes inputs of rows, as the run wrote it down when it began; as data are now where it did not."""
    try:
        return (directory / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        record = task.data.inputs_record()
        return None if record is None else json.dumps(record)
    except (OSError, ValueError) as error:
        raise PlaceError(f"{directory / FILE}: cannot be read: {error}") from error


def _module(
    experiment: Experiment, task: Task, directory: Path, capacity: str | None
) -> tuple[nn.Module, dict[str, str]]:
    algorithm, seed = experiment.algorithm(), experiment.settings.seed
    rounds, state = last_state(
        algorithm, task, directory, seed, config=experiment.resolved(), written=experiment.tables
    )
    about = {"algorithm": str(experiment.settings.algorithm["name"]), "round": str(rounds)}
    benches = Benches(task, seed)
    if capacity is None and isinstance(algorithm, DeploysNetwork):
        return algorithm.deploy(Packet(algorithm.global_model(state)), benches).module, about
    if capacity is None:
        benches.whole.load(algorithm.global_model(state))
        return benches.whole.module, about
    if not isinstance(algorithm, HasLevels):
        raise InputError(f"--capacity {capacity}: {about['algorithm']} makes no submodels; leave it out")
    name, packet = _level(algorithm, state, capacity)
    about["capacity"] = name
    about |= {kind: base64.b64encode(bits).decode() for kind, bits in packet.blobs.items()}
    module = algorithm.place(packet, benches).module
    if changed := changed_attributes(benches.whole.module, module):
        about["modules"] = json.dumps(changed)  # groups and heads, for instance, are in no tensor's shape
    return module, about


def _level(algorithm: HasLevels, state: Any, capacity: str) -> tuple[str, Packet]:
    """A level by its name, or by its number however that is written, and its submodel."""
    number = _number(capacity)
    if isinstance(algorithm, DefinesLevels):
        ratios = algorithm.level_names
        for name, ratio in ratios.items():
            if name == capacity or (number is not None and number in (ratio, _number(name))):
                return name, algorithm.level(state, ratio)
        raise InputError("--capacity: " + unknown("level", capacity, ratios))
    packets = dict(algorithm.levels(state))
    for name, packet in packets.items():
        if name == capacity or (number is not None and number == _number(name)):
            return name, packet
    raise InputError("--capacity: " + unknown("level", capacity, packets))


def _program(module: nn.Module, example: torch.Tensor, about: dict[str, str]) -> bytes:
    module = copy.deepcopy(module)  # its parameters are views of one vector, which would be saved whole
    batch = ({0: torch.export.Dim("batch")},)
    try:
        with quiet():
            program = torch.export.export(module, (example,), dynamic_shapes=batch, strict=False)
    except Exception as error:  # whatever a network's own code raises under tracing
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"--out: the network cannot be made a program: {reason}; write a .safetensors file") from error
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files=about)
    return buffer.getvalue()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
