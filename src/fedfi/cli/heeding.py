"""What is given to `fedfi fisher` and `fedfi merge` has an effect there, or is refused with what does it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfi import registry
from fedfi.errors import InputError
from fedfi.validation import as_toml

if TYPE_CHECKING:
    from fedfi.oneshot.method import Merging


def check_measured(method: Merging[Any], given: Collection[str], limit: int | None = None) -> None:
    """Checks options of a method that are given to `fedfi fisher`.

    Args:
        method: The method, with them.
        given: Their names.
        limit: As `merging.fisher`.

    Raises:
        InputError: Naming the first that changes nothing of an upload, and what does it.
    """
    from fedfi.oneshot.acting import unmeasured
    from fedfi.oneshot.statistics import KINDS

    if limit is not None and all(KINDS[kind].form == "counts" for kind in method.measures()):
        raise InputError(f"--limit {limit}: limits the examples that are measured, and this method measures none")
    if wrong := unmeasured(method, given):
        raise InputError(wrong)


def check_merged(
    method: Merging[Any],
    name: str,
    tables: Mapping[str, Mapping[str, Any]],
    validate_on: str | None,
    classes: str | None,
    base: Path | None,
    inputs: Path | None = None,
) -> None:
    """Checks what is given to `fedfi merge`.

    Args:
        method: The method, with the options of `tables`.
        name: Its name.
        tables: Options of the method, `""`, and of the data.
        validate_on: As `merging.merge`.
        classes: Likewise.
        base: Likewise.
        inputs: Likewise.

    Raises:
        InputError: Naming the first that has no effect, and what does it.
    """
    from fedfi.oneshot.acting import unheeded_base, without_effect

    if validate_on is None:
        for key, value in tables["data"].items():
            raise InputError(f"--set data.{key}={as_toml(value)}: is about the data of --validate, which is not given")
        if inputs is not None:
            raise InputError(
                f"--inputs {inputs}: is about the data of --validate, which is not given; uploads name their own"
            )
        if classes is not None:
            raise InputError(
                f"--classes {classes}: is about the data of --validate, which is not given; uploads name their own"
            )
    if wrong := without_effect(method, tables[""], examples=validate_on is not None, base=base is not None):
        raise InputError(wrong)
    if base is not None and (why := unheeded_base(method, name)):
        others = "" if "--set" in why else f"; {' and '.join(_starting())} do"
        raise InputError(f"--base {base}: {why}{others}")


def _starting() -> list[str]:
    """The merges that look at a common start, whatever their options."""
    entries = registry.entries().items()
    return [name for name, entry in entries if entry.family == "oneshot" and registry.algorithm(name).takes_base]
