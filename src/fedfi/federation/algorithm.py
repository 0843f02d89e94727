"""The one interface of every method: who gets what, what a client does with it, how replies are folded.

A method is a final, frozen, validated dataclass: its fields are its configuration. Data never enters `configure`
or `aggregate`; server state never enters `client_update`. That is what lets the same method run in one process
and across machines. What a method may do besides (evaluate on clients, show its submodels, update a whole cohort
at once) it declares by having the methods of the protocols below; there is nothing to override.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Protocol, Self, TypeVar, dataclass_transform, runtime_checkable

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from fedfi.errors import InputError, unknown
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.sampling import round_size, sample_clients
from fedfi.federation.task import Task
from fedfi.federation.workbench import Benches, Workbench
from fedfi.validation import OPTIONS, Checked

ClientId = str
Metrics = dict[str, float | str]
"""Named results of a round. Numbers become columns of `metrics.jsonl`; a string is a note for `events.jsonl`."""

SIZES = ("participation", "clients_per_round")
"""Options that say who takes part, of a method or of whatever wraps it; one of them is given."""
CONFIG = OPTIONS | ConfigDict(arbitrary_types_allowed=True)
State = TypeVar("State")
M = TypeVar("M")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def method(kind: type[M]) -> type[M]:
    """Makes a class a method: its annotated attributes become options, checked in Python and in files alike.

    Bounds and descriptions are pydantic's: ``strength: Annotated[float, Field(ge=0, description="...")] = 1.0``.
    """
    made: Any = validated(frozen=True, kw_only=True, config=CONFIG)(kind)
    return made  # type: ignore[no-any-return]


def put_over(
    below: Mapping[str, Any], options: Mapping[str, Any], instead: Sequence[tuple[str, ...]] = ()
) -> dict[str, Any]:
    """Options of a preset or a table and others that go before them: where two say one thing, the others' for both.

    Args:
        below: Options of the preset or table.
        options: Those that go before.
        instead: Options of which one stands instead of the others, besides those that say who takes part.
    """
    replaced = {key for group in (SIZES, *instead) if options.keys() & set(group) for key in group}
    return {k: v for k, v in below.items() if k not in replaced} | dict(options)


@dataclass(frozen=True)
class Reply:
    """What a client sent back.

    Attributes:
        client: Who.
        packet: What.
        seconds: How long the client worked.
        sent: What it is the answer to; the server knows this, so a client need not echo it.
    """

    client: ClientId
    packet: Packet
    seconds: float = 0.0
    sent: Packet = field(default_factory=Packet)


@dataclass(frozen=True)
class Failure:
    """A client that did not deliver.

    Attributes:
        client: Who.
        stage: ``"client_update"``, ``"client_evaluate"``, ``"worker"`` or ``"reply"`` (refused by the server).
        error: One line.
        traceback: The whole trace, where there is one.
    """

    client: ClientId
    stage: str
    error: str
    traceback: str = ""


@validated(frozen=True, kw_only=True, config=CONFIG)
class Algorithm(ABC, Generic[State], metaclass=Checked):
    """A federated method. State is built of dataclasses, dicts, lists, tensors, plain values and `RowStore`s."""

    participation: Annotated[float, Field(gt=0, le=1, description="share of the clients that take part in a round")] = (
        1.0
    )
    clients_per_round: Annotated[
        int | None, Field(ge=1, description="number of clients a round; instead of participation")
    ] = None

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    instead: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Options of which one is given instead of the others: a user's replaces a preset's, and `--set` a file's."""
    data_kind: ClassVar[str] = "examples"
    """What the method learns from: ``"examples"``, or the ``"ratings"`` of users."""
    linear: ClassVar[bool] = False
    """Whether the new model is a weighted mean of what clients send, so that compression, noise and encryption
    of single replies may wrap the method."""

    forgetful: ClassVar[bool] = False
    """Whether neither clients nor server keep anything of one client from round to round, so that what a client sends
    is a function of what it gets, its data and the round alone. Privacy by being drawn seldom is counted only then."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Wrappers, such as ``"encrypted"``, that may not stand around the method whatever its options, and why."""

    central: ClassVar[bool] = True
    """Whether the server holds the trained model; where it does not, judging its model would only mislead."""

    @classmethod
    def preset(cls, name: str, **options: Any) -> Self:
        """The method in one of its presets, such as ``FedFIbOS.preset("as-published", participation=0.5)``.

        Args:
            name: A key of `presets`.
            options: Further options; they go before those of the preset.

        Raises:
            InputError: If there is no such preset, or an option is wrong.
        """
        if name not in cls.presets:
            no = f"it has no presets (got {name!r})"
            raise InputError(f"{cls.__name__}: {unknown('preset', name, cls.presets) if cls.presets else no}")
        return cls(**put_over(cls.presets[name], options, cls.instead))

    def loads(self) -> tuple[str, ...]:
        """Modules that rounds load when they first need them, and that are slow to load; `federation.warming` has some.

        A run loads them before its first round, whose time would hold them otherwise.
        """
        return ()

    def mixes_networks(self) -> bool:
        """Whether the model is a mean over clients that train differing parts of it.

        Running statistics of their batch norms then fit none of these networks. They are measured anew before a model
        is judged or delivered: on the server's examples, and on a client's own where it judges its submodel.
        """
        return False

    @abstractmethod
    def init(self, task: Task, rng: torch.Generator) -> State:
        """The server's state before the first round."""

    @abstractmethod
    def configure(
        self, state: State, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Who takes part, and what each of them gets; may be lazy."""

    @abstractmethod
    def reply_layout(self, state: State, packet: Packet) -> Layout:
        """What the reply to `packet` must contain; anything else is refused before it reaches `aggregate`."""

    @abstractmethod
    def client_update(self, packet: Packet, client: Client) -> Packet:
        """The work of one client, where its data is."""

    @abstractmethod
    def aggregate(
        self, state: State, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[State, Metrics]:
        """Folds the replies, which come in the order of `configure`, into the next state.

        `replies` is an iterator so that means need no more memory than one reply; it ends the run by itself when
        there are too few, so at least one reply arrives.
        """

    @abstractmethod
    def global_model(self, state: State) -> Tree:
        """The model that a user deploys: every parameter and buffer by name."""

    def sample(self, clients: Sequence[ClientId], rng: torch.Generator) -> list[ClientId]:
        """This round's participants, by `participation` or `clients_per_round`."""
        return sample_clients(clients, round_size(len(clients), self.participation, self.clients_per_round), rng)


@runtime_checkable
class EvaluatesClients(Protocol):
    """A method whose clients judge their own model on their own test examples."""

    def configure_evaluation(
        self, state: Any, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """What each client needs to evaluate; the packet of a client may be anything `client_evaluate` reads."""
        ...

    def client_evaluate(self, packet: Packet, client: Client) -> Metrics:
        """Means over the client's own test examples, and their number as ``"examples"``."""
        ...


@runtime_checkable
class HasLevels(Protocol):
    """A method that makes submodels; each is judged on the server's test examples."""

    def levels(self, state: Any) -> Iterable[tuple[str, Packet]]:
        """Names of the levels, such as ``"0.25"``, and the submodel of each."""
        ...

    def place(self, packet: Packet, benches: Benches) -> Workbench:
        """Puts a submodel on a workbench, ready to be judged; it may be physically smaller than the model."""
        ...


@runtime_checkable
class DefinesLevels(Protocol):
    """A method with levels of which some may have a share of 0: they are not judged, but can be exported."""

    @property
    def level_names(self) -> Mapping[str, float]:
        """The ratio of each level, by name."""
        ...

    def level(self, state: Any, ratio: float) -> Packet:
        """The submodel of one level, as `HasLevels.place` takes it."""
        ...


@runtime_checkable
class NotesOnClients(Protocol):
    """A method that has something to say of the clients before the first round."""

    def notes_on_clients(self, clients: Sequence[ClientId]) -> list[str]:
        """A line each; warnings of the run."""
        ...


@runtime_checkable
class DeploysNetwork(Protocol):
    """A method whose model is another network than the task's: a wider one, or several of them."""

    def deploy(self, packet: Packet, benches: Benches) -> Workbench:
        """Puts the global model on a workbench of the network that it is, ready to be judged."""
        ...


@runtime_checkable
class UpdatesCohorts(Protocol):
    """A method that can do the work of many clients at once; equal to a loop over `client_update`.

    An engine may divide a round's clients into cohorts as it likes: what a client's result is must not depend on who
    else is in its cohort, to the bit.
    """

    def cohort_update(self, cohort: Cohort) -> Iterable[Packet]:
        """The replies, in the order of the cohort; memory is written in place."""
        ...


@runtime_checkable
class EvaluatesCohorts(Protocol):
    """A method that can judge many clients at once; equal to a loop over `client_evaluate`."""

    def cohort_evaluate(self, cohort: Cohort) -> Mapping[str, Tensor]:
        """Named values `[clients]`, in the order of the cohort; memory stays as it is.

        A NaN among a client's values means that it failed.
        """
        ...


@runtime_checkable
class ScoresItems(Protocol):
    """A method of recommendation: every client can score every item."""

    def configure_evaluation(
        self, state: Any, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """What each client needs besides its memory to score items."""
        ...

    def client_scores(self, packet: Packet, client: Client) -> Tensor:
        """One number an item `[items]`; the larger, the earlier it is recommended."""
        ...


@runtime_checkable
class Negotiates(Protocol):
    """A method whose rounds begin with an exchange before the exchange of updates, such as a vote.

    The loop runs it like the other one: the same checks, failures, traffic and keyed randomness (`rng` of its own
    purposes), within the same round and checkpoint. A method that has nothing to negotiate this round asks nobody.
    """

    def configure_negotiation(
        self, state: Any, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Who is asked, and what each of them gets."""
        ...

    def negotiation_layout(self, state: Any, packet: Packet) -> Layout:
        """What the answer to `packet` must contain."""
        ...

    def client_negotiate(self, packet: Packet, client: Client) -> Packet:
        """The answer of a client; what it remembers is there in the exchange of updates."""
        ...

    def negotiated(self, state: Any, round: int, replies: Iterator[Reply], rng: torch.Generator) -> tuple[Any, Metrics]:
        """Folds the answers into the state that `configure` gets."""
        ...


@runtime_checkable
class SumsVectors(Protocol):
    """A method whose next state needs no more of the replies than the plain mean of vectors of one shape.

    Beside `linear` methods, whose vectors are the replies themselves, these may be encrypted: the vector (the summand)
    is made where the reply is, whoever can read the mean moves the state on by itself, and what the state keeps of one
    client alone is known to that client. All vectors count alike.
    """

    def sums(self, round: int) -> bool:
        """Whether this round has a mean at all; in one without, clients work and send nothing."""
        ...

    def summand_layout(self, state: Any) -> Layout:
        """What every summand holds: floating tensors have a mean, of others the largest counts."""
        ...

    def summand(self, state: Any, sent: Packet, reply: Packet) -> Packet:
        """A reply to `sent` in the shape that all have."""
        ...

    def replied(self, state: Any, reply: Reply) -> Any:
        """The state with what it keeps of one client alone: the part of `aggregate` that needs no one else's reply."""
        ...

    def absorb(self, state: Any, round: int, mean: Packet) -> Any:
        """The state after the mean of a round's summands: the other part of `aggregate`."""
        ...


@runtime_checkable
class NeedsPrecision(Protocol):
    """A method of `SumsVectors` that not every fixed point suits."""

    def least_bits(self) -> int:
        """Binary digits after the point that a mean in fixed point needs for summands to mean anything; 0 for any."""
        ...

    def least_clip(self) -> float:
        """The largest magnitude of what every summand holds, whatever the data; 0 where that depends on them."""
        ...


@runtime_checkable
class DealsLevels(Protocol):
    """A method that deals levels out among all clients, so that a client's packet depends on who else there is.

    Whoever makes one client's packet apart from the others', as a client of an encrypted method does for itself, has
    to be told its level.
    """

    def dealt(self, state: Any, round: int | None, clients: Sequence[ClientId]) -> Mapping[ClientId, float]:
        """The level of each client in a round; None asks for levels to judge by. Only what `init` made is read."""
        ...

    def packet_of(self, state: Any, client: ClientId, level: float, rng: torch.Generator) -> Packet:
        """What a client of this level gets, to train as well as to be judged."""
        ...


@runtime_checkable
class StepsByUpdates(SumsVectors, Protocol):
    """A method that can move its model by the mean of dense updates alone, so that noise may be on every entry of it.

    The summand's `"update"` is what is clipped and perturbed; everything else in a reply must stay between server and
    the client that sent it.
    """

    def leaks(self) -> str:
        """What, by its options, would reach other clients without noise, and the nearest valid option; or nothing."""
        ...

    def stepped(self, state: Any, update: Tensor) -> Any:
        """The state after a mean update `[size]`, start minus end."""
        ...
