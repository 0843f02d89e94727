"""Where options of a merge act, and why one that is given for files, or for networks at hand, would not.

A federation heeds every option. Files and networks have no clients that are drawn, start or train, perhaps no examples
to judge on, and perhaps no model that all parties started from. Which options need these, each method says once, as
rows of `Merging.acting`; what a party heeds that only measures is not said but found: it is what changes
`Merging.measures`. On the command line an option is given if it stands there; in Python, if it is not the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin

from fedfi.validation import as_toml, fields_of

Needs = Literal["rounds", "measuring", "reader", "examples", "base", "options"]


@dataclass(frozen=True)
class Where:
    """Where models are merged outside of a federation, and how things are called there.

    Attributes:
        merged: What is merged.
        examples: What gives examples.
        base: What gives the model that parties started from.
        at_hand: Whether it is in Python, where one method measures, merges, and runs what was merged.
    """

    merged: str
    examples: str
    base: str
    at_hand: bool = False

    def written(self, option: str, value: object) -> str:
        """An option and its value."""
        return f"{option}={value!r}" if self.at_hand else f"{option} = {as_toml(value)}"

    def given(self, method: Declares, option: str) -> str:
        """An option as it was given."""
        value = getattr(method, option)
        if self.at_hand:
            return f"{type(method).__name__}({self.written(option, value)})"
        return f"--set {option}={as_toml(value)}"


FILES = Where("files", "--validate", "--base")
NETWORKS = Where("networks at hand", "validation", "start", at_hand=True)


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
        needs: Clients and rounds; whoever measures; whoever runs what was merged; the examples of whoever merges (of a
            list of candidates, the first needs none); the model that parties started from; or other options.
        values: The values that this is about; empty: all.
        instead: What does it on files; ``{value}`` stands for the value.
        at_hand: What does it in Python.
        given: With `needs` ``"options"``: one of these options has one of these values. Empty: nothing helps.
    """

    option: str
    needs: Needs
    values: tuple[object, ...] = ()
    instead: str = ""
    at_hand: str = ""
    given: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def meant(self, method: Declares) -> bool:
        """Whether the row is about the value that a method has."""
        value = getattr(method, self.option)
        return value in self.values if self.values else self.needs != "examples" or _several(value)

    def lacking(self, method: Declares, *, examples: bool, base: bool, where: Where = FILES) -> str:
        """Why the option has no effect on files, or on networks at hand; empty where it has one."""
        met = {
            "rounds": False,
            "measuring": where.at_hand and bool(method.measures()),
            "reader": where.at_hand,
            "examples": examples,
            "base": base,
            "options": any(getattr(method, name) in values for name, values in self.given.items()),
        }[self.needs]
        if met or not self.meant(method):
            return ""
        value, instead = getattr(method, self.option), self.at_hand if where.at_hand else self.instead
        if self.needs == "options":
            return f"acts with {_either(self.given, where)} alone" if self.given else "changes nothing of this method"
        if self.needs == "examples" and isinstance(value, tuple):
            return f"of {len(value)} candidates the best on examples is taken, but {where.examples} is not given"
        rounds = f"acts in rounds of a federation, not on {where.merged}"
        unmeasured = "acts where something is measured, but this method needs nothing"
        return {
            "rounds": rounds,
            "measuring": unmeasured if where.at_hand else rounds,
            "reader": "acts where the merged model runs, and is not in its file",
            "examples": f"needs examples to judge on, but {where.examples} is not given",
            "base": f"needs the model that all parties started from, but {where.base} is not given",
        }[self.needs] + (f"; {instead.format(value=as_toml(value))}" if instead else "")


EVERYWHERE = (
    *(
        Acts(
            option,
            "rounds",
            instead="leave out the uploads that are not to count",
            at_hand="leave out the networks that are not to count",
        )
        for option in ("participation", "clients_per_round")
    ),
    Acts(
        "initialization",
        "rounds",
        instead="a party starts wherever it likes, and the model of --base is the start",
        at_hand="networks start wherever they like, and that of start= is the start",
    ),
    Acts(
        "upload_bits",
        "rounds",
        instead="fedfi fisher --bits {value} does it",
        at_hand="nothing is sent, so nothing is rounded",
    ),
    Acts("measure_on", "measuring", instead="fedfi fisher --limit {value} does it"),
    Acts("reestimate", "examples", values=(True,)),
    Acts("rescale", "examples", values=(True,)),
    Acts(
        "distil",
        "examples",
        values=("server",),
        instead='distil = "generated" needs none',
        at_hand='distil="generated" needs none',
    ),
    *(
        Acts(option, "options", given={"distil": ("server", "generated")})
        for option in ("distil_steps", "distil_rate", "distil_temperature")
    ),
)
"""The rows of every merge."""


def without_effect(
    method: Declares, given: Collection[str], *, examples: bool, base: bool, where: Where = FILES
) -> str:
    """What is wrong with the first of some given options that a merge would not heed; empty if there is none.

    Args:
        method: The method, with them.
        given: Names of the options that were given, whatever their values.
        examples: Whether whoever merges has examples.
        base: Whether the model that parties started from is there.
        where: What is merged, files or networks.
    """
    for row in method.acting:
        if row.option in given and (why := row.lacking(method, examples=examples, base=base, where=where)):
            return f"{where.given(method, row.option)}: {why}"
    return ""


def chosen(method: Declares) -> set[str]:
    """Names of the options that a method in Python was given: not their defaults, and not those of a whole preset."""
    kind: Any = type(method)
    found = {
        option
        for option, info in fields_of(kind).items()
        if getattr(method, option) != info.get_default(call_default_factory=True)
    }
    for name, options in kind.presets.items():
        preset = kind.preset(name)
        if all(getattr(method, option) == getattr(preset, option) for option in options):
            found -= set(options)
    return found


def unmeasured(method: Declares, given: Collection[str]) -> str:
    """As `without_effect`, of options that change nothing of what a party measures."""
    never = {
        row.option: row for row in method.acting if row.needs in ("rounds", "measuring", "reader") and row.meant(method)
    }
    for option in given:
        if option in never:
            return f"{said(method, option)}: {never[option].lacking(method, examples=False, base=False)}"
        if not measuring(method, option):
            return f"{said(method, option)}: changes nothing that a party measures; give it to fedfi merge"
    return ""


def unheeded_base(method: Declares, name: str, where: Where = FILES) -> str:
    """Why a method would not look at the model that parties started from; empty where it does."""
    rows = [row for row in method.acting if row.needs == "base"]
    if method.takes_base or any(row.meant(method) for row in rows):
        return ""
    if not rows:
        return f"{name} does not look at a common start"
    row = rows[0]
    own, other = where.written(row.option, getattr(method, row.option)), row.values[0]
    cure = f"{name}({where.written(row.option, other)})" if where.at_hand else f"--set '{row.option}={as_toml(other)}'"
    return f"{name} with {own} does not look at it; {cure} does"


def measuring(method: Declares, option: str) -> bool:
    """Whether an option changes what parties measure, for one of its values."""
    dataclass_of_options: Any = method
    return any(
        dataclasses.replace(dataclass_of_options, **{option: value}).measures() != method.measures()
        for value in _values(type(method), option)
    )


def said(method: Declares, option: str) -> str:
    """How an option was given on the command line."""
    return FILES.given(method, option)


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


def _either(given: Mapping[str, tuple[object, ...]], where: Where) -> str:
    return " or ".join(where.written(name, value) for name, values in given.items() for value in values)
