"""What a user asked for is written whole, where the user said."""

from __future__ import annotations

import os
import threading

import pytest

from fedfi.errors import OutputError
from fedfi.federation import checkpoint
from fedfi.federation.checkpoint import write_output


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SystemExit])
def test_an_interrupted_file_leaves_nothing_behind(tmp_path, monkeypatch, error):
    def interrupted(_):
        raise error

    monkeypatch.setattr(checkpoint.os, "fsync", interrupted)
    with pytest.raises((error, OutputError)):
        write_output(tmp_path / "a" / "m.st", b"content")
    assert list((tmp_path / "a").iterdir()) == []


def test_links_are_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link.st"
    link.symlink_to("folder/real.st")
    for content in (b"first", b"second"):  # the first time, it names nothing
        write_output(link, content)
        assert link.is_symlink()
        assert (tmp_path / "folder" / "real.st").read_bytes() == content


def test_pipes_and_devices_are_written_into(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_output(pipe, b"content")
    reader.join(10)
    assert found == [b"content"]
    assert pipe.is_fifo()


def test_a_folder_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("", ".", str(tmp_path)):
        with pytest.raises(OutputError, match="is a folder, expected the name of a file"):
            write_output(checkpoint.Path(place), b"")


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="cannot be written"):
        write_output(tmp_path / "a", b"")
