"""The task: what is learned, from whose data, by which local recipe, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn
from torch.nn import functional

from fedfi.arguments import Named, as_call, described, expect
from fedfi.data.dataset import Dataset
from fedfi.data.federated import FederatedData
from fedfi.data.interactions import Ratings
from fedfi.data.ratings import RatingsData
from fedfi.errors import InputError
from fedfi.validation import OPTIONS, Checked

Rate = Annotated[float, Field(ge=0, lt=1)]

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs `[batch, ...]`, targets `[batch]`) -> one loss per example `[batch]`, not reduced."""

Evaluation = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""(outputs `[batch, ...]`, targets `[batch]`) -> named values per example `[batch]`; they are averaged."""


@validated(frozen=True, kw_only=True, config=OPTIONS)
class Training(metaclass=Checked):
    """The local recipe, the same for every method of a comparison (table `[train]` of an experiment file)."""

    learning_rate: Annotated[float, Field(gt=0, description="step size of the local optimizer")] = 0.1
    batch_size: Annotated[int, Field(ge=1, description="examples a step")] = 20
    steps: Annotated[int | None, Field(ge=1, description="local steps a round; instead of epochs")] = None
    epochs: Annotated[
        int | None, Field(ge=1, description="local epochs a round; instead of steps; without both, 1")
    ] = None
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], Field(description="local optimizer")] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of sgd")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, description="decay of the optimizer")] = 0.0
    betas: Annotated[tuple[Rate, Rate], Field(description="moment rates of adam and adamw")] = (0.9, 0.999)
    schedule: Annotated[Literal["constant", "cosine"], Field(description="step size within a round")] = "constant"
    round_decay: Annotated[float, Field(gt=0, le=1, description="step size factor from one round to the next")] = 1.0
    clip_norm: Annotated[float | None, Field(gt=0, description="largest gradient norm; none = no clipping")] = None

    instead: ClassVar[Sequence[tuple[str, ...]]] = (("steps", "epochs"),)
    """As `Algorithm.instead`."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"give steps or epochs, not both (got steps = {self.steps}, epochs = {self.epochs})")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum = {self.momentum} is of sgd, not of {self.optimizer}; set betas instead")
        return self


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy per example `[batch]` of logits `[batch, classes]`."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def classification(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Loss and accuracy per example `[batch]` of logits `[batch, classes]`."""
    return {
        "loss": cross_entropy(outputs, targets),
        "accuracy": (outputs.argmax(1) == targets).to(outputs.dtype),
    }


def device_of(given: object) -> torch.device:
    """The device that is given, or named.

    Raises:
        InputError: If there is no such device here.
    """
    try:
        device = given if isinstance(given, torch.device) else torch.device(given)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        said = repr(given) if isinstance(given, str) else described(given)
        raise InputError(f"Task: device is {said}, expected a torch.device; {_devices()}") from error
    if device.type != "cpu" and (device.index or 0) >= _present().get(device.type, 0):
        raise InputError(f"Task: device is {str(device)!r}, which is not here; {_devices()}")
    return device


def _present() -> dict[str, int]:
    """Kinds of devices that are here besides the CPU, and how many; asking starts none of them."""
    found = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if hasattr(torch, "xpu"):
        found["xpu"] = torch.xpu.device_count()
    return {name: count for name, count in found.items() if count}


def _devices() -> str:
    return f"choose from {', '.join(repr(name) for name in ('cpu', *_present()))}"


def _check_model(model: object) -> None:
    if isinstance(model, nn.Module):
        name = type(model).__name__
        raise InputError(
            f"Task: model is the module {name}, which runs would change; expected a function that makes a new one at"
            f" each call, such as `lambda: {name}(...)`, or `lambda: copy.deepcopy(net)` to begin from its weights"
        )
    if not callable(model):
        such = f"fedfi.build({model!r}, data.spec)" if isinstance(model, str) else "Net()"
        raise InputError(
            f"Task: model is {described(model)}, expected a function that makes a torch.nn.Module,"
            f" such as `lambda: {such}`"
        )


def _federated(data: object) -> str:
    """What to give instead of something that is not a federation's data."""
    if isinstance(data, Ratings):
        return "fedfi.RatingsData: fedfi.leave_one_out(data)"
    unpacked = "*data" if isinstance(data, tuple) else "data"
    if isinstance(data, Dataset) or (isinstance(data, tuple) and data and isinstance(data[0], Dataset)):
        return f"fedfi.FederatedData: fedfi.federate({unpacked}, clients=10)"
    return "fedfi.FederatedData, which fedfi.federate makes, or fedfi.RatingsData"


@dataclass(frozen=True)
class Task(metaclass=Named):
    """What a federation learns.

    Attributes:
        model: Makes the model, a new one at each call; initialisers draw from torch's global generator, which is
            lent a key.
        data: Who holds what, and what the server holds; or the ratings of users, for methods of recommendation.
        training: The local recipe.
        loss: Per-example loss for training.
        evaluation: Per-example values for judging, by name; averaged over examples.
        device: Where models live; a text, such as ``"cuda"``, becomes a device.
        shared: A directory in which runs that are compared keep clients' first local training for each other.
    """

    model: Callable[[], nn.Module]
    data: FederatedData | RatingsData
    training: Training = field(default_factory=Training)
    loss: Loss = cross_entropy
    evaluation: Evaluation = classification
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shared: Path | None = None

    def __post_init__(self) -> None:
        _check_model(self.model)
        expect("Task: data", self.data, (FederatedData, RatingsData), _federated(self.data))
        training = as_call("fedfi.Training", self.training, "learning_rate=0.1")
        expect("Task: training", self.training, Training, training)
        for name in ("loss", "evaluation"):
            if not callable(getattr(self, name)):
                given = described(getattr(self, name))
                raise InputError(f"Task: {name} is {given}, expected a function of outputs and targets")
        object.__setattr__(self, "device", device_of(self.device))
        expect("Task: shared", self.shared, (Path, type(None)), "a pathlib.Path, or None")

    @property
    def examples(self) -> FederatedData:
        """The data, for what works on examples alone.

        Raises:
            InputError: If the task holds ratings.
        """
        if not isinstance(self.data, FederatedData):
            raise InputError(f"this works on examples, but the task holds {self.data.kind}, {self.data.name!r}")
        return self.data

    def __repr__(self) -> str:
        model = getattr(self.model, "__name__", type(self.model).__name__)
        return f"Task({model}, {self.data!r}, {self.training!r}, {self.device})"
