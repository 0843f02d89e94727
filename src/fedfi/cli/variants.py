"""What is compared: methods named on the command line, and variants that the file describes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from fedfi import registry
from fedfi.composing import choose
from fedfi.errors import InputError, unknown
from fedfi.experiment import Experiment, from_dict
from fedfi.federation.algorithm import put_over
from fedfi.federation.task import Training
from fedfi.importing import is_module


def variants(experiment: Experiment, algorithms: str | None) -> dict[str, Experiment]:
    """The experiments to compare by label, all with the seed of the file.

    Keys of the file's `[algorithm]` apply to every method that has them too.

    Args:
        experiment: The file.
        algorithms: Such as ``"fedavg,fedfibos:as-published,mine=fedfibos"``; None for the file's variants
            alone, or for its own method if it has none.

    Raises:
        InputError: If a label, method, preset or key is wrong.
    """
    found: dict[str, Experiment] = {}
    own = dict(experiment.settings.compare)
    if algorithms is None and not own:
        algorithms = str(experiment.settings.algorithm["name"])
    for item in [i.strip() for i in (algorithms or "").split(",") if i.strip()]:
        label, name, preset = parse_item(item)
        chosen: dict[str, object] = {"preset": preset} if preset else {}
        _add(found, label, _variant(experiment, label, name, chosen, {}, f"--algorithms {item}:"))
    for label, keys in own.items():
        keys = dict(keys)
        tables: dict[str, dict[str, object]] = {t: keys.pop(t) for t in ("train", "model") if t in keys}
        for table, content in tables.items():
            if not isinstance(content, dict):
                raise InputError(f"{experiment.source}: compare.{label}.{table}: must be a table")
        name = str(keys.pop("name", experiment.settings.algorithm["name"]))
        _add(found, label, _variant(experiment, label, name, keys, tables))
    if not found:
        raise InputError("--algorithms: names no method")
    return found


def parse_item(item: str) -> tuple[str, str, str | None]:
    """Label, method and preset of ``"label=name:preset"``; your own method is ``"package.module:Class"``."""
    label, _, spec = item.rpartition("=")
    name, rest = split_method(spec)
    default = name.rpartition(":")[2].lower() if ":" in name else name
    if name not in registry.entries() and ":" not in name:
        own = 'module:Class, or [compare.LABEL] name = "module:Class" in the file'
        wrong = unknown("algorithm", name, registry.entries(), registry.LISTED_BY)
        raise InputError(f"--algorithms {item}: {wrong}; your own: {own}")
    if len(rest) > 1:
        raise InputError(f"--algorithms {item}: expected NAME, NAME:PRESET or LABEL=NAME:PRESET")
    preset = rest[0] if rest else None
    return label or (f"{default}-{preset}" if preset else default), name, preset


def split_method(spec: str) -> tuple[str, list[str]]:
    """A method's name, which is ``package.module:Class`` of your own, and what stands behind it, such as a preset."""
    first, *rest = spec.split(":")
    if rest and _is_module(first, rest):
        return f"{first}:{rest[0]}", rest[1:]
    return first, rest


def _is_module(first: str, rest: Sequence[str]) -> bool:
    """Whether the first part names a module of the user's, and no method, not even a misspelt one."""
    names = registry.entries()
    if first in names:
        return False
    if is_module(first):
        return True
    return "." in first or len(rest) == 2 or not difflib.get_close_matches(first, names, n=1, cutoff=0.6)


def _variant(
    experiment: Experiment,
    label: str,
    name: str,
    keys: dict[str, object],
    changes: dict[str, dict[str, object]],
    origin: str = "",
) -> Experiment:
    """A variant; `origin` is what errors about its method's name and `keys` begin with, where no table describes it."""
    tables = {k: v for k, v in experiment.tables.items() if k != "compare"}
    algorithm = choose(experiment.settings.algorithm, name)
    table = put_over(algorithm, keys, registry.algorithm(name).instead)
    recipe = put_over(tables.get("train", {}), changes.get("train", {}), Training.instead)
    model = tables["model"] | changes.get("model", {})
    tables |= {"algorithm": table, "train": recipe, "model": model}
    source = experiment.source if origin else f"{experiment.source} [compare.{label}]"
    said = {f"algorithm.{key}" for key in ("name", *keys)} | {f"{t}.{key}" for t, new in changes.items() for key in new}
    overridden = {key: by for key, by in experiment.overridden.items() if key not in said}
    if origin:
        overridden |= dict.fromkeys(said, origin)
    return from_dict(tables, source=source, overridden=overridden)


def _add(found: dict[str, Experiment], label: str, experiment: Experiment) -> None:
    if not re.fullmatch(r"[\w.+-]+", label) or label.startswith("."):
        raise InputError(f"label {label!r}: only letters, digits and . _ + - may be in it, for it names a directory")
    if label in found:
        raise InputError(f"label {label!r} is given twice; name one of them with LABEL=NAME")
    found[label] = experiment
