"""Calling a method's own functions: what one returns wrongly, or raises, is one line that names it and the place.

Only errors that a user's code had a part in are worded; others are faults of fedfi, and keep their trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fedfi.arguments import described
from fedfi.errors import InputError, RunError, first_line, out_of_memory
from fedfi.federation.algorithm import Algorithm, Metrics, Reply
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.importing import place


def started(method: Algorithm[Any], *arguments: Any) -> Any:
    """The server's state before the first round.

    Raises:
        InputError: If `init` returns nothing.
        RunError: If it fails in a user's code.
    """
    with _naming(method, "init"):
        state = method.init(*arguments)
    if state is None:
        raise _wrong(method, "init", "the server's state", state)
    return state


def pairs(method: Algorithm[Any], hook: str, *arguments: Any, what: str = "client") -> Iterator[tuple[str, Packet]]:
    """The pairs of a name and a packet that a function of a method gives, such as ``"configure"``; lazily.

    Raises:
        InputError: If it gives something else, or a name twice.
        RunError: If it fails in a user's code.
    """
    expected = f"pairs of a {what} and a fedfi.Packet"
    with _naming(method, hook):
        found = getattr(method, hook)(*arguments)
    if not isinstance(found, Iterable) or isinstance(found, str | Mapping | Packet):
        raise _wrong(method, hook, expected, found)
    seen: set[str] = set()
    with _naming(method, hook):
        for pair in found:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise _wrong(method, hook, expected, pair, "as one of them")
            name, packet = pair
            if not isinstance(name, str):
                raise _wrong(method, hook, f"{expected}, whose {what} is a text", name, f"as a {what}")
            check_packet(method, hook, packet, "as a packet")
            if name in seen:
                raise InputError(f"{_name(method, hook)} names {what} {name!r} twice")
            seen.add(name)
            yield name, packet


def layout(method: Algorithm[Any], hook: str, state: Any, packet: Packet) -> Layout:
    """What the reply to a packet must contain.

    Raises:
        InputError: If the function returns something else.
        RunError: If it fails in a user's code.
    """
    with _naming(method, hook):
        found = getattr(method, hook)(state, packet)
    if not isinstance(found, Layout):
        raise _wrong(method, hook, "a fedfi.Layout", found)
    return found


def folded(
    method: Algorithm[Any], hook: str, state: Any, round: int, replies: Iterator[Reply], rng: Any
) -> tuple[Any, Metrics]:
    """The next state and the round's numbers.

    Raises:
        InputError: If the function returns something else.
        RunError: If it fails in a user's code.
    """
    expected = "the next state and a dictionary of numbers"
    with _naming(method, hook):
        found = getattr(method, hook)(state, round, replies, rng)
    if not isinstance(found, tuple) or len(found) != 2:
        raise _wrong(method, hook, expected, found)
    state, metrics = found
    if state is None:
        raise _wrong(method, hook, expected, state, "as the state")
    return state, check_metrics(method, hook, metrics, expected)


def deployed(method: Algorithm[Any], state: Any) -> Tree:
    """The global model.

    Raises:
        InputError: If `global_model` returns something else.
        RunError: If it fails in a user's code.
    """
    expected = "every parameter and buffer by name"
    with _naming(method, "global_model"):
        found = method.global_model(state)
    if not isinstance(found, Mapping):
        raise _wrong(method, "global_model", expected, found)
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor):
            raise _wrong(method, "global_model", expected, tensor, f"as {name!r}")
    return dict(found)


def check_packet(method: Algorithm[Any], hook: str, packet: Any, where: str = "") -> Packet:
    """Checks that a function of a method gave a packet that can travel.

    Raises:
        InputError: If it did not, naming the entry.
    """
    if not isinstance(packet, Packet):
        raise _wrong(method, hook, "a fedfi.Packet", packet, where)
    for part, kind, expected in (
        ("tensors", Tensor, "tensors by name"),
        ("scalars", int | float | str, "numbers, truth values or texts by name"),
        ("blobs", bytes, "bytes by name"),
    ):
        entries = getattr(packet, part)
        if not isinstance(entries, Mapping):
            raise _wrong(method, hook, f"a fedfi.Packet whose {part} are {expected}", entries)
        for name, value in entries.items():
            if not isinstance(name, str) or not isinstance(value, kind):
                what = f"a fedfi.Packet whose {part} are {expected}"
                raise _wrong(method, hook, what, value, f"as {name!r}{_mended(value, part)}")
    return packet


def check_metrics(method: Algorithm[Any], hook: str, metrics: Any, expected: str) -> Metrics:
    """Checks that a function of a method gave numbers by name.

    Raises:
        InputError: If it did not, naming the entry.
    """
    if not isinstance(metrics, Mapping):
        raise _wrong(method, hook, expected, metrics, "as the dictionary" if "state" in expected else "")
    for name, value in metrics.items():
        if not isinstance(name, str) or not isinstance(value, int | float | str):
            raise _wrong(method, hook, expected, value, f"as {name!r}{_mended(value)}")
    return dict(metrics)


def _mended(value: Any, part: str = "scalars") -> str:
    return "; give its .item()" if part == "scalars" and hasattr(value, "item") else ""


def _name(method: Algorithm[Any], hook: str) -> str:
    return f"{type(method).__name__}.{hook}"


def _wrong(method: Algorithm[Any], hook: str, expected: str, given: Any, where: str = "") -> InputError:
    told = f"{described(given)} {where}".strip()
    return InputError(f"{_name(method, hook)} must return {expected}, got {told}")


@contextmanager
def _naming(method: Algorithm[Any], hook: str) -> Iterator[None]:
    """Within it, an error that a user's code had a part in is one line that names the function."""
    try:
        yield
    except (InputError, RunError, OSError):
        raise
    except Exception as error:
        where = place(error)
        if not where or out_of_memory(error):
            raise
        raise RunError(f"{_name(method, hook)} failed: {first_line(error)}{where}") from error
