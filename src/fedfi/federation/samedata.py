"""Whether data are still those that a run began with, by its `split.json`; and a recommender's own, read from there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfi.data.federated import FederatedData
from fedfi.data.ratings import RatingsData
from fedfi.errors import InputError, PlaceError, some
from fedfi.federation.record import RunDirectory

FILE = "split.json"
_SAME = ("hash", "size")


def check_same_data(directory: Path, data: FederatedData | RatingsData) -> None:
    """Checks that the data are still those that a run began with.

    Args:
        directory: The run directory; where it has no `split.json`, nothing is checked.
        data: As they are now.

    Raises:
        InputError: Naming what changed: clients or users, items, examples of the server.
    """
    path = directory / FILE
    if not path.exists():
        return
    before, now = _read(path), data.split_record()
    try:
        changes = list(_changes(before, now))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(path, error, "; remove it to go on unchecked") from error
    if changes:
        raise PlaceError(
            f"{path}: the data are not those that the run began with: {'; '.join(changes)}; put them back as they"
            f" were, or {RunDirectory(directory).anew()}"
        )


def recorded_ratings(directory: Path) -> RatingsData | None:
    """The users, items and interactions that a run of ratings began with, whatever became of the file since.

    None where the run's record does not say them all: an older one, which has no names of items, or one of users who
    keep their interactions to themselves.

    Args:
        directory: The run directory.

    Raises:
        InputError: If there is no record, or it is damaged.
    """
    path = directory / FILE
    if not path.exists():
        raise PlaceError(
            f"{path}: is missing, so nobody knows which table is whose: {RunDirectory(directory).restored()}"
        )
    record = _read(path)
    try:
        if "names" not in record["items"] or not all(isinstance(own, Mapping) for own in record["clients"].values()):
            return None
        return RatingsData.of_record(record)
    except (InputError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(path, error, f"; {RunDirectory(directory).restored()}") from error


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, error, "; remove it to go on unchecked") from error
    return found


def _damaged(path: Path, error: Exception, advice: str) -> PlaceError:
    return PlaceError(f"{path}: is damaged ({type(error).__name__}: {error}){advice}")


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs between two records of `split_record`, in words."""
    ratings = "items" in now
    client, own = ("user", "interactions") if ratings else ("client", "examples")
    old, new = before["clients"], now["clients"]
    if ratings:
        yield from _other_items(before["items"], now["items"])
        if "names" not in before["items"]:  # as older runs wrote it: numbers are compared
            now = {**now, "items": {}}
    yield from _counted([name for name in new if name not in old], client, "new")
    yield from _counted([name for name in old if name not in new], client, "gone")
    differing = [name for name in old if name in new and _held(old[name], before) != _held(new[name], now)]
    if differing:
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        yield f"the {own} of {client} {differing[0]!r}{more} are others"
    for split in () if ratings else ("test", "validation"):
        if _held(before[split], before) != _held(now[split], now):
            yield f"the examples of {split} are others"


def _other_items(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if before["hash"] == now["hash"]:
        return
    if "names" not in before:  # as older runs wrote it
        yield f"there are {now['size']} items or other ones, there were {before['size']}"
        return
    old, new = set(before["names"]), set(now["names"])
    yield from _counted([name for name in now["names"] if name not in old], "item", "new")
    yield from _counted([name for name in before["names"] if name not in new], "item", "gone")
    if old == new:
        yield "the items come in another order"


def _counted(names: Sequence[str], noun: str, what: str) -> Iterator[str]:
    if names:
        yield f"{noun} {some(names)} {'is' if len(names) == 1 else 'are'} {what}"


def _held(part: Any, record: Mapping[str, Any]) -> Any:
    """What a client or the server holds, so that it can be compared: items by name where their names are known."""
    if not isinstance(part, Mapping):  # nothing, or elsewhere
        return part
    if "hash" not in part:
        return {name: _held(value, record) for name, value in part.items()}
    names = record.get("items", {}).get("names")
    if names is None:
        return [part[key] for key in _SAME]
    return sorted(names[item] for item in part["indices"])
