"""What `fedfi flower` does where Flower is not installed, as on a laptop from which an app is published."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_an_app_is_written_without_flower(file, fedfi):
    code, out, _ = fedfi("flower", file, "-o", "app")
    assert code == 0
    assert "flwr run app" in out
    assert (file.parent / "app/exp_app/experiment.toml").exists()


def test_a_wrong_setting_is_named(file, fedfi):
    code, _, err = fedfi("flower", file, "-o", "app", "--set", "train.step=3")
    assert code == 2
    assert "train.step: unknown key; did you mean 'steps'?" in err


def test_help_names_all_commands_and_loads_no_flower():
    code = (
        "import sys\nfrom fedfi.cli import main\nmain(['flower', '--help'])\n"
        "assert not {'flwr', 'cryptography'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("app", "up", "down", "keys"))


@pytest.fixture
def started(monkeypatch):
    """The federations that were started, whose processes are none."""
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedfi[flower]'")
    from fedfi.flower import local

    found = []
    monkeypatch.setattr(local, "_program", lambda name: name)
    monkeypatch.setattr(local.LocalFederation, "start", lambda there: found.append(there))
    return found


def test_a_federation_is_started_again_in_its_folder(file, fedfi, started):
    code, out, _ = fedfi("flower", "up", file, "--nodes", "2")
    assert code == 0
    assert "and 2 SuperNodes; logs in logs/" in out
    run = [line for line in out.splitlines() if line.startswith("run:")]
    code, out, _ = fedfi("flower", "down")
    assert (code, out.splitlines()) == (
        0,
        ["flower-federation: 0 processes ended", "again:  fedfi flower up --dir flower-federation"],
    )
    code, _, err = fedfi("flower", "up", file)
    assert code == 2
    assert "start it again with `fedfi flower up --dir flower-federation`" in err
    code, out, _ = fedfi("flower", "up")
    assert code == 0
    assert "and 2 SuperNodes; logs in logs/" in out
    assert [line for line in out.splitlines() if line.startswith("run:")] == run
    assert [there.nodes for there in started] == [2, 2]


def test_what_a_federation_is_started_again_with_cannot_be_changed(file, fedfi, started):
    fedfi("flower", "up", file)
    code, _, err = fedfi("flower", "up", "--nodes", "3", "--set", "rounds=3")
    assert code == 2
    assert "--nodes, --set: only a new federation takes this, and needs FILE.toml" in err


def test_a_start_that_fails_may_be_tried_again(file, fedfi, started, monkeypatch):
    from fedfi.errors import RunError
    from fedfi.flower.local import LocalFederation

    def fails(_):
        raise RunError("superlink ended at once")

    with monkeypatch.context() as broken:
        broken.setattr(LocalFederation, "start", fails)
        assert fedfi("flower", "up", file)[0] == 3
    assert fedfi("flower", "up", file)[0] == 0
    with monkeypatch.context() as broken:
        broken.setattr(LocalFederation, "start", fails)
        assert fedfi("flower", "up")[0] == 3
    assert fedfi("flower", "up")[0] == 0


@pytest.mark.parametrize(("nodes", "said"), [(1, "node-0/ for the node;"), (3, "node-0/ to node-2/ for the nodes;")])
def test_keys_are_named_by_their_folders(nodes, said, file, fedfi):
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedfi[flower]'")
    code, out, _ = fedfi("flower", "keys", "-o", "keys", "--nodes", nodes)
    assert code == 0
    assert said in out
