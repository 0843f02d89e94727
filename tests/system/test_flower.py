"""Real SuperLink and SuperNode processes on loopback, with TLS and keys: the same bits, whatever is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedfi[flower]'")

from fedfi.experiment import from_dict
from fedfi.federation.checkpoint import tensors_from_file
from fedfi.federation.record import read_lines
from fedfi.federation.run import run
from fedfi.flower.appdir import write_app
from fedfi.flower.keys import make_keys
from fedfi.flower.local import LocalFederation

pytestmark = pytest.mark.system

NODES = 4
PATIENCE = 900  # seconds; a busy machine starts processes slowly
EXPERIMENT = {
    "rounds": 2,
    "data": {"name": "digits", "clients": 8, "partition": {"by": "dirichlet", "alpha": 0.3}},
    "model": {"name": "mlp", "hidden": [16]},
    "train": {"learning_rate": 0.1, "batch_size": 20, "steps": 3},
    "evaluate": {"local": False},
}
METHODS = {
    "fedavg": {"name": "fedavg", "participation": 0.75},
    "fedfibos": {"name": "fedfibos", "participation": 0.75, "capacities": {"1.0": 0.5, "0.25": 0.5}},
    "few": {"name": "fedfibos", "clients_per_round": 2, "capacities": {"1.0": 0.5, "0.25": 0.5}},
}
BOTH = ("fedavg", "fedfibos")


def experiment(method: str, rounds: int = 2):
    return from_dict({**EXPERIMENT, "rounds": rounds, "algorithm": METHODS[method]})


def alone(method: str, rounds: int = 2):
    """The model of the same run in this process."""
    settings = experiment(method, rounds)
    task = settings.task()
    return run(settings.algorithm(), task, rounds=rounds, seed=0, evaluate=settings.settings.evaluate).model


def same(model, out: Path) -> bool:
    found = tensors_from_file(out / "model.safetensors")
    return model.keys() == found.keys() and all(torch.equal(model[n], found[n]) for n in model)


def app(federation: LocalFederation, method: str, rounds: int, out: Path) -> None:
    """Makes this the federation's app."""
    shutil.rmtree(federation.directory / "app", ignore_errors=True)
    write_app(experiment(method, rounds), federation.directory / "app", name=method, options={"out": str(out)})


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    there = LocalFederation.create(tmp_path_factory.mktemp("flower") / "federation", NODES)
    try:
        there.start()
        yield there
    finally:
        there.down()
        assert there.processes() == {}


def submit(federation: LocalFederation) -> None:
    command = federation.run_command(stream=False)
    done = subprocess.run(command, env=federation.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def serving(federation: LocalFederation) -> list[int]:
    return [pid for pid, command in federation.processes().items() if "flwr-serverapp" in command]


def finished(out: Path) -> bool:
    return any(e["event"] == "done" for e in read_lines(out / "events.jsonl"))


def see_through(federation: LocalFederation, out: Path, meanwhile=lambda: None) -> None:
    """Submits the app until its run is done, as somebody would who watches over it."""
    end = time.monotonic() + PATIENCE
    idle_since = 0.0
    while not finished(out):
        assert time.monotonic() < end, (federation.log("superlink")).read_text()[-3000:]
        if serving(federation):
            idle_since = 0.0
        elif idle_since == 0.0:
            idle_since = time.monotonic()
            if not out.exists():
                submit(federation)
        elif time.monotonic() - idle_since > 15:
            submit(federation)
            idle_since = 0.0
        meanwhile()
        time.sleep(0.2)


@pytest.mark.parametrize("method", BOTH)
def test_the_bits_are_those_of_one_machine(federation, method, tmp_path):
    out = tmp_path / "run"
    app(federation, method, 2, out)
    see_through(federation, out)
    assert [e for e in read_lines(out / "events.jsonl") if e["event"] == "failure"] == []
    assert same(alone(method), out)


VICTIMS = {
    "client app": "flwr-clientapp",
    "server app": "flwr-serverapp",
    "node": "flower-supernode",
    "link": "flower-superlink",
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_changes_no_bit(federation, victim, tmp_path):
    """Signal 9 at a random moment after the first round; what is not restarted by Flower is restarted here."""
    out, rng = tmp_path / "run", random.Random(victim)
    app(federation, "few", 3, out)
    due: list[float] = []
    killed: list[int] = []

    def meanwhile():
        if killed or not read_lines(out / "metrics.jsonl"):
            return
        if not due:
            due.append(time.monotonic() + 5 * rng.random())
        processes = federation.processes()
        found = sorted(pid for pid, command in processes.items() if VICTIMS[victim] in command)
        if time.monotonic() < due[0] or not found:
            return
        pid = rng.choice(found)
        which = next((i for i in range(NODES) if f"partition-id={i} " in processes[pid]), 0)
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        if pid in federation.children:
            federation.children[pid].wait()
        if victim == "node":
            federation.start_node(which)
        elif victim == "link":
            time.sleep(3)
            federation.start_superlink()

    see_through(federation, out, meanwhile)
    assert killed
    assert [e for e in read_lines(out / "events.jsonl") if e["event"] == "failure"] == []
    assert same(alone("few", 3), out)


def ends(process: subprocess.Popen, seconds: float = 120) -> int:
    return process.wait(timeout=seconds)


def node_with(federation: LocalFederation, name: str, *arguments: str) -> tuple[subprocess.Popen, Path]:
    """A SuperNode that tries to join for a few seconds."""
    log = federation.directory / f"logs/{name}.log"
    command = [
        str(Path(federation.run_command()[0]).with_name("flower-supernode")),
        *("--superlink", f"127.0.0.1:{federation.port}", "--host", "127.0.0.1", "--port", "28473"),
        *("--max-retries", "2", "--max-wait-time", "10", *arguments),
    ]
    with log.open("wb") as file:
        home = federation.directory / name
        environment = federation.environment(home)
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True), log


@pytest.mark.parametrize("intruder", ["unknown key", "wrong authority", "plain text"])
def test_intruders_are_refused(federation, intruder, tmp_path):
    make_keys(tmp_path / "other")
    own, other = federation.directory / "keys/node-0", tmp_path / "other/node-0"
    arguments = {
        "unknown key": ("--root-certificates", own / "ca.crt", "--auth-supernode-private-key", other / "node.key"),
        "wrong authority": ("--root-certificates", other / "ca.crt", "--auth-supernode-private-key", own / "node.key"),
        "plain text": ("--insecure",),
    }[intruder]
    process, log = node_with(federation, intruder.replace(" ", "-"), *map(str, arguments))
    try:
        assert ends(process) != 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert "Receiving:" not in log.read_text()


SIMULATION = """
import sys
from flwr.simulation import run_simulation
from fedfi.flower import client_app, server_app

file, scratch = sys.argv[1:]
run_simulation(
    server_app=server_app(file),
    client_app=client_app(file),
    num_supernodes=4,
    backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "_temp_dir": scratch},
    },
)
"""


@pytest.mark.parametrize("method", BOTH)
def test_flowers_simulation_gives_the_same_bits(method, tmp_path):
    write_app(experiment(method), tmp_path / "app", name=method)
    file = tmp_path / f"app/{method}_app/experiment.toml"
    with tempfile.TemporaryDirectory(prefix="ray") as scratch:  # Ray's sockets need a short path
        environment = os.environ | {
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FEDFI_MEMORY": str(tmp_path / "memory"),
        }
        command = [sys.executable, "-c", SIMULATION, str(file), scratch]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    out = tmp_path / "runs/flower"
    assert (out / "model.safetensors").exists(), done.stderr[-3000:]
    assert same(alone(method), out)
