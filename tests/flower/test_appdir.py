"""The app that `fedfi flower` writes is one that Flower itself accepts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.flower.fakes import FakeGrid, Machine, Time, run_app

from fedfi.cli import main
from fedfi.engines.flower.door import ClientApp, ServerApp
from fedfi.experiment import load_experiment

FILE = """
rounds = 1
[data]
name = "digits"
clients = 4
[model]
name = "netparts:wide"
[train]
steps = 1
[algorithm]
name = "fedavg"
"""
MINE = """
import math
from torch import nn


def wide(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(spec.shape), spec.classes))
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my digits.toml").write_text(FILE)
    (tmp_path / "netparts.py").write_text(MINE)
    assert main(["flower", "my digits.toml", "-o", "app", "--publisher", "someone", "--quiet"]) == 0
    yield tmp_path / "app"
    for name in [n for n in sys.modules if n == "netparts" or n.startswith("my_digits")]:
        del sys.modules[name]


def test_flower_builds_it(app, tmp_path):
    flwr = Path(sys.executable).parent / "flwr"
    env = os.environ | {
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    done = subprocess.run(
        [flwr, "build", "--app", app], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.rglob("someone.my-digits.1-0-0.*.fab"))) == 1


def test_it_follows_the_hubs_conventions(app):
    project = tomllib.loads((app / "pyproject.toml").read_text())
    flower = project["tool"]["flwr"]["app"]
    assert flower["fab-format-version"] == 1
    assert f"flwr>={flower['flwr-version-target']}" in project["project"]["dependencies"]
    assert project["project"]["license"] == {"file": "LICENSE"}
    assert (app / "LICENSE").exists()
    assert (app / "netparts.py").read_text() == MINE
    experiment = load_experiment(app / "my_digits_app/experiment.toml")
    assert experiment.resolved() == load_experiment(app.parent / "my digits.toml").resolved()
    assert "--nodes 4" in (app / "README.md").read_text()


def commands(app: Path) -> list[list[str]]:
    """Those of the README that begin with one of these programs, continued lines joined."""
    text = (app / "README.md").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(("fedfi flower keys", "flower-super"))]


def test_its_readme_is_about_the_keys_that_there_are(app, tmp_path):
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedfi[flower]'")
    keys, *programs = commands(app)
    assert main([*keys[1:], "--quiet"]) == 0
    named = [word for command in programs for word in command if word.startswith("keys/")]
    assert len(named) == 5
    assert all((tmp_path / name).is_file() for name in named)
    assert 'root-certificates = "/path/to/keys/server/ca.crt"' in (app / "README.md").read_text()
    assert "num-partitions=4" in programs[1][-1]
    assert len(list((tmp_path / "keys").glob("node-*"))) == 4


def test_its_readmes_options_are_flowers(app):
    for command in commands(app)[1:]:
        program = Path(sys.executable).parent / command[0]
        said = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        for option in [word for word in command if word.startswith("--")]:
            assert f"{option} " in said or f"{option}]" in said, option


def test_its_readme_says_where_results_are(app):
    out = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["out"]
    assert f"`fedfi report {out} -o report.html`" in (app / "README.md").read_text()


def test_its_components_are_apps_that_work(app, tmp_path, monkeypatch):
    from flwr.supercore.object_ref import load_app

    flower = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    monkeypatch.setattr(sys, "path", [str(app), *sys.path])
    parts = {k: load_app(v, RuntimeError, app) for k, v in flower["components"].items()}
    assert isinstance(parts["clientapp"], ClientApp)
    assert isinstance(parts["serverapp"], ServerApp)
    grid = FakeGrid(Time())
    config = flower["config"] | {"out": str(tmp_path / "run")}
    for i in range(4):
        grid.machines[i] = Machine(parts["clientapp"], {"partition-id": i, "num-partitions": 4}, run_config=config)
    run_app(parts["serverapp"], grid, config)
    assert (tmp_path / "run/model.safetensors").exists()


def test_nothing_is_overwritten(app, capsys):
    assert main(["flower", "my digits.toml", "-o", "app"]) == 2
    assert "app: exists and is not empty" in capsys.readouterr().err


def test_a_publisher_is_a_name(app, capsys):
    assert main(["flower", "my digits.toml", "-o", "other", "--publisher", "some one"]) == 2
    assert "--publisher some one: only letters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("2024 run", "app-2024-run"),
        ("_", "experiment"),
        ("submodels-on-cifar10-with-dirichlet-0.3", "submodels-on-cifar10-with-dirich"),
        ("a" * 31 + "-b", "a" * 31),
    ],
)
def test_its_name_is_one_that_flower_takes(stem, name, app, tmp_path):
    (tmp_path / f"{stem}.toml").write_text(FILE)
    assert main(["flower", f"{stem}.toml", "-o", "other", "--quiet"]) == 0
    project = tomllib.loads((tmp_path / "other/pyproject.toml").read_text())
    assert project["project"]["name"] == name
    package = project["tool"]["flwr"]["app"]["components"]["serverapp"].partition(".")[0]
    assert (tmp_path / "other" / package / "experiment.toml").exists()
