from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from fedfi.cli.results import warned
from fedfi.federation.checkpoint import tensors_from_file
from fedfi.federation.record import read_lines
from fedfi.progress import progress

from .conftest import spawn


def test_run_writes_a_directory_and_prints_a_table(file: Path, fedfi) -> None:
    code, out, err = fedfi("run", file)
    assert code == 0
    lines = err.splitlines()
    assert lines[0] == "run directory: runs/exp-fedfibos-1"
    assert [line.split("  ")[0] for line in lines[1:]] == ["round 1/2", "round 2/2"]
    run = Path("runs/exp-fedfibos-1")
    for part in ("global model, test", "submodels, mean", "worst", "%", "traffic: ", "failures: 0"):
        assert part in out
    assert out.count(str(run)) == 1
    assert {"run.toml", "metrics.jsonl", "model.safetensors", "report.html"} <= {p.name for p in run.iterdir()}
    code, _, err = fedfi("run", file, "--quiet")
    assert (code, err) == (0, "")
    assert Path("runs/exp-fedfibos-2/model.safetensors").exists()


def test_run_toml_runs_the_same(file: Path, fedfi) -> None:
    assert fedfi("run", file, "--out", "a", "-q") == (0, "", "")
    assert fedfi("run", "a/run.toml", "--out", "b", "-q") == (0, "", "")
    one, two = tensors_from_file(Path("a/model.safetensors")), tensors_from_file(Path("b/model.safetensors"))
    assert all(one[name].equal(two[name]) for name in one)
    assert Path("a/run.toml").read_text() == Path("b/run.toml").read_text()


def test_resume_of_a_finished_run_says_so_and_extends(file: Path, fedfi) -> None:
    fedfi("run", file, "--out", "a", "-q")
    code, out, _ = fedfi("resume", "a")
    assert code == 0
    assert out.startswith("a is finished: 2 of 2 rounds\n")
    code, _, err = fedfi("resume", "a", "--rounds", "1")
    assert (code, err) == (2, "--rounds 1: the run has 2 (nearest valid: 2)\n")
    assert fedfi("resume", "a", "--rounds", "3", "-q") == (0, "", "")
    assert [line["round"] for line in read_lines(Path("a/metrics.jsonl"))] == [1, 2, 3]
    fedfi("run", file, "--out", "b", "-q", "--set", "rounds=3")
    one, two = tensors_from_file(Path("a/model.safetensors")), tensors_from_file(Path("b/model.safetensors"))
    assert all(one[name].equal(two[name]) for name in one)
    assert Path("a/run.toml").read_text() == Path("b/run.toml").read_text()


def test_resume_refuses_other_data(file: Path, fedfi) -> None:
    fedfi("run", file, "--out", "a", "-q")
    split = json.loads(Path("a/split.json").read_text())
    split["clients"]["2"]["train"]["hash"] = "0"
    Path("a/split.json").write_text(json.dumps(split))
    code, _, err = fedfi("resume", "a", "--rounds", "3")
    assert code == 2
    assert "the data are not those that the run began with: the examples of client '2' are others;" in err


def test_resume_needs_a_run(file: Path, fedfi) -> None:
    assert fedfi("resume", ".") == (2, "", ".: is not a run directory: it has no run.toml\n")


def test_failed_run_is_code_3(file: Path, fedfi) -> None:
    code, _, err = fedfi("run", file, "--set", "train.learning_rate=1e38", "--out", "a")
    assert code == 3
    assert ": 0 of 3 clients delivered, 1 is needed; last failure: client" in err.splitlines()[-1]
    code, _, err = fedfi("run", file, "--set", "min_replies=4", "--out", "b")
    assert code == 2
    assert "min_replies = 4: only 3 clients are asked a round (nearest valid: 3)" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_and_resume(file: Path, fedfi, number: int, code: int) -> None:
    process = spawn("run", "exp.toml", "--out", "a", "--set", "rounds=400", cwd=Path.cwd())
    metrics = Path("a/metrics.jsonl")
    deadline = time.monotonic() + 30
    while not (metrics.exists() and metrics.read_text().count("\n") > 1):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert err.splitlines()[-1].endswith("go on with: fedfi resume a")
    assert "Traceback" not in err
    done = metrics.read_text().count("\n")
    Path("a/run.toml").write_text(Path("a/run.toml").read_text().replace("rounds = 400", f"rounds = {done + 1}"))
    assert fedfi("resume", "a", "-q") == (0, "", "")
    assert [line["round"] for line in read_lines(metrics)] == list(range(1, done + 2))


def test_missing_report_extra_is_one_line(file: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    code, out, _ = fedfi("run", file, "--out", "a")
    assert code == 0
    assert out.splitlines()[-1] == "no report.html: reports need plotly: pip install 'fedfi[report]'"
    assert not Path("a/report.html").exists()


def test_help_is_quick_and_light(file: Path) -> None:
    started = time.monotonic()
    process = spawn("--help", cwd=Path.cwd())
    out, _ = process.communicate()
    assert process.returncode == 0
    assert "compare" in out
    assert time.monotonic() - started < 2  # half a second on an idle machine
    code = "import sys; from fedfi.cli import main; main(['--help']); print([m for m in sys.modules if m in"
    code += " ('torch', 'datasets', 'plotly', 'pandas', 'pydantic', 'numpy')])"
    import subprocess

    text = subprocess.run([__import__("sys").executable, "-c", code], capture_output=True, text=True).stdout
    assert text.splitlines()[-1] == "[]"


def test_seed_and_rounds_are_options(file: Path, fedfi) -> None:
    assert fedfi("run", file, "--seed", "5", "--rounds", "1", "--out", "a", "-q") == (0, "", "")
    text = Path("a/run.toml").read_text()
    assert "rounds = 1\n" in text
    assert "\nseed = 5\n" in text


def test_report_goes_into_the_directory(file: Path, fedfi) -> None:
    fedfi("run", file, "--out", "a", "-q")
    Path("a/report.html").unlink()
    assert fedfi("report", "a") == (0, "report: a/report.html\n", "")
    code, _, err = fedfi("report", "a", "a")
    assert code == 2
    assert "needs a name for the page" in err


def test_a_run_that_diverges_says_so(file: Path, fedfi) -> None:
    text = file.read_text().replace('capacities = { "1.0" = 0.5, "0.25" = 0.5 }\n', "").replace("fedfibos", "fedavg")
    file.write_text(text.replace("learning_rate = 0.1", "learning_rate = 50.0"))
    code, out, _ = fedfi("run", file, "--rounds", "4", "--out", "a")
    assert code == 0
    assert "training diverge" in out
    assert max(map(len, out.splitlines()[:6])) < 80
    warnings = [e for e in read_lines(Path("a/events.jsonl")) if e["event"] == "warning"]
    assert [w["key"] for w in warnings] == ["divergence"]


def test_loading_is_announced(file: Path, fedfi) -> None:
    Path("data.csv").write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    file.write_text(file.read_text().replace('"digits"', '"data.csv"'))
    _, _, err = fedfi("run", file, "--out", "a")
    assert err.startswith("loading data.csv ...\n")


def test_a_finished_run_whose_settings_were_edited(file: Path, fedfi) -> None:
    fedfi("run", file, "--out", "a", "-q")
    toml = Path("a/run.toml").read_text()
    for old, new, said in [
        ("learning_rate = 0.1", "learning_rate = 0.2", "train.learning_rate = 0.2, the run began with 0.1; "),
        ("participation = 0.5", "participation = 1.0", "algorithm.participation = 1.0, the run began with 0.5; "),
    ]:
        Path("a/run.toml").write_text(toml.replace(old, new))
        for command in (["resume", "a"], ["resume", "a", "--rounds", "3"], ["export", "a", "-o", "x.safetensors"]):
            code, _, err = fedfi(*command)
            assert (code, err.splitlines()[-1].startswith(f"a/run.toml: {said}")) == (2, True), (command, err)
    Path("a/run.toml").write_text(toml)
    assert fedfi("resume", "a", "-q") == (0, "", "")


def test_checkpoints_that_were_removed(file: Path, fedfi) -> None:
    fedfi("run", file, "--out", "a", "-q")
    before = {p: p.read_bytes() for p in Path("a").iterdir() if p.is_file()}
    shutil.rmtree("a/checkpoints")
    assert fedfi("resume", "a", "-q") == (0, "", "")  # finished, and its result is there
    for kept in ("metrics.jsonl and a model.safetensors", "metrics.jsonl"):
        code, _, err = fedfi("resume", "a", "--rounds", "4", "-q")
        assert code == 2
        assert err.startswith(f"a/checkpoints: holds no checkpoint to go on from, though the run has a {kept},")
        assert "begin the run anew in another directory, such as `fedfi run a/run.toml --out a-anew`" in err
        assert ("(its model is still in a/model.safetensors)" in err) == ("model" in kept)
        assert {p: p.read_bytes() for p in before if p.exists()} == {p: c for p, c in before.items() if p.exists()}
        Path("a/model.safetensors").unlink(missing_ok=True)


@pytest.mark.parametrize("kept", [0, 1])
def test_metrics_that_were_lost(file: Path, fedfi, kept: int) -> None:
    fedfi("run", file, "--out", "a", "-q")
    metrics, toml = Path("a/metrics.jsonl"), Path("a/run.toml").read_text()
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:kept]))
    if not kept:
        metrics.unlink()
    for more in ([], ["--rounds", "4"]):
        code, _, err = fedfi("resume", "a", *more)
        assert code == 2
        assert err.startswith("a/metrics.jsonl: has ")
        assert "`fedfi run a/run.toml --out a-anew` (its model is still in a/model.safetensors)" in err
        assert Path("a/run.toml").read_text() == toml
    shutil.rmtree("a/checkpoints")
    code, _, err = fedfi("resume", "a")
    assert err.startswith(f"a/metrics.jsonl: holds {kept} of the 2 rounds of the finished run: put it back, or begin")
    assert code == 2


def test_all_checkpoints_damaged(file: Path, fedfi) -> None:
    fedfi("run", file, "--out", "a", "-q")
    names = sorted(p.name for p in Path("a/checkpoints").iterdir())
    for name in names:
        Path("a/checkpoints", name).write_bytes(b"")
    for said in ("{name} is damaged", "{name} was found damaged before"):
        code, _, err = fedfi("resume", "a", "--rounds", "3", "-q")
        assert code == 3
        assert err.startswith("there is no usable checkpoint in a/checkpoints; ")
        ending = ".safetensors" if "is" in said else ".damaged"
        assert all(said.format(name=name.replace(".safetensors", ending)) in err for name in names)
        assert err.endswith("--out a-anew` (its model is still in a/model.safetensors)\n")


def test_progress_of_rounds_that_are_not_judged_says_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(3) as observe:
        for line in ({"round": 1}, {"round": 2, "ranking/hr@10": 0.5}, {"round": 3}):
            observe(line)
    told = [line.split("  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert told == ["not judged yet", "HR@10 0.500", "HR@10 0.500 (round 2)"]


def test_progress_begins_with_the_first_round_that_is_done_again(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(4, done=3) as observe:
        for number in (1, 2):
            observe({"round": number})
    assert [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()] == ["round 1/4", "round 2/4"]


def test_warnings_are_named_one_line_a_kind() -> None:
    warnings: list[dict[str, object]] = [{"key": "divergence", "text": "wild 1", "round": 1}]
    warnings += [{"text": f"note {i}"} for i in range(3)]
    warnings += [{"key": "clipped", "text": f"clipped {i}", "round": i} for i in (1, 2)]
    warnings += [{"key": "divergence", "text": "wild 2", "round": 2}]
    expected = [f"warning: note {i}" for i in range(3)]
    expected += ["warning: clipped 2 (2 times; this is the last)", "warning: wild 2 (2 times; this is the last)"]
    assert warned(warnings) == expected
    more = [{"text": f"more {i}"} for i in range(3)]
    assert warned(warnings + more)[-2:] == ["2 more warnings in events.jsonl", expected[-1]]
    assert warned([]) == []
