"""`fedfi fisher` and `fedfi merge`: merging by files, without a server."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfi import registry
from fedfi.cli.heeding import check_measured, check_merged
from fedfi.cli.outputs import refuse_overwriting
from fedfi.cli.variants import split_method
from fedfi.errors import InputError, as_number, counted, unknown
from fedfi.validation import validate

if TYPE_CHECKING:
    from fedfi.data.dataset import Examples
    from fedfi.data.inputs import Inputs
    from fedfi.oneshot.method import Merging

_FEW = 20  # examples, of which mean and spread say little


def fisher(
    model: str,
    weights: Path,
    data: str,
    out: Path,
    method: str,
    settings: Sequence[str],
    party: str | None,
    classes: str | None,
    bits: int,
    limit: int | None,
    inputs: Path | None,
    quiet: bool,
) -> None:
    """Writes the upload of one party.

    Args:
        model: Name of the model.
        weights: Its state dict, a safetensors file.
        data: What it was trained on, as in an experiment's ``data.name``.
        out: The upload.
        method: What it is for: NAME or NAME:PRESET.
        settings: ``model.KEY=VALUE``, ``data.KEY=VALUE``, and ``KEY=VALUE`` of the method, of what it measures.
        party: Whose it is; by default the name of `out`.
        classes: All labels in the model's order, by commas, or their number.
        bits: 16 or 32.
        limit: Measure on so many examples at most.
        inputs: What fixes columns, categories and classes, as `fedfi.load` takes it.
        quiet: Say nothing.
    """
    from fedfi.federation.checkpoint import check_output
    from fedfi.oneshot.acting import said
    from fedfi.oneshot.described import Network
    from fedfi.oneshot.files import write_upload

    check_output(out)
    if bits not in (16, 32):
        raise InputError(f"--bits {bits}: must be 16 or 32 (nearest valid: {16 if bits < 24 else 32})")
    if party is not None and not party.strip():
        raise InputError(f"--party {party!r}: is empty, expected a name (nearest valid: {out.stem!r}, the upload's)")
    refuse_overwriting(out, [weights, data, inputs])
    tables = _tables(settings, ("model", "data", ""))
    chosen, _ = _method(method, tables[""], "--for")
    check_measured(chosen, tables[""], limit)
    examples = examples_of(data, tables["data"], classes, inputs)
    network = Network(model, tables["model"], examples.dataset.spec)
    prior = said(chosen, "class_prior") if chosen.class_prior else ""
    written = write_upload(
        out,
        network,
        read_weights(weights),
        examples,
        method,
        chosen.measures(),
        party=party or out.stem,
        bits=16 if bits == 16 else 32,
        limit=limit,
        source=str(weights),
        counted=classes is None and inputs is None,
        hint="" if inputs else "; if they lack a category, --inputs FILE names all",
        channels=f"--for {method}" if chosen.needs_channels else prior,
    )
    if not quiet:
        _tell([*_notes(examples, inputs, data), *written.notes])
        count = written.packet.scalars["examples"]
        print(f"{out}: {written.packet.nbytes:,} bytes for {method}, of {model} on {count} examples")
        print(f"{weights}: {written.fit}")


def merge(
    uploads: Sequence[Path],
    method: str,
    out: Path,
    validate_on: str | None,
    base: Path | None,
    model: str | None,
    settings: Sequence[str],
    classes: str | None,
    inputs: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Merges uploads into one file.

    Args:
        uploads: The files.
        method: NAME or NAME:PRESET.
        out: The merged model.
        validate_on: Examples to choose by and to judge on.
        base: The model that all parties started from.
        model: The model, where it is code.
        settings: ``KEY=VALUE`` of the method, and ``data.KEY=VALUE``.
        classes: As for `fisher`.
        inputs: As for `fisher`, of the examples to judge on.
        as_json: Print the report as JSON.
        quiet: Say nothing.
    """
    from fedfi.data.fixing import class_names
    from fedfi.federation.checkpoint import check_output, serialised, write_output
    from fedfi.oneshot.files import check_judge, check_together, lead_of, merge_files, read_upload
    from fedfi.oneshot.sound import load_weights

    check_output(out)
    refuse_overwriting(out, [*uploads, base, validate_on, inputs])
    tables = _tables(settings, ("data", ""))
    chosen, name = _method(method, tables[""], "--method")
    check_merged(chosen, name, tables, validate_on, classes, base, inputs)
    files = [read_upload(path, model) for path in uploads]
    widths, mixtures, needed = chosen.takes_widths, chosen.takes_mixtures, _measuring(chosen, settings)
    notes = check_together(files, method, chosen.measures(), widths=widths, mixtures=mixtures, settings=needed)
    network = lead_of(files)
    examples = None
    if validate_on is not None:
        labels = class_names(files[0].meaning.inputs)
        examples = examples_of(validate_on, tables["data"], classes or (None if inputs else labels), inputs)
        source = f"--validate {validate_on}"
        notes += [*check_judge(files, examples, source), *_notes(examples, inputs, source)]
    start = None
    if base is not None:
        bench = network.bench()
        load_weights(bench, read_weights(base), str(base))
        start = {n: t.clone() for n, t in bench.tree().items()}
    tensors, about, report = merge_files(files, chosen, examples=examples, base=start)
    about |= {"method": method, **_inputs_of(files[0].meaning.inputs, examples)}
    write_output(out, serialised(tensors, about))
    report = {"method": method, "out": str(out), **report, "notes": notes}
    if not quiet:
        _tell(notes)
    if as_json:
        print(json.dumps(report, indent=1))
    elif not quiet:
        _show(report)


def _inputs_of(inputs: Inputs, examples: Examples | None) -> dict[str, str]:
    """Metadata for `Inputs.read`; none where nothing is known of how numbers are normalised."""
    from fedfi.data.inputs import METADATA

    if examples is not None:
        judge = examples.dataset
        inputs = dataclasses.replace(inputs, fill=judge.fill, mean=judge.mean, std=judge.std)
    elif inputs.spec.kind != "text":
        return {}
    return {METADATA: json.dumps(inputs.record())}


def _notes(examples: Examples, inputs: Path | None, source: str) -> list[str]:
    """What is odd about examples, and whether they are few to normalise a table by."""
    from fedfi.data.fixing import given

    data = examples.dataset
    notes = list(data.notes)
    if data.spec.kind == "tabular" and len(data) < _FEW and (inputs is None or given(inputs).mean is None):
        notes.append(
            f"{source}: numbers are normalised by {counted(len(data), 'example')}, which are few; --inputs with the"
            " inputs.json of a run has a normalisation of its own"
        )
    return notes


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def examples_of(
    name: str, options: Mapping[str, Any], classes: str | Sequence[str] | None, inputs: Path | None = None
) -> Examples:
    """The examples of a data set with labels in the given order, normalised as `inputs` say, or else by themselves.

    Args:
        name: As in an experiment's ``data.name``.
        options: Options of the data.
        classes: As given on the command line; or labels as uploads name them.
        inputs: What fixes columns, categories and classes, as `fedfi.load` takes it.
    """
    from fedfi.data import load
    from fedfi.data.arrays import one_class_will_do
    from fedfi.data.fixing import class_names, given, relabelled

    if "inputs" in options:
        raise InputError("--set data.inputs: say --inputs FILE")
    known = None if inputs is None else given(inputs)
    labels = None if classes is None else _labels(classes)
    if known is not None and labels is not None and list(labels) != list(class_names(known)):
        named = ",".join(class_names(known))
        raise InputError(f"--classes {classes}: {inputs} says that classes are {named}; leave one of the two out")
    try:
        with nullcontext() if classes is None else one_class_will_do():
            found, _ = load(name, **options, inputs=known)
    except TypeError as error:
        raise InputError(f"data options {sorted(options)}: {error}") from error
    if known is None and labels is not None:
        said = f"--classes {classes}" if isinstance(classes, str) else "the uploads' classes"
        found = relabelled(found, labels, said)
    return (found if known is not None and known.mean is not None else found.fitted()).examples()


def read_weights(path: Path) -> dict[str, Any]:
    """A state dict.

    Raises:
        InputError: If the file is missing or no safetensors file.
    """
    from fedfi.federation.checkpoint import tensors_from_file

    try:
        return tensors_from_file(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # safetensors has an error of its own, which it exports under varying names
        raise InputError(f"{path}: is not a safetensors file: {error}") from error


def _labels(classes: str | Sequence[str]) -> Sequence[str]:
    """All labels in order, of what was given on the command line or is a list of them already."""
    if not isinstance(classes, str):
        return classes
    said = f"--classes {classes}"
    if (number := as_number(classes)) is not None and not (classes.isdecimal() and number >= 2):
        near = max(2, round(number))
        raise InputError(f"{said}: must be a whole number of at least 2 (nearest valid: {near}), or labels by commas")
    given = [str(i) for i in range(int(classes))] if classes.isdecimal() else [c.strip() for c in classes.split(",")]
    if "" in given:
        raise InputError(f"{said}: label {given.index('') + 1} is empty, expected labels by commas")
    if twice := [label for n, label in enumerate(given) if label in given[:n]]:
        raise InputError(f"{said}: {twice[0]!r} stands there twice, expected each label once")
    return given


def _method(text: str, settings: Mapping[str, Any], option: str) -> tuple[Merging[Any], str]:
    """A method with its settings, and its name, of ``NAME:PRESET`` as an option gives it."""
    from fedfi.oneshot.method import Merging

    name, rest = split_method(text)
    if len(rest) > 1:
        raise InputError(f"{option} {text}: expected NAME or NAME:PRESET")
    preset = rest[0] if rest else None
    kind = registry.algorithm(name)
    if not issubclass(kind, Merging):
        merging = [n for n, e in registry.entries().items() if e.family == "oneshot"]
        raise InputError(f"method {name!r} does not merge models (choose from {', '.join(merging)})")
    if preset is not None and preset not in kind.presets:
        raise InputError(unknown(f"preset of {name}", preset, kind.presets))
    keys = {**(kind.presets[preset] if preset else {}), **settings}
    method: Merging[Any] = validate(kind, keys, source=f"method {name}")
    return method, name


def _measuring(method: Merging[Any], settings: Sequence[str]) -> list[str]:
    """Those of the settings without which the method would need other statistics."""
    from fedfi.experiment import parse_override

    found, default = [], type(method)()
    for setting in settings:
        keys, _ = parse_override(setting)
        if len(keys) == 1:
            other = dataclasses.replace(method, **{keys[0]: getattr(default, keys[0])})
            if other.measures() != method.measures():
                found.append(setting)
    return found


def _tables(settings: Sequence[str], allowed: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings by table; keys without a table are those of the table `""`."""
    from fedfi.experiment import parse_override

    tables: dict[str, dict[str, Any]] = {table: {} for table in allowed}
    for setting in settings:
        keys, value = parse_override(setting)
        table, key = ("", keys[0]) if len(keys) == 1 else (keys[0], ".".join(keys[1:]))
        if table not in tables:
            choices = [f"{t}.KEY" if t else "KEY" for t in allowed]
            raise InputError(f"--set {setting}: expected one of {', '.join(choices)}")
        if key in tables[table]:
            raise InputError(f"--set {setting}: {'.'.join(keys)} is given twice, expected once")
        tables[table][key] = value
    return tables


def _show(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    columns = list(dict.fromkeys(key for party in report["parties"] for key in party))
    table = Table(*columns, box=None, pad_edge=False)
    for party in report["parties"]:
        cells = [party.get(c, "") for c in columns]
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    console.print(table)
    for name, value in report["merge"].items():
        if not name.startswith("distance/"):
            console.print(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")
    if "score" in report:
        console.print(f"score of the merged model: {report['score']:.4f}")
    console.print(f"{report['out']}: merged by {report['method']}")
