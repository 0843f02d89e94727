"""A page that follows runs while they go on, served to this machine alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from fedfi.errors import InputError
from fedfi.report import plotly
from fedfi.report.page import message, render
from fedfi.report.reading import read_runs, run_directories

HOST = "127.0.0.1"
_FOLLOWED = ("run.toml", "metrics.jsonl", "events.jsonl", "split.json", "env.json")


class Live:
    """The page about some directories, made anew when a file of a run has changed.

    Args:
        directories: Run directories, or directories that hold or will hold some.

    Raises:
        InputError: If one does not exist, or plotly (extra `report`) is not installed.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        for directory in directories:
            if not directory.is_dir():
                raise InputError(f"{directory}: is not a directory; name one that a run writes, or will write, into")
        self.directories = directories
        self._script = plotly.script()
        self._lock = Lock()
        self._made = ("", b"")

    def mark(self) -> str:
        """Changes when the page does."""
        found = [p for d in self.directories for p in _files(d)]
        return str(hash(tuple((str(p), s.st_size, s.st_mtime_ns) for p in found if (s := _stat(p)))))

    def page(self) -> bytes:
        """The page as it is now."""
        mark = self.mark()
        with self._lock:
            if self._made[0] != mark:
                self._made = (mark, self._render().encode())
            return self._made[1]

    def _render(self) -> str:
        holding = [d for d in self.directories if any(_files(d))]
        if not holding:
            names = ", ".join(str(d.absolute()) for d in self.directories)
            return message(f"Waiting for a run in {names}.", "", live=True)
        try:
            return render(read_runs(holding), self._script, live=True)
        except InputError as error:  # a file that is being written; the next look finds it whole
            return message(str(error), "", live=True)


def serve(directories: Iterable[Path], port: int) -> ThreadingHTTPServer:
    """A server of the page, bound and not yet running; `serve_forever` runs it, `server_close` ends it.

    It listens to this machine alone, and answers only requests that address it as such, so that no web page can
    read it under another name.

    Args:
        directories: As for `Live`.
        port: 0 takes a free one; see `server_port`.

    Raises:
        InputError: As `Live`, or if the port is taken.
    """
    live = Live(list(directories))

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host") not in {f"{name}:{server.server_port}" for name in (HOST, "localhost")}:
                self.send_error(403)
            elif self.path == "/":
                self._send(live.page(), "text/html; charset=utf-8")
            elif self.path == "/mark":
                self._send(json.dumps(live.mark()).encode(), "application/json")
            else:
                self.send_error(404)

        def _send(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing of requests."""

    try:
        server = ThreadingHTTPServer((HOST, port), Answer)
    except OSError as error:
        raise InputError(f"--port {port}: cannot be used: {error.strerror}; 0 takes a free one") from error
    return server


def _files(directory: Path) -> list[Path]:
    return [place / name for place in run_directories(directory) for name in _FOLLOWED]


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None
