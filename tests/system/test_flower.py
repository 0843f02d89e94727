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

from fedfi.data import hub
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
IDLE = 20  # seconds without a server app after which somebody submits the run again
AGAIN = 10  # seconds after which a node that has ended is started again
EXPERIMENT = {
    "rounds": 2,
    "data": {"name": "digits", "clients": 8, "partition": {"by": "dirichlet", "alpha": 0.3}},
    "model": {"name": "mlp", "hidden": [16]},
    "train": {"learning_rate": 0.1, "batch_size": 20, "steps": 3},
    "evaluate": {"local": False},
}
MIX = {"1.0": 0.5, "0.25": 0.5}
RATINGS = {
    "data": {"name": "filmtrust"},
    "model": {"name": "item_table", "dimension": 8},
    "train": {"learning_rate": 0.1, "batch_size": 256},
    "evaluate": {"every": 2},
}
METHODS: dict[str, dict] = {
    "fedavg": {"algorithm": {"name": "fedavg", "participation": 0.75}},
    "fedfibos": {"algorithm": {"name": "fedfibos", "participation": 0.75, "capacities": MIX}},
    "heterofl": {"algorithm": {"name": "heterofl", "participation": 0.75, "capacities": MIX}},
    "fedfiot": {"rounds": 1, "algorithm": {"name": "fedfiot"}},
    "fedfihe": {
        "algorithm": {"name": "fedfihe", "phases": "two", "encryption": {"packet_size": 32}},
        "evaluate": {"every": 2},
    },
    "fedrkg": {**RATINGS, "algorithm": {"name": "fedrkg", "participation": 0.05, "interval": 1}},
    "few": {"algorithm": {"name": "fedfibos", "clients_per_round": 2, "capacities": MIX}},
}
BOTH = ("fedavg", "fedfibos")
SIX = ("fedavg", "fedfibos", "heterofl", "fedfiot", "fedfihe", "fedrkg")
KILLS = int(os.environ.get("FEDFI_KILLS", "4"))
"""How many random kills are tried: four meet each kind of process once."""


def experiment(method: str, rounds: int = 2, **more):
    return from_dict({**EXPERIMENT, "rounds": rounds, **METHODS[method], **more})


def alone(settings):
    """The same run in this process."""
    s = settings.settings
    return run(settings.algorithm(), settings.task(), rounds=s.rounds, seed=s.seed, evaluate=s.evaluate)


def same(result, out: Path) -> bool:
    """Whether model and numbers are those of a run, but for times."""
    model, found = result.model, tensors_from_file(out / "model.safetensors")
    ours, theirs = (
        [{**line, "seconds": 0} for line in lines] for lines in (result.metrics, read_lines(out / "metrics.jsonl"))
    )
    return model.keys() == found.keys() and all(torch.equal(model[n], found[n]) for n in model) and ours == theirs


def app(federation: LocalFederation, settings, out: Path) -> None:
    """Makes this the federation's app."""
    shutil.rmtree(federation.directory / "app", ignore_errors=True)
    write_app(settings, federation.directory / "app", name="experiment", options={"out": str(out)})


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


def see_through(federation: LocalFederation, out: Path, meanwhile=lambda seconds: None) -> float:
    """Submits the app until its run is done, as somebody would who watches over it; gives how many seconds it took."""
    started = last = tended = time.monotonic()
    submit(federation)
    while not finished(out):
        now = time.monotonic()
        assert now - started < PATIENCE, federation.log("superlink").read_text()[-3000:]
        if serving(federation):
            last = now
        elif now - last > IDLE and federation.listens():
            submit(federation)
            last = time.monotonic()
        if now - tended > AGAIN and federation.listens():
            tended = now
            federation.tend()
        meanwhile(now - started)
        time.sleep(0.2)
    return time.monotonic() - started


@pytest.mark.parametrize("method", SIX)
def test_the_bits_are_those_of_one_machine(federation, method, tmp_path):
    """On real data: handwritten digits and, where `FEDFI_DATA` has them, ratings of films."""
    settings = experiment(method)
    if method == "fedrkg" and hub.data_folder("filmtrust") is None:
        settings = experiment(method, data={"name": "synthetic_ratings"})
    out = tmp_path / "run"
    app(federation, settings, out)
    see_through(federation, out)
    assert [e for e in read_lines(out / "events.jsonl") if e["event"] == "failure"] == []
    assert same(alone(settings), out)


VICTIMS = {
    "client app": "flwr-clientapp",
    "server app": "flwr-serverapp",
    "node": "flower-supernode",
    "link": "flower-superlink",
}


@pytest.fixture(scope="module")
def undisturbed(federation, tmp_path_factory) -> float:
    """How many seconds the run takes that is disturbed below."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    app(federation, experiment("few", 3), out)
    return see_through(federation, out)


@pytest.mark.parametrize("number", range(KILLS))
def test_a_kill_changes_no_bit(federation, undisturbed, number, tmp_path):
    """Signal 9 at a random moment of the run, its start included; what Flower does not restart is restarted here.

    The victims take turns, so that four kills meet each kind once.
    """
    rng = random.Random(number)
    victim = list(VICTIMS)[number % len(VICTIMS)]
    due = rng.uniform(0.0, 0.9 * undisturbed)
    killed: list[str] = []

    def meanwhile(seconds: float) -> None:
        processes = federation.processes()
        found = sorted(pid for pid, command in processes.items() if VICTIMS[victim] in command)
        if killed or seconds < due or not found:
            return
        pid = rng.choice(found)
        os.kill(pid, signal.SIGKILL)
        killed.append(f"{victim} after {seconds:.1f} of {undisturbed:.1f} s")
        if pid in federation.children:
            federation.children[pid].wait()
        if victim == "link":
            time.sleep(3)
            federation.start_superlink()

    for attempt in range(3):  # a run that was over before goes faster than the undisturbed one did
        out = tmp_path / f"run-{attempt}"
        app(federation, experiment("few", 3), out)
        seconds = see_through(federation, out, meanwhile)
        if killed:
            break
        due *= 0.5
    print(killed, f"{seconds:.0f} s")
    assert killed, "every run was over before its victim was there"
    assert [e for e in read_lines(out / "events.jsonl") if e["event"] == "failure"] == []
    assert same(alone(experiment("few", 3)), out)


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
    told = log.read_text()
    assert "Starting Flower SuperNode" in told, told  # else it ended for a reason of its own
    assert "Receiving:" not in told


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
    assert same(alone(experiment(method)), out)
