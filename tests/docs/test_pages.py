"""The snippets of README and start page run, with fewer rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.blocks import ROOT, blocks

from fedfi import registry
from fedfi.experiment import load_experiment


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_python_of_a_first_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(ROOT / page, "python")
    code = block.text.replace("rounds=30", "rounds=1").replace("workers=2, ", "")
    assert code.count("rounds=1") == 1
    exec(compile(code, page, "exec"), {"__name__": "page"})


def test_the_experiment_of_the_start_page_is_that_of_the_demo(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs/index.md", "toml")
    (tmp_path / "shown.toml").write_text(block.text)
    shown, demo = load_experiment(tmp_path / "shown.toml"), load_experiment(ROOT / "examples/digits.toml")
    assert shown.resolved() == demo.resolved()


def test_the_commands_of_the_readme_are_explained_in_one_column() -> None:
    (block,) = (b for b in blocks(ROOT / "README.md", "") if "fedfi doctor" in b.text)
    places = [line.index(" # ") for line in block.text.splitlines() if " # " in line]
    column = min(places)
    beyond = [line for line in block.text.splitlines() if " # " in line and line.index(" # ") != column]
    assert all(len(line[: line.index(" # ")].rstrip()) >= column for line in beyond)


def test_every_method_that_has_a_paper_is_shown_with_it() -> None:
    """README: `fedfi show NAME` names the paper of each."""
    assert "`fedfi show NAME` names its paper" in (ROOT / "README.md").read_text()
    lacking = [name for name, entry in registry.entries().items() if not entry.paper]
    assert lacking == []
