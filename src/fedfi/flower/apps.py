"""An experiment file as Flower's two apps: the loop as a `ServerApp`, the clients' work as a `ClientApp`.

A node is told by its `--node-config` which part of the experiment's data it holds (`partition-id` of
`num-partitions`, as Flower's simulation tells every node by itself); or the function that `data` names gives it data
of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedfi.data import ClientData, FederatedData
from fedfi.data.interactions import Ratings, from_frame, leave_one_out
from fedfi.data.ratings import RatingsData
from fedfi.engines.flower.agreement import Agreement
from fedfi.engines.flower.door import ServerApp
from fedfi.engines.flower.engine import FlowerEngine, Patience
from fedfi.engines.flower.node import Node, clients_of_partition, node_app
from fedfi.engines.flower.roster import Clock, Roster, sizes_of
from fedfi.engines.flower.wire import Limits
from fedfi.engines.workplace import Workplace
from fedfi.errors import InputError
from fedfi.executing import execute
from fedfi.experiment import Experiment
from fedfi.federation.failing import reasons
from fedfi.federation.loop import RunResult
from fedfi.federation.record import RunDirectory
from fedfi.federation.task import Task
from fedfi.flower.options import Options
from fedfi.importing import import_callable

_LOG = logging.getLogger("flwr.fedfi")
_PLACES = ("name", "test", "tokenizer")
"""Keys of `[data]` that may be paths."""
NodeConfig = Mapping[str, str | int | float | bool]
Load = Callable[[NodeConfig], Mapping[str, ClientData] | RatingsData | Ratings | Any]
"""A user's function: what a node is told of itself -> its clients' examples by name, or the ratings of its users."""


def server_app(file: Path | str) -> Any:
    """Flower's `ServerApp` of an experiment file."""
    app = ServerApp()

    def main(grid: Any, context: Any) -> None:
        serve(grid, context.run_config, Path(file))

    app.main()(main)
    return app


def client_app(file: Path | str) -> Any:
    """Flower's `ClientApp` of an experiment file."""
    return node_app(functools.partial(_node, Path(file)))


def serve(grid: Any, run_config: Mapping[str, Any], file: Path, *, clock: Clock | None = None) -> RunResult:
    """Runs the experiment on a grid; goes on with the run directory if there is an unfinished run in it.

    Args:
        grid: Flower's `Grid`.
        run_config: The options.
        file: The experiment.
        clock: Time, so that tests need none.

    Raises:
        InputError: If the experiment or an option is wrong, or the run directory's run is finished.
        RunError: If too few clients come, or a round has too few replies.
    """
    options = Options.of(run_config)
    experiment = options.experiment(file)
    settings, limits = experiment.settings, _limits(options)
    task = experiment.task()
    agreement = Agreement.of(task, _agreed(experiment))
    roster = Roster(grid, agreement, limits=limits, clock=clock or Clock())
    task = _task_of_server(task, roster, options)
    engine = FlowerEngine(
        grid,
        experiment.algorithm(),
        task,
        agreement=agreement,
        seed=settings.seed,
        patience=_patience(options),
        limits=limits,
        roster=roster,
        clock=clock,
    )
    engine.wait(options.wait, options.min_clients or None)
    out = Path(options.out)
    started = (out / "run.toml").exists()
    _LOG.info("run directory: %s%s", out.resolve(), ", going on" if started else "")

    def observe(line: Mapping[str, Any]) -> None:
        numbers = ", ".join(f"{k} {line[k]:.4f}" for k in ("train/loss", "global/accuracy") if k in line)
        _LOG.info(
            "round %s of %s: %.1f s%s", line["round"], settings.rounds, line["seconds"], f", {numbers}" * bool(numbers)
        )
        _record_notes(engine, out)

    try:
        with experiment.naming():
            result = execute(experiment, task, out, resume=started, observe=observe, engine=engine)
        for reason in reasons(map(dataclasses.asdict, result.failures)):
            _LOG.warning("failed: %s", reason)
        return result
    finally:
        if (out / "run.toml").exists():
            _record_notes(engine, out)


def _record_notes(engine: FlowerEngine, out: Path) -> None:
    for note in engine.take_notes():
        RunDirectory(out).event("warning" if note.odd else "note", text=note.text, time=round(note.time, 3))


def _task_of_server(task: Task, roster: Roster, options: Options) -> Task:
    """The task with the federation's clients: the experiment's, or those who bring their own data."""
    names = options.client_names() or _names_before(Path(options.out))
    if options.data:
        roster.wait(names or None, options.min_clients or max(len(names), 1), options.wait)
    if not options.data or not roster.own:
        roster.sizes = dict(sizes_of(task))
        _dismiss_strangers(roster)
        return task
    if not names and not options.min_clients:
        raise InputError(
            "run-config: who takes part in a federation of nodes with data of their own? give their names,"
            " such as clients = 'east, west', or their number, such as min-clients = 2"
        )
    names = names or sorted(roster.clients)
    roster.sizes = dict.fromkeys(names)
    if isinstance(task.data, RatingsData):
        return dataclasses.replace(task, data=task.data.without_interactions(names))
    nobody = task.examples.test.dataset.examples(torch.empty(0, dtype=torch.int64))
    clients = {name: ClientData(nobody, nobody) for name in names}
    return dataclasses.replace(task, data=dataclasses.replace(task.examples, clients=clients))


def _names_before(out: Path) -> list[str]:
    """The clients of the run in this directory, if there is one: whoever is there when it goes on, it is theirs."""
    try:
        return list(json.loads((out / "split.json").read_text())["clients"])
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{out / 'split.json'}: is damaged: {type(error).__name__}: {error}") from None


def _dismiss_strangers(roster: Roster) -> None:
    """Nodes that came before the federation was known introduce themselves again, to be checked."""
    for node in {roster.where(client) for client in roster.clients} - {None}:
        assert node is not None  # taken out above
        roster.forget(node, "is asked again, now that the federation is known", odd=False)


def _limits(options: Options) -> Limits:
    return Limits(message_bytes=options.message_mb * 1_000_000)


def _patience(options: Options) -> Patience:
    return Patience(
        timeout=options.timeout or None,
        absence=options.absence,
        attempts=options.attempts,
        lost_memory=options.lost_memory,
    )


def _agreed(experiment: Experiment) -> dict[str, Any]:
    """The settings that server and nodes must share; where data lie may differ from machine to machine."""
    resolved = experiment.resolved()
    shared = {key: resolved[key] for key in ("seed", "model", "train", "algorithm")}
    return shared | {"data": {k: v for k, v in resolved["data"].items() if k not in _PLACES}}


def _node(file: Path, context: Any) -> Node:
    return _node_of(file, _frozen(context.run_config), _frozen(context.node_config))


def _frozen(table: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(table.items()))


@functools.lru_cache(maxsize=64)
def _node_of(file: Path, run_config: tuple[tuple[str, Any], ...], node_config: tuple[tuple[str, Any], ...]) -> Node:
    """A node; a process that answers for several of them, as in a simulation, keeps one model for all."""
    options, told = Options.of(dict(run_config)), dict(node_config)
    partition = told.get("partition-id")
    if options.data and partition is None:
        experiment = options.experiment(file)
        task, own = _own_task(experiment, options.data, told), True
        place, clients = Workplace(experiment.algorithm(), task, experiment.settings.seed), list(task.data.clients)
    else:
        experiment, place = _shared(file, options.set)
        task, own = place.task, False
        clients = _share(list(task.data.clients), told)
    return Node(
        experiment.algorithm(),
        task,
        clients=clients,
        agreement=Agreement.of(task, _agreed(experiment)),
        own=own,
        memory=Path(str(told["memory"])).expanduser() if "memory" in told else None,
        limits=_limits(options),
        workplace=place,
    )


@functools.lru_cache(maxsize=2)
def _shared(file: Path, overrides: str) -> tuple[Experiment, Workplace]:
    experiment = Options(set=overrides).experiment(file)
    return experiment, Workplace(experiment.algorithm(), experiment.task(), experiment.settings.seed)


def _share(clients: list[str], told: Mapping[str, Any]) -> list[str]:
    partition, partitions = told.get("partition-id"), told.get("num-partitions", len(clients))
    if partition is None:
        raise InputError(
            "this node does not know whose data it holds: start it with --node-config 'partition-id=0"
            f" num-partitions={len(clients)}', or let data = 'package.module:function' give it its own"
        )
    if not isinstance(partition, int) or not isinstance(partitions, int):
        raise InputError(f"partition-id = {partition!r}, num-partitions = {partitions!r}: must be whole numbers")
    return clients_of_partition(clients, partition, partitions)


def _own_task(experiment: Experiment, name: str, told: Mapping[str, Any]) -> Task:
    from fedfi.models import build

    clients = import_callable(name, "data")(told)
    if experiment.settings.data.holds == "ratings":
        return experiment.task(_own_ratings(experiment, name, clients))
    if not isinstance(clients, Mapping) or not clients:
        raise InputError(f"data {name!r} gave a {type(clients).__name__}, expected clients' data by name")
    for client, data in clients.items():
        if not isinstance(client, str) or not isinstance(data, ClientData):
            raise InputError(f"data {name!r} gave {client!r}: {type(data).__name__}, expected a text: fedfi.ClientData")
    specs = {repr(d.train.dataset.spec): d.train.dataset.spec for d in clients.values()}
    if len(specs) > 1:
        raise InputError(f"data {name!r}: the clients' examples are not alike: {', '.join(specs)}")
    spec = next(iter(specs.values()))
    nobody = next(iter(clients.values())).test.dataset.examples(torch.empty(0, dtype=torch.int64))
    model = experiment.settings.model
    make = functools.partial(build, model.name, spec, model.options)
    own = FederatedData(clients, nobody, None, spec, name=name)
    own.check()
    return Task(model=make, data=own, training=experiment.settings.train)


def _own_ratings(experiment: Experiment, name: str, given: Any) -> RatingsData:
    """A node's own ratings among the items of the experiment's data, split as the experiment says."""
    whole = experiment.federate(experiment.load())
    assert isinstance(whole, RatingsData)  # the experiment holds ratings
    if isinstance(given, RatingsData):
        return given.with_items(whole.items)
    if not isinstance(given, Ratings) and not hasattr(given, "columns"):
        raise InputError(f"data {name!r} gave a {type(given).__name__}, expected ratings: a data frame, or fedfi's own")
    with experiment.naming("data"):
        ratings = (
            given if isinstance(given, Ratings) else from_frame(given, name, experiment.settings.data.column_names)
        )
        return leave_one_out(ratings, **experiment.settings.data.ratings).with_items(whole.items)
