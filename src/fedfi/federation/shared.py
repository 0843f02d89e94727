"""Work that several runs have in common: clients' first local training, kept by what it depends on.

Methods that are compared on the same seed start from the same model on the same data. Where a method trains plainly
in its first round, as every one-shot method does, the trained model is the same for all of them, and is trained once.
What is measured of it (`place_of` with a purpose) is kept in the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedfi.federation.checkpoint import write_atomically
from fedfi.federation.client import Client
from fedfi.federation.packet import Packet, PacketError, decode


@dataclass(frozen=True)
class Trained:
    """What came of local training.

    Attributes:
        loss: Mean training loss over the steps.
        steps: Number of optimizer steps.
        examples: Number of the client's training examples.
    """

    loss: float
    steps: int
    examples: int


def place_of(client: Client, purpose: Sequence[str | int | None] = ()) -> Path | None:
    """Where the client's trained model is or will be; None if it is not shared.

    The name is a digest of everything that plain training depends on: the model before it, with its hooks, flags and
    functions, the client's examples, the recipe, the loss, and the keys of its random draws.

    Args:
        client: Whose.
        purpose: What else is made of the model that the workbench holds, with what settings; nothing: training.
    """
    loss = _name_of(client.task.loss)
    if client.task.shared is None or client.round > 0 or loss is None:
        return None
    from fedfi.channels.architecture import digest as digest_of  # with all of channels, a fifth of a second

    architecture, pinned = digest_of(client.workbench.module, ())
    if pinned:  # known in this process alone
        return None
    examples, digest = client.data.train, hashlib.blake2b(digest_size=16)
    data = examples.dataset
    recipe = {
        "training": asdict(client.task.training),
        "loss": loss,
        "augment": list(data.augment),
        "keys": [client.seed, client.round, client.id],
        "module": [architecture, client.workbench.layout.names],
        **({"purpose": list(purpose)} if purpose else {}),
    }
    digest.update(json.dumps(recipe, sort_keys=True).encode())
    statistics = {n: t for n in ("mean", "std", "fill") if (t := getattr(data, n)) is not None}
    own = {"inputs": data.inputs[examples.indices], "targets": examples.targets}
    digest.update(Packet({**client.workbench.tree(), **statistics, **own}).encode())
    return client.task.shared / f"{digest.hexdigest()}.safetensors"


def _name_of(function: object) -> str | None:
    """Where a function lives; None for one that is made on the spot, whose name says too little."""
    name = f"{getattr(function, '__module__', '<')}.{getattr(function, '__qualname__', '<')}"
    return None if "<" in name else name


def recall(place: Path, client: Client) -> Trained | None:
    """Loads a trained model into the client's workbench, if it is there and whole."""
    try:
        packet = decode(place.read_bytes())
    except (FileNotFoundError, PacketError):
        return None
    client.workbench.load(packet.tensors)
    found = packet.scalars
    return Trained(float(found["loss"]), int(found["steps"]), int(found["examples"]))


def keep(place: Path, client: Client, trained: Trained) -> None:
    """Stores the model on the client's workbench."""
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, Packet(client.workbench.tree(), asdict(trained)).encode())
