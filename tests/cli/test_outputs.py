"""What a run's record is made of is never an output."""

from __future__ import annotations

import pytest

from fedfi.cli.outputs import refuse_within_record
from fedfi.errors import InputError


def test_a_runs_record_is_no_output(tmp_path):
    run = tmp_path / "runs" / "one"
    (run / "checkpoints").mkdir(parents=True)
    kept = [run / "run.toml", run / "metrics.jsonl", run / "model.safetensors", run / "checkpoints" / "a.safetensors"]
    for path in [*kept, run / "report.html", run / "small.safetensors"]:
        path.touch()
    (tmp_path / "link").symlink_to(kept[1])
    for path in (*kept, tmp_path / "link"):
        for given in (run, tmp_path / "runs"):
            with pytest.raises(InputError, match="choose another name"):
                refuse_within_record(path, [given])
    for path in (run / "report.html", run / "small.safetensors", run / "new.csv"):
        refuse_within_record(path, [run])
