"""Table `[algorithm]`: the method that it names, inside the wrappers whose tables it holds; and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from fedfi import registry
from fedfi.errors import InputError, unknown
from fedfi.federation.algorithm import SIZES, Algorithm, put_over
from fedfi.federation.task import Training
from fedfi.importing import call
from fedfi.personal.replica import around
from fedfi.validation import fields_of, nearest_key, shown, validate

Tables = Mapping[str, Any]


def choose(table: Tables, name: str) -> dict[str, Any]:
    """The keys of a file's `[algorithm]` that apply to the method `name`: those that it has, too, and all wrappers."""
    if table.get("name") == name:
        return dict(table)
    known = {*fields_of(registry.algorithm(name)), *registry.wrappers()}
    return {"name": name} | {k: v for k, v in table.items() if k in known}


def method_of(table: Tables, source: str, rounds: int) -> Algorithm[Any]:
    """The method of a table `[algorithm]`.

    Args:
        table: Its keys.
        source: Where they come from; errors start with it.
        rounds: Of the experiment, which a budget of privacy must last.

    Raises:
        InputError: In one line: source, key, value and the nearest valid one.
    """
    keys = dict(table)
    name, preset = keys.pop("name", None), keys.pop("preset", None)
    if name is None:
        raise InputError(f"{source}: algorithm.name: is missing (`{registry.LISTED_BY}` prints all methods)")
    try:
        kind = registry.algorithm(str(name))
    except InputError as error:
        raise InputError(f"{source}: algorithm.name = {shown(name)}: {error}") from error
    outside = {wrapper: keys.pop(wrapper) for wrapper in _outside(kind, keys)}
    if preset is not None:
        if preset not in kind.presets:
            reason = unknown("preset", preset, kind.presets) if kind.presets else f"{name!r} has no presets"
            raise InputError(f"{source}: algorithm.preset = {shown(preset)}: {reason}")
        keys = put_over(kind.presets[preset], keys, kind.instead)
    if all(key in keys for key in SIZES):
        given = ", ".join(f"{key} = {shown(keys[key])}" for key in SIZES)
        raise InputError(f"{source}: algorithm: give {' or '.join(SIZES)}, not both (got {given})")
    _refuse_unknown(kind, keys, source)
    what = f"{source}: algorithm {name!r}"
    method: Algorithm[Any] = call(validate, what, kind, keys, source=source, path=["algorithm"])
    for wrapper, options in outside.items():
        method = _wrapped(method, wrapper, options, source, rounds)
    return method


def table_of(method: Algorithm[Any], table: Tables) -> dict[str, Any]:
    """What `method_of` made out of a table, as a table with every default."""
    outside: dict[str, Any] = {}
    for wrapper in reversed(_outside(registry.algorithm(str(table["name"])), table)):
        options = TypeAdapter(type(method)).dump_python(method, mode="json", exclude={"algorithm", *SIZES})
        outside = {wrapper: options} | outside
        method = method.algorithm  # type: ignore[attr-defined]  # a wrapper's
    own = TypeAdapter(type(method)).dump_python(method, mode="json")
    if method.clients_per_round is not None:
        own.pop("participation")
    found: dict[str, Any] = {k: table[k] for k in ("name", "preset") if k in table} | own | outside
    return found


def place_of(method: Any, key: str) -> str:
    """The table in which a dotted key of a method, or of what is wrapped around it, lies; empty for what is no key."""
    wrappers = {registry.wrapper(name): name for name in registry.wrappers()}
    first = key.partition(".")[0]
    while method is not None and first not in fields_of(type(method)):
        method = getattr(method, "algorithm", None)
    if method is None:
        return ""
    wrapper = wrappers.get(type(method))
    return "algorithm" if wrapper is None or first in SIZES else f"algorithm.{wrapper}"


def alternatives(tables: Tables, table: Sequence[str]) -> Sequence[tuple[str, ...]]:
    """Groups of keys of which one stands instead of the others.

    Args:
        tables: All of an experiment.
        table: The names that lead to the table whose keys they are, such as ``("algorithm", "private")``.
    """
    if list(table) == ["train"]:
        return Training.instead
    if not table or table[0] != "algorithm":
        return ()
    try:
        if len(table) == 1:
            return (SIZES, *registry.algorithm(str(tables["algorithm"].get("name"))).instead)
        instead: Sequence[tuple[str, ...]] = registry.wrapper(table[1]).instead
    except (InputError, LookupError):  # no such method or wrapper, which is told with the table
        return (SIZES,)
    return instead


def options_of(wrapper: str) -> list[str]:
    """The keys of a wrapper's table; what it wraps, and who takes part, are said around it."""
    return [key for key in fields_of(registry.wrapper(wrapper)) if key not in ("algorithm", *SIZES)]


def _refuse_unknown(kind: type[Any], keys: Tables, source: str) -> None:
    """Refuses keys that a method lacks; the nearest may be a table around it, unknown to its own validation."""
    own = fields_of(kind)
    if own and issubclass(kind, Algorithm):
        valid = sorted({*own, "name", "preset", *around(kind)})
        for key in keys:
            if key not in own:
                raise InputError(f"{source}: algorithm.{key}: unknown key; {nearest_key(key, valid)}")


def _outside(kind: type[Any], keys: Tables) -> list[str]:
    """The wrappers that a table holds, from the inside out; a method's own option of that name is no wrapper."""
    return [w for w in registry.wrappers() if w in keys and w not in fields_of(kind)]


def _wrapped(method: Algorithm[Any], wrapper: str, options: Any, source: str, rounds: int) -> Algorithm[Any]:
    if not isinstance(options, Mapping):
        raise InputError(f"{source}: algorithm.{wrapper} = {shown(options)}: must be a table (nearest valid: {{}})")
    known = options_of(wrapper)
    for key in options:
        if key in SIZES:
            raise InputError(f"{source}: algorithm.{wrapper}.{key}: unknown key; it belongs to algorithm.{key}")
        if key not in known:
            raise InputError(f"{source}: algorithm.{wrapper}.{key}: {unknown('key', key, known)}")
    if "rounds" in known and "epsilon" in options:
        options = {"rounds": rounds} | dict(options)
        if isinstance(options["rounds"], int) and options["rounds"] < rounds:
            given = f"algorithm.{wrapper}.rounds = {options['rounds']}"
            raise InputError(f"{source}: {given}: the run has more (nearest valid: {rounds})")
    sizes = {key: getattr(method, key) for key in SIZES if getattr(method, key) is not None}
    if "clients_per_round" in sizes:
        sizes.pop("participation")
    found: Algorithm[Any] = validate(
        registry.wrapper(wrapper),
        {**options, **sizes, "algorithm": wrapper},  # a place, which the context fills
        source=source,
        path=["algorithm", wrapper],
        context={"algorithm": method},
    )
    return found
