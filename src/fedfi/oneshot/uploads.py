"""What a party hands over: its model, how many examples made it, and what it measured.

A method is composed of what parties measure (`statistics`), how models are aligned (`alignment`) and how aligned models
become one (the rule in the method's file). All three are plain functions of `Upload`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from fedfi.channels import Wiring
from fedfi.errors import InputError
from fedfi.federation.algorithm import Metrics
from fedfi.federation.packet import Tree

Weights = Literal["examples", "uniform"]


@dataclass(frozen=True, eq=False)
class Upload:
    """One party's part.

    Attributes:
        party: Who.
        model: Every parameter and buffer by name.
        trained: Names of the parameters that training changes, in order.
        examples: Number of training examples, at least 1.
        statistics: What it measured, by kind (see `statistics.KINDS`), each by name.
        weight: What it weighs, whatever its number of examples; None: what `shares` says.
        wiring: The channel groups of its network, where that has other widths than the server's.
    """

    party: str
    model: Tree
    trained: tuple[str, ...]
    examples: int = 1
    statistics: Mapping[str, Tree] = field(default_factory=dict)
    weight: float | None = None
    wiring: Wiring | None = None

    @property
    def parameters(self) -> Tree:
        """The trained parameters by name."""
        return {name: self.model[name] for name in self.trained}

    def measured(self, kind: str) -> Tree:
        """A statistic by kind.

        Raises:
            InputError: If the party did not measure it.
        """
        check_measured([self], [kind])
        return dict(self.statistics[kind])

    def with_model(self, model: Mapping[str, Tensor]) -> Upload:
        """The same upload with other values."""
        return replace(self, model=dict(model))


@dataclass(frozen=True, eq=False)
class Merged:
    """What a merge came to.

    Attributes:
        model: Every parameter and buffer by name: where the next round starts.
        metrics: Named numbers; a string is a note.
        deployed: What a user deploys, where that is not the model itself (an ensemble, a wider network).
        orders: For each party and channel group the party's unit at each place of the model, -1 where it has none;
            None: every unit stayed at its place.
    """

    model: Tree
    metrics: Metrics = field(default_factory=dict)
    deployed: Tree | None = None
    orders: Sequence[Mapping[str, Tensor]] | None = None


def masses(uploads: Sequence[Upload], weights: Weights) -> list[float]:
    """The weight of each party, of any sum: its own, its number of examples, or 1."""
    counts = [float(u.examples) if weights == "examples" else 1.0 for u in uploads]
    return [count if u.weight is None else u.weight for u, count in zip(uploads, counts, strict=True)]


def shares(uploads: Sequence[Upload], weights: Weights) -> list[float]:
    """The weight of each party; they add up to 1."""
    found = masses(uploads, weights)
    return [mass / sum(found) for mass in found]


def largest(uploads: Sequence[Upload]) -> int:
    """The position of the party with most examples; of equals, the first."""
    return max(range(len(uploads)), key=lambda i: (uploads[i].examples, -i))


def check_measured(uploads: Sequence[Upload], kinds: Sequence[str], cure: str = "") -> None:
    """Checks that every party measured what is needed.

    Args:
        uploads: The uploads.
        kinds: What is needed.
        cure: What whoever merges can do, for errors.

    Raises:
        InputError: Naming the first party that did not, and what it did measure.
    """
    for upload in uploads:
        for kind in kinds:
            if kind not in upload.statistics:
                has = ", ".join(upload.statistics) or "nothing"
                end = f"; {cure}" if cure else ""
                raise InputError(f"upload of {upload.party!r} holds {has}, but {kind!r} is needed{end}")


def check_alike(uploads: Sequence[Upload], *, widths: bool = False, mixtures: bool = False) -> None:
    """Checks that all models have the same names, types of numbers and shapes, and parties names of their own.

    Args:
        uploads: The uploads.
        widths: Shapes may differ where an upload brings the wiring of its own network.
        mixtures: A party may have several.

    Raises:
        InputError: Naming both parties and what differs; or if there are none.
    """
    if not uploads:
        raise InputError("there is nothing to merge: expected at least one upload")
    first, names = uploads[0], [u.party for u in uploads]
    if not mixtures and len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InputError(f"party {twice!r} is there {names.count(twice)} times; expected one upload a party")
    for other in uploads[1:]:
        if other.model.keys() != first.model.keys() or other.trained != first.trained:
            differing = sorted(other.model.keys() ^ first.model.keys()) or ["which of them are trained"]
            raise InputError(f"models of {first.party!r} and {other.party!r} differ in {differing[0]}")
        for name, value in first.model.items():
            if (dtype := other.model[name].dtype) != value.dtype:
                raise InputError(
                    f"{name!r} is {value.dtype} at {first.party!r} and {dtype} at {other.party!r}; make them one type"
                )
        if widths and (first.wiring is not None or other.wiring is not None):
            continue
        for name, value in first.model.items():
            if value.shape != other.model[name].shape:
                raise InputError(
                    f"{name!r} has shape {list(value.shape)} at {first.party!r} and {list(other.model[name].shape)} at"
                    f" {other.party!r}"
                )
