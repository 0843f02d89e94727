"""Networks as headers of files describe them: by name, options and inputs; nothing of it is run or made unasked."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedfi.data.dataset import Examples
from fedfi.errors import InputError
from fedfi.federation.rng import keyed_global_rng
from fedfi.federation.task import Task
from fedfi.federation.workbench import Workbench
from fedfi.models import InputSpec, build, outside, trained_size
from fedfi.oneshot.server import task_of

_MOST_INPUT = 2**24  # numbers of one example: three channels of 2,300 by 2,300


@dataclass(frozen=True)
class Network:
    """Which network: what `fedfi.models.build` is called with.

    Attributes:
        name: A name of `fedfi.models.available`, or ``package.module:function``.
        options: Its options.
        spec: What it is fed.
    """

    name: str
    options: Mapping[str, Any]
    spec: InputSpec

    def task(self, examples: Examples | None = None) -> Task:
        """A task of this network; `examples` are the server's."""
        return task_of(lambda: build(self.name, self.spec, self.options), self.spec, examples)

    def module(self) -> nn.Module:
        """An instance."""
        with keyed_global_rng(0, "files"):
            return build(self.name, self.spec, self.options)

    def bench(self) -> Workbench:
        """An instance to work with."""
        return Workbench(self.module())


def layout_hash(bench: Workbench) -> str:
    """A digest of the names, shapes and types of a network's parameters and buffers."""
    entries = [[n, list(t.shape), str(t.dtype)] for n, t in sorted(bench.tree().items())]
    return hashlib.blake2b(json.dumps(entries).encode(), digest_size=8).hexdigest()


def check_code(name: str, given: str | None, path: Path, how: str) -> None:
    """Checks that a model which is code is named by whoever reads the file, too; others need not be.

    Args:
        name: The model that the file names.
        given: The one that its reader names, if any.
        path: The file.
        how: How to name one, such as ``"--model "``.

    Raises:
        InputError: If the two differ where they must not.
    """
    if ":" in name and given != name:
        raise InputError(f"{path}: its model is code, {name!r}; to run it say {how}{name}")
    if given not in (None, name):
        raise InputError(f"{how}{given}: {path} is of model {name!r}, which needs not be named")


def check_sizes(network: Network, held: int, path: Path, *, exactly: bool = True) -> None:
    """Refuses a header that asks for more than a file's own tensors hold, before anything of that size is made.

    Args:
        network: What the header says.
        held: How many trained parameters, or numbers at all, the file holds.
        path: The file.
        exactly: Whether the network has just as many.

    Raises:
        InputError: Naming the file and what asks for too much, or for something of another place.
    """
    name, options, spec = network.name, network.options, network.spec
    for option in outside(name):
        if options.get(option) is not None:
            raise InputError(
                f"{path}: its model is loaded from {option} = {options[option]!r}, which no upload may ask"
            )
    asked: dict[str, float] = {"classes": spec.classes, "vocabulary": spec.vocabulary or 0}
    if ":" not in name:  # else whoever merges has named it
        asked |= _numbers("options", dict(options))
    for what, number in asked.items():
        if number > held:
            raise InputError(f"{path}: {what} = {number:g} is more than its {held:,} parameters")
    if math.prod(spec.shape) > _MOST_INPUT:
        raise InputError(f"{path}: an example is {list(spec.shape)}, expected at most {_MOST_INPUT:,} numbers")
    if ":" in name:
        return
    try:
        expected = trained_size(name, spec, options)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if expected != held if exactly else expected > held:
        raise InputError(f"{path}: holds {held:,} parameters, but {name!r} with its options has {expected:,}")


def _numbers(name: str, value: Any) -> dict[str, float]:
    """All numbers in a table of options, by dotted name."""
    if isinstance(value, Mapping):
        return {n: v for key, item in value.items() for n, v in _numbers(f"{name}.{key}", item).items()}
    if isinstance(value, list):
        return {n: v for i, item in enumerate(value) for n, v in _numbers(f"{name}.{i}", item).items()}
    return {name: value} if isinstance(value, int | float) and not isinstance(value, bool) else {}


def options_of(text: str, path: Path) -> dict[str, Any]:
    """Options of a header."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: its options are {text!r}") from error


def spec_of(text: str, path: Path) -> InputSpec:
    """What a header says that a model is fed."""
    try:
        values = json.loads(text)
        return InputSpec(**{**values, "shape": tuple(int(n) for n in values["shape"])})
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: its spec is {text!r}") from error
