"""A federation of real Flower processes on this machine, for trying: a SuperLink and some SuperNodes.

Every process carries a mark in its environment, which its own children inherit, so `down` ends exactly those.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import tomli_w

from fedfi.errors import InputError, RunError
from fedfi.federation.checkpoint import write_atomically
from fedfi.flower.keys import make_keys
from fedfi.flower.words import WIDE, words

CONNECTION = "fedfi"
_MARK = "FEDFI_FLOWER"
_STATE = "federation.json"


@dataclass(frozen=True)
class LocalFederation:
    """Where everything of it lies.

    Attributes:
        directory: Its folder, with the app, keys, logs and Flower's own files in it.
        nodes: Number of SuperNodes.
        port: Of the SuperLink; the nodes' own are the next ones.
        ports: Of the nodes.
        insecure: Whether it goes without TLS and without authentication, on loopback only.
        mark: What its processes are known by.
        children: Those that this very process started.
    """

    directory: Path
    nodes: int
    port: int
    ports: tuple[int, ...]
    insecure: bool
    mark: str
    children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def create(directory: Path, nodes: int, *, insecure: bool = False) -> LocalFederation:
        """Makes folders, keys and Flower's configuration; starts nothing.

        Raises:
            InputError: If Flower is not installed, or a federation is there already.
        """
        if nodes < 1:
            raise InputError(f"--nodes {nodes}: must be at least 1 (nearest valid: 1)")
        LocalFederation.refuse(directory)
        return LocalFederation._made(directory, nodes, insecure)

    @staticmethod
    def again(directory: Path) -> LocalFederation:
        """The federation of a directory after its end, its nodes and keys, on ports that are free; starts nothing.

        Raises:
            InputError: If Flower is not installed, or there is no federation, or one that runs.
        """
        before = LocalFederation.open(directory)
        before.refuse_running()
        return LocalFederation._made(directory, before.nodes, before.insecure)

    @staticmethod
    def _made(directory: Path, nodes: int, insecure: bool) -> LocalFederation:
        _program("flower-superlink")
        directory.mkdir(parents=True, exist_ok=True)
        port, *ports = _free_ports(nodes + 1)
        federation = LocalFederation(
            directory.resolve(), nodes, port, tuple(ports), insecure, f"{os.getuid()}-{secrets.token_hex(16)}"
        )
        if not insecure and not (directory / f"keys/node-{nodes - 1}").exists():
            make_keys(directory / "keys", nodes=nodes)
        connection: dict[str, object] = {"address": f"127.0.0.1:{port}"}
        if insecure:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str(federation.directory / "keys/server/ca.crt")
        home = federation.directory / "home"
        home.mkdir(exist_ok=True)
        table = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (home / "config.toml").write_text(tomli_w.dumps(table))
        (federation.directory / "logs").mkdir(exist_ok=True)
        names = ("nodes", "port", "ports", "insecure", "mark")
        content = {name: getattr(federation, name) for name in names} | {"directory": str(federation.directory)}
        write_atomically(directory / _STATE, json.dumps(content).encode())
        return federation

    @staticmethod
    def open(directory: Path) -> LocalFederation:
        """The federation of a directory.

        Raises:
            InputError: If there is none.
        """
        try:
            content = json.loads((directory / _STATE).read_text())
            content["directory"], content["ports"] = Path(content["directory"]), tuple(content["ports"])
            return LocalFederation(**content)
        except FileNotFoundError:
            raise InputError(
                f"{directory}: there is no federation; start one with `fedfi flower up FILE.toml`"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{directory / _STATE}: is damaged: {error}") from None

    def start(self) -> None:
        """Starts the SuperLink, makes the nodes known to it, and starts them.

        What Flower remembers of an earlier start is removed: it would take nodes that were killed for active, and
        refuse them. The run directory and what the nodes keep stay.

        Raises:
            RunError: If the SuperLink ends at once, or refuses a node, with the reason.
        """
        for remembered in self.directory.glob("superlink.db*"):
            remembered.unlink()
        self.start_superlink()
        if not self.insecure:
            for i in range(self.nodes):
                self.register(self.directory / f"keys/node-{i}/node.pub")
        for i in range(self.nodes):
            self.start_node(i)

    def start_superlink(self) -> int:
        """Starts the SuperLink, waits until it listens, and gives its process id."""
        keys = self.directory / "keys/server"
        secure = [
            *("--ssl-ca-certfile", str(keys / "ca.crt")),
            *("--ssl-certfile", str(keys / "server.pem")),
            *("--ssl-keyfile", str(keys / "server.key")),
            "--enable-supernode-auth",
        ]
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        database = ["--database", str(self.directory / "superlink.db")]
        command = ["flower-superlink", *address, *database, *(["--insecure"] if self.insecure else secure)]
        log = self.log("superlink")
        begun = log.stat().st_size if log.exists() else 0
        process = self._start("superlink", command, self.directory / "home")
        self._listening(process, "superlink", self.port, begun)
        return process.pid

    def tend(self) -> list[int]:
        """Starts every SuperNode again that has ended, as a service manager does; gives their numbers.

        A node that was killed counts as active for up to a minute; one that is started with its key before ends at once
        with Flower's exit code 305, so call this again and again.
        """
        running = self.processes().values()
        gone = [i for i in range(self.nodes) if not any(_node_of(command) == i for command in running)]
        for i in gone:
            self.start_node(i)
        return gone

    def start_node(self, i: int, *more: str) -> int:
        """Starts a SuperNode that holds the `i`-th share of the clients, and gives its process id.

        What is left of one that was killed, and waits for it, is ended before.
        """
        for pid, line in self.processes().items():
            if "flower-superexec" in line and f"127.0.0.1:{self.ports[i]} " in f"{line} ":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        keys, home = self.directory / f"keys/node-{i}", self.directory / f"node-{i}"
        secure = [
            *("--root-certificates", str(keys / "ca.crt")),
            *("--auth-supernode-private-key", str(keys / "node.key")),
        ]
        home.mkdir(exist_ok=True)
        told = f'partition-id={i} num-partitions={self.nodes} memory="{home / "memory"}"'
        command = [
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}"),
            *("--host", "127.0.0.1", "--port", str(self.ports[i]), "--node-config", told),
            *(["--insecure"] if self.insecure else secure),
            *more,
        ]
        return self._start(f"node-{i}", command, home).pid

    @staticmethod
    def refuse(directory: Path) -> None:
        """Refuses a folder with a federation, as place of a new one.

        Raises:
            InputError: With how to end it or start it again.
        """
        if (directory / _STATE).exists():
            LocalFederation.open(directory).refuse_running()
            raise InputError(
                f"{directory}: there is a federation, ended; start it again with `fedfi flower up --dir"
                f" {shlex.quote(str(directory))}`, or name another folder with --dir"
            )

    def refuse_running(self) -> None:
        """Refuses a federation of which any process runs.

        Raises:
            InputError: With how to end it.
        """
        if self.processes():
            raise InputError(
                f"{self.directory}: there is a federation; end it with `fedfi flower down --dir"
                f" {shlex.quote(str(self.directory))}`"
            )

    def register(self, key: Path) -> None:
        """Makes a node known to the SuperLink by its public key.

        Raises:
            RunError: If the SuperLink refuses.
        """
        command = [_program("flwr"), "supernode", "register", str(key.resolve()), CONNECTION]
        environment = self.environment() | WIDE
        done = subprocess.run(  # elsewhere Flower takes a folder of the connection's name, such as a clone, for an app
            command, env=environment, cwd=self.directory, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RunError(f"{key}: cannot be registered: {words(done.stdout + done.stderr)}")

    def run_command(self, *run_config: str, stream: bool = True) -> list[str]:
        """The command that runs the app; its environment is `environment`.

        Args:
            run_config: Options such as ``"timeout=60.0"``.
            stream: Whether it stays and shows what the app tells.
        """
        command = [_program("flwr"), "run", str(self.directory / "app"), CONNECTION]
        options = [part for option in run_config for part in ("--run-config", option)]
        return command + options + ["--stream"] * stream

    def environment(self, home: Path | None = None) -> dict[str, str]:
        """The environment of its processes."""
        programs = os.pathsep.join([*map(str, _folders()), os.environ.get("PATH", "")])
        return os.environ | {
            "PATH": programs,
            "FLWR_HOME": str(home or self.directory / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            _MARK: self.mark,
        }

    def processes(self) -> dict[int, str]:
        """The command of every process that belongs to it, by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{_MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    text = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if text and int(folder.name) != os.getpid():
                        found[int(folder.name)] = text.strip()
        return found

    def down(self, patience: float = 10.0) -> int:
        """Ends every process of the federation, and no other; gives their number. `again` starts it anew.

        Args:
            patience: Seconds that they get to end by themselves.
        """
        ended = set()
        end = time.monotonic() + patience
        while there := self.processes():
            kind = signal.SIGKILL if time.monotonic() > end else signal.SIGTERM
            for pid in there:
                if kind == signal.SIGKILL or pid not in ended:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, kind)
                ended.add(pid)
            time.sleep(0.1)
            for child in self.children.values():
                child.poll()  # else it stays a zombie
        for child in self.children.values():
            child.wait()
        return len(ended)

    def discard(self) -> None:
        """Ends it for good: its folder may hold another one."""
        self.down()
        (self.directory / _STATE).unlink(missing_ok=True)

    def listens(self) -> bool:
        """Whether the SuperLink can be reached."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def log(self, name: str) -> Path:
        """What a process tells: ``"superlink"``, ``"node-0"``, ..."""
        return self.directory / f"logs/{name}.log"

    def _start(self, name: str, command: list[str], home: Path) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [_program(command[0]), *command[1:]],
                env=self.environment(home),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.children[process.pid] = process
        return process

    def _listening(self, process: subprocess.Popen[bytes], name: str, port: int, begun: int) -> None:
        seconds = 60.0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if process.poll() is not None:
                told = self.log(name).read_bytes()[begun:].decode(errors="replace")  # not what an earlier one said
                raise RunError(f"{name} ended at once: {words(told)}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.1)
        raise RunError(f"{name} does not listen on port {port} after {seconds:g} s; see {self.log(name)}")


def _node_of(command: str) -> int | None:
    """The number of the node that a process is, or None."""
    found = re.search(r"partition-id=(\d+) ", command) if "flower-supernode" in command else None
    return int(found[1]) if found else None


def _program(name: str) -> str:
    path = os.pathsep.join([*map(str, _folders()), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None or importlib.util.find_spec("flwr") is None:
        raise InputError(f"{name} is not there; this needs Flower: pip install 'fedfi[flower]'")
    return found


def _folders() -> list[Path]:
    """Where Flower's programs may lie: where its installation put them, and beside this interpreter.

    An environment may borrow the packages of another, but not its programs.
    """
    found = [Path(sys.executable).parent]
    with contextlib.suppress(PackageNotFoundError):
        flower = distribution("flwr")
        recorded = [f for f in flower.files or [] if f.name == "flwr"]
        found = [Path(str(flower.locate_file(f))).resolve().parent for f in recorded] + found
    return found


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
