"""FedBEns: Talpini, Savi, Neglia, FedBEns: one-shot federated learning based on Bayesian ensemble, arXiv:2503.15367.

| paper | here |
|---|---|
| mixture of M Laplace approximations a client, Eq. 6 | `models` (M), `laplace.Component` |
| Kron, Diag, Diag + Full last layer | `curvature = "kron" | "diag" | "diag-full"` |
| product of the posteriors over K - 1 priors, Eq. 8 | `laplace.log_posterior_slope` |
| temperature 0.1, prior variance 0.1 (github.com/jacopot96/FedBEns) | `temperature`, `prior_precision` |
| M modes by Adam from the median of the models of one initialisation | `steps`, `learning_rate`, `median` |
| validation, the best is kept (FedFiOT's comparison) | `check_every` |
| predictions: the mean probability over the modes | `together.Together` |

Deviations: in further rounds clients start from the M modes. With Kronecker factors, parameters without them (norms,
embeddings) stay at the median. Each component of a mixture has equal weight. Curvature is the Fisher information with
the model's labels in expectation, which for a classifier is the generalised Gauss-Newton matrix of Laplace
approximations; `fisher = "observed"` is C times cheaper for C classes. Without server examples the last iterate is
taken, where the program takes that of the largest posterior; it also clips gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.errors import InputError
from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.checkpoint import UNSAVED
from fedfi.federation.client import Client
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.task import Task
from fedfi.federation.training import train_locally
from fedfi.federation.warming import OPTIMIZERS
from fedfi.federation.workbench import Benches, Workbench, fresh_workbench
from fedfi.oneshot.acting import Acts
from fedfi.oneshot.fedfisher import descend
from fedfi.oneshot.laplace import NEEDS, Component, Curvature, log_posterior_slope
from fedfi.oneshot.method import Context, Merging, measured, random_model
from fedfi.oneshot.server import Server
from fedfi.oneshot.together import bench_of, joined
from fedfi.oneshot.uploads import Merged, Upload
from fedfi.oneshot.wire import Bits, Form


@dataclass(frozen=True)
class FedBEnsState:
    """The server's state.

    Attributes:
        models: Where clients start next: M models.
        server: A network and the server's examples; made anew, not saved.
        form: How one model's upload travels; the same.
    """

    models: list[Tree]
    server: Server = field(metadata=UNSAVED)
    form: Form = field(metadata=UNSAVED)


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedBEns(Merging[FedBEnsState]):
    """An ensemble of modes of the product of clients' mixtures of Laplace approximations."""

    upload_bits: Annotated[Bits, Field(description="bits of a parameter on the uplink; 16 cuts matrices, too")] = 32
    models: Annotated[int, Field(ge=1, description="models M that each client trains")] = 5
    curvature: Annotated[
        Curvature, Field(description="Kronecker factors, a diagonal, or a diagonal and a full last layer")
    ] = "kron"
    fisher: Annotated[
        Literal["exact", "observed"], Field(description="labels from the model, in expectation, or the observed ones")
    ] = "exact"
    temperature: Annotated[float, Field(gt=0, description="of the posterior; below 1 makes it sharper")] = 0.1
    prior_precision: Annotated[float, Field(gt=0, description="precision of the Gaussian prior")] = 10.0
    steps: Annotated[int, Field(ge=1, description="Adam steps to each mode")] = 300
    learning_rate: Annotated[float, Field(gt=0, description="of Adam")] = 1e-3
    check_every: Annotated[int, Field(ge=1, description="steps from one validation to the next")] = 30

    takes_mixtures: ClassVar[bool] = True

    acting: ClassVar[Sequence[Acts]] = (
        *Merging.acting,
        Acts(
            "models",
            "rounds",
            instead="each model is an upload of its own, with the same --party",
            at_hand="each model is a network of its own, with the same name in parties=",
        ),
        Acts("check_every", "examples"),
        Acts("weights", "options", given={"distil": ("server", "generated")}),
    )

    def deploys_another(self) -> bool:
        """All modes."""
        return True

    def needs(self) -> tuple[str, ...]:
        """What the curvature is made of."""
        return NEEDS[self.fisher][self.curvature]

    def loads(self) -> tuple[str, ...]:
        """What torch's optimizers need."""
        return (OPTIMIZERS,)

    def init(self, task: Task, rng: torch.Generator) -> FedBEnsState:
        """M freshly initialised models; the first is every other method's."""
        bench = fresh_workbench(task, rng)
        models = [{n: t.clone() for n, t in bench.tree().items()}]
        seed = int(torch.randint(2**31, (), generator=rng))
        models += [random_model(task, seed, i) for i in range(1, self.models)]
        return FedBEnsState(
            models, Server(task, bench, self.reestimate), Form.of(bench, task, self.measures(), self.upload_bits)
        )

    def configure(
        self, state: FedBEnsState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends all M models."""
        packet = Packet({f"{i}/{n}": t for i, model in enumerate(state.models) for n, t in model.items()})
        return ((client, packet) for client in self.sample(clients, rng))

    def reply_layout(self, state: FedBEnsState, packet: Packet) -> Layout:
        """M uploads, the loss and the number of examples."""
        one = state.form.layout_of({"loss": float, "examples": int})
        numbers = range(self.models)
        tensors = {f"{i}/{n}": shape for i in numbers for n, shape in one.tensors.items()}
        least = {f"{i}/{n}": one.least[n] for i in numbers for n in one.tensors if n in one.least}
        most = {f"{i}/{n}": one.most[n] for i in numbers for n in one.tensors if n in one.most}
        most["examples"] = one.most["examples"]
        return Layout(tensors, one.scalars, least=least | {"examples": 1}, most=most)

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Trains and measures each model."""
        bench, tensors, loss = client.workbench, dict[str, torch.Tensor](), 0.0
        form = Form.of(bench, client.task, self.measures(), self.upload_bits)
        for i in range(self.models):
            bench.reset()
            bench.load(_part(packet, i))
            if self.initialization == "independent" and client.round == 0:
                bench.load(random_model(client.task, client.seed, client.id, i))
            loss += train_locally(client).loss / self.models
            upload = measured(client, self.measures(), self.measure_on)
            tensors |= {f"{i}/{n}": t for n, t in form.pack(upload, {}).tensors.items()}
        return Packet(tensors, {"loss": loss, "examples": len(client.data.train)})

    def aggregate(
        self, state: FedBEnsState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[FedBEnsState, Metrics]:
        """Finds M modes."""
        loss, uploads = WeightedMean(), []
        for reply in replies:
            for i in range(self.models):
                uploads.append(state.form.unpack(Packet(_part(reply.packet, i), reply.packet.scalars), reply.client))
            loss.add_scalar("loss", reply.packet.scalars["loss"], uploads[-1].examples)
        merged = self.merged(uploads, Context(state.server, None, round, rng))
        if merged.deployed is None:  # a student of the ensemble, see `improving`
            models = [merged.model] * self.models
        else:
            models = [_part(Packet(merged.deployed), f"networks.{i}.", "") for i in range(self.models)]
        return replace(state, models=models), {"train/loss": loss.scalar("loss"), **merged.metrics}

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """The modes of the product; uploads of one party are the components of its mixture, in order."""
        parties: dict[str, list[Upload]] = {}
        for upload in uploads:
            parties.setdefault(upload.party, []).append(upload)
        counts = {party: len(own) for party, own in parties.items()}
        if len(set(counts.values())) > 1:
            raise InputError(f"FedBEns needs as many models of each party, got {counts}")
        mixtures = [
            [Component.of(u, self.curvature, self.needs(), self.temperature, self.prior_precision) for u in own]
            for own in parties.values()
        ]
        score = context.server.score if context.server.examples is not None else None
        modes, steps = [], []
        for i in range(min(counts.values())):
            start = median([own[i].model for own in parties.values()])
            mode, step = descend(
                start,
                lambda w: log_posterior_slope(mixtures, w)[1],
                steps=self.steps,
                learning_rate=self.learning_rate,
                check_every=self.check_every,
                score=score,
                optimizer=_climber,
            )
            modes.append(context.server.settled(mode) if self.reestimate else mode)
            steps.append(step)
        metrics: Metrics = {"merge/step": sum(steps) / len(steps), "models": float(len(modes))}
        return Merged(modes[0], metrics, joined(modes))

    def global_model(self, state: FedBEnsState) -> Tree:
        """All modes, as one network."""
        return joined(state.models)

    def deploy(self, packet: Packet, benches: Benches) -> Workbench:
        """A network of all modes."""
        return bench_of(packet, benches, "probabilities")


def _climber(leaves: list[torch.Tensor], rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(leaves, rate, maximize=True)


def median(models: Sequence[Tree]) -> Tree:
    """The coordinate-wise median of models; of an even number the lower of the middle two."""
    return {n: torch.stack([m[n] for m in models]).median(0).values for n in models[0]}


def _part(packet: Packet, number: int | str, mark: str = "/") -> Tree:
    prefix = f"{number}{mark}"
    return {n.removeprefix(prefix): t.clone() for n, t in packet.tensors.items() if n.startswith(prefix)}
