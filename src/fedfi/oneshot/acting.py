"""Where options of a merge act, and why one that is given for files would not.

A federation heeds every option. Files have no clients that are drawn, start or train, perhaps no examples to judge on,
and perhaps no model that all parties started from. Which options need these, each method says once, as rows of
`Merging.acting`; what a party heeds that only measures is not said but found: it is what changes `Merging.measures`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin

from fedfi.validation import as_toml, fields_of

Needs = Literal["rounds", "reader", "examples", "base", "options"]


class Declares(Protocol):
    """What is looked at of a merge, a dataclass of its options."""

    acting: ClassVar[Sequence[Acts]]
    takes_base: ClassVar[bool]

    def measures(self) -> tuple[str, ...]:
        """What parties measure."""
        ...


@dataclass(frozen=True)
class Acts:
    """What an option needs to have an effect.

    Attributes:
        option: Its name.
        needs: Clients and rounds; whoever runs what was merged; the examples of whoever merges (of a list of
            candidates, the first needs none); the model that parties started from; or other options.
        values: The values that this is about; empty: all.
        instead: What does it on files; ``{value}`` stands for the value.
        given: With `needs` ``"options"``: one of these options has one of these values. Empty: nothing helps.
    """

    option: str
    needs: Needs
    values: tuple[object, ...] = ()
    instead: str = ""
    given: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def meant(self, method: Declares) -> bool:
        """Whether the row is about the value that a method has."""
        value = getattr(method, self.option)
        return value in self.values if self.values else self.needs != "examples" or _several(value)

    def lacking(self, method: Declares, *, examples: bool, base: bool) -> str:
        """Why the option has no effect on files; empty where it has one."""
        met = {
            "rounds": False,
            "reader": False,
            "examples": examples,
            "base": base,
            "options": any(getattr(method, name) in values for name, values in self.given.items()),
        }[self.needs]
        if met or not self.meant(method):
            return ""
        value = getattr(method, self.option)
        if self.needs == "options":
            return f"acts with {_either(self.given)} alone" if self.given else "changes nothing of this method"
        if self.needs == "examples" and isinstance(value, tuple):
            return f"of {len(value)} candidates the best on examples is taken, but --validate is not given"
        return {
            "rounds": "acts in rounds of a federation, not on files",
            "reader": "acts where the merged model runs, and is not in its file",
            "examples": "needs examples to judge on, but --validate is not given",
            "base": "needs the model that all parties started from, but --base is not given",
        }[self.needs] + (f"; {self.instead.format(value=as_toml(value))}" if self.instead else "")


EVERYWHERE = (
    Acts("participation", "rounds", instead="leave out the uploads that are not to count"),
    Acts("clients_per_round", "rounds", instead="leave out the uploads that are not to count"),
    Acts("initialization", "rounds", instead="a party starts wherever it likes, and the model of --base is the start"),
    Acts("upload_bits", "rounds", instead="fedfi fisher --bits {value} does it"),
    Acts("measure_on", "rounds", instead="fedfi fisher --limit {value} does it"),
    Acts("reestimate", "examples", values=(True,)),
    Acts("rescale", "examples", values=(True,)),
    Acts("distil", "examples", values=("server",), instead='distil = "generated" needs none'),
    *(
        Acts(option, "options", given={"distil": ("server", "generated")})
        for option in ("distil_steps", "distil_rate", "distil_temperature")
    ),
)
"""The rows of every merge."""


def without_effect(method: Declares, given: Collection[str], *, examples: bool, base: bool) -> str:
    """What is wrong with the first of some given options that a merge of files would not heed; empty if there is none.

    Args:
        method: The method, with them.
        given: Names of the options that were given, whatever their values.
        examples: Whether whoever merges has examples.
        base: Whether the model that parties started from is there.
    """
    for row in method.acting:
        if row.option in given and (why := row.lacking(method, examples=examples, base=base)):
            return f"{said(method, row.option)}: {why}"
    return ""


def unmeasured(method: Declares, given: Collection[str]) -> str:
    """As `without_effect`, of options that change nothing of what a party measures."""
    never = {row.option: row for row in method.acting if row.needs in ("rounds", "reader") and row.meant(method)}
    for option in given:
        if option in never:
            return f"{said(method, option)}: {never[option].lacking(method, examples=False, base=False)}"
        if not measuring(method, option):
            return f"{said(method, option)}: changes nothing that a party measures; give it to fedfi merge"
    return ""


def unheeded_base(method: Declares, name: str) -> str:
    """Why a method would not look at the model that parties started from; empty where it does."""
    rows = [row for row in method.acting if row.needs == "base"]
    if method.takes_base or any(row.meant(method) for row in rows):
        return ""
    if not rows:
        return f"{name} does not look at a common start"
    row = rows[0]
    own = f"{row.option} = {as_toml(getattr(method, row.option))}"
    return f"{name} with {own} does not look at it; --set '{row.option}={as_toml(row.values[0])}' does"


def measuring(method: Declares, option: str) -> bool:
    """Whether an option changes what parties measure, for one of its values."""
    dataclass_of_options: Any = method
    return any(
        dataclasses.replace(dataclass_of_options, **{option: value}).measures() != method.measures()
        for value in _values(type(method), option)
    )


def said(method: Declares, option: str) -> str:
    """How an option was given on the command line."""
    return f"--set {option}={as_toml(getattr(method, option))}"


def _values(kind: type[Any], option: str) -> Iterator[Any]:
    """Values of an option: all choices, or the bounds of a number."""
    info = fields_of(kind)[option]
    if get_origin(info.annotation) is Literal:
        yield from get_args(info.annotation)
    elif info.annotation is bool:
        yield from (False, True)
    for bound in info.metadata:
        yield from (getattr(bound, side) for side in ("ge", "le") if hasattr(bound, side))


def _several(value: object) -> bool:
    """Whether a value needs examples to choose: a number or text does, of a list each entry behind the first."""
    return not isinstance(value, tuple) or len(value) > 1


def _either(given: Mapping[str, tuple[object, ...]]) -> str:
    return " or ".join(f"{name} = {as_toml(value)}" for name, values in given.items() for value in values)
