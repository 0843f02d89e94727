"""Merging without a server: each party writes one file, whoever collects the files merges them.

An upload file is an encoded packet, hence safetensors; its scalars name the model, the layout of its parameters, the
number of examples, the party, what was measured and for which method, what its inputs and classes stand for, and a
digest. Nothing in it is run or looked up: a model that is code of somebody's own must be named by whoever merges, a
checkpoint is not named at all, and sizes that its tensors do not bear out are refused before a network is made.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfi.channels import Wiring, discover
from fedfi.data.dataset import Dataset, Examples
from fedfi.data.fixing import columns_differ
from fedfi.data.inputs import Inputs
from fedfi.errors import InputError, counted
from fedfi.federation.checkpoint import write_output
from fedfi.federation.evaluation import take_statistics
from fedfi.federation.packet import Packet, PacketError, Tree, decode
from fedfi.federation.rng import keyed_generator
from fedfi.models import InputSpec, outside
from fedfi.oneshot.described import Network, check_code, check_sizes, layout_hash, options_of, spec_of
from fedfi.oneshot.handed import tried
from fedfi.oneshot.header import DIGEST, Meaning, digest_of, sealed, spec_json, spec_text
from fedfi.oneshot.mergedfile import deployed, described
from fedfi.oneshot.method import Context, Merging
from fedfi.oneshot.server import Server, score_of
from fedfi.oneshot.sound import Fit, check_rounding, fit_of, load_weights
from fedfi.oneshot.statistics import KINDS, measure
from fedfi.oneshot.uploads import Merged, Upload, largest
from fedfi.oneshot.wire import Bits, Form

FORMAT = "fedfi-upload-2"
_HEADER = {"format": str, "model": str, "options": str, "spec": str, "layout": str, "party": str, "kinds": str,
           "method": str, "bits": int, "examples": int, "inputs": str, "tokens": str, DIGEST: str}  # fmt: skip


@dataclass(frozen=True, eq=False)
class UploadFile:
    """An upload as it was read, checked.

    Attributes:
        path: Where it lies.
        network: Which network it is of.
        layout: Digest of the names and shapes of its tensors.
        kinds: What was measured.
        method: What for.
        upload: The model and the statistics.
        meaning: What its inputs and classes stand for.
    """

    path: Path
    network: Network
    layout: str
    kinds: tuple[str, ...]
    method: str
    upload: Upload
    meaning: Meaning


@dataclass(frozen=True)
class Written:
    """What became of `write_upload`.

    Attributes:
        packet: What was written.
        fit: How well the weights fit the examples.
        notes: What whoever wrote it should know.
    """

    packet: Packet
    fit: Fit
    notes: Sequence[str]


def write_upload(
    path: Path,
    network: Network,
    weights: Mapping[str, Tensor],
    examples: Examples,
    method: str,
    kinds: tuple[str, ...],
    *,
    party: str,
    bits: Bits = 16,
    limit: int | None = None,
    source: str = "weights",
    counted: bool = False,
    channels: str = "",
    hint: str = "",
) -> Written:
    """Measures a model and writes its upload.

    Args:
        path: Where to.
        network: Which network.
        weights: Its state dict.
        examples: What it was trained on.
        method: What the upload is for, a name for people.
        kinds: What to measure; see `statistics.KINDS`.
        party: Whose it is.
        bits: 16 or 32 bits a parameter.
        limit: Measure on so many examples at most.
        source: Where the weights are from; errors start with it.
        counted: Whether the number of classes was counted from the examples, rather than given.
        hint: What to do where weights have columns that the data lack.
        channels: What needs the network's channel groups, which errors start with; empty: nothing does.

    Returns:
        What was written, and how well the weights fit the examples.

    Raises:
        InputError: If the weights do not fit the network or are no numbers, 16 bits are too few for them, there are no
            examples, or the network has no channel groups where they are needed, or is loaded from a place that others
            would have to load it from, too.
    """
    if named := [option for option in outside(network.name) if network.options.get(option) is not None]:
        raise InputError(
            f"model.{named[0]}: an upload names no place that whoever merges would load from; name a function that"
            " makes the network (--model package.module:function), which the merge then names, too"
        )
    bench = network.bench()
    load_weights(bench, weights, source, network.spec.classes if counted else None, _columns(examples.dataset, hint))
    if len(examples):
        tried(bench, f"{source}: {network.name}", network.spec, examples)
    if channels:
        _check_channels(network, channels)
    task = network.task()
    form = Form.of(bench, task, kinds, bits)
    take_statistics(task, bench.module, examples)
    fit = fit_of(task, bench.module, examples, limit)
    rng = keyed_generator(0, "measure", party)
    found = measure(kinds, bench.module, examples, task.loss, limit=limit, rng=rng)
    model = {n: t.clone() for n, t in bench.tree().items()}
    upload = Upload(party, model, tuple(bench.layout.names), len(examples), found)
    about = {
        "format": FORMAT,
        "model": network.name,
        "options": json.dumps(dict(network.options), sort_keys=True),
        "spec": spec_json(network.spec),
        "layout": layout_hash(bench),
        "party": party,
        "kinds": ",".join(kinds),
        "method": method,
        "bits": bits,
        **Meaning.of(examples.dataset).scalars(),
    }
    packet = sealed(form.pack(upload, about))
    notes = fit.notes(source)
    if bits == 16:
        notes += check_rounding(upload, form.unpack(packet, party), source)
    write_output(path, packet.encode())
    return Written(packet, fit, notes)


def read_upload(path: Path, model: str | None = None) -> UploadFile:
    """Reads and checks an upload.

    Args:
        path: The file.
        model: Name of the model, which allows one that is code (``package.module:function``).

    Raises:
        InputError: If it is no upload, is damaged, or does not fit the network that it names.
    """
    try:
        packet = decode(path.read_bytes())
    except PacketError as error:
        raise InputError(f"{path}: is not an upload: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    about = packet.scalars
    if isinstance(about.get("format"), str) and about["format"] != FORMAT:
        raise InputError(f"{path}: its format is {about['format']!r}, expected {FORMAT!r}: make it anew")
    for key, kind in _HEADER.items():
        if type(about.get(key)) is not kind:
            raise InputError(f"{path}: is not an upload: {key!r} is {about.get(key)!r}, expected a {kind.__name__}")
    if (digest := digest_of(packet)) != about[DIGEST]:
        raise InputError(f"{path}: is damaged: its digest is {about[DIGEST]}, that of what it holds {digest}")
    name = str(about["model"])
    check_code(name, model, path, "--model ")
    network = Network(name, options_of(str(about["options"]), path), spec_of(str(about["spec"]), path))
    kinds = tuple(k for k in str(about["kinds"]).split(",") if k)
    if unknown_kinds := [k for k in kinds if k not in KINDS]:
        raise InputError(f"{path}: holds {unknown_kinds[0]!r}, expected some of {', '.join(KINDS)}")
    if about["bits"] not in (16, 32):
        raise InputError(f"{path}: bits is {about['bits']}, expected 16 or 32 (nearest valid: 16)")
    meaning = _meaning(about, network.spec, path)
    check_sizes(network, packet.tensors["model"].numel() if "model" in packet.tensors else 0, path)
    try:
        bench = network.bench()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if layout_hash(bench) != about["layout"]:
        raise InputError(f"{path}: its layout is {about['layout']}, but {name!r} here has {layout_hash(bench)}")
    form = Form.of(bench, network.task(), kinds, 16 if about["bits"] == 16 else 32)
    try:
        form.layout_of(_HEADER).check(packet, str(path), sent=form.sent())
    except PacketError as error:  # it speaks of clients
        raise InputError(f"{path}: {str(error).removeprefix(f'client {str(path)!r}: ')}") from error
    upload = form.unpack(packet, str(about["party"]))
    return UploadFile(path, network, str(about["layout"]), kinds, str(about["method"]), upload, meaning)


def _meaning(about: Mapping[str, Any], spec: InputSpec, path: Path) -> Meaning:
    try:
        found = Meaning.parse(about)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(f"{path}: is not an upload: its inputs are {str(about['inputs'])[:80]!r}") from error
    if found.inputs.spec != spec:
        raise InputError(f"{path}: its spec is {spec_text(spec)}, its inputs are {spec_text(found.inputs.spec)}")
    return found


def check_together(
    files: Sequence[UploadFile],
    method: str,
    needs: Sequence[str],
    *,
    widths: bool = False,
    mixtures: bool = False,
    settings: Sequence[str] = (),
) -> list[str]:
    """Checks that uploads can be merged by a method.

    Args:
        files: The uploads.
        method: Its name.
        needs: What it needs to be measured.
        widths: Whether it takes networks of one name with other options, such as widths.
        mixtures: Whether it takes several uploads of one party.
        settings: The ``KEY=VALUE`` that it was given, which a party has to give as well.

    Returns:
        Notes on what may be wrong, and cannot be known to be.

    Raises:
        InputError: Naming both files and both values, or what the method needs and how to make it.
    """
    if not files:
        raise InputError("there is nothing to merge: expected at least one upload")
    first = files[0]
    for other in files[1:]:
        found, cure = first.meaning.differs(other.meaning), ""
        if columns_differ(first.meaning.inputs, other.meaning.inputs) == found:
            cure = "; models of the same columns are trained on fedfi.load(..., inputs=FILE) with one FILE for all, and"
            cure += " measured by fedfi fisher --inputs FILE"
        for what in ("model", "input") if widths else ("model", "options", "input", "layout"):
            mine, theirs = (_value(f, what) for f in (first, other))
            if mine != theirs and not (what == "input" and found):
                raise InputError(f"{first.path} and {other.path} differ in {what}: {mine} and {theirs}")
            if what == "input" and found:
                raise InputError(f"{first.path} and {other.path} differ in {found}{cure}")
    if not mixtures:
        _check_parties(files)
    more = "".join(f" --set {shlex.quote(setting)}" for setting in settings)
    for file in files:
        lacking = [kind for kind in needs if kind not in file.kinds]
        if lacking:
            raise InputError(
                f"{file.path} was made for {file.method!r} and holds {', '.join(file.kinds) or 'a model alone'};"
                f" {method!r} needs {', '.join(lacking)}: make it with fedfi fisher --for {method}{more}"
            )
    return _notes(files)


def check_judge(files: Sequence[UploadFile], examples: Examples, source: str) -> list[str]:
    """Checks that examples mean what those of the uploads mean.

    Returns:
        Notes, as `check_together`.

    Raises:
        InputError: Naming both files and the first difference.
    """
    first, meaning = files[0], Meaning.of(examples.dataset)
    if found := first.meaning.differs(meaning):
        by_name = columns_differ(first.meaning.inputs, meaning.inputs) == found
        cure = f"; --inputs {first.path} reads them with the uploads' columns and categories" if by_name else ""
        raise InputError(f"{first.path} and {source} differ in {found}{cure}")
    given, expected = examples.dataset.spec, first.network.spec
    if given.shape != expected.shape:
        raise InputError(
            f"{source}: an example is {list(given.shape)}, but the uploads' models take {list(expected.shape)}"
        )
    if first.meaning.nameless(meaning):
        return [_nameless(str(first.path), source)]
    return []


def _check_parties(files: Sequence[UploadFile]) -> None:
    known: dict[str, UploadFile] = {}
    for file in files:
        other = known.setdefault(file.upload.party, file)
        if other is not file:
            raise InputError(
                f"{other.path} and {file.path} are both of party {file.upload.party!r}: name each party by"
                " fedfi fisher --party NAME"
            )


def _notes(files: Sequence[UploadFile]) -> list[str]:
    notes = [_nameless(str(files[0].path), str(f.path)) for f in files[1:] if files[0].meaning.nameless(f.meaning)]
    for i, file in enumerate(files):
        for other in files[:i]:
            mine, theirs = file.upload, other.upload
            if file.layout == other.layout and all(torch.equal(mine.model[n], theirs.model[n]) for n in mine.trained):
                notes.append(f"{other.path} and {file.path} hold the same weights: they count twice")
    return notes


def _nameless(first: str, other: str) -> str:
    return f"{first} and {other}: one names its columns, the other does not, so whether they agree is not known"


def merge_files(
    files: Sequence[UploadFile],
    method: Merging[Any],
    *,
    examples: Examples | None = None,
    base: Tree | None = None,
    seed: int = 0,
) -> tuple[Tree, dict[str, str], dict[str, Any]]:
    """Merges uploads and says what came of it.

    Args:
        files: The uploads, checked by `check_together`.
        method: The method.
        examples: Of the one who merges, to choose by and to judge on.
        base: The model that all parties started from, where they did.
        seed: Of the method's draws.

    Returns:
        The deployed network's state dict; what says how to make the network again (`mergedfile.described`); and a
        report: the parties, the method's numbers, and scores where there are examples.
    """
    lead = files[largest([f.upload for f in files])]
    task = lead.network.task(examples)
    server = Server(task, lead.network.bench(), method.reestimate, "--validate is not given")
    uploads = [f.upload if f.layout == lead.layout else replace(f.upload, wiring=_wiring(f.network)) for f in files]
    merged = method.merged(uploads, Context(server, base, 0, keyed_generator(seed, "merge")))
    parties = [_party(f, merged, server if f.layout == lead.layout else None) for f in files]
    report: dict[str, Any] = {"parties": parties, "merge": dict(merged.metrics)}
    module, tensors = deployed(method, merged, server, seed)
    if examples is not None:
        report["score"] = score_of(task, module, examples)
    return tensors, described(lead.network, module, merged), report


def lead_of(files: Sequence[UploadFile]) -> Network:
    """The network of what is merged: that of the party with most examples."""
    return files[largest([f.upload for f in files])].network


def _check_channels(network: Network, who: str) -> None:
    """Checks that a network can be traced, as whoever merges it will have to."""
    try:
        _wiring(network)
    except InputError as error:
        raise InputError(f"{who} needs channels: {error}") from error


def _wiring(network: Network) -> Wiring:
    return discover(network.bench().module.eval(), network.spec.example())


def _party(file: UploadFile, merged: Merged, server: Server | None) -> dict[str, Any]:
    """What the report says of one party; of one with a network of its own widths (`server` is None), less."""
    upload = file.upload
    found: dict[str, Any] = {
        "file": str(file.path),
        "party": upload.party,
        "examples": upload.examples,
        "distance_aligned": merged.metrics.get(f"distance/{upload.party}"),
    }
    if server is not None:
        square = 0.0
        for name in upload.trained:
            square += float((merged.model[name] - upload.model[name]).double().square().sum())
        found["distance"] = square**0.5
        if server.examples is not None:
            found["score"] = score_of(server.task, server.loaded(upload.model), server.examples)
    return {k: v for k, v in found.items() if v is not None}


def _columns(data: Dataset, hint: str) -> str:
    """What the columns of a table are, with `hint`; empty where it does not name them."""
    inputs = Inputs.of(data)
    if inputs.columns is None or not hint:
        return ""
    numbers = [counted(len(inputs.columns), "number")] if inputs.columns else []
    categories = [f"{counted(len(v), 'category', 'categories')} of {c!r}" for c, v in (inputs.categories or {}).items()]
    return f" for the columns that the data have ({', '.join([*numbers, *categories])}){hint}"


def _value(file: UploadFile, what: str) -> str:
    network = file.network
    values = {
        "model": network.name,
        "options": json.dumps(dict(network.options), sort_keys=True),
        "input": spec_text(network.spec),
        "layout": file.layout,
    }
    return values[what]
