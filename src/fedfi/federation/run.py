"""The loop: configure, let clients work, check their replies, aggregate, judge, save. Written once for all methods."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfi.arguments import named
from fedfi.data.ratings import RatingsData
from fedfi.engines.local import LocalEngine
from fedfi.engines.workplace import one_thread
from fedfi.errors import InputError, RunError
from fedfi.federation import checkpoint, hooks
from fedfi.federation.algorithm import (
    Algorithm,
    ClientId,
    DeploysNetwork,
    EvaluatesClients,
    Failure,
    HasLevels,
    Metrics,
    Negotiates,
    Reply,
    UpdatesCohorts,
)
from fedfi.federation.checking import check_counts, check_data, check_method_and_task, check_rest, notes_on
from fedfi.federation.divergence import DIVERGENCE, divergence
from fedfi.federation.engine import Engine, Split, Work
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.packet import Layout, Packet, PacketError, Tree
from fedfi.federation.ranking import judge_clients
from fedfi.federation.record import RunDirectory, without_none
from fedfi.federation.reported import reported
from fedfi.federation.rng import keyed_generator
from fedfi.federation.rows import attach_all
from fedfi.federation.sampling import round_size
from fedfi.federation.stopping import BestRound
from fedfi.federation.task import Task, cross_entropy
from fedfi.federation.trial import try_out
from fedfi.federation.workbench import deployable
from fedfi.progress import Observer
from fedfi.progress import progress as showing
from fedfi.validation import flat

_OF_THE_LOOP = ("evaluate", "checkpoint_every", "min_replies")
"""Settings that change no bit of a model that is there."""
_PLACES = ("data.name", "data.test", "data.tokenizer")
"""Settings that may be paths, which change when a run and its data move to another machine."""
_LONGEST = 2_000  # characters of the error of a refused reply
_LOG = logging.getLogger("fedfi")


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        model: The global model, by name; that of the best round where `Evaluate.best` chooses one.
        metrics: A table of numbers a round, as in `metrics.jsonl`.
        failures: Every client failure.
        state: The method's last state.
        out: The run directory, if there is one.
        best: The best round, where one is chosen.
    """

    model: Tree
    metrics: list[dict[str, Any]]
    failures: list[Failure]
    state: Any
    out: Path | None
    best: int | None = None

    def __repr__(self) -> str:
        found = [line for line in self.metrics if self.best in (None, line["round"])]
        last = found[-1] if found else {}
        judged = {k: last[k] for k in ("global/accuracy", "global/loss", "local/accuracy_mean") if k in last}
        numbers = "".join(f", {key} {value:.4g}" for key, value in judged.items())
        where = "" if self.out is None else f", in {str(self.out)!r}"
        return f"RunResult({len(self.metrics)} rounds{numbers}, {len(self.failures)} failures{where})"


@dataclass
class _Content:
    """What a checkpoint holds."""

    state: Any
    memory: Any = field(default_factory=dict)
    metrics_size: int = 0
    config: str = ""


@named
def run(
    algorithm: Algorithm[Any],
    task: Task,
    *,
    rounds: int,
    seed: int = 0,
    workers: int = 1,
    out: Path | str | None = None,
    evaluate: Evaluate | None = None,
    min_replies: int = 1,
    checkpoint_every: int = 1,
    resume: bool = False,
    engine: Engine | None = None,
    config: Mapping[str, Any] | None = None,
    observe: Observer | None = None,
    progress: bool = False,
) -> RunResult:
    """Runs a federation.

    Args:
        algorithm: The method.
        task: Model, data, local recipe and evaluation.
        rounds: Number of rounds.
        seed: Every draw is a function of it.
        workers: Processes that do client work; 1 stays in this process. Changes no bit of the result.
        out: Run directory; nothing is written without one.
        evaluate: When and what is judged.
        min_replies: Fewest valid replies with which a round counts.
        checkpoint_every: Rounds from one checkpoint to the next; after the last round there always is one.
        resume: Go on from the newest checkpoint in `out`.
        engine: Where clients live; by default a local engine with `workers`.
        config: What `run.toml` shall say; by default what is known here.
        observe: Called with the numbers of each round.
        progress: Show on stderr how far the run is.

    Returns:
        The model, the numbers of each round, and all failures.

    Raises:
        InputError: If an argument is out of range, or `out` is not empty (without `resume`).
        RunError: If a round has fewer than `min_replies` valid replies, or the disk refuses.
    """
    evaluate = Evaluate() if evaluate is None else evaluate
    counts = {"rounds": rounds, "min_replies": min_replies, "workers": workers, "checkpoint_every": checkpoint_every}
    check_method_and_task(algorithm, task)
    check_counts(seed=seed, **counts)
    check_rest(out=out, evaluate=evaluate, engine=engine, config=config, observe=observe)
    if resume and out is None:
        raise InputError("resume needs the run directory to resume from (out)")
    check_data(task, evaluate)
    config = config or {
        "rounds": rounds,
        "seed": seed,
        "algorithm": {"name": type(algorithm).__name__.lower(), **dataclasses.asdict(algorithm)},
        "train": dataclasses.asdict(task.training),
        "evaluate": dataclasses.asdict(evaluate),
    }
    owned, directory = engine is None, None
    engine = engine or LocalEngine(algorithm, task, seed=seed, workers=workers)
    try:
        with one_thread():  # a sum over threads would depend on their number
            asked = round_size(len(engine.clients()), algorithm.participation, algorithm.clients_per_round)
            if min_replies > asked:
                raise InputError(
                    f"min_replies = {min_replies}: only {asked} clients are asked a round (nearest valid: {asked})"
                )
            try_out(task)
            state = hooks.started(algorithm, task, keyed_generator(seed, "server", "init"))
            if out:
                directory = _open(Path(out), task, config, resume)
            loop = _Loop(algorithm, task, seed, engine, directory, evaluate, min_replies, checkpoint_every, config)
            loop.notes = notes_on(algorithm, task, evaluate) if owned else []
            with showing(rounds, quiet=not progress) as show:
                return loop.run(state, rounds, resume, [show, observe] if observe else [show])
    except OSError as error:
        raise RunError(f"{error.filename or out or 'run'}: {error.strerror or error}") from error
    finally:
        if owned:
            engine.close()
        if directory:
            directory.close()


def last_state(
    algorithm: Algorithm[Any],
    task: Task,
    out: Path,
    seed: int,
    engine: Engine | None = None,
    config: Mapping[str, Any] | None = None,
    written: Mapping[str, Any] | None = None,
) -> tuple[int, Any]:
    """The best round's state of a run where one is chosen, else the newest that is saved; and the number of its rounds.

    Nothing is written to the directory.

    Args:
        algorithm: As it was run.
        task: As it was run.
        out: The run directory.
        seed: The run's seed.
        engine: Gets the clients' memory of that round.
        config: The settings by what `run.toml` says now; what makes or reads the model must be as the run began.
        written: What stands in `run.toml`; settings that neither it nor the run knows are defaults of a newer fedfi,
            and paths of data may have changed.

    Raises:
        InputError: If another process runs there, or the run began with other settings.
        RunError: If there is no usable checkpoint.
    """
    directory = RunDirectory(out)
    directory.lock_for_reading()
    try:
        if config is not None:
            _check_config(directory, settings(config), _OF_THE_LOOP, written)
        state = algorithm.init(task, keyed_generator(seed, "server", "init"))
        attach_all(checkpoint.row_stores(state), directory.rows, read_only=True)
        kept = checkpoint.load_best(directory.checkpoints, _Content(state))
        rounds, content = kept or checkpoint.load(
            directory.checkpoints, _Content(state), lambda _: None, read_only=True
        )
    finally:
        directory.close()
    if engine:
        engine.restore(content.memory, rounds)
    return rounds, content.state


def _open(out: Path, task: Task, config: Mapping[str, Any], resume: bool) -> RunDirectory:
    if not resume:
        return RunDirectory.create(out, config, task.data.split_record())
    if not (out / "run.toml").exists():
        raise InputError(f"{out} is not a run directory: it has no run.toml")
    directory = RunDirectory(out)
    directory.lock()
    directory.complete(config, task.data.split_record())
    return directory


def settings(config: Mapping[str, Any]) -> str:
    """What a checkpoint remembers of the settings: all but the number of rounds, which may grow."""
    kept = {k: v for k, v in without_none(config).items() if k != "rounds"}
    return json.dumps(kept, sort_keys=True, default=str)


def _check_config(
    directory: RunDirectory, now: str, free: Sequence[str] = (), written: Mapping[str, Any] | None = None
) -> None:
    """Compares the settings that a run began with and those that its `run.toml` holds now.

    Args:
        directory: Its newest checkpoint knows how the run began.
        now: As `settings` makes it.
        free: Tables and keys that may differ.
        written: What stands in `run.toml`, where a model is only read: what neither it nor the run knows may differ,
            and where data lie.

    Raises:
        InputError: Naming the first key that differs.
    """
    before = checkpoint.peek(directory.checkpoints, "config")
    if not before:
        return  # nothing to go by; reading the checkpoint will say so
    old, new = (dict(flat({k: v for k, v in json.loads(text).items() if k not in free})) for text in (before, now))
    known = set(old) | set(new if written is None else dict(flat(written)))
    if written is not None:
        known -= {key for key in _PLACES if all(Path(str(each.get(key, ""))).is_absolute() for each in (old, new))}
    for key in {**old, **new}:
        if key in known and old.get(key) != new.get(key):
            given = f"{key} = {new[key]!r}" if key in new else f"{key} is missing"
            began = f"with {old[key]!r}" if key in old else "without it"
            raise InputError(
                f"{directory.path / 'run.toml'}: {given}, the run began {began}; change it back, or begin a new run"
            )


class _Loop:
    """The moving parts of one run, so that its steps need not hand each other seven arguments."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        task: Task,
        seed: int,
        engine: Engine,
        directory: RunDirectory | None,
        evaluate: Evaluate,
        min_replies: int,
        checkpoint_every: int,
        config: Mapping[str, Any],
    ) -> None:
        self.algorithm, self.task, self.seed, self.engine = algorithm, task, seed, engine
        self.directory, self.evaluate, self.min_replies = directory, evaluate, min_replies
        self.checkpoint_every = checkpoint_every
        self.many = isinstance(algorithm, UpdatesCohorts)  # too many clients for a line of events each
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self.best = BestRound(evaluate, directory.checkpoints if directory else None)
        self.config = settings(config)

    def run(self, state: Any, rounds: int, resume: bool, observers: Sequence[Observer]) -> RunResult:
        first, lines = 0, []
        for note in self.notes:
            _LOG.warning("warning: %s", note)
        if self.directory:
            attach_all(checkpoint.row_stores(state), self.directory.rows)
            if resume and checkpoint.any_in(self.directory.checkpoints):
                first, state = self._resume(state)
                lines = self.directory.read_metrics()
                self._resume_best(lines, first, state)
                if rounds < first:
                    raise InputError(f"rounds = {rounds}: the run has {first} (nearest valid: {first})")
            else:  # new, or ended before its first checkpoint
                self.directory.rewind(0)
                self._save(0, state)
                for note in self.notes:
                    self._event("warning", text=note)
        done = first
        while done < rounds and not self.best.gives_up(lines):
            round, done = done, done + 1
            started = time.perf_counter()
            state, metrics = self._round(state, round)
            judging = done % self.evaluate.every == 0 or done == rounds
            if judging:
                judged = self._judge(state, round)
                metrics |= {k: v for k, v in judged.items() if self.algorithm.central or k.startswith("local/")}
            line = {"round": done, "seconds": time.perf_counter() - started, **metrics}
            lines.append(line)
            self._note_divergence(lines)
            if self.directory:
                self.directory.metrics(line)
            better = self.best.found(lines, judging)
            if done % self.checkpoint_every == 0 or done == rounds or better or self.best.gives_up(lines):
                content = self._save(done, state)
                if better:
                    self.best.keep(done, content, hooks.deployed(self.algorithm, state))
            for observe in observers:
                observe(line)
        model, best = self.best.result(lines, hooks.deployed(self.algorithm, state))
        if self.directory:
            path = self.directory.path / "model.safetensors"
            own = isinstance(self.algorithm, DeploysNetwork) or isinstance(self.task.data, RatingsData)
            checkpoint.tensors_to_file(path, model if own else deployable(self.task, model))
            self._event("done", rounds=rounds, **({"stopped": done} if done < rounds else {}))
        return RunResult(model, lines, self.failures, state, self.directory.path if self.directory else None, best)

    def _round(self, state: Any, round: int) -> tuple[Any, dict[str, Any]]:
        traffic = {"bytes/down": 0, "bytes/up": 0, "clients/asked": 0, "clients/replied": 0}
        metrics: dict[str, Any] = {}
        if isinstance(self.algorithm, Negotiates):
            state, metrics = self._exchange("client_negotiate", state, round, traffic)
            traffic["clients/asked"] = traffic["clients/replied"] = 0
        state, more = self._exchange("client_update", state, round, traffic)
        return state, metrics | more | traffic

    def _exchange(self, work: Work, state: Any, round: int, traffic: dict[str, int]) -> tuple[Any, dict[str, float]]:
        """One way there and back: configure, let clients work, check, fold."""
        method, sent = self.algorithm, dict[ClientId, Packet]()
        configure, layout, fold, prefix = "configure", "reply_layout", "aggregate", ""
        if work == "client_negotiate":
            configure, layout, fold = "configure_negotiation", "negotiation_layout", "negotiated"
            prefix = "negotiate "

        def jobs() -> Iterator[tuple[ClientId, Packet]]:
            rng = keyed_generator(self.seed, "server", round, f"{prefix}configure")
            for client, packet in hooks.pairs(method, configure, state, round, self.engine.clients(), rng):
                sent[client] = packet
                traffic["bytes/down"] += packet.nbytes
                traffic["clients/asked"] += 1
                if not self.many:
                    self._event("sent", round=round + 1, client=client, bytes=packet.nbytes)
                yield client, packet

        def valid() -> Iterator[Reply]:
            for reply in self.engine.map(work, jobs(), round):
                packet = sent.pop(reply.client)
                checked = self._checked(reply, packet, hooks.layout(method, layout, state, packet), round)
                if checked is None:
                    continue
                traffic["bytes/up"] += checked.packet.nbytes
                traffic["clients/replied"] += 1
                yield checked
            if traffic["clients/replied"] < (self.min_replies if not prefix or traffic["clients/asked"] else 0):
                raise self._with_last_failure(
                    f"round {round + 1}: {traffic['clients/replied']} of {traffic['clients/asked']} clients"
                    f" delivered, {self.min_replies} {'is' if self.min_replies == 1 else 'are'} needed"
                )

        rng = keyed_generator(self.seed, "server", round, f"{prefix}aggregate")
        state, metrics = hooks.folded(method, fold, state, round, valid(), rng)
        if self.many:
            self._event("round", round=round + 1, **{k.replace("/", "_"): v for k, v in traffic.items()})
        return state, self._numbers(metrics, round)

    def _checked(self, reply: Reply | Failure, sent: Packet, layout: Layout, round: int) -> Reply | None:
        if isinstance(reply, Reply):
            try:
                layout.check(reply.packet, reply.client, sent.tensors)
            except PacketError as error:
                reply = Failure(reply.client, "reply", str(error)[:_LONGEST])  # names in it are the client's choice
        if isinstance(reply, Failure):
            self._failed(reply, round)
            return None
        if not self.many:
            self._event(
                "replied",
                round=round + 1,
                client=reply.client,
                bytes=reply.packet.nbytes,
                seconds=reply.seconds,
                metrics=dict(reply.packet.scalars),
            )
        return Reply(reply.client, reply.packet, reply.seconds, sent)

    def _judge(self, state: Any, round: int) -> dict[str, float]:
        if isinstance(self.task.data, RatingsData):
            return judge_clients(
                self.engine, self.algorithm, state, round, self.seed, lambda failure: self._failed(failure, round)
            )
        metrics: dict[str, float] = {}
        model = Packet(hooks.deployed(self.algorithm, state))
        splits: list[Split] = ["test"] if self.task.data.validation is None else ["test", "validation"]
        for split in splits:
            for _, values in self.engine.evaluate("model", [("global", model)], split):
                metrics |= _prefixed("global" if split == "test" else split, values)
        if self.evaluate.levels and isinstance(self.algorithm, HasLevels):
            levels = hooks.pairs(self.algorithm, "levels", state, what="level")
            found = list(self.engine.evaluate("level", levels, "test"))
            for name, values in found:
                metrics |= _prefixed(f"levels/{name}", values)
            for key in found[0][1] if found else ():
                metrics[f"levels/mean/{key}"] = sum(values[key] for _, values in found) / len(found)
            metrics.pop("levels/mean/examples", None)
        if self.evaluate.local and isinstance(self.algorithm, EvaluatesClients):
            metrics |= self._judge_locally(state, round)
        return metrics

    def _judge_locally(self, state: Any, round: int) -> dict[str, float]:
        rng = keyed_generator(self.seed, "server", round, "evaluate")
        jobs = hooks.pairs(self.algorithm, "configure_evaluation", state, self.engine.clients(), rng)
        values: dict[str, list[tuple[float, float]]] = {}  # name -> (examples, mean) of each client
        for reply in self.engine.map("client_evaluate", jobs, round):
            numbers = reported(reply)
            if isinstance(numbers, Failure):
                self._failed(numbers, round)
                continue
            self._event("evaluated", round=round + 1, client=reply.client, metrics=numbers)
            count = numbers.pop("examples", 0.0)
            for key, value in numbers.items() if count else ():
                values.setdefault(key, []).append((count, value))
        result = {f"local/{k}_mean": sum(v for _, v in pairs) / len(pairs) for k, pairs in values.items()}
        for key, pairs in values.items():
            result[f"local/{key}"] = sum(n * v for n, v in pairs) / sum(n for n, _ in pairs)
        if "accuracy" in values:
            result["local/accuracy_worst"] = min((v for _, v in values["accuracy"]), key=lambda v: (v == v, v))  # NaN
        return result

    def _save(self, rounds: int, state: Any) -> _Content:
        if not self.directory:
            return _Content(state)
        content = _Content(state, self.engine.memory(), self.directory.metrics_size(), self.config)
        checkpoint.save(self.directory.checkpoints, rounds, content)
        return content

    def _resume(self, state: Any) -> tuple[int, Any]:
        assert self.directory is not None  # `run` refuses to resume without one
        notes: list[str] = []
        _check_config(self.directory, self.config)
        rounds, content = checkpoint.load(self.directory.checkpoints, _Content(state), notes.append)
        self.directory.rewind(content.metrics_size)
        for note in notes:
            self._event("warning", text=note)
        self.engine.restore(content.memory, rounds)
        self._event("resume", round=rounds + 1)
        return rounds, content.state

    def _resume_best(self, lines: list[dict[str, Any]], rounds: int, state: Any) -> None:
        def fresh() -> _Content:
            assert self.directory is not None
            other = self.algorithm.init(self.task, keyed_generator(self.seed, "server", "init"))
            attach_all(checkpoint.row_stores(other), self.directory.rows)
            return _Content(other)

        self.best.resume(lines, rounds, _Content(state), fresh, lambda c: self.algorithm.global_model(c.state))

    def _numbers(self, metrics: Metrics, round: int) -> dict[str, float]:
        numbers = {}
        for key, value in metrics.items():
            if isinstance(value, str):
                self._event("warning", round=round + 1, key=key, text=value)
            else:
                numbers[key] = value
        return numbers

    def _note_divergence(self, lines: list[dict[str, Any]]) -> None:
        chance = math.log(max(2, self.task.data.spec.classes)) if self.task.loss is cross_entropy else None
        text = divergence(lines, chance)
        if text and not (lines[:-1] and divergence(lines[:-1], chance)):
            self._event("warning", round=lines[-1]["round"], key=DIVERGENCE, text=text)

    def _failed(self, failure: Failure, round: int) -> None:
        self.failures.append(failure)
        self._event("failure", round=round + 1, **dataclasses.asdict(failure))

    def _with_last_failure(self, text: str) -> RunError:
        """The error that ends a run, with what its last client said, and that client's trace as a note."""
        if not self.failures:
            return RunError(text)
        last = self.failures[-1]
        error = RunError(f"{text}; last failure: client {last.client!r} in {last.stage}: {last.error}")
        if last.traceback:
            error.add_note(f"client {last.client!r}:\n{last.traceback}")
        return error

    def _event(self, kind: str, **content: object) -> None:
        if self.directory:
            self.directory.event(kind, **content)


def _prefixed(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{k}": v for k, v in values.items() if k != "examples"}
