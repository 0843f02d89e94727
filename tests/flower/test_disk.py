"""What clients remember: versions, crashes, damage."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedfi[flower]'")

from fedfi.engines.flower.disk import DiskMemory, MemoryLost, default_root, is_version, step_of
from fedfi.errors import InputError

RUN = "0123456789abcdef"


def test_a_version_gives_back_what_was_stored(tmp_path):
    memory = DiskMemory(tmp_path, RUN)
    stored = {"w": torch.randn(3).bfloat16(), "n": torch.tensor(3), "mask": torch.tensor([True, False])}
    version = memory.write("c/../1", 4, stored, base=None)
    assert is_version(version, 4)
    again = DiskMemory(tmp_path, RUN).read("c/../1", version)
    assert again.keys() == stored.keys()
    assert all(torch.equal(again[n], t) and again[n].dtype == t.dtype for n, t in stored.items())
    assert memory.read("c/../1", None) == {}
    assert all(p.is_relative_to(tmp_path / RUN) for p in tmp_path.rglob("*.safetensors"))


def test_the_same_content_has_the_same_version(tmp_path):
    one = DiskMemory(tmp_path / "a", RUN).write("c", 2, {"w": torch.ones(3)}, base=None)
    assert DiskMemory(tmp_path / "b", RUN).write("c", 2, {"w": torch.ones(3)}, base=None) == one
    assert DiskMemory(tmp_path / "b", RUN).write("c", 2, {"w": torch.zeros(3)}, base=None) != one


def test_what_the_server_may_go_back_to_is_kept_and_nothing_else(tmp_path):
    memory = DiskMemory(tmp_path, RUN)
    versions = []
    for step in range(0, 10, 2):
        base = versions[-1] if versions else None
        versions.append(memory.write("c", step, {"w": torch.tensor(step)}, base=base, keep=versions[-2:-1]))
    assert memory.versions("c") == versions[-3:]
    lost = memory.write("c", 10, {"w": torch.tensor(-1)}, base=versions[-1], keep=versions[-2:-1])
    again = memory.write("c", 10, {"w": torch.tensor(-2)}, base=versions[-1], keep=versions[-2:-1])
    assert memory.versions("c") == [*versions[-2:], again]
    with pytest.raises(MemoryLost, match=rf"client 'c': its memory {lost}.* is not there \(there is: {versions[-2]}, "):
        memory.read("c", lost)


def test_a_straggler_does_not_remove_what_came_after_it(tmp_path):
    """Its round is over, and the next one's job on the same node was faster."""
    memory = DiskMemory(tmp_path, RUN)
    base = memory.write("c", 0, {"w": torch.tensor(0)}, base=None)
    newer = memory.write("c", 4, {"w": torch.tensor(2)}, base=base)
    late = memory.write("c", 2, {"w": torch.tensor(1)}, base=base)
    assert memory.versions("c") == [base, late, newer]
    newest = memory.write("c", 6, {"w": torch.tensor(3)}, base=newer, keep=[base])
    assert memory.versions("c") == [base, newer, newest]


def test_two_processes_may_do_the_same_job(tmp_path, monkeypatch):
    """The second one begins to write when the first one has written, and is killed: what the first one wrote stays."""
    memory = DiskMemory(tmp_path, RUN)
    stored = {"w": torch.ones(1000)}
    real, tries = os.fsync, []

    def fsync(descriptor):
        if not tries:
            tries.append("first")
            assert memory.write("c", 0, stored, base=None)
        elif len(tries) == 1:
            tries.append("second")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    version = memory.write("c", 0, stored, base=None)
    assert torch.equal(memory.read("c", version)["w"], stored["w"])
    assert list(tmp_path.rglob("*.part")) == []


def test_what_a_killed_process_left_is_swept_away_when_it_is_old(tmp_path):
    memory = DiskMemory(tmp_path, RUN)
    memory.write("c", 0, {"w": torch.ones(3)}, base=None)
    folder = next(tmp_path.rglob("*.safetensors")).parent
    old, new = folder / ".000002-0.safetensors.a.part", folder / ".000002-1.safetensors.b.part"
    for part in (old, new):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    memory.write("c", 2, {"w": torch.ones(4)}, base=None)
    assert not old.exists()
    assert new.exists()


def test_damage_is_noticed(tmp_path):
    memory = DiskMemory(tmp_path, RUN)
    version = memory.write("c", 0, {"w": torch.ones(100)}, base=None)
    (path,) = tmp_path.rglob("*.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    with pytest.raises(MemoryLost, match="is damaged"):
        memory.read("c", version)


@pytest.mark.parametrize("version", ["../../x", "000000-zz", "", 3, "000001-0123456789abcdeg"])
def test_a_version_is_no_path(version, tmp_path):
    with pytest.raises(MemoryLost, match="is not the name of a version"):
        DiskMemory(tmp_path, RUN).read("c", version)


@pytest.mark.parametrize("run", ["", "../up", "0123456789ABCDEF", None])
def test_a_run_is_no_path(run, tmp_path):
    with pytest.raises(InputError, match="expected 16 hexadecimal digits"):
        DiskMemory(tmp_path, run)


def test_steps_are_in_the_order_of_the_work():
    kinds = ("client_negotiate", "client_update", "client_evaluate")
    assert [step_of(w, r) for r in (0, 1) for w in kinds] == [0, 1, 2, 3, 4, 5]


def test_the_folder_is_the_users_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDFI_MEMORY", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("FEDFI_MEMORY")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "fedfi/clients"
