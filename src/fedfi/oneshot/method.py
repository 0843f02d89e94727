"""One round or a few: broadcast, local training, measuring, upload, merge. What a merge is, a method says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG, Algorithm, ClientId, Metrics, Reply
from fedfi.federation.checkpoint import UNSAVED, write_atomically
from fedfi.federation.client import Client
from fedfi.federation.evaluation import take_statistics
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, PacketError, Tree, decode
from fedfi.federation.rng import keyed_generator, keyed_global_rng
from fedfi.federation.shared import place_of
from fedfi.federation.task import Task
from fedfi.federation.training import Trained, train_locally
from fedfi.federation.warming import OPTIMIZERS
from fedfi.federation.workbench import Workbench, fresh_workbench
from fedfi.oneshot.acting import EVERYWHERE, Acts
from fedfi.oneshot.improving import Distil, Improvements, check_improvements, improved
from fedfi.oneshot.server import Server
from fedfi.oneshot.sound import check_merged
from fedfi.oneshot.statistics import measure
from fedfi.oneshot.units import matched
from fedfi.oneshot.uploads import Merged, Upload, Weights, check_alike, check_measured
from fedfi.oneshot.wire import Bits, Form

State = TypeVar("State")


@dataclass(frozen=True)
class Cures:
    """How whoever merges gives what is missing, for errors.

    Attributes:
        start: The model that the parties started from.
        statistics: What the parties measured; empty where uploads hold it anyhow.
    """

    start: str = "initialization = 'shared'; on files, --base FILE"
    statistics: str = ""


@dataclass(frozen=True, eq=False)
class Context:
    """What a merge may use besides the uploads.

    Attributes:
        server: A network to try models on, its wiring, and the server's examples.
        before: The model that the parties started from; None where they did not start from one.
        round: The round, from 0.
        rng: Source of all draws of the merge.
        cures: How what is missing is given.
    """

    server: Server
    before: Tree | None
    round: int
    rng: torch.Generator
    cures: Cures = Cures()


@dataclass(frozen=True)
class OneShotState:
    """The server's state.

    Attributes:
        model: Where clients start next.
        deployed: What a user deploys; empty where that is the model.
        server: A network, its wiring and the server's examples; made anew, not saved.
        form: How uploads travel; the same.
        orders: Where the units of the parties went in the newest merge, for pages; not saved either.
    """

    model: Tree
    deployed: Tree
    server: Server = field(metadata=UNSAVED)
    form: Form = field(metadata=UNSAVED)
    orders: Sequence[Mapping[str, Tensor]] = field(default=(), metadata=UNSAVED)


@validated(frozen=True, kw_only=True, config=CONFIG)
class Merging(Algorithm[State], ABC):
    """A merge, and what of it does not depend on how models get to the server."""

    weights: Annotated[Weights, Field(description="weight of a client: its number of examples, or equal")] = "examples"
    upload_bits: Annotated[
        Bits, Field(description="bits of a parameter on the uplink; 16 makes room for the statistics")
    ] = 16
    initialization: Annotated[
        Literal["shared", "independent"],
        Field(description="clients start from the server's model, or each from random values of its own"),
    ] = "shared"
    measure_on: Annotated[
        int | None, Field(ge=1, description="measure statistics on so many examples at most; none = on all")
    ] = None
    reestimate: Annotated[
        bool, Field(description="measure the merged model's batch norm statistics on the server's examples")
    ] = True
    class_prior: Annotated[
        float, Field(ge=0, le=1, description="share of a client's log class frequencies that is taken off its logits")
    ] = 0.0
    tune_weights: Annotated[
        int, Field(ge=0, description="sweeps over clients that double or halve weights by the server's examples")
    ] = 0
    rescale: Annotated[
        bool, Field(description="give merged units the clients' spread, on the server's examples (REPAIR)")
    ] = False
    distil: Annotated[
        Distil, Field(description="teach the merged model the ensemble, on the server's inputs or on generated ones")
    ] = "no"
    distil_steps: Annotated[int, Field(ge=1, description="steps of distillation")] = 300
    distil_rate: Annotated[float, Field(gt=0, description="learning rate of distillation (SGD, momentum 0.9)")] = 0.01
    distil_temperature: Annotated[float, Field(gt=0, description="temperature of distillation")] = 1.0

    takes_widths: ClassVar[bool] = False
    """Whether models of other widths than the server's can be merged."""
    takes_mixtures: ClassVar[bool] = False
    """Whether several uploads of one party are its mixture."""
    takes_base: ClassVar[bool] = False
    """Whether the model that parties started from is looked at, whatever the options."""
    needs_channels: ClassVar[bool] = False
    """Whether the channel groups of the network are needed, whatever the options."""
    acting: ClassVar[Sequence[Acts]] = EVERYWHERE
    """Which options act under which condition alone, for merges of files; those that are left out act always."""

    def loads(self) -> tuple[str, ...]:
        """What torch's optimizers need, where the merged model is taught."""
        return () if self.distil == "no" else (OPTIMIZERS,)

    def deploys_another(self) -> bool:
        """Whether what is deployed is not one network of the clients' widths: several, or a wider one."""
        return False

    @abstractmethod
    def needs(self) -> tuple[str, ...]:
        """What clients measure: names of `statistics.KINDS`."""

    @abstractmethod
    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Makes one model of at least one upload; all have the same names and shapes."""

    def measures(self) -> tuple[str, ...]:
        """What clients measure: what the merge needs, and what its options do."""
        own = self.needs()
        return (*own, "classes") if self.class_prior and "classes" not in own else own

    def merged(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Checks uploads, merges them as `improving` says, and settles the statistics of batch norms.

        Raises:
            InputError: If the models do not fit each other, lack a statistic, or an option does not fit; or if the
                merge comes to numbers that are not finite.
        """
        check_alike(uploads, widths=self.takes_widths, mixtures=self.takes_mixtures)
        if any(u.wiring is not None for u in uploads) and (
            self.class_prior or self.tune_weights or self.rescale or self.distil != "no"
        ):
            raise InputError("class_prior, tune_weights, rescale and distil need models of one width")
        check_measured(uploads, self.measures(), context.cures.statistics)

        def settle(found: Merged) -> Merged:
            if not self.reestimate or found.deployed is not None:
                return found
            return replace(found, model=context.server.settled(found.model))

        options = Improvements(
            class_prior=self.class_prior,
            tune_weights=self.tune_weights,
            rescale=self.rescale,
            distil=self.distil,
            distil_steps=self.distil_steps,
            distil_rate=self.distil_rate,
            distil_temperature=self.distil_temperature,
        )
        check_improvements(options, context.server, another=self.deploys_another())
        merge = lambda given, rng: self.merge(given, replace(context, rng=rng))  # noqa: E731
        found = improved(uploads, merge, settle, context.server, self.weights, options, context.rng)
        check_merged(found, uploads)
        return found


@runtime_checkable
class Freezes(Protocol):
    """A method whose clients train a part of the model only."""

    def frozen(self, client: Client) -> set[str]:
        """Names of the parameters that stay as they are in this round."""
        ...


@validated(frozen=True, kw_only=True, config=CONFIG)
class OneShot(Merging[OneShotState], ABC):
    """Clients train, measure and upload one model each; the server merges."""

    def init(self, task: Task, rng: torch.Generator) -> OneShotState:
        """A freshly initialised model."""
        bench = fresh_workbench(task, rng)
        model = {n: t.clone() for n, t in bench.tree().items()}
        form = Form.of(bench, task, self.measures(), self.upload_bits)
        return OneShotState(model, {}, Server(task, bench, self.reestimate), form)

    def configure(
        self, state: OneShotState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends the model to the sampled clients."""
        packet = Packet(state.model)
        return ((client, packet) for client in self.sample(clients, rng))

    def reply_layout(self, state: OneShotState, packet: Packet) -> Layout:
        """The model, the statistics, the loss and the number of examples."""
        return state.form.layout_of({"loss": float, "examples": int})

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Trains, measures, uploads."""
        bench = client.workbench
        form = Form.of(bench, client.task, self.measures(), self.upload_bits)
        start(packet.tensors, client, self.initialization)
        trained = train_rest(client, self.frozen(client)) if isinstance(self, Freezes) else train_locally(client)
        return form.pack(measured(client, self.measures(), self.measure_on), {"loss": trained.loss})

    def aggregate(
        self, state: OneShotState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[OneShotState, Metrics]:
        """Merges what arrived."""
        loss, uploads = WeightedMean(), []
        for reply in replies:
            uploads.append(state.form.unpack(reply.packet, reply.client))
            loss.add_scalar("loss", reply.packet.scalars["loss"], uploads[-1].examples)
        before = None if round == 0 and self.initialization == "independent" else state.model
        merged = self.merged(uploads, Context(state.server, before, round, rng))
        after = replace(state, model=merged.model, deployed=merged.deployed or {}, orders=merged.orders or ())
        return after, {"train/loss": loss.scalar("loss"), **merged.metrics}

    def global_model(self, state: OneShotState) -> Tree:
        """The merged model."""
        return state.deployed or state.model

    def exhibits(self, state: OneShotState) -> Mapping[str, Packet]:
        """Which units of the parties came together in the newest merge."""
        if not state.orders:
            return {}
        return {"alignment": Packet(matched(state.orders), {"parties": len(state.orders)})}


def start(model: Tree | object, client: Client, initialization: str) -> None:
    """Loads what a client starts from: the model that it got, or random values of its own in the first round."""
    bench: Workbench = client.workbench
    bench.load(model)  # type: ignore[arg-type]
    if initialization == "independent" and client.round == 0:
        bench.load(random_model(client.task, client.seed, client.id))


def train_rest(client: Client, frozen: set[str]) -> Trained:
    """Local training in which some parameters stay as they are."""
    if not frozen:
        return train_locally(client)
    held = {n: t for n, t in client.workbench.parameters().items() if n in frozen}
    kept = {n: t.clone() for n, t in held.items()}

    def restore() -> None:
        for name, value in held.items():
            value.copy_(kept[name])

    return train_locally(client, settle=restore)


def random_model(task: Task, seed: int, *key: str | int) -> Tree:
    """A model of random values that depend on the keys alone."""
    number = int(torch.randint(2**31, (), generator=keyed_generator(seed, "initialization", *key)))
    with keyed_global_rng(number, "model"):
        return {n: t.clone() for n, t in Workbench(task.model()).tree().items()}


def measured(client: Client, kinds: tuple[str, ...], limit: int | None, seed: str = "measure") -> Upload:
    """The upload of what a client's workbench holds."""
    bench, examples = client.workbench, client.data.train
    if kinds:
        take_statistics(client.task, bench.module, examples)
    found = {kind: _measured(client, kind, limit, seed) for kind in kinds}
    model = {n: t.clone() for n, t in bench.tree().items()}
    return Upload(client.id, model, tuple(bench.layout.names), len(examples), found)


def _measured(client: Client, kind: str, limit: int | None, seed: str) -> Tree:
    """One statistic of a client's workbench; in runs that are compared, measured once (see `federation.shared`)."""
    place = place_of(client, ("statistic", kind, limit, seed))
    if place is not None:
        try:
            return dict(decode(place.read_bytes()).tensors)
        except (FileNotFoundError, PacketError):
            pass  # nobody has measured it yet
    found = measure(
        (kind,),
        client.workbench.module,
        client.data.train,
        client.task.loss,
        limit=limit,
        rng=client.rng(seed),
        device=client.device,
    )[kind]
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, Packet(found).encode())
    return found


__all__ = ["Context", "Cures", "Freezes", "Merging", "OneShot", "OneShotState", "measured", "random_model", "start"]
