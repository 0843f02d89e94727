"""The loop: configure, let clients work, check their replies, aggregate, judge, save. Written once for all methods."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfi.data.ratings import RatingsData
from fedfi.errors import InputError, RunError, about
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
from fedfi.federation.divergence import DIVERGENCE, Expected, divergence
from fedfi.federation.engine import Engine, Split, Work
from fedfi.federation.evaluation import Evaluate, renewed
from fedfi.federation.exhibits import Exhibition
from fedfi.federation.failing import UNJUDGED, unjudged
from fedfi.federation.packet import Layout, Packet, PacketError, Tree
from fedfi.federation.ranking import judge_clients
from fedfi.federation.record import RunDirectory
from fedfi.federation.reported import reported
from fedfi.federation.rng import keyed_generator
from fedfi.federation.rows import attach_all
from fedfi.federation.saved import Content, check_config, has_begun, load, settings
from fedfi.federation.stopping import BestRound
from fedfi.federation.task import Task
from fedfi.federation.workbench import deployable, tied

Observer = Callable[[Mapping[str, Any]], None]
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


class Loop:
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
        self.expected = Expected()
        self.best = BestRound(evaluate, directory.checkpoints if directory else None)
        self.config, self.written = settings(config), config
        self.exhibition = Exhibition(algorithm, task, engine, directory.path if directory else None)

    def run(self, state: Any, rounds: int, resume: bool, observers: Sequence[Observer]) -> RunResult:
        """Goes round until all rounds are done, or none is better for long enough."""
        first, lines = 0, list[dict[str, Any]]()
        for note in self.notes:
            _LOG.warning("warning: %s", note)
        if self.directory:
            begun = resume and has_begun(self.directory)
            attach_all(checkpoint.row_stores(state), self.directory.rows)
            if begun:
                first, state, lines = self._resume(state, rounds)
            else:  # new, or ended before its first checkpoint
                self.directory.rewind(0)
                if resume:
                    self.directory.complete(self.written, self.task.data)
                self._save(0, state)
                for note in self.notes:
                    self._event("warning", text=note)
        done = first
        while done < rounds and not self.best.gives_up(lines):
            round, done = done, done + 1
            started, nobody = time.perf_counter(), False
            self.exhibition.before(state, round)
            with about("algorithm", "model"):
                state, metrics = self._round(state, round)
            self.exhibition.after(state, round)
            judging = done % self.evaluate.every == 0 or done == rounds
            failed = len(self.failures)
            if judging:
                metrics |= (judged := self._judge(state, round))
                nobody = not judged and len(self.failures) > failed
            line = {"round": done, "seconds": time.perf_counter() - started, **metrics}
            lines.append(line)
            self._note_divergence(lines, ended=done == rounds or self.best.gives_up(lines))
            if self.directory:
                self.directory.metrics(line)
            if nobody:
                text = unjudged(map(dataclasses.asdict, self.failures[failed:]), done)
                self._event("warning", round=done, key=UNJUDGED, text=text)
            better = self.best.found(lines, judging and not nobody)
            if done % self.checkpoint_every == 0 or done == rounds or better or self.best.gives_up(lines):
                content = self._save(done, state)
                if better:
                    self.best.keep(done, content, hooks.deployed(self.algorithm, state))
            for observe in observers:
                observe(line)
        model, best = self.best.result(lines, hooks.deployed(self.algorithm, state))
        own = isinstance(self.algorithm, DeploysNetwork) or isinstance(self.task.data, RatingsData)
        model = renewed(self.task, model) if self.algorithm.mixes_networks() else model
        if self.directory:
            path = self.directory.path / "model.safetensors"
            checkpoint.tensors_to_file(path, model if own else deployable(self.task, model))
            self._event("done", rounds=rounds, **({"stopped": done} if done < rounds else {}))
        model = model if own else tied(self.task, model)
        return RunResult(model, lines, self.failures, state, self.directory.path if self.directory else None, best)

    def _round(self, state: Any, round: int) -> tuple[Any, dict[str, Any]]:
        traffic = {"bytes/down": 0, "bytes/up": 0, "clients/asked": 0, "clients/replied": 0}
        metrics: dict[str, Any] = {}
        gone: set[ClientId] = set()  # failed in the first of two exchanges, and not asked in the second
        if isinstance(self.algorithm, Negotiates):
            before = len(self.failures)
            state, metrics = self._exchange("client_negotiate", state, round, traffic, gone)
            gone = {failure.client for failure in self.failures[before:]}
            traffic["clients/asked"] = traffic["clients/replied"] = 0
        state, more = self._exchange("client_update", state, round, traffic, gone)
        traffic["clients/asked"] += len(gone)
        return state, metrics | more | traffic

    def _exchange(
        self, work: Work, state: Any, round: int, traffic: dict[str, int], gone: set[ClientId]
    ) -> tuple[Any, dict[str, float]]:
        """One way there and back: configure, let clients work, check, fold; who is asked is no longer gone."""
        method, sent = self.algorithm, dict[ClientId, Packet]()
        configure, layout, fold, prefix = "configure", "reply_layout", "aggregate", ""
        if work == "client_negotiate":
            configure, layout, fold = "configure_negotiation", "negotiation_layout", "negotiated"
            prefix = "negotiate "

        def jobs() -> Iterator[tuple[ClientId, Packet]]:
            rng = keyed_generator(self.seed, "server", round, f"{prefix}configure")
            for client, packet in hooks.pairs(method, configure, state, round, self.engine.clients(), rng):
                sent[client] = packet
                gone.discard(client)
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
            blobs = {name: len(blob) for name, blob in reply.packet.blobs.items()}
            self._event(
                "replied",
                round=round + 1,
                client=reply.client,
                bytes=reply.packet.nbytes,
                seconds=reply.seconds,
                metrics=dict(reply.packet.scalars),
                **({"blobs": blobs} if blobs else {}),
            )
        return Reply(reply.client, reply.packet, reply.seconds, sent)

    def _judge(self, state: Any, round: int) -> dict[str, float]:
        if isinstance(self.task.data, RatingsData):
            return judge_clients(
                self.engine, self.algorithm, state, round, self.seed, lambda failure: self._failed(failure, round)
            )
        metrics = self._judge_centrally(state) if self.algorithm.central else {}
        if self.evaluate.local and isinstance(self.algorithm, EvaluatesClients):
            metrics |= self._judge_locally(state, round)
        return metrics

    def _judge_centrally(self, state: Any) -> dict[str, float]:
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

    def _save(self, rounds: int, state: Any) -> Content:
        if not self.directory:
            return Content(state)
        content = Content(state, self.engine.memory(), self.directory.metrics_size(), self.config)
        checkpoint.save(self.directory.checkpoints, rounds, content)
        return content

    def _resume(self, state: Any, until: int) -> tuple[int, Any, list[dict[str, Any]]]:
        assert self.directory is not None  # `run` refuses to resume without one
        notes: list[str] = []
        check_config(self.directory, self.config)
        rounds, content = load(self.directory, Content(state), notes.append)
        if until < rounds:
            raise InputError(f"rounds = {until}: the run has {rounds} (nearest valid: {rounds})")
        self.directory.check_metrics(content.metrics_size)
        lines = [line for line in self.directory.read_metrics() if line["round"] <= rounds]
        self._resume_best(lines, rounds, content.state)
        self.directory.rewind(content.metrics_size)
        self.directory.complete(self.written, self.task.data)
        for note in notes:
            self._event("warning", text=note)
        self.engine.restore(content.memory, rounds)
        self._event("resume", round=rounds + 1)
        return rounds, content.state, lines

    def _resume_best(self, lines: list[dict[str, Any]], rounds: int, state: Any) -> None:
        def fresh() -> Content:
            assert self.directory is not None
            other = self.algorithm.init(self.task, keyed_generator(self.seed, "server", "init"))
            attach_all(checkpoint.row_stores(other), self.directory.rows)
            return Content(other)

        assert self.directory is not None
        try:
            self.best.resume(lines, rounds, Content(state), fresh, lambda c: self.algorithm.global_model(c.state))
        except RunError as error:  # before anything is written, and before rounds are done in vain
            raise RunError(f"{error}; {self.directory.restored()}") from error

    def _numbers(self, metrics: Metrics, round: int) -> dict[str, float]:
        numbers = {}
        for key, value in metrics.items():
            if isinstance(value, str):
                self._event("warning", round=round + 1, key=key, text=value)
            else:
                numbers[key] = value
        return numbers

    def _note_divergence(self, lines: list[dict[str, Any]], ended: bool) -> None:
        text = divergence(lines, self.expected, ended=ended)
        if text and not (lines[:-1] and divergence(lines[:-1], self.expected)):
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
