"""What CONTRIBUTING.md says of the house is so, and its example runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.blocks import blocks
from tests.house.test_structure import LEVELS

import fedfi
from fedfi.importing import import_callable

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
TEXT = PAGE.read_text()


def test_the_diagram_names_every_room_at_its_level() -> None:
    diagram = re.search(r"```\n(cli .*?)```", TEXT, re.DOTALL)[1]
    rows: list[set[str]] = []
    for line in diagram.splitlines():
        names = set(re.split(r" +", line[:32].strip().replace("federation/run.py", "federation.run")))
        if line.startswith(" "):
            rows[-1] |= names
        else:
            rows.append(names)
    assert rows == LEVELS


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(block.text for block in blocks(PAGE, "python") if "class MyMethod" in block.text)
    (tmp_path / "contributed.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    try:
        kind = import_callable("contributed:MyMethod", "algorithm")
        data = fedfi.federate(*fedfi.load("digits"), clients=3)
        task = fedfi.Task(
            model=lambda: fedfi.build("mlp", data.spec, {"hidden": [4]}),
            data=data,
            training=fedfi.Training(steps=2),
        )
        result = fedfi.run(kind(strength=0.5), task, rounds=2)
    finally:
        sys.modules.pop("contributed", None)
    assert not result.failures
    assert len(result.metrics) == 2
