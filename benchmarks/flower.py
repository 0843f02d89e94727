"""What fedfi adds to Flower: time a round, and memory at a large message, on real processes on loopback.

Two apps move the same bytes on one federation of this machine (a SuperLink and SuperNodes, with TLS and keys): Flower's
own FedAvg with a ClientApp that sends back what it got, and fedfi's loop with a method that does the same. Nobody
trains, so what is left is what surrounds the training. They take turns. A round is the time between two ends of rounds
in the server's process, the median over rounds but the first; the ratio is taken within a turn.

Memory is that of one exchange of a large message with one node: the highest resident memory of the server app's and the
client app's process (`VmHWM`, looked at every 20 ms), over the bytes of the message. It holds the interpreter, torch
and Flower themselves, some 0.5 GB; `small` tells what the same processes need for a message of 1 MB.

Needs Flower, which `.venv-bench` has.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import Figure, Report, summary

ROOT = Path(__file__).resolve().parent.parent
APPS = {"flower": "bare_flower", "fedfi": "fedfi_on_flower"}
PROCESSES = {"server": "flwr-serverapp", "client": "flwr-clientapp"}
TIME_LIMIT = 1800.0
"""Seconds after which an app is given up."""
GONE = 120.0
"""Seconds without a server app after which it has failed; starting one takes a few."""

_PROJECT = """
[project]
name = "bench-{name}"
version = "1.0.0"
description = "An app of fedfi's benchmarks"
license = {{ text = "Apache-2.0" }}
dependencies = []

[tool.flwr.app]
publisher = "fedfi"

[tool.flwr.app.components]
serverapp = "bench_{name}.server_app:app"
clientapp = "bench_{name}.client_app:app"

[tool.flwr.app.config]
parameters = 1
rounds = 1
nodes = 1
notes = ""
"""


def run(quick: bool = False) -> Report:
    """Measures both apps in turns, or says why not."""
    whats = {
        "flower.round": ("a round of fedfi over a round of Flower alone", "x", 1.15),
        "flower.memory.server": ("peak of the server app over the message", "x", 3.0),
        "flower.memory.client": ("peak of the client app over the message", "x", 3.0),
    }
    if importlib.util.find_spec("flwr") is None:
        figures = [Figure(n, what, None, u, at_most=t, reason="needs Flower") for n, (what, u, t) in whats.items()]
        return Report(figures, {})
    nodes, parameters, rounds, turns = (2, 25_000, 2, 1) if quick else (4, 11_000_000, 6, 3)
    large = 2_000_000 if quick else 125_000_000
    found: dict[str, list[float]] = {name: [] for name in APPS}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        with _Federation(Path(folder) / "many", nodes) as there:
            for turn in range(turns):
                for name in sorted(APPS, reverse=bool(turn % 2)):
                    ends, _ = there.run(name, parameters, rounds)
                    found[name].append(median(b - a for a, b in itertools.pairwise(ends[1:])))
        with _Federation(Path(folder) / "one", 1) as there:
            peaks = {
                f"{name} {what}": there.run(name, count, 1, watch=True)[1]
                for what, count in (("small", 250_000), ("large", large))
                for name in APPS
            }
    ratios = [ours / bare for ours, bare in zip(found["fedfi"], found["flower"], strict=True)]
    size = 4 * large
    measured = {
        "flower.round": median(ratios),
        "flower.memory.server": peaks["fedfi large"]["server"] / size,
        "flower.memory.client": peaks["fedfi large"]["client"] / size,
    }
    figures = [Figure(n, what, measured[n], u, at_most=t) for n, (what, u, t) in whats.items()]
    figures += [
        Figure(
            f"flower.memory.{end}.bare", f"the same of Flower alone, {end} app", peaks["flower large"][end] / size, "x"
        )
        for end in PROCESSES
    ]
    figures += [
        Figure(
            f"flower.memory.{end}.own",
            f"peak of the {end} app, less that at a message of 1 MB, over the message",
            (peaks["fedfi large"][end] - peaks["fedfi small"][end]) / size,
            "x",
        )
        for end in PROCESSES
    ]
    timings = {**{f"round {name}": summary(s) for name, s in found.items()}, "ratio": summary(ratios), "peaks": peaks}
    sizes = {"nodes": nodes, "message": 4 * parameters, "rounds": rounds, "turns": turns, "large_message": size}
    return Report(figures, timings, sizes)


class _Federation:
    """Flower's processes, and both apps one after the other on them."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder, self._nodes = folder, nodes

    def __enter__(self) -> _Federation:
        from fedfi.flower import LocalFederation

        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self._there = LocalFederation.create(self._folder, self._nodes)
        try:
            self._there.start()
        except BaseException:
            self._there.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._there.down()

    def run(
        self, name: str, parameters: int, rounds: int, *, watch: bool = False
    ) -> tuple[list[float], dict[str, int]]:
        """The ends of rounds, before the first one too; and if watched, each process's highest memory in bytes."""
        import tomli_w

        app, notes = self._there.directory / "app", self._folder / f"{name}-{time.monotonic_ns()}.jsonl"
        _write_app(app, name)
        config = {"parameters": parameters, "rounds": rounds, "nodes": self._nodes, "notes": str(notes)}
        settings = self._folder / f"{name}.toml"
        settings.write_text(tomli_w.dumps(config))
        command = self._there.run_command(str(settings), stream=False)
        self._settle()
        done = subprocess.run(command, env=self._there.environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name} cannot be run: {done.stdout}{done.stderr}")
        peaks: dict[str, int] = dict.fromkeys(PROCESSES, 0)
        started = seen = looked = time.monotonic()
        while not (lines := _lines(notes)) or "done" not in lines[-1]:
            if time.monotonic() - started > TIME_LIMIT:
                raise RuntimeError(f"{name} did not end in {TIME_LIMIT:.0f} s; see {self._there.log('superlink')}")
            if time.monotonic() - looked > 5:
                looked = time.monotonic()
                seen = looked if self._named(PROCESSES["server"]) else seen
                if looked - seen > GONE:
                    log = self._there.log("superlink").read_text()[-2000:]
                    raise RuntimeError(f"{name} ended without a result: {log}")
            for what, program in PROCESSES.items() if watch else ():
                peaks[what] = max([peaks[what], *map(_peak, self._named(program))])
            time.sleep(0.02 if watch else 0.2)
        return [line["time"] for line in lines if "round" in line], peaks

    def _settle(self) -> None:
        """Waits until the processes of the app before are gone: they end some time after their last round."""
        until = time.monotonic() + GONE
        while any(self._named(program) for program in PROCESSES.values()):
            if time.monotonic() > until:
                raise RuntimeError(f"the app before has not ended in {GONE:.0f} s; see {self._there.log('superlink')}")
            time.sleep(0.2)

    def _named(self, program: str) -> list[int]:
        return [pid for pid, command in self._there.processes().items() if program in command]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _peak(pid: int) -> int:
    with suppress(OSError, StopIteration):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in status if line.startswith("VmHWM:"))) * 1024
    return 0


def _write_app(folder: Path, name: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / f"bench_{name}"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PROJECT.format(name=name))
    (package / "__init__.py").write_text("")
    for end in ("client", "server"):
        line = f"from benchmarks.contestants import {APPS[name]}\n\napp = {APPS[name]}.{end}_app\n"
        (package / f"{end}_app.py").write_text(line)
