"""Values that are no numbers: files stay JSON, pages and tables say so, a resume goes on."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from tests import tiny

import fedfi as library
from fedfi.federation.record import finite, read_lines
from fedfi.federation.task import classification
from fedfi.report import write_report


def strict(text: str) -> object:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def evaluation(outputs, targets):
    nothing = torch.full(targets.shape, math.nan)
    return {**classification(outputs, targets), "loss": nothing, "accuracy": nothing, "far": nothing + math.inf}


def test_finite() -> None:
    assert finite({"a": [math.nan, 1.0, (math.inf,)], "b": "nan"}) == {"a": [None, 1.0, [None]], "b": "nan"}


def test_a_run_and_its_resume(tmp_path: Path) -> None:
    import dataclasses

    task = dataclasses.replace(tiny.small(), evaluation=evaluation)
    out = tmp_path / "run"
    library.run(library.FedAvg(), task, rounds=2, out=out)
    result = library.run(library.FedAvg(), task, rounds=3, out=out, resume=True)
    for name in ("metrics.jsonl", "events.jsonl"):
        for line in (out / name).read_text().splitlines():
            strict(line)
    assert len(read_lines(out / "metrics.jsonl")) == 3
    assert all(math.isnan(line["global/accuracy"]) for line in result.metrics)
    page = write_report([out], tmp_path / "page.html").read_text()
    assert "nan%" in page


def test_compare_with_a_loss_that_is_none(file: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs are finished; then one's metrics are as a diverged model leaves them."""
    arguments = ("compare", file, "--algorithms", "fedavg,fedprox", "--seeds", "0,1", "--out", "all")
    file.write_text(file.read_text().replace('capacities = { "1.0" = 0.5, "0.25" = 0.5 }', ""))
    text = file.read_text().replace('"fedfibos"', '"fedavg"')
    file.write_text(text)
    assert fedfi(*arguments, "-q")[0] == 0
    metrics = Path("all/fedprox/seed-1/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[-1] |= {"global/accuracy": None, "global/loss": None}
    text = "".join(json.dumps(line) + "\n" for line in lines)
    size = len(metrics.read_bytes())  # that which the checkpoint knows of
    metrics.write_text(text[:-1] + " " * (size - len(text)) + "\n")
    assert len(metrics.read_bytes()) == size
    code, out, err = fedfi(*arguments)
    assert code == 0, err
    rows = {line.split("|")[1].strip(): line for line in out.splitlines()}
    assert "nan" in rows["fedprox"]
    assert "nan" not in rows["fedavg"]
    strict(Path("all/results.json").read_text())
    table = {row["method"]: row for row in csv.DictReader(Path("all/table.csv").read_text().splitlines())}
    assert table["fedprox"]["global/accuracy"] == "nan"
    assert fedfi("report", "all", "-o", "page.html", "-q")[0] == 0
    assert "<b>fedavg</b> reached" in Path("page.html").read_text()
    assert fedfi("resume", "all/fedprox/seed-1")[0] == 0
