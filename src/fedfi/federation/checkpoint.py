"""Saving and restoring a run: one file a checkpoint, written aside, named by its own digest, then renamed.

The file is an encoded packet, hence readable by any safetensors reader. Its name carries the round and a digest of
its bytes, so a truncated or flipped file is recognised, and the checkpoint before it is used instead.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedfi.errors import OutputError, RunError
from fedfi.federation.packet import Packet, PacketError, Tree, decode
from fedfi.federation.rows import RowStore

KEEP = 2
_NAME = re.compile(r"round-(\d{6})-([0-9a-f]{16})\.safetensors")
_BEST = re.compile(r"best-(\d{6})-([0-9a-f]{16})\.safetensors")
_DAMAGED = "round-*.damaged"
"""What `load` calls checkpoints that it found damaged."""


UNSAVED = {"saved": False}
"""Metadata of a field that `init` makes anew each time, such as a network to try models on; no checkpoint holds it."""


def flatten(value: Any, tensors: Tree, path: str = "state") -> Any:
    """Puts the tensors of a nested state into `tensors` and returns the rest as JSON-able structure."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, RowStore):
        return {"rows": value.describe()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"fields": {f.name: flatten(getattr(value, f.name), tensors, f"{path}.{f.name}") for f in _saved(value)}}
    if isinstance(value, Mapping):
        return {"table": [[k, flatten(v, tensors, f"{path}[{k}]")] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [flatten(v, tensors, f"{path}[{i}]") for i, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"{path} is a {type(value).__name__}, which a checkpoint cannot hold")


def unflatten(structure: Mapping[str, Any], tensors: Mapping[str, Tensor], template: Any) -> Any:
    """The inverse of `flatten`; `template` is a state of the same kind, which gives dataclasses their types."""
    (kind, content), *_ = structure.items()
    if kind == "tensor":
        return tensors[content].clone()
    if kind == "rows":
        return template  # its rows are restored when the whole is there
    if kind == "fields":
        restored = {k: unflatten(v, tensors, getattr(template, k)) for k, v in content.items()}
        return dataclasses.replace(template, **restored)
    if kind == "table":
        given = template if isinstance(template, Mapping) else {}
        return {k: unflatten(v, tensors, given.get(k)) for k, v in content}
    if kind == "list":
        templates = [*template] if isinstance(template, list | tuple) else []
        templates += [None] * (len(content) - len(templates))
        items = [unflatten(v, tensors, t) for v, t in zip(content, templates, strict=False)]
        return tuple(items) if isinstance(template, tuple) else items
    return content


def _saved(value: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(value) if f.metadata.get("saved", True)]


def row_stores(value: Any) -> Iterator[RowStore]:
    """All row stores of a nested state, in a fixed order."""
    if isinstance(value, RowStore):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in _saved(value):
            yield from row_stores(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from row_stores(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from row_stores(item)


def with_stores(value: Any, other: Callable[[RowStore], RowStore]) -> Any:
    """A nested state with another row store in each one's place; all else is shared with the first."""
    if isinstance(value, RowStore):
        return other(value)
    if next(row_stores(value), None) is None:
        return value
    if isinstance(value, Mapping):
        return {k: with_stores(item, other) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_stores(item, other) for item in value)
    changed = {f.name: with_stores(getattr(value, f.name), other) for f in _saved(value)}
    return dataclasses.replace(value, **changed)


def save(directory: Path, rounds: int, content: Any) -> Path:
    """Writes a checkpoint of `rounds` finished rounds and drops all but the newest `KEEP`.

    Raises:
        RunError: If the disk refuses; earlier checkpoints are left as they are.
    """
    for store in row_stores(content):
        store.flush()
    tensors: Tree = {}
    structure = flatten(content, tensors)
    packet = Packet(tensors, {"structure": json.dumps(structure), "rounds": rounds})
    encoded = packet.encode()
    digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    path = directory / f"round-{rounds:06d}-{digest}.safetensors"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encoded)
    except OSError as error:
        raise RunError(
            f"cannot write the checkpoint of round {rounds} to {directory}: {error.strerror or error};"
            " earlier checkpoints are intact, `fedfi resume` continues from them"
        ) from error
    for part in directory.glob(".*.part"):  # of a process that was killed while writing; no other writes here now
        part.unlink(missing_ok=True)
    for store in row_stores(content):
        store.hold(KEEP)
    for _, old in _listed(directory)[KEEP:]:
        old.unlink()
    return path


def load(directory: Path, template: Any, report: Callable[[str], None], *, read_only: bool = False) -> tuple[int, Any]:
    """The newest intact checkpoint: finished rounds, and content of the template's kind.

    Args:
        directory: Where checkpoints lie.
        template: A freshly initialised content of the same kind.
        report: Told of each damaged checkpoint that is passed over.
        read_only: Leave damaged checkpoints as they are called.

    Raises:
        RunError: If there is none.
    """
    intact: list[tuple[int, str, Any, Packet]] = []
    reasons: list[str] = []
    found_damaged = sorted(directory.glob(_DAMAGED), reverse=True)
    for rounds, path in _listed(directory):
        try:
            packet = _intact(path)
            intact.append((rounds, path.name, json.loads(str(packet.scalars["structure"])), packet))
        except (PacketError, ValueError, KeyError) as error:
            reasons.append(f"{path.name} {error}")
            report(f"checkpoint {path.name} {error} and is passed over")
            if not read_only:
                path.rename(path.with_suffix(".damaged"))
    for number, (rounds, name, structure, packet) in enumerate(intact):
        older = [list(_described_rows(s)) for _, _, s, _ in reversed(intact[number + 1 :])]
        try:
            content = unflatten(structure, packet.tensors, template)
            for i, store in enumerate(row_stores(content)):
                store.restore(list(_described_rows(structure))[i], [rows[i] for rows in older])
            return rounds, content
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            reasons.append(f"{name}: {type(error).__name__}: {error}")
            report(f"checkpoint {reasons[-1]}, and is passed over")
    before = [f"{path.name} was found damaged before" for path in found_damaged]
    raise RunError("; ".join([f"there is no usable checkpoint in {directory}", *reasons, *before]))


def peek(directory: Path, name: str) -> Any:
    """A plain field of the newest checkpoint, from its header alone; None if there is none that can be read.

    Args:
        directory: Where checkpoints lie.
        name: The field of the content.
    """
    for _, path in _listed(directory):
        try:
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            structure = json.loads(json.loads(header["__metadata__"]["scalars"])["structure"])
            return structure["fields"][name]["value"]
        except (OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError):
            continue  # damaged; `load` says so
    return None


def keep_best(directory: Path, rounds: int, content: Any) -> None:
    """Keeps the checkpoint of a round, which has just been saved, beside the newest ones, instead of another.

    Raises:
        RunError: If the disk refuses.
    """
    newest = next(path for number, path in _listed(directory) if number == rounds)
    best = newest.with_name(newest.name.replace("round-", "best-"))
    try:
        _link(newest, best)
    except OSError as error:
        raise RunError(f"cannot keep {newest} as {best.name}: {error.strerror or error}") from error
    pin(content, content)
    for old in _kept(directory):
        if old != best:
            old.unlink()


def pin(content: Any, kept: Any) -> None:
    """Keeps the rows on disk that `kept` refers to, whatever the row stores of `content` come to hold."""
    for store, rows in zip(row_stores(content), row_stores(kept), strict=True):
        store.pin(rows)


def load_best(directory: Path, template: Any) -> tuple[int, Any] | None:
    """The checkpoint that `keep_best` kept, as `load` would give it; None where there is none.

    Raises:
        RunError: If it is damaged.
    """
    for path in _kept(directory):
        try:
            packet = _intact(path)
            structure = json.loads(str(packet.scalars["structure"]))
            content = unflatten(structure, packet.tensors, template)
            for store, described in zip(row_stores(content), _described_rows(structure), strict=True):
                store.restore(described)
        except (PacketError, ValueError, LookupError, TypeError, AttributeError) as error:
            number = int(path.name.split("-")[1])
            raise RunError(f"the checkpoint of the best round, {number}, cannot be used: {path}: {error}") from error
        return int(packet.scalars["rounds"]), content
    return None


def best_rounds(directory: Path) -> list[int]:
    """Of which rounds `keep_best` kept a checkpoint, the latest first, by name alone."""
    return [int(path.name.split("-")[1]) for path in _kept(directory)]


def _kept(directory: Path) -> list[Path]:
    """Checkpoints of best rounds, the latest first; more than one only if a process ended while it replaced one."""
    found = directory.iterdir() if directory.is_dir() else ()
    return sorted((p for p in found if _BEST.fullmatch(p.name)), reverse=True)


def _link(path: Path, other: Path) -> None:
    """A second name for a file; a copy where the file system has no such thing."""
    aside = other.with_name(f".{other.name}.part")
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        write_atomically(other, path.read_bytes())
        return
    aside.replace(other)


def _intact(path: Path) -> Packet:
    encoded = path.read_bytes()
    found = _NAME.fullmatch(path.name) or _BEST.fullmatch(path.name)
    assert found  # the listing holds nothing else
    if hashlib.blake2b(encoded, digest_size=8).hexdigest() != found[2]:
        raise PacketError("is damaged")
    return decode(encoded)


def _described_rows(structure: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The descriptions of row stores in a flattened state, in the order of `row_stores`."""
    (kind, content), *_ = structure.items()
    if kind == "rows":
        yield content
    elif kind == "fields":
        for item in content.values():
            yield from _described_rows(item)
    elif kind == "table":
        for _, item in content:
            yield from _described_rows(item)
    elif kind == "list":
        for item in content:
            yield from _described_rows(item)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file aside, forces it to disk and renames it, so that it is whole or not there.

    Processes that write the same file do so aside of each other; the last one to finish stays.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:  # Ctrl-C and SIGTERM, too, leave nothing behind
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_output(path: Path, content: bytes) -> None:
    """Writes what a user asked for to a file, whole or not at all, and makes the folders above it that are missing.

    A link is followed: the file that it names is written. A pipe or a device, such as ``/dev/null``, is written into.

    Raises:
        OutputError: If nothing can be written there.
    """
    check_output(path)
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as special:
                special.write(content)
            return
        file = path.resolve()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    except RuntimeError as error:  # what a circle of links is to pathlib
        raise OutputError(f"{path}: cannot be written: {error}") from error


def check_output(path: Path) -> None:
    """Refuses a folder where a file is to be written, before any work is done for it.

    Raises:
        OutputError: If it is one; an empty name is the folder that one is in.
    """
    if path.is_dir():
        raise OutputError(f"{path}: is a folder, expected the name of a file, such as {path / 'NAME'}")


def any_in(directory: Path) -> bool:
    """Whether a checkpoint was ever finished there."""
    return bool(_listed(directory)) or any(directory.glob(_DAMAGED))


def _listed(directory: Path) -> list[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    found = [(m, p) for p in directory.iterdir() if (m := _NAME.fullmatch(p.name)) and p.is_file()]
    found.sort(key=lambda item: (int(item[0][1]), item[1].stat().st_mtime_ns), reverse=True)
    return [(int(match[1]), path) for match, path in found]


def tensors_to_file(path: Path, tree: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Writes a model as a safetensors file, atomically; `about` becomes its metadata."""
    write_atomically(path, serialised(tree, about))


def serialised(tree: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    """A model as the content of a safetensors file; `about` becomes its metadata."""
    from safetensors.torch import save as serialise

    tensors = {k: t.detach().cpu().contiguous().clone() for k, t in tree.items()}
    return serialise(tensors, dict(about) if about else None)


def tensors_from_file(path: Path) -> Tree:
    """Reads a model from a safetensors file."""
    from safetensors.torch import load as parse

    return dict(parse(path.read_bytes()))
