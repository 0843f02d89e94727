"""The audit of a run: one more round under observation, then every attack on what was seen.

The round is the run's own next one, on a copy of its directory; with changed settings it is the first round of a fresh
run, where attacks are strongest (`--set train.steps=1 --set train.batch_size=1` is the textbook case). Attacks read
the recorded bytes, the method's public settings and the initialisation; the truth that they are scored by is ours.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfi.audit.findings import Audit
from fedfi.audit.inference import dominant_label, infer_labels, membership
from fedfi.audit.inversion import invert, psnr, ssim
from fedfi.audit.page import html, markdown, pictures
from fedfi.audit.recorder import Recorder
from fedfi.audit.views import View, views
from fedfi.data.dataset import Dataset
from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError
from fedfi.experiment import Experiment, of_run
from fedfi.federation.checkpoint import write_output
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.rng import keyed_generator
from fedfi.federation.run import run
from fedfi.federation.samedata import check_same_data
from fedfi.federation.task import Task
from fedfi.federation.training import batch_positions, step_count
from fedfi.federation.workbench import Workbench, fresh_workbench

_LOG = logging.getLogger("fedfi")


def audit(
    directory: Path, *, overrides: Sequence[str] = (), rounds: int = 1, clients: int = 3, iterations: int = 600
) -> Audit:
    """Audits a run.

    Args:
        directory: A run directory.
        overrides: Changed settings; with any, a fresh run is observed.
        rounds: Rounds that are observed.
        clients: On how many inversion is tried; the other attacks are tried on all.
        iterations: Steps of each inversion.

    Raises:
        InputError: If it is no run directory.
    """
    experiment = of_run(directory, list(overrides))
    task = experiment.task()
    seen, state = _observed(directory, experiment, task, rounds, fresh=bool(overrides))
    return attacked(
        _called(directory), experiment.algorithm(), task, seen, state, experiment.settings.seed, clients, iterations
    )


def attacked(
    name: str, algorithm: Any, task: Task, seen: Recorder, state: Any, seed: int, clients: int, iterations: int
) -> Audit:
    """Every attack on what a recorder has seen."""
    bench = fresh_workbench(task, keyed_generator(seed, "server", "init"))
    first = {n: t.clone() for n, t in bench.tree().items()}
    found = Audit(name, _method(algorithm))
    shown = views(algorithm, state, bench.layout, first, seen.observations)
    found.table["bytes/received"] = float(sum(len(o.received) for o in seen.observations))
    found.table["known/share"] = sum(float(v.known.double().mean()) for v in shown) / max(1, len(shown))
    _labels(found, shown, task, seed)
    _inversions(found, shown[:clients], task, bench, seed, iterations)
    scores = [m for v in shown if bool(v.known.any()) and (m := _membership(v, task, bench)) is not None]
    if scores:
        found.table["membership/auc"] = sum(scores) / len(scores)
    return found


def _method(algorithm: Any) -> str:
    """The class of a method, within those of what is wrapped around it."""
    name, inner = type(algorithm).__name__, getattr(algorithm, "algorithm", None)
    return name if inner is None else f"{name}({_method(inner)})"


def _called(directory: Path) -> str:
    """The name of a run; one of a comparison is called by its label, too."""
    path = directory.resolve()
    return f"{path.parent.name}/{path.name}" if path.name.startswith("seed-") else path.name


def _observed(directory: Path, experiment: Experiment, task: Task, rounds: int, *, fresh: bool) -> tuple[Recorder, Any]:
    settings, method = experiment.settings, experiment.algorithm()
    seen = Recorder(LocalEngine(method, task, seed=settings.seed))
    quiet = Evaluate(levels=False, local=False)
    try:
        if fresh:
            return seen, run(method, task, rounds=rounds, seed=settings.seed, evaluate=quiet, engine=seen).state
        check_same_data(directory, task.data)
        with tempfile.TemporaryDirectory(prefix="fedfi-audit-") as folder:
            copy = Path(folder) / "run"
            shutil.copytree(directory, copy, ignore=shutil.ignore_patterns(".lock", "audit", "report.html"))
            done = len((copy / "metrics.jsonl").read_text().splitlines()) if (copy / "metrics.jsonl").exists() else 0
            if not done and not any((copy / "checkpoints").glob("*")):
                _LOG.warning("warning: %s has no checkpoint: what is audited is its first round", directory)
            try:
                result = run(
                    method,
                    task,
                    rounds=done + rounds,
                    seed=settings.seed,
                    out=copy,
                    resume=True,
                    evaluate=quiet,
                    engine=seen,
                    config=experiment.resolved(),
                )
            except InputError as error:  # what it says of the copy, which will be gone, is true of the run
                error.args = (str(error).replace(str(copy), str(directory)),)
                raise
            return seen, result.state
    finally:
        seen.close()


def _labels(found: Audit, shown: Sequence[View], task: Task, seed: int) -> None:
    labels = [dominant_label(task.examples.clients[v.client].train) for v in shown]
    groups = [v.client for v in shown]
    kinds: dict[str, list[Tensor | None]] = {
        "masks": [v.packets for v in shown],
        "fisher": [v.fisher for v in shown],
        "changes": [v.change if bool(v.known.any()) else None for v in shown],
    }
    for kind, features in kinds.items():
        given = [f for f in features if f is not None]
        if given and len(given) == len(shown) and len({f.numel() for f in given}) == 1:
            attack = infer_labels(given, labels, groups, seed)
            if attack:
                found.table[f"labels/{kind}"] = attack.accuracy
                found.table["labels/chance"] = attack.chance


def _inversions(found: Audit, shown: Sequence[View], task: Task, bench: Workbench, seed: int, iterations: int) -> None:
    spec, scores, floor = task.data.spec, [], []
    if spec.kind == "text":
        return
    for view in shown:
        examples = task.examples.clients[view.client].train
        first, used = _trained_on(task, view, seed)
        inputs, _ = examples.batch(used)
        _, targets = examples.batch(first[:4])
        _, change, known = _named(view, bench)
        result = invert(
            bench.module,
            {n: view.start[n] for n in bench.layout.names},
            change,
            known,
            task.loss,
            tuple(inputs.shape[1:]),
            targets,  # given to the attack, which is its best case
            iterations=iterations,
            bounds=_bounds(examples.dataset),
            rng=keyed_generator(seed, "audit", view.client, view.round),
        )
        found.table["inversion/distance"] = max(found.table.get("inversion/distance", 0.0), result.distance)
        told = bool(view.known.any())  # else there are pictures of the blind guess, and nothing to score
        for guess, start in zip(result.inputs, result.start, strict=True):
            original, rebuilt = _nearest(guess, inputs, examples.dataset)
            scores += [_score(original, rebuilt, spec.kind, inputs)] if told else []
            floor.append(_score(*_nearest(start, inputs, examples.dataset), spec.kind, inputs)[0])
            if spec.kind == "image" and len(found.pictures) < 12:
                found.pictures.append((f"client {view.client}, round {view.round + 1}", original, rebuilt))
    if floor:
        found.table["inversion/floor"] = sum(floor) / len(floor)
    if scores:
        for i, key in enumerate(("inversion/psnr", "inversion/ssim")):
            values = [s[i] for s in scores if not math.isnan(s[i])]
            if values:
                found.table[key] = sum(values) / len(values)


def _trained_on(task: Task, view: View, seed: int) -> tuple[Tensor, Tensor]:
    """Positions of the examples of the first step of the observed training, and of all its steps."""
    size = len(task.examples.clients[view.client].train)
    draws = keyed_generator(seed, "client", view.round, view.client, "batches")
    steps = list(itertools.islice(batch_positions(size, task.training, draws), step_count(size, task.training)))
    return steps[0], torch.cat(steps).unique()


def _nearest(guess: Tensor, inputs: Tensor, data: Dataset) -> tuple[Tensor, Tensor]:
    """The most similar of the examples that were trained on (the attack could not know the order), and the guess."""
    nearest = inputs[int((inputs - guess).flatten(1).square().mean(1).argmin())]
    return (nearest, guess) if data.spec.kind != "image" else (_pixels(nearest, data), _pixels(guess, data))


def _score(original: Tensor, rebuilt: Tensor, kind: str, inputs: Tensor) -> tuple[float, float]:
    """PSNR, over the span of the inputs where they are no images, and SSIM of images."""
    if kind != "image":
        return psnr(rebuilt, original, float(inputs.max() - inputs.min()) or 1.0), math.nan
    return psnr(rebuilt, original), ssim(rebuilt, original)


def _membership(view: View, task: Task, bench: Workbench) -> float | None:
    start, change, known = _named(view, bench)
    model = {n: torch.where(known[n], start[n] - change[n], start[n]) for n in bench.layout.names}
    data = task.examples.clients[view.client]
    return membership(bench.module, model, data.train, data.test, task.loss)


def _named(view: View, bench: Workbench) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    layout = bench.layout
    return {n: view.start[n] for n in layout.names}, layout.split(view.change), layout.split(view.known)


def _bounds(data: Dataset) -> tuple[Tensor, Tensor] | None:
    """The smallest and largest model input that an image can be, by channel; None for what is no image."""
    if data.spec.kind != "image":
        return None
    mean, std = (torch.tensor(v) if t is None else t.view(-1, 1, 1) for t, v in ((data.mean, 0.0), (data.std, 1.0)))
    return -mean / std, (1 - mean) / std


def _pixels(image: Tensor, data: Dataset) -> Tensor:
    """A model input as an image in 0..1."""
    if data.mean is not None and data.std is not None:
        image = image * data.std.view(-1, 1, 1) + data.mean.view(-1, 1, 1)
    return image.clamp(0, 1)


def write(audits: Sequence[Audit], folder: Path) -> None:
    """Writes `audit.json`, `audit.md`, `audit.html`, and its pictures as `pictures.json`, into a folder."""
    content = [{"name": a.name, "method": a.method, **a.table} for a in audits]
    texts = {"json": json.dumps(content, indent=1) + "\n", "md": markdown(audits), "html": html(audits)}
    for ending, text in texts.items():
        write_output(folder / f"audit.{ending}", text.encode())
    write_output(folder / "pictures.json", (json.dumps(pictures(audits), indent=1) + "\n").encode())
