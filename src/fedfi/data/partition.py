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

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfi.errors import InputError, unknown

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Array = np.ndarray[Any, np.dtype[np.int64]]
_ATTEMPTS = 100


@dataclass(frozen=True)
class _Kind:
    summary: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


_KINDS = {
    "iid": _Kind("Equal sizes, examples at random"),
    "dirichlet": _Kind(
        "Each class divided among the clients by Dir(alpha)", required=("alpha",), optional=("minimum",)
    ),
    "dirichlet-per-client": _Kind(
        "Each client draws its preference of classes from Dir(alpha)",
        required=("alpha",),
        optional=("minimum",),
    ),
    "pathological": _Kind("Each client holds classes_per_client classes only", required=("classes_per_client",)),
    "natural": _Kind("One client for each value of a column, such as the hospital", optional=("column",)),
    "size": _Kind("Client sizes as listed, examples at random, the rest unused", required=("sizes",)),
}


def partitions() -> dict[str, str]:
    """Names of the partitions with a line on each and its keys."""
    return {
        name: kind.summary + (f" ({', '.join(kind.required + kind.optional)})" if _keys(kind) else "")
        for name, kind in _KINDS.items()
    }


def check_partition(partition: Mapping[str, Any]) -> str:
    """Checks the keys of a partition and returns its kind.

    Args:
        partition: Such as ``{"by": "dirichlet", "alpha": 0.3}``.

    Raises:
        InputError: If `by` is missing or unknown, or a key is missing or unknown.
    """
    if not isinstance(partition, Mapping) or "by" not in partition:
        raise InputError(f"partition needs a key 'by' (choose from {', '.join(_KINDS)}), got {partition!r}")
    by = partition["by"]
    if not isinstance(by, str) or by not in _KINDS:
        raise InputError(unknown("partition", by, _KINDS))
    kind = _KINDS[by]
    for key in partition:
        if key != "by" and key not in _keys(kind):
            known = ("by", *_keys(kind))
            raise InputError(f"partition by {by!r}: " + unknown("key", key, known))
    for key in kind.required:
        if key not in partition:
            raise InputError(f"partition by {by!r} needs a key {key!r}")
    return str(by)


def assign(targets: Array, clients: int | None, partition: Mapping[str, Any], rng: np.random.Generator) -> list[Array]:
    """Divides examples among clients by any partition but ``natural``.

    Args:
        targets: Classes of the examples, in random order, int64 ``[n]``.
        clients: Number of clients; may be None for ``size``.
        partition: Checked by `check_partition`.
        rng: The only source of randomness.

    Returns:
        Positions ``[n_k]`` of each client, none empty and none held twice.

    Raises:
        InputError: If the partition cannot be made.
    """
    by = partition["by"]
    if by == "size":
        return _by_size(targets, clients, partition["sizes"])
    if clients is None:
        raise InputError(f"partition by {by!r} needs the number of clients")
    clients = whole("clients", clients, least=1)
    if clients > len(targets):
        raise InputError(f"{clients} clients, but only {len(targets)} training examples to divide")
    if by == "iid":
        return [np.asarray(part) for part in np.array_split(np.arange(len(targets)), clients)]
    if by == "pathological":
        return _pathological(targets, clients, partition["classes_per_client"], rng)
    alpha = partition["alpha"]
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise InputError(f"partition by {by!r}: alpha must be a positive number, got {alpha!r}")
    minimum = whole("minimum", partition.get("minimum", 1), least=1)
    if minimum * clients > len(targets):
        raise InputError(
            f"partition by {by!r}: {clients} clients with at least {minimum} examples each need "
            f"{minimum * clients}, there are {len(targets)}"
        )
    divide = _dirichlet if by == "dirichlet" else _dirichlet_per_client
    return divide(targets, clients, float(alpha), minimum, rng)


def whole(name: str, value: object, *, least: int) -> int:
    """Returns `value` if it is a whole number of at least `least`, else raises `InputError`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


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


def _keys(kind: _Kind) -> tuple[str, ...]:
    return kind.required + kind.optional


def _by_size(targets: Array, clients: int | None, sizes: object) -> list[Array]:
    if isinstance(sizes, str) or not isinstance(sizes, list | tuple) or not sizes:
        raise InputError(f"partition by 'size': sizes must be a list of numbers of examples, got {sizes!r}")
    counts = [whole(f"partition by 'size': sizes[{i}]", size, least=1) for i, size in enumerate(sizes)]
    if clients is not None and clients != len(counts):
        raise InputError(f"partition by 'size' lists {len(counts)} sizes for {clients} clients")
    if sum(counts) > len(targets):
        raise InputError(
            f"partition by 'size': sizes sum to {sum(counts)}, but only {len(targets)} training examples "
            "are there to divide"
        )
    ends = np.cumsum(counts)
    return [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]


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
    raise _too_uneven("dirichlet", clients, alpha, minimum)


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
    raise _too_uneven("dirichlet-per-client", clients, alpha, minimum)


def _pathological(targets: Array, clients: int, classes_per_client: object, rng: np.random.Generator) -> list[Array]:
    held = whole("partition by 'pathological': classes_per_client", classes_per_client, least=1)
    classes, counts = np.unique(targets, return_counts=True)
    if held > len(classes):
        raise InputError(
            f"partition by 'pathological': classes_per_client is {held}, but the training examples have "
            f"only {len(classes)} classes"
        )
    if clients * held < len(classes):
        raise InputError(
            f"partition by 'pathological': {clients} clients with {held} classes each leave some of the "
            f"{len(classes)} classes to nobody; take more of either"
        )
    if clients >= len(classes) and held < len(classes):
        return _pathological_flwr(targets, clients, held, rng)
    order = rng.permutation(len(classes))
    holds = np.zeros((clients, len(classes)))
    for client in range(clients):
        holds[client, order[(client * held + np.arange(held)) % len(classes)]] = 1
    if (holds.sum(0) > counts).any():
        raise InputError(_too_few(classes, counts, holds.sum(0)))
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
    raise InputError(_too_few(classes, counts, np.full(len(classes), clients * held / len(classes))))


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


def _too_uneven(by: str, clients: int, alpha: float, minimum: int) -> InputError:
    return InputError(
        f"partition by {by!r}: {_ATTEMPTS} draws with alpha {alpha:g} all left one of {clients} clients with "
        f"fewer than {minimum} examples, or a class to nobody; raise alpha, or take fewer clients or a "
        "smaller minimum"
    )


def _too_few(classes: Array, counts: Array, wanted: np.ndarray[Any, Any]) -> str:
    worst = int(np.argmax(wanted - counts))
    return (
        f"partition by 'pathological': class {classes[worst]} has {counts[worst]} examples, fewer than "
        "clients that are to hold it; take fewer clients or fewer classes_per_client"
    )
