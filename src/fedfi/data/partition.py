"""Who holds which training example: the ways to divide a data set among clients.

Each function takes the targets of the examples to divide, already in random order, and returns one int64
array of positions a client. ``dirichlet`` and ``pathological`` come from flwr-datasets, which most papers of
the field now use; both are run on a table of labels only.

- ``dirichlet``: each class is divided by one draw from Dir(alpha 1_clients) (Yurochkin et al. 2019,
  arXiv:1905.12022, without its balancing).
- ``dirichlet-per-client``: client k draws q_k ~ Dir(alpha 1_classes); class c is divided in proportion to
  q_kc (FedFiOT, appendix C.1).
- ``pathological``: each client holds `classes_per_client` classes, the first of them k mod C (Li et al. 2021,
  arXiv:2102.02079). With fewer clients than classes that rule would leave classes out; then shuffled classes
  are dealt in turn, so that each class is held by somebody.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, dataclass_transform

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated

from fedfi.errors import SettingError, unknown
from fedfi.validation import fields_of, shown, validate

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Array = np.ndarray[Any, np.dtype[np.int64]]
_ATTEMPTS = 100
_Alpha = Annotated[float, Field(gt=0, examples=[0.3], description="concentration: the smaller, the more uneven")]
_Minimum = Annotated[int, Field(ge=1, description="fewest examples of a client")]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _settings(kind: type[Any]) -> type[Any]:
    return validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))(kind)


class Partition:
    """The settings of a kind of partition; what the class is called in files is in `_KINDS`."""

    by: str


@_settings
class Iid(Partition):
    """Equal sizes, examples at random."""

    by: Literal["iid"]


@_settings
class Dirichlet(Partition):
    """Each class divided among the clients by Dir(alpha)."""

    by: Literal["dirichlet"]
    alpha: _Alpha
    minimum: _Minimum = 1


@_settings
class DirichletPerClient(Partition):
    """Each client draws its preference of classes from Dir(alpha)."""

    by: Literal["dirichlet-per-client"]
    alpha: _Alpha
    minimum: _Minimum = 1


@_settings
class Pathological(Partition):
    """Each client holds classes_per_client classes only."""

    by: Literal["pathological"]
    classes_per_client: Annotated[int, Field(ge=1, description="classes that each client holds")]


@_settings
class Natural(Partition):
    """One client for each value of a column, such as the hospital."""

    by: Literal["natural"]
    column: Annotated[str | None, Field(description="column of natural ids")] = None


@_settings
class Size(Partition):
    """Client sizes as listed, examples at random, the rest unused."""

    by: Literal["size"]
    sizes: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, description="examples of each client")
    ]


_KINDS: dict[str, type[Partition]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "dirichlet-per-client": DirichletPerClient,
    "pathological": Pathological,
    "natural": Natural,
    "size": Size,
}


def partitions() -> dict[str, str]:
    """Names of the partitions with a line on each and its keys."""
    lines = {}
    for name, kind in _KINDS.items():
        keys = [key for key in fields_of(kind) if key != "by"]
        lines[name] = (kind.__doc__ or "").rstrip(".") + (f" ({', '.join(keys)})" if keys else "")
    return lines


def kinds() -> dict[str, type[Partition]]:
    """The settings of each partition by name."""
    return dict(_KINDS)


def check_partition(partition: Mapping[str, Any]) -> Partition:
    """Checks a partition as far as that is possible without data.

    Args:
        partition: Such as ``{"by": "dirichlet", "alpha": 0.3}``.

    Raises:
        SettingError: If `by` is missing or unknown, or a key is missing or unknown or has a wrong value.
    """
    choices = f"choose from {', '.join(_KINDS)}"
    if not isinstance(partition, Mapping):
        raise SettingError(f"partition = {shown(partition)}: must be a table with a key 'by' ({choices})")
    if "by" not in partition:
        raise SettingError(f"partition.by: is missing ({choices})")
    by = partition["by"]
    if not isinstance(by, str) or by not in _KINDS:
        raise SettingError(f"partition.by = {shown(by)}: {unknown('partition', by, _KINDS)}")
    return validate(_KINDS[by], _plain(partition), path=["partition"])


def check_clients(kind: Partition, clients: int | None) -> None:
    """Checks that a number of clients suits a partition.

    Args:
        kind: The partition.
        clients: None where the partition is to say it.

    Raises:
        SettingError: If the number is missing, no positive number, or another than that of the partition.
    """
    if clients is not None:
        whole("clients", clients, least=1)
    elif not isinstance(kind, Natural | Size):
        raise SettingError(
            f"clients: is missing, such as clients = 10; a partition by {kind.by!r} needs the number of clients"
        )
    if isinstance(kind, Size) and clients not in (None, len(kind.sizes)):
        listed = len(kind.sizes)
        raise SettingError(f"clients = {clients}: partition.sizes lists {listed} (nearest valid: {listed}, or none)")


def assign(targets: Array, clients: int | None, partition: Mapping[str, Any], rng: np.random.Generator) -> list[Array]:
    """Divides examples among clients by any partition but ``natural``.

    Args:
        targets: Classes of the examples, in random order, int64 ``[n]``.
        clients: Number of clients; may be None for ``size``.
        partition: As `check_partition` takes it.
        rng: The only source of randomness.

    Returns:
        Positions ``[n_k]`` of each client, none empty and none held twice.

    Raises:
        SettingError: If the partition is wrong or cannot be made of these examples.
    """
    kind = check_partition(partition)
    check_clients(kind, clients)
    if isinstance(kind, Size):
        return _by_size(targets, kind.sizes)
    assert clients is not None  # `check_partition` insists on it
    clients = int(clients)
    if clients > len(targets):
        raise SettingError(
            f"clients = {clients}: there are only {len(targets)} training examples to divide "
            f"(nearest valid: {len(targets)})"
        )
    if isinstance(kind, Pathological):
        return _pathological(targets, clients, kind.classes_per_client, rng)
    if not isinstance(kind, Dirichlet | DirichletPerClient):
        return [np.asarray(part) for part in np.array_split(np.arange(len(targets)), clients)]
    if kind.minimum * clients > len(targets):
        raise SettingError(
            f"partition.minimum = {kind.minimum}: {clients} clients with at least so many examples each need "
            f"{kind.minimum * clients}, there are {len(targets)} (nearest valid: {len(targets) // clients})"
        )
    divide = _dirichlet if isinstance(kind, Dirichlet) else _dirichlet_per_client
    return divide(targets, clients, float(kind.alpha), kind.minimum, rng)


def whole(name: str, value: object, *, least: int) -> int:
    """Returns `value` if it is a whole number of at least `least`, else raises `SettingError`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise SettingError(f"{name} = {shown(value)}: must be a whole number of at least {least}")
    if value < least:
        raise SettingError(f"{name} = {value}: must be at least {least} (nearest valid: {least})")
    return int(value)


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy's as plain ones."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def apportion(total: int, weights: np.ndarray[Any, Any], rng: np.random.Generator | None = None) -> Array:
    """Whole shares of `total` in proportion to weights, by largest remainders.

    Args:
        total: What is divided, at least 0.
        weights: ``[m]``, not negative, some positive.
        rng: Breaks ties at random; None: the first wins.

    Returns:
        int64 ``[m]`` with sum `total`, each within 1 of its exact share and 0 where the weight is 0.
    """
    exact: np.ndarray[Any, Any] = total * (weights / weights.sum())
    shares: Array = np.floor(exact).astype(np.int64)
    # The rounding hides noise of the division, which would decide ties otherwise.
    remainder = np.where(weights > 0, np.round(exact - shares, 9), -1.0)
    ties = np.arange(len(weights)) if rng is None else rng.permutation(len(weights))
    order = np.lexsort((ties, -remainder))
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def _by_size(targets: Array, sizes: tuple[int, ...]) -> list[Array]:
    if sum(sizes) > len(targets):
        raise SettingError(
            f"partition.sizes = {shown(sizes)}: sum to {sum(sizes)}, but only {len(targets)} training examples "
            "are there to divide"
        )
    ends = np.cumsum(sizes)
    return [np.arange(end - count, end) for end, count in zip(ends, sizes, strict=True)]


def _dirichlet(targets: Array, clients: int, alpha: float, minimum: int, rng: np.random.Generator) -> list[Array]:
    from flwr_datasets.partitioner import DirichletPartitioner

    for _ in range(_ATTEMPTS // 10):  # each partitioner draws up to 11 times itself
        partitioner = DirichletPartitioner(
            num_partitions=clients,
            partition_by="label",
            alpha=alpha,
            min_partition_size=minimum,
            self_balancing=False,
            seed=int(rng.integers(2**31)),
        )
        try:
            return _run(partitioner, targets, clients)
        except ValueError:
            continue
    raise _too_uneven(alpha, clients, minimum)


def _dirichlet_per_client(
    targets: Array, clients: int, alpha: float, minimum: int, rng: np.random.Generator
) -> list[Array]:
    classes = np.unique(targets)
    for _ in range(_ATTEMPTS):
        preference = rng.dirichlet(np.full(len(classes), alpha), size=clients)
        # A tiny alpha can underflow to a class that nobody wants, or to NaN.
        if not np.isfinite(preference).all() or (preference.sum(0) == 0).any():
            continue
        shares = np.stack(
            [apportion(int((targets == c).sum()), preference[:, i]) for i, c in enumerate(classes)], axis=1
        )
        if shares.sum(1).min() >= minimum:
            return _deal(targets, classes, shares)
    raise _too_uneven(alpha, clients, minimum)


def _pathological(targets: Array, clients: int, held: int, rng: np.random.Generator) -> list[Array]:
    classes, counts = np.unique(targets, return_counts=True)
    key = f"partition.classes_per_client = {held}"
    if held > len(classes):
        raise SettingError(
            f"{key}: the training examples have only {len(classes)} classes (nearest valid: {len(classes)})"
        )
    if clients * held < len(classes):
        raise SettingError(
            f"{key}: with {clients} clients, some of the {len(classes)} classes are held by nobody "
            f"(nearest valid: {-(-len(classes) // clients)}; or take more clients)"
        )
    if clients >= len(classes) and held < len(classes):
        return _pathological_flwr(targets, clients, held, rng)
    order = rng.permutation(len(classes))
    holds = np.zeros((clients, len(classes)))
    for client in range(clients):
        holds[client, order[(client * held + np.arange(held)) % len(classes)]] = 1
    if (holds.sum(0) > counts).any():
        raise _too_few(held, classes, counts, holds.sum(0))
    shares = np.stack([apportion(int(counts[i]), holds[:, i]) for i in range(len(classes))], axis=1)
    return _deal(targets, classes, shares)


def _pathological_flwr(targets: Array, clients: int, held: int, rng: np.random.Generator) -> list[Array]:
    """The published rule; it ends because `held` is below the number of classes that there are."""
    from flwr_datasets.partitioner import PathologicalPartitioner

    for _ in range(_ATTEMPTS // 10):
        partitioner = PathologicalPartitioner(
            num_partitions=clients,
            partition_by="label",
            num_classes_per_partition=held,
            class_assignment_mode="first-deterministic",
            seed=int(rng.integers(2**31)),
        )
        try:
            return _run(partitioner, targets, clients)
        except ValueError:  # a class has fewer examples than clients that were to hold it
            continue
    classes, counts = np.unique(targets, return_counts=True)
    raise _too_few(held, classes, counts, np.full(len(classes), clients * held / len(classes)))


def _run(partitioner: Partitioner, targets: Array, clients: int) -> list[Array]:
    """Runs a partitioner of flwr-datasets on labels alone; what it warns of, the callers check."""
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({"label": targets, "index": np.arange(len(targets))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [partitioner.load_partition(client) for client in range(clients)]
    return [np.asarray(part.with_format("numpy")["index"][:], dtype=np.int64) for part in parts]


def _deal(targets: Array, classes: Array, shares: Array) -> list[Array]:
    """Gives client k the next ``shares[k, i]`` examples of class i; shares ``[clients, classes]``."""
    held: list[list[Array]] = [[] for _ in shares]
    for i, label in enumerate(classes):
        pieces = np.split(np.flatnonzero(targets == label), np.cumsum(shares[:, i])[:-1])
        for client, piece in enumerate(pieces):
            held[client].append(piece)
    return [np.concatenate(pieces) for pieces in held]


def _too_uneven(alpha: float, clients: int, minimum: int) -> SettingError:
    return SettingError(
        f"partition.alpha = {alpha:g}: {_ATTEMPTS} draws all left one of {clients} clients with fewer than {minimum} "
        "examples, or a class to nobody; raise alpha, or take fewer clients or a smaller minimum"
    )


def _too_few(held: int, classes: Array, counts: Array, wanted: np.ndarray[Any, Any]) -> SettingError:
    worst = int(np.argmax(wanted - counts))
    return SettingError(
        f"partition.classes_per_client = {held}: class {classes[worst]} has {counts[worst]} examples, fewer than "
        "clients that are to hold it; take fewer clients or fewer classes_per_client"
    )
