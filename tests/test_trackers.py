from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedfi import trackers
from fedfi.cli import main
from fedfi.errors import InputError
from fedfi.trackers import tracked

EXPERIMENT = """
rounds = 3
[data]
name = "digits"
clients = 4
[model]
name = "mlp"
hidden = [8]
[train]
steps = 1
[algorithm]
name = "fedavg"
"""


def begin(tmp_path: Path, log: str) -> Path:
    file, out = tmp_path / "file.toml", tmp_path / "run"
    file.write_text(f'log = ["{log}"]\n{EXPERIMENT}')
    assert main(["run", str(file), "--out", str(out), "--quiet"]) == 0
    return out


def test_tensorboard_has_every_round_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = begin(tmp_path, "tensorboard")
    assert main(["resume", str(out), "--rounds", "5", "--quiet"]) == 0
    found = accumulator.EventAccumulator(str(out / "tensorboard")).Reload()
    points = found.Scalars("global/accuracy")
    lines = [line for line in read(out) if "global/accuracy" in line]
    assert [p.step for p in points] == [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    assert [p.value for p in points] == pytest.approx([line["global/accuracy"] for line in lines])


def test_mlflow_has_settings_and_every_round_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    out = begin(tmp_path, "mlflow")
    assert main(["resume", str(out), "--rounds", "4", "--quiet"]) == 0
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fedfi").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.name"] == "fedavg"
    assert [m.step for m in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 2, 3, 4]


def test_a_missing_package_is_said_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with (
        pytest.raises(InputError, match=r"log = mlflow .* pip install 'fedfi\[mlflow\]'"),
        tracked(["mlflow"], tmp_path, {}, None),
    ):
        pass
    file = tmp_path / "file.toml"
    file.write_text(f'log = ["tensorboard"]\n{EXPERIMENT}')
    assert main(["run", str(file), "--out", str(tmp_path / "run"), "--quiet"]) == 2
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file.toml"
    file.write_text(f'log = ["tensorbord"]\n{EXPERIMENT}')
    assert main(["run", str(file), "--out", str(tmp_path / "run"), "--quiet"]) == 2
    assert "tensorbord" in capsys.readouterr().err


def read(out: Path) -> list[dict[str, Any]]:
    from fedfi.federation.record import read_lines

    return read_lines(out / "metrics.jsonl")
