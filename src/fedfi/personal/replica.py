"""A method's state at a client: where the server sees only sums of ciphertexts, clients carry its state on themselves.

A method is linear when its new model is a weighted mean of what clients send. Then a single reply that *is* that mean
moves the state as all replies would, and whoever can decrypt the mean can do it. A method whose replies differ in
shape, or come in some rounds only, says by `SumsVectors` what of them is summed, and what a mean makes of its state.
What a state keeps of a client alone is known to that client, whose replica keeps it of nobody else.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.algorithm import (
    SIZES,
    Algorithm,
    DealsLevels,
    EvaluatesClients,
    Metrics,
    Reply,
    StepsByUpdates,
    SumsVectors,
)
from fedfi.federation.checkpoint import flatten, row_stores, unflatten, with_stores
from fedfi.federation.client import Client
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.rows import RowStore
from fedfi.validation import fields_of

_STATE, _STRUCTURE, _ROWS, _ROOM = "replica:", "replica-structure", "replica-rows:", 1 << 16
_DONE = {"private": "made private", "encrypted": "encrypted"}


@runtime_checkable
class Spends(Protocol):
    """A method whose rounds use up a budget of privacy, whoever folds them."""

    def spent(self, state: Any, rounds: int) -> Metrics:
        """What so many rounds came to; of the state only what never changes is used."""
        ...


def wrapped(value: Any, context: Any) -> Any:
    """The method that a wrapper is given: in Python as it is, in a file through the context of the validation."""
    return context["algorithm"] if context else value


def with_sizes(given: Any, wrapper: str) -> Any:
    """What a wrapper is given, before it is checked: where that says nothing of who takes part, its method does.

    Options of the method that are its class's defaults give way to the wrapper's.

    Raises:
        ValueError: If both say who takes part, and differently.
    """
    options = getattr(given, "kwargs", None) or {}
    inner = options.get("algorithm")
    if not isinstance(inner, Algorithm):
        return given  # out of a file, whose table says it once; or refused later
    sizes = {key: getattr(inner, key) for key in SIZES}
    if not options.keys() & set(SIZES):
        return type(given)(given.args, {**options, **sizes})
    default = {key: field.default for key, field in fields_of(type(inner)).items() if key in SIZES}
    own, its = _size({"participation": 1.0} | options), _size(sizes)
    if its not in (own, _size(default)):
        name = type(inner).__name__
        raise ValueError(f"{own}, but the {name} that is {_DONE[wrapper]} has {its} (nearest valid: {its})")
    return given


def _size(options: Mapping[str, Any]) -> str:
    """Who takes part, by the one option that counts."""
    key = "participation" if options.get("clients_per_round") is None else "clients_per_round"
    return f"{key} = {options[key]}"


def around(kind: type[Any]) -> list[str]:
    """The wrappers that may stand around a kind of method."""
    return [wrapper for wrapper in _DONE if not _obstacle(kind, wrapper)]


def refuse_unless_summed(algorithm: Any, wrapper: str) -> None:
    """Refuses a method whose replies cannot be summed, or around which a wrapper may not stand.

    Raises:
        ValueError: With the reason.
    """
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"algorithm is a {type(algorithm).__name__}, expected a method, such as fedfi.FedAvg()")  # noqa: TRY004 - pydantic turns ValueErrors into messages
    if reason := _obstacle(type(algorithm), wrapper):
        raise ValueError(f"{type(algorithm).__name__} cannot be {_DONE[wrapper]}: {reason}")


def _obstacle(kind: type[Any], wrapper: str) -> str:
    if wrapper in kind.refused:
        return str(kind.refused[wrapper])
    if kind.linear or (wrapper == "encrypted" and issubclass(kind, SumsVectors)):
        return ""
    if issubclass(kind, StepsByUpdates):
        return ""
    if issubclass(kind, SumsVectors):
        return (
            "what its clients send differs in shape or comes in some rounds only, so that neither an update's norm nor"
            " the noise on a sum is what clipping takes it for"
        )
    return (
        "its new model is not a weighted mean of what clients send (its class does not say linear = True, nor what of"
        " its replies is summed), so sums of replies do not determine it"
    )


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear method by the pieces of one that sums vectors: a summand is the reply itself."""

    algorithm: Algorithm[Any]

    def sums(self, round: int) -> bool:
        """In every round."""
        return True

    def summand_layout(self, state: Any) -> Layout:
        """That of all replies."""
        ((_, packet),) = self.algorithm.configure(state, 0, ["-"], torch.Generator())
        return self.algorithm.reply_layout(state, packet)

    def summand(self, state: Any, sent: Packet, reply: Packet) -> Packet:
        """The reply."""
        return reply

    def replied(self, state: Any, reply: Reply) -> Any:
        """The state as it is: what else it keeps of a client is for the server's packets."""
        return state

    def absorb(self, state: Any, round: int, mean: Packet) -> Any:
        """The state after a round whose replies have this mean."""
        rng = torch.Generator().manual_seed(round)
        after, _ = self.algorithm.aggregate(state, round, iter([Reply("mean", mean)]), rng)
        return after


def summing(algorithm: Algorithm[Any]) -> SumsVectors:
    """What of a method's replies is summed."""
    return algorithm if isinstance(algorithm, SumsVectors) else Linear(algorithm)


def uniform(algorithm: Algorithm[Any]) -> bool:
    """Whether all clients count alike in a method's means."""
    return isinstance(algorithm, SumsVectors) or getattr(algorithm, "weights", "examples") == "uniform"


def whole(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """The same method, and what it stands around, with full participation, as a client runs it for itself."""
    within = getattr(algorithm, "algorithm", None)
    options = {"algorithm": whole(within)} if isinstance(within, Algorithm) else {}
    return dataclasses.replace(algorithm, participation=1.0, clients_per_round=None, **options)


def first_state(algorithm: Algorithm[Any], task: Any, seed: int) -> Any:
    """The state before the first round, the same at server and clients; its tensors are not to be changed."""
    found = [
        s for known, its_task, its_seed, s in _FIRST if (its_task is task, its_seed, known) == (True, seed, algorithm)
    ]
    if not found:
        found = [algorithm.init(task, torch.Generator().manual_seed(seed))]
        _FIRST.append((algorithm, task, seed, found[0]))
    return with_stores(found[0], lambda rows: RowStore(rows.width, rows.storage))


_FIRST: deque[tuple[Algorithm[Any], Any, int, Any]] = deque(maxlen=4)
"""States that were made once a process, with method, task and seed."""


def remember(client: Client, state: Any) -> None:
    """Keeps a state in the client's memory.

    Raises:
        InputError: If what is not tensors does not fit 64 kB.
    """
    tensors: Tree = {}
    structure = zlib.compress(json.dumps(flatten(state, tensors)).encode())
    if len(structure) > _ROOM - 4:
        raise InputError(
            f"the state's structure has {len(structure)} bytes compressed, at most {_ROOM - 4} can be kept"
        )
    content = len(structure).to_bytes(4, "little") + structure
    client.memory[_STRUCTURE] = torch.frombuffer(bytearray(content.ljust(_ROOM, b"\0")), dtype=torch.uint8)
    for name, value in tensors.items():
        client.memory[_STATE + name] = value
    for number, rows in enumerate(row_stores(state)):
        if client.id in rows:
            client.memory[f"{_ROWS}{number}"] = rows.read(client.id).to(getattr(torch, rows.storage))


def recall_state(client: Client, first: Any) -> Any:
    """The remembered state; or the first one, whose row stores it may take."""
    if _STRUCTURE not in client.memory:
        return first
    content = client.memory[_STRUCTURE].numpy().tobytes()
    length = int.from_bytes(content[:4], "little")
    structure = json.loads(zlib.decompress(content[4 : 4 + length]))
    tensors = {n.removeprefix(_STATE): t for n, t in client.memory.items() if n.startswith(_STATE)}
    state = unflatten(structure, tensors, first)
    for number, rows in enumerate(row_stores(state)):
        if (name := f"{_ROWS}{number}") in client.memory:
            rows.write(client.id, client.memory[name].float())
    return state


def levels_for(algorithm: Algorithm[Any], state: Any, round: int | None, clients: Sequence[str]) -> Mapping[str, float]:
    """The level that each client has to be told; nothing for a method that deals none."""
    return algorithm.dealt(state, round, clients) if isinstance(algorithm, DealsLevels) else {}


def packet_for(algorithm: Algorithm[Any], state: Any, client: Client, level: float | None) -> Packet:
    """What the server would have sent to this client."""
    rng = client.rng("configure")
    if isinstance(algorithm, DealsLevels) and level is not None:
        return algorithm.packet_of(state, client.id, level, rng)
    ((_, packet),) = algorithm.configure(state, client.round, [client.id], rng)
    return packet


def evaluation_for(algorithm: Algorithm[Any], state: Any, client: Client, level: float | None) -> Packet | None:
    """What the server would have sent to be judged; None for a method that does not judge on clients."""
    rng = client.rng("configure evaluation")
    if not isinstance(algorithm, EvaluatesClients):
        return None
    if isinstance(algorithm, DealsLevels) and level is not None:
        return algorithm.packet_of(state, client.id, level, rng)
    return dict(algorithm.configure_evaluation(state, [client.id], rng))[client.id]


@dataclasses.dataclass(frozen=True)
class Form:
    """How a summand becomes one vector, and a mean vector a summand.

    Attributes:
        floats: Shapes and dtypes of floating tensors, in order.
        counters: Names of the others, of which the largest is taken.
        scalars: Names of floating scalars, which come last in the vector.
        counts: Names of whole-number scalars; of a mean they are 1.
    """

    floats: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    counters: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    scalars: list[str]
    counts: list[str]

    @staticmethod
    def of(layout: Layout) -> Form:
        """The form of summands of this layout.

        Raises:
            InputError: If they hold what has no mean.
        """
        if layout.blobs or layout.most_bytes or any(kind not in (float, int) for kind in layout.scalars.values()):
            raise InputError("replies with blobs or texts have no mean, and cannot be summed")
        return Form(
            {n: s for n, s in layout.tensors.items() if s[1].is_floating_point},
            {n: s for n, s in layout.tensors.items() if not s[1].is_floating_point},
            [n for n, kind in layout.scalars.items() if kind is float],
            [n for n, kind in layout.scalars.items() if kind is int],
        )

    def shapes(self) -> Tree:
        """Empty tensors of what the vector is made of, for a packet layout."""
        shapes = {n: torch.empty(s, dtype=torch.float32) for n, (s, _) in self.floats.items()}
        return shapes | {f"scalar:{n}": torch.empty(()) for n in self.scalars}

    def vector(self, summand: Packet) -> Tensor:
        """A summand's vector, float32."""
        parts = [summand.tensors[n].detach().reshape(-1).float().cpu() for n in self.floats]
        return torch.cat([*parts, torch.tensor([float(summand.scalars[n]) for n in self.scalars])])

    def summand(self, vector: Tensor, counters: Mapping[str, Tensor]) -> Packet:
        """The summand that a mean vector stands for."""
        tensors, position = dict(counters), 0
        for name, (shape, dtype) in self.floats.items():
            size = int(torch.Size(shape).numel())
            tensors[name] = vector[position : position + size].view(shape).to(dtype)
            position += size
        scalars: dict[str, int | float | str | bool] = dict(zip(self.scalars, vector[position:].tolist(), strict=True))
        return Packet(tensors, scalars | dict.fromkeys(self.counts, 1))
