"""What `up` and `down` do besides starting Flower: marks, ports, exactly those processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from fedfi.cli import main
from fedfi.errors import InputError, RunError
from fedfi.flower import local
from fedfi.flower.local import LocalFederation


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """One whose programs are stand-ins: each starts a child in a session of its own, and both sleep."""
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\n"
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], start_new_session=True)\n"
        "time.sleep(100)\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(local, "_program", lambda name: str(program))
    there = LocalFederation.create(tmp_path / "federation", 2, insecure=True)
    yield there
    there.down(0)


def settled(federation, count: int) -> dict[int, str]:
    end = time.monotonic() + 30
    while len(federation.processes()) != count and time.monotonic() < end:
        time.sleep(0.05)
    return federation.processes()


def test_down_ends_exactly_the_federations_processes(federation):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    try:
        federation.start_node(0)
        federation.start_node(1)
        ours = settled(federation, 4)
        assert len(ours) == 4
        assert bystander.pid not in ours
        assert LocalFederation.open(federation.directory).down() == 4
        assert federation.processes() == {}
        assert bystander.poll() is None
        assert LocalFederation.open(federation.directory).down() == 0
    finally:
        bystander.kill()
        bystander.wait()


def test_a_second_federation_needs_a_folder_of_its_own(federation):
    federation.start_node(0)
    settled(federation, 2)
    for refused in (lambda there: LocalFederation.create(there, 2, insecure=True), LocalFederation.again):
        with pytest.raises(InputError, match="there is a federation; end it with `fedfi flower down --dir"):
            refused(federation.directory)
    federation.down()
    with pytest.raises(InputError, match=r"ended; start it again with `fedfi flower up --dir .*, or name another"):
        LocalFederation.create(federation.directory, 2, insecure=True)


def test_after_its_end_it_is_started_again_as_it_was(federation):
    (federation.directory / "home/config.toml").unlink()
    there = LocalFederation.again(federation.directory)
    assert (there.directory, there.nodes, there.insecure) == (federation.directory, 2, True)
    assert there.mark != federation.mark
    assert f"127.0.0.1:{there.port}" in (there.directory / "home/config.toml").read_text()
    assert LocalFederation.open(federation.directory) == there


def test_keys_are_kept(tmp_path, monkeypatch):
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedfi[flower]'")
    monkeypatch.setattr(local, "_program", lambda name: name)
    LocalFederation.create(tmp_path / "f", 2)
    before = {p: p.read_bytes() for p in (tmp_path / "f/keys").rglob("*.*")}
    LocalFederation.again(tmp_path / "f")
    assert {p: p.read_bytes() for p in (tmp_path / "f/keys").rglob("*.*")} == before


def test_flower_does_not_remember_nodes_that_were_killed(federation, monkeypatch):
    monkeypatch.setattr(LocalFederation, "_start", lambda *_: _Done())
    monkeypatch.setattr(LocalFederation, "_listening", lambda *_: None)
    for name in ("superlink.db", "superlink.db-wal"):
        (federation.directory / name).touch()
    federation.start()
    assert not list(federation.directory.glob("superlink.db*"))


def test_one_that_was_never_there_is_not_started_again(tmp_path):
    with pytest.raises(InputError, match=r"there is no federation; start one with `fedfi flower up FILE\.toml`"):
        LocalFederation.again(tmp_path)


def test_everything_is_on_loopback_and_ports_differ(federation, monkeypatch):
    commands = []
    monkeypatch.setattr(
        LocalFederation, "_start", lambda self, name, command, home: commands.append(command) or _Done()
    )
    monkeypatch.setattr(LocalFederation, "_listening", lambda *_: None)
    federation.start()
    assert len({federation.port, *federation.ports}) == 3
    for command in commands:
        assert command[command.index("--host") + 1] == "127.0.0.1"
        assert "--insecure" in command


def test_without_being_asked_it_is_encrypted_and_authenticated(tmp_path, monkeypatch):
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedfi[flower]'")
    monkeypatch.setattr(local, "_program", lambda name: name)
    commands = []
    monkeypatch.setattr(
        LocalFederation, "_start", lambda self, name, command, home: commands.append(command) or _Done()
    )
    monkeypatch.setattr(LocalFederation, "_listening", lambda *_: None)
    registered = []
    monkeypatch.setattr(LocalFederation, "register", lambda self, key: registered.append(key))
    LocalFederation.create(tmp_path / "federation", 2).start()
    superlink, *nodes = commands
    assert {"--enable-supernode-auth", "--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile"} <= set(superlink)
    assert all({"--root-certificates", "--auth-supernode-private-key"} <= set(node) for node in nodes)
    assert not any("--insecure" in command for command in commands)
    assert len(registered) == 2


def test_a_program_that_ends_at_once_says_why(federation, tmp_path):
    (tmp_path / "program").write_text(f"#!{sys.executable}\nraise SystemExit('the port is taken')\n")
    federation.log("superlink").write_text("what an earlier one said\n")
    with pytest.raises(RunError, match=r"superlink ended at once: the port is taken$"):
        federation.start_superlink()


def test_without_flower_the_error_names_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(
        "rounds = 1\n[data]\nname = 'digits'\nclients = 4\n[model]\nname = 'mlp'\n[algorithm]\nname = 'fedavg'\n"
    )
    assert main(["flower", "up", "e.toml"]) == 2
    assert "this needs Flower: pip install 'fedfi[flower]'" in capsys.readouterr().err
    assert not (tmp_path / "flower-federation").exists()


def test_programs_are_found_where_flower_was_installed(tmp_path, monkeypatch):
    """An environment that borrows another's packages has none of its programs."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own/bin/python"))
    monkeypatch.setenv("PATH", str(tmp_path / "own/bin"))
    program = tmp_path / "other/bin/flwr"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    packages = tmp_path / "other/lib/site-packages"
    found = PathDistribution(packages / "flwr-1.0.dist-info")
    (packages / "flwr-1.0.dist-info").mkdir(parents=True)
    (packages / "flwr-1.0.dist-info/RECORD").write_text("../../bin/flwr,,\n")
    monkeypatch.setattr(local, "distribution", lambda name: found)
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: object())
    assert Path(local._program("flwr")) == program
    monkeypatch.setattr(local, "distribution", lambda name: Distribution.from_name("fedfi"))
    with pytest.raises(InputError, match="flwr is not there"):
        local._program("flwr")


def test_down_without_a_federation(tmp_path, capsys):
    assert main(["flower", "down", "--dir", str(tmp_path)]) == 2
    assert "there is no federation; start one with `fedfi flower up FILE.toml`" in capsys.readouterr().err


def test_keys_are_registered_from_a_folder_without_other_apps(tmp_path, monkeypatch):
    """Flower takes a folder of the connection's name for an app, and a user may stand beside a clone of fedfi."""
    asked = []

    def run(command, **options):
        asked.append((command, options["cwd"]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "_program", lambda name: name)
    there = local.LocalFederation.create(Path("federation"), 1, insecure=True)
    monkeypatch.setattr(local.subprocess, "run", run)
    there.register(Path("federation/keys/node-0/node.pub"))
    ((command, folder),) = asked
    assert Path(command[3]).is_absolute()
    assert folder == tmp_path / "federation"


def test_too_few_nodes(tmp_path):
    with pytest.raises(InputError, match=r"--nodes 0: must be at least 1"):
        LocalFederation.create(tmp_path / "f", 0)


class _Done:
    pid = os.getpid()
