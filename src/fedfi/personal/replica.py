"""A method's state at a client: where the server sees only sums of ciphertexts, clients carry its state on themselves.

A method is linear when its new model is a weighted mean of what clients send. Then a single reply that *is* that mean
moves the state as all replies would, and whoever can decrypt the mean can do it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedfi.errors import InputError
from fedfi.federation.algorithm import Algorithm, EvaluatesClients, Metrics, Reply
from fedfi.federation.checkpoint import flatten, unflatten
from fedfi.federation.client import Client
from fedfi.federation.packet import Layout, Packet, Tree

_STATE, _STRUCTURE, _ROOM = "replica:", "replica-structure", 1 << 16


@runtime_checkable
class Spends(Protocol):
    """A method whose rounds use up a budget of privacy, whoever folds them."""

    def spent(self, state: Any, rounds: int) -> Metrics:
        """What so many rounds came to; of the state only what never changes is used."""
        ...


def wrapped(value: Any, context: Any) -> Any:
    """The method that a wrapper is given: in Python as it is, in a file through the context of the validation."""
    return context["algorithm"] if context else value


def refuse_unless_linear(algorithm: Any, what: str) -> None:
    """Refuses a method whose replies cannot be summed.

    Raises:
        ValueError: With the reason.
    """
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"algorithm is a {type(algorithm).__name__}, expected a method, such as fedfi.FedAvg()")  # noqa: TRY004 - pydantic turns ValueErrors into messages
    if not algorithm.linear:
        raise ValueError(
            f"{type(algorithm).__name__} cannot be {what}: its new model is not a weighted mean of what clients send"
            " (its class does not say linear = True), so sums of replies do not determine it"
        )


def whole(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """The same method with full participation, as a client runs it for itself."""
    return dataclasses.replace(algorithm, participation=1.0, clients_per_round=None)


def first_state(algorithm: Algorithm[Any], task: Any, seed: int) -> Any:
    """The state before the first round, the same at server and clients, made once a process; not to be changed."""
    try:
        return _first_state(algorithm, task, seed)
    except TypeError:  # a method or task with a field that has no hash
        return _first_state.__wrapped__(algorithm, task, seed)


@functools.lru_cache(maxsize=4)
def _first_state(algorithm: Algorithm[Any], task: Any, seed: int) -> Any:
    return algorithm.init(task, torch.Generator().manual_seed(seed))


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


def recall_state(client: Client, first: Any) -> Any:
    """The remembered state, or the first one."""
    if _STRUCTURE not in client.memory:
        return first
    content = client.memory[_STRUCTURE].numpy().tobytes()
    length = int.from_bytes(content[:4], "little")
    structure = json.loads(zlib.decompress(content[4 : 4 + length]))
    tensors = {n.removeprefix(_STATE): t for n, t in client.memory.items() if n.startswith(_STATE)}
    return unflatten(structure, tensors, first)


def packet_for(algorithm: Algorithm[Any], state: Any, client: Client) -> Packet:
    """What the server would have sent to this client."""
    ((_, packet),) = algorithm.configure(state, client.round, [client.id], client.rng("configure"))
    return packet


def evaluation_for(algorithm: Algorithm[Any], state: Any, client: Client) -> Packet | None:
    """What the server would have sent to be judged; None for a method that does not judge on clients."""
    if not isinstance(algorithm, EvaluatesClients):
        return None
    return dict(algorithm.configure_evaluation(state, [client.id], client.rng("configure evaluation")))[client.id]


def moved(algorithm: Algorithm[Any], state: Any, round: int, mean: Packet) -> Any:
    """The state after a round whose replies have this mean."""
    after, _ = algorithm.aggregate(state, round, iter([Reply("mean", mean)]), torch.Generator().manual_seed(round))
    return after


@dataclasses.dataclass(frozen=True)
class Form:
    """How a reply becomes one vector, and a mean vector a reply.

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
        """The form of replies of this layout.

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

    def vector(self, reply: Packet) -> Tensor:
        """A reply's vector, float32."""
        parts = [reply.tensors[n].detach().reshape(-1).float().cpu() for n in self.floats]
        return torch.cat([*parts, torch.tensor([float(reply.scalars[n]) for n in self.scalars])])

    def reply(self, vector: Tensor, counters: Mapping[str, Tensor]) -> Packet:
        """The reply that a mean vector stands for."""
        tensors, position = dict(counters), 0
        for name, (shape, dtype) in self.floats.items():
            size = int(torch.Size(shape).numel())
            tensors[name] = vector[position : position + size].view(shape).to(dtype)
            position += size
        scalars: dict[str, int | float | str | bool] = dict(zip(self.scalars, vector[position:].tolist(), strict=True))
        return Packet(tensors, scalars | dict.fromkeys(self.counts, 1))
