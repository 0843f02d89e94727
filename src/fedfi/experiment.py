"""An experiment: a file of settings, checked, and turned into a task and a method.

`Experiment.resolved` holds every default, so that the `run.toml` of a run directory runs the same again.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedfi import registry
from fedfi.composing import Tables, alternatives, method_of, place_of, table_of
from fedfi.data import Dataset, FederatedData, available, federate, load
from fedfi.data.interactions import Ratings, leave_one_out
from fedfi.data.partition import check_clients, check_partition
from fedfi.data.ratings import RatingsData
from fedfi.data.recommendation import available as available_ratings
from fedfi.data.recommendation import load_ratings
from fedfi.data.settings import Data
from fedfi.errors import SET, InputError, PlaceError, SettingError, beside, blaming, first_line, out_of_memory, unknown
from fedfi.federation.algorithm import Algorithm
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.record import without_none
from fedfi.federation.sampling import round_size
from fedfi.federation.task import Task, Training
from fedfi.federation.trial import check_logits
from fedfi.trackers import Tracker
from fedfi.validation import dotted, is_plain, shown, validate

Loaded = tuple[Dataset, Dataset | None] | Ratings


class Model(BaseModel):
    """Table `[model]`: a name, and that model's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(description="a name, or package.module:function")]

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class Settings(BaseModel):
    """A whole file; the keys of `[algorithm]` are checked by the method that it names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: Annotated[int, Field(ge=1, description="number of rounds")]
    seed: Annotated[int, Field(ge=0, description="every draw is a function of it")] = 0
    min_replies: Annotated[int, Field(ge=1, description="fewest replies with which a round counts")] = 1
    checkpoint_every: Annotated[int, Field(ge=1, description="rounds from one checkpoint to the next")] = 1
    log: Annotated[
        tuple[Tracker, ...], Field(description="copy each round's numbers to these too: tensorboard, mlflow")
    ] = ()
    data: Data
    model: Model
    train: Training = Field(default_factory=Training)
    algorithm: dict[str, Any]
    evaluate: Evaluate = Field(default_factory=Evaluate)
    compare: dict[str, dict[str, Any]] = Field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """Checked settings.

    Attributes:
        settings: The settings.
        method: The method, configured.
        tables: What the settings were made from.
        source: Where they come from; errors start with it.
        overridden: Dotted keys of `tables` that the source does not hold, and what gave them on the command line, which
            gets their blame (`errors.blaming`).
    """

    settings: Settings
    method: Algorithm[Any]
    tables: Tables
    source: str
    overridden: Mapping[str, str] = field(default_factory=dict)

    def algorithm(self) -> Algorithm[Any]:
        """The configured method."""
        return self.method

    def load(self) -> Loaded:
        """Loads the data, which do not depend on the seed."""
        with self.naming("data", f"data.name = {shown(self.settings.data.name)}"):
            if self.settings.data.holds == "ratings":
                return load_ratings(self.settings.data.name, columns=self.settings.data.column_names)
            try:
                return load(self.settings.data.name, **self.settings.data.loader_options())
            except InputError as error:
                key, value = self.settings.data.given(error.option)
                if value is None:  # it is about the data, or what their source chose itself
                    raise
                raise SettingError(f"{key} = {shown(value)}: {error}") from error

    def federate(self, loaded: Loaded) -> FederatedData | RatingsData:
        """Divides loaded data among clients by the experiment's seed; ratings are divided among their users."""
        data = self.settings.data
        with self.naming("data"):
            if isinstance(loaded, Ratings):
                return leave_one_out(loaded, **data.ratings)
            return federate(
                *loaded,
                clients=data.clients,
                partition=data.partition,
                validation=data.validation,
                test_fraction=data.test_fraction,
                seed=self.settings.seed,
            )

    def task(self, data: FederatedData | RatingsData | None = None) -> Task:
        """The task, with the model built once to see that it fits the data.

        Args:
            data: The divided data where they are at hand; else they are loaded.

        Raises:
            InputError: If data, model and method do not fit each other.
        """
        from fedfi.models import build, check_options

        model = self.settings.model
        with self.naming("model"):
            check_options(model.name, model.options)
        data = data or self.federate(self.load())
        if self.method.data_kind != data.kind:
            with self.naming("algorithm", f"algorithm.name = {shown(self.settings.algorithm['name'])}"):
                raise InputError(
                    f"learns from {self.method.data_kind},"
                    f" but data.name = {shown(self.settings.data.name)} holds {data.kind}"
                )
        make = functools.partial(build, model.name, data.spec, model.options)
        with self.naming():
            round_size(len(data.clients), self.method.participation, self.method.clients_per_round)
        task = Task(model=make, data=data, training=self.settings.train)
        with self.naming("model"):
            if isinstance(data, FederatedData):
                check_logits(task, f"model {model.name!r}")
            else:
                make()
        return task

    def resolved(self) -> dict[str, Any]:
        """Every setting with its default filled in; loading it again gives the same."""
        s = self.settings
        tables = {
            "rounds": s.rounds,
            "seed": s.seed,
            "min_replies": s.min_replies,
            "checkpoint_every": s.checkpoint_every,
            "log": list(s.log),
            "data": s.data.model_dump(mode="json")
            | (s.data.ratings if s.data.holds == "ratings" else {})
            | _absolute(s.data),
            "model": {"name": s.model.name, **_with_defaults(s.model)},
            "train": TypeAdapter(Training).dump_python(s.train, mode="json"),
            "algorithm": table_of(self.method, s.algorithm),
            "evaluate": TypeAdapter(Evaluate).dump_python(s.evaluate, mode="json"),
        }
        plain: dict[str, Any] = json.loads(json.dumps(without_none(tables)))
        return plain

    def changed(self, changes: Tables) -> Experiment:
        """The same experiment with some keys of some tables replaced."""
        tables = copy.deepcopy(dict(self.tables))
        for table, keys in changes.items():
            for key, value in keys.items() if isinstance(keys, Mapping) else ():
                _put(tables, [table, key], value, self.source)
                _drop(tables, [table, key])
            if not isinstance(keys, Mapping):
                tables[table] = keys
        return from_dict(tables, source=self.source, overridden=self.overridden)

    def _place(self, error: InputError) -> str:
        """What a method's or a model's error begins with: its table, with a dot before one of the method's options."""
        table = error.tables[0] if error.tables else ""
        if table and str(error).startswith((f"{table}.", f"{table}: ")):  # it says so itself
            return ""
        place = place_of(self.method, str(error).partition(" = ")[0]) if table == "algorithm" else ""
        return f"{place}." if place else f"{table}: " if table else ""

    @contextmanager
    def naming(self, table: str = "", given: str = "") -> Iterator[None]:
        """Within it, input errors of the library start with the experiment's source, and with a key.

        Those that say themselves where they come from stay as they are: of a file, or of a place to write to.

        Args:
            table: What the key of a `SettingError` belongs to.
            given: What other errors are about; by default the table.

        Raises:
            InputError: For input errors, and where memory is too small for what was asked for.
        """
        given = given or table
        about = f"{given}: " if given else ""
        with blaming(self.source, self.overridden):
            try:
                yield
            except PlaceError:
                raise
            except SettingError as error:
                raise InputError(f"{self.source}: {table}{'.' if table else ''}{error}") from error
            except InputError as error:
                if str(error).startswith(f"{self.source}: "):
                    raise
                tables = error.tables or ((table,) if table == given else ())
                raise _of(tables, f"{self.source}: {about or self._place(error)}{error}") from error
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                text = f"{about}needs more memory than there is ({first_line(error)})"
                raise InputError(f"{self.source}: {text}") from error


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Reads an experiment file.

    Args:
        path: A TOML file.
        overrides: Such as ``"train.learning_rate=0.1"``; a value that is not TOML is a text.

    Raises:
        InputError: In one line: file (or ``--set``, for what that gave), key, value and the nearest valid value.
    """
    path = Path(path)
    tables = read_toml(path)
    parsed = [(override, *parse_override(override)) for override in overrides]
    given = {tuple(keys) for _, keys, _ in parsed}
    overridden = {dotted(_first_new(tables, keys)): SET for _, keys, _ in parsed}
    for override, keys, value in parsed:
        _put(tables, keys, value, f"--set {override}")
    for _, keys, _ in parsed:
        _drop(tables, keys, given)
    return from_dict(tables, source=str(path), overridden=overridden)


def of_run(directory: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment of a run directory.

    Args:
        directory: The run directory.
        overrides: As for `load_experiment`.

    Raises:
        InputError: If it is no run directory, or its `run.toml` is not valid.
    """
    path = directory / "run.toml"
    if not path.exists():
        raise InputError(f"{directory}: is not a run directory: it has no run.toml")
    return load_experiment(path, overrides) if overrides else from_dict(read_toml(path), source=str(path))


def from_dict(tables: Tables, *, source: str = "experiment", overridden: Mapping[str, str] | None = None) -> Experiment:
    """Checks the settings of an experiment.

    Args:
        tables: As in a file.
        source: Where they come from; errors start with it.
        overridden: Dotted keys that come from the command line instead; see `Experiment`.

    Raises:
        InputError: As `load_experiment`.
    """
    given = overridden or {}
    with blaming(source, given):
        return _checked(tables, source, given)


def _checked(tables: Tables, source: str, overridden: Mapping[str, str]) -> Experiment:
    settings = _of_kind(validate(Settings, tables, source=source))
    if (key := settings.data.misplaced) is not None:
        raise InputError(f"{source}: data.{key}: {settings.data.why_misplaced}")
    try:
        partition = check_partition(settings.data.partition)
        if settings.data.holds != "ratings":
            check_clients(partition, settings.data.clients)
    except SettingError as error:
        raise InputError(f"{source}: data.{error}") from error
    _check_model(settings.model, source)
    return Experiment(settings, method_of(settings.algorithm, source, settings.rounds), tables, source, overridden)


def _of_kind(settings: Settings) -> Settings:
    """The settings, in which a method that learns from ratings says so of data that nothing else tells of."""
    if not settings.data.untold:
        return settings
    try:
        learns = registry.algorithm(str(settings.algorithm.get("name"))).data_kind
    except InputError:  # which is told with the table
        return settings
    if learns != "ratings":
        return settings
    return settings.model_copy(update={"data": settings.data.model_copy(update={"kind": "ratings"})})


def _of(tables: tuple[str, ...], text: str) -> InputError:
    error = InputError(text)
    error.tables = tables
    return error


def _first_new(tables: Mapping[str, Any], keys: Sequence[str]) -> Sequence[str]:
    """The key itself, or the first table above it that was not there before."""
    node: Any = tables
    for depth, key in enumerate(keys, start=1):
        if not isinstance(node, Mapping) or key not in node:
            return keys[:depth]
        node = node[key]
    return keys


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        InputError: If it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows editors begin files with a mark
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file{beside(path, ('.toml',))}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid TOML: {error}") from error


def parse_override(text: str) -> tuple[list[str], Any]:
    """Splits ``"table.key=value"`` into the keys and the value.

    Raises:
        InputError: If there is no key or no value.
    """
    key, equals, value = text.partition("=")
    if equals and not value.strip():
        raise InputError(f"--set {text}: has no value, expected table.key=value; an empty text is '{key}=\"\"'")
    try:
        if not equals or "\n" in key:
            raise ValueError(text)
        node: Any = tomllib.loads(f"{key} = 0")
    except ValueError as error:
        raise InputError(f"--set {text}: expected table.key=value, such as train.learning_rate=0.1") from error
    keys = []
    while isinstance(node, dict):
        ((name, node),) = node.items()
        keys.append(name)
    try:
        return keys, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        value = value.strip()
        if value[:1] in ("[", "{"):  # no text: a list or table, whose quotes the shell has most likely taken
            whole = re.sub(r"(?<![\w.])\.(?=\d)", "0.", re.sub(r"(?<=\d)\.(?!\d)", ".0", value))
            if whole != value and _is_toml(whole):
                raise InputError(
                    f"--set {text}: is not TOML; numbers have digits on both sides of the point,"
                    f" such as --set '{key.strip()}={whole}'"
                ) from error
            quoted = re.sub(r"""(?<=[\[,=])\s*([A-Za-z_][\w./-]*)\s*(?=[\],}])""", r'"\1"', value)
            such = f", such as --set '{key.strip()}={quoted}'" if _is_toml(quoted) else ""
            raise InputError(
                f"--set {text}: is not TOML; texts in a list or table need double quotes, and single quotes around"
                f" all of it keep the shell from taking them{such}"
            ) from error
        return keys, value
    except (ValueError, RecursionError) as error:
        raise InputError(f"--set {key}: is not a value: {error}") from error


def _is_toml(value: str) -> bool:
    try:
        tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        return False
    return True


def _check_model(model: Model, source: str) -> None:
    from fedfi.models import available as models
    from fedfi.models import check_options

    if model.name in models():
        try:
            check_options(model.name, model.options)
        except SettingError as error:
            raise InputError(f"{source}: model.{error}") from error
    elif ":" not in model.name:  # a user's own is looked at before the data are loaded
        raise InputError(
            f"{source}: model.name = {shown(model.name)}: {unknown('model', model.name, models(), 'fedfi list models')}"
        )


def _with_defaults(model: Model) -> dict[str, Any]:
    from fedfi.models import options

    defaults = {p.name: p.default for p in options(model.name) if is_plain(p.default)}
    return defaults | model.options


def _put(tables: dict[str, Any], keys: Sequence[str], value: Any, source: str) -> None:
    """Sets one key."""
    node = tables
    for depth, key in enumerate(keys[:-1]):
        node = node.setdefault(key, {})
        if not isinstance(node, dict):
            raise InputError(f"{source}: {dotted(keys[: depth + 1])} is a value, not a table")
    node[keys[-1]] = value


def _drop(tables: dict[str, Any], keys: Sequence[str], given: Collection[tuple[str, ...]] = ()) -> None:
    """Drops keys that one, which was set, stands instead of, unless they are `given`, too."""
    node: Any = tables
    for key in keys[:-1]:
        node = node.get(key) if isinstance(node, dict) else None
    if not isinstance(node, dict):  # another override has put a value there
        return
    for group in alternatives(tables, keys[:-1]):
        for other in group if keys[-1] in group else ():
            if other != keys[-1] and (*keys[:-1], other) not in given:
                node.pop(other, None)


def _absolute(data: Data) -> dict[str, str]:
    """Paths that do not depend on the working directory, so that a run can be resumed from anywhere."""
    found = {"test": data.test, "tokenizer": data.tokenizer}
    if data.name not in available() and data.name not in available_ratings():
        found["name"] = data.name
    return {k: str(p.resolve()) for k, v in found.items() if v and (p := Path(v).expanduser()).exists()}
