from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from fedfi.errors import InputError
from fedfi.report.live import HOST, serve
from fedfi.report.reading import rounds_of

pytest.importorskip("plotly")


@contextmanager
def served(directory: Path) -> Iterator[int]:
    with serve([directory], 0) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def begin(directory: Path, rounds: int) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "run.toml").write_text('rounds = 3\nseed = 0\n[algorithm]\nname = "fedavg"\n')
    lines = [json.dumps({"round": r, "global/accuracy": 0.1 * r, "seconds": 1.0}) for r in range(1, rounds + 1)]
    (directory / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_the_page_follows_a_run(tmp_path: Path) -> None:
    with served(tmp_path) as port:
        status, page = get(port, "/")
        assert status == 200
        assert "Waiting for a run in" in page
        marks = [get(port, "/mark")[1]]
        for rounds in (1, 2):
            begin(tmp_path / "run", rounds)
            assert f"after {rounds_of(rounds)}" in get(port, "/")[1]
            marks.append(get(port, "/mark")[1])
        assert len(set(marks)) == 3
        assert get(port, "/mark")[1] == marks[-1]


def test_only_this_machine_by_its_own_name_is_answered(tmp_path: Path) -> None:
    with served(tmp_path) as port:
        assert get(port, "/", host=f"localhost:{port}")[0] == 200
        assert get(port, "/", host=f"example.org:{port}")[0] == 403
        assert get(port, "/etc/passwd")[0] == 404


def test_a_damaged_run_is_said_on_the_page(tmp_path: Path) -> None:
    begin(tmp_path / "run", 1)
    (tmp_path / "run" / "run.toml").write_text("rounds = [")
    with served(tmp_path) as port:
        assert "cannot be read" in get(port, "/")[1]


def test_wrong_places_and_ports_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: is not a directory"):
        serve([tmp_path / "nowhere"], 0)
    with served(tmp_path) as port, pytest.raises(InputError, match=f"--port {port}: cannot be used"):
        serve([tmp_path], port)
