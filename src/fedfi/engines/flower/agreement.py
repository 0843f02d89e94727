"""What a node and the server must have in common before any work: program, experiment, and the layout of the model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

import fedfi
from fedfi.data.ratings import RatingsData
from fedfi.federation.algorithm import Algorithm
from fedfi.federation.packet import PacketError
from fedfi.federation.rng import keyed_global_rng
from fedfi.federation.task import Task


@dataclass(frozen=True)
class Agreement:
    """One side's view.

    Attributes:
        experiment: A digest of the settings.
        layout: Shape and dtype of every parameter and buffer, such as ``"8x6 float32"``, by name.
        fedfi: Version of fedfi.
        torch: Version of torch; another one may round differently, which is noted, not refused.
        items: A digest of the names of all items, where clients rate some; empty where they hold examples.
    """

    experiment: str
    layout: Mapping[str, str]
    fedfi: str = fedfi.__version__
    torch: str = torch.__version__
    items: str = ""

    @staticmethod
    def of(task: Task, settings: Mapping[str, Any]) -> Agreement:
        """What this process works with.

        Args:
            task: Makes the model.
            settings: Of the experiment; JSON-able.
        """
        with keyed_global_rng(0, "layout"):
            state = task.model().state_dict()
        layout = {n: f"{'x'.join(map(str, t.shape)) or '1'} {str(t.dtype)[6:]}" for n, t in state.items()}
        text = json.dumps(settings, sort_keys=True, default=str)
        items = _digest(json.dumps(task.data.items)) if isinstance(task.data, RatingsData) else ""
        return Agreement(_digest(text), layout, items=items)

    @staticmethod
    def between(algorithm: Algorithm[Any], task: Task) -> Agreement:
        """What a method and a task amount to, where there is no experiment file."""
        fields = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}
        return Agreement.of(task, {type(algorithm).__name__: fields, "train": dataclasses.asdict(task.training)})

    def described(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "experiment": self.experiment,
            "layout": dict(self.layout),
            "fedfi": self.fedfi,
            "torch": self.torch,
            "items": self.items,
        }

    @staticmethod
    def from_described(given: Any) -> Agreement:
        """The inverse of `described`.

        Raises:
            PacketError: If it is something else.
        """
        try:
            layout = {str(k): str(v) for k, v in given["layout"].items()}
            texts = [given[key] for key in ("experiment", "fedfi", "torch", "items")]
        except (KeyError, TypeError, AttributeError):
            raise PacketError("what the node tells of itself cannot be read") from None
        if not all(isinstance(t, str) and len(t) <= 100 for t in texts):
            raise PacketError("what the node tells of itself cannot be read")
        return Agreement(texts[0], layout, *texts[1:])

    def difference(self, other: Agreement) -> str | None:
        """Why two sides cannot work together, in one line; None if they can.

        Args:
            other: The node's view, where this is the server's.
        """
        if other.fedfi != self.fedfi:
            return f"it has fedfi {other.fedfi}, the server {self.fedfi}"
        for name in {**self.layout, **other.layout}:
            mine, its = self.layout.get(name, "absent"), other.layout.get(name, "absent")
            if mine != its:
                return f"its model has {name!r} {its}, the server's {mine}"
        if other.items != self.items:
            mine, its = self.items or "none", other.items or "none"
            return f"its items are {its}, the server's {mine}: other names, or another order"
        if other.experiment != self.experiment:
            return f"its experiment is {other.experiment}, the server's {self.experiment}: other settings"
        return None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
