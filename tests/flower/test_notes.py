"""What happens in a federation is told when it happens, and at the level that it deserves."""

from __future__ import annotations

import logging

import pytest
from tests import tiny
from tests.flower.fakes import federation

from fedfi.averaging.fedavg import FedAvg
from fedfi.engines.flower.notes import Notes


@pytest.fixture
def told(monkeypatch):
    """What Flower's log was told: level and text."""
    lines = []

    class Listener(logging.Handler):
        def emit(self, record):
            lines.append((record.levelname, record.getMessage()))

    log, listener = logging.getLogger("flwr.fedfi"), Listener()
    monkeypatch.setattr(log, "level", logging.INFO)
    log.addHandler(listener)
    yield lines
    log.removeHandler(listener)


def test_a_node_that_joins_is_told_at_once_and_is_no_warning(told, tmp_path):
    there = federation(FedAvg(), tiny.small, tmp_path, 2)
    there.engine.wait(1)
    assert [level for level, _ in told] == ["INFO", "INFO"]
    assert [text.partition(":")[0] for _, text in told] == [
        "node 100 joined with 3 clients",
        "node 101 joined with 3 clients",
    ]
    taken = there.engine.take_notes()
    assert [note.text for note in taken] == [text for _, text in told]
    assert not any(note.odd for note in taken)
    assert there.engine.take_notes() == []


def test_a_node_that_leaves_is_a_warning(told, tmp_path):
    there = federation(FedAvg(), tiny.small, tmp_path, 2)
    there.engine.wait(1)
    there.grid.machines[101].online = False
    there.engine.roster.refresh()
    assert told[-1] == ("WARNING", "node 101 left")


def test_one_client_is_not_several(told, tmp_path):
    count = len(tiny.small().data.clients)
    federation(FedAvg(), tiny.small, tmp_path, count).engine.wait(1)
    assert "node 100 joined with 1 client: c0" in [text for _, text in told]


def test_of_many_clients_a_few_are_named(told, tmp_path):
    federation(FedAvg(), tiny.small, tmp_path, 1).engine.wait(1)
    assert told == [("INFO", "node 100 joined with 6 clients: c0, c1, c2, c3, c4, ...")]


def test_notes_are_kept_until_they_are_taken():
    notes = Notes()
    notes.tell("a")
    notes.warn("b")
    assert [(note.text, note.odd) for note in notes.take()] == [("a", False), ("b", True)]
    assert notes.take() == []
    assert notes.last == "b"
