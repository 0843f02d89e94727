"""The snippets of README and start page run, with fewer rounds; a section of a page is followed with a user's files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.blocks import ROOT, Reader, blocks

import fedfi
from fedfi import registry
from fedfi.cli import main
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


@pytest.mark.parametrize("count", [1, 9])
def test_the_trained_model_on_new_rows(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is old is ill, a rule that ten rounds learn: what is printed at the end is the label of each new row."""
    pytest.importorskip("plotly")  # every run ends with a report
    monkeypatch.chdir(tmp_path)
    rows = [
        {"age": 20 + 60 * (n % 2) + n % 7, "sex": "mf"[n % 3 > 0], "hospital": "we"[n % 5 > 2], "outcome": "ny"[n % 2]}
        for n in range(120)
    ]
    new = [{"sex": row["sex"], "age": row["age"]} for row in rows[5 : 5 + count]]  # another order, no label
    for name, part in (("patients.csv", rows), ("new.csv", new)):
        with Path(name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(part[0]))
            writer.writeheader()
            writer.writerows(part)
    page = (ROOT / "docs/your-own.md").read_text()
    section = page.partition("## The trained model on new rows\n")[2].partition("\n## ")[0]
    last = "for i in logits.argmax(1).tolist()])\n```\n"
    assert section.count(last) == 1
    printed = [row["outcome"] for row in rows[5 : 5 + count]]
    Path("section.md").write_text(section.replace(last, f"{last}\n```text\n{printed}\n```\n"))
    Reader(Path("section.md")).follow()


def test_a_recommender_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Customers of eight articles each, 40 in all; what is printed is a hit rate and what is doubtful of the split."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{c:02},{(7 * c + n * n) % 40}" for c in range(12) for n in range(8)]
    Path("shop.csv").write_text("\n".join(["customer,article", *rows]) + "\n")
    page = (ROOT / "docs/recommendation.md").read_text()
    section = page.partition("### In Python\n")[2].partition("\n### ")[0]
    assert section.count("rounds=60") == 1
    printed = "\n```text\n0... ('there are no times: ...)\n```\n"
    Path("section.md").write_text(section.replace("rounds=60", "rounds=2") + printed)
    Reader(Path("section.md")).follow()


def test_networks_are_merged_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = (ROOT / "docs/oneshot.md").read_text().partition("```python\n")[2].partition("```\n")[0]
    assert "fedfi.merge(" in block
    torch.manual_seed(0)  # the page leaves the draw open
    Path("section.md").write_text(f"```python\n{block}```\n\n```text\n0.9... 0...\n```\n")
    Reader(Path("section.md")).follow()


def test_hospitals_that_lack_different_wards_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two blocks of docs/oneshot.md on files; each hospital lacks a ward of the other's."""
    monkeypatch.chdir(tmp_path)
    for name, wards in (("a", "xy"), ("b", "yz")):
        rows = [f"{30 + n},{wards[n % 2]},{('ill', 'well')[n // 4]}" for n in range(8)]
        Path(f"{name}.csv").write_text("\n".join(["age,ward,outcome", *rows]) + "\n")
    page = (ROOT / "docs/oneshot.md").read_text()
    merged, lacking = (page.partition(f"### {title}\n")[2].partition("\n### ")[0] for title in _SECTIONS)
    first, union = (section.partition("```python\n")[2].partition("```\n")[0] for section in (merged, lacking))
    printed = "InputSpec(kind='tabular', shape=(4,), classes=2, ...) ('ill', 'well')"
    Path("union.md").write_text(f"```python\n{union}```\n\n```text\n{printed}\n```\n")
    Reader(Path("union.md")).follow()
    data, _ = fedfi.load("a.csv", label="outcome", inputs="inputs.json")
    common = ["--model", "mlp", "--inputs", "inputs.json", "--set", "data.label=outcome"]
    for name in "ab":
        save_file(fedfi.build("mlp", data.spec).state_dict(), f"{name}.weights")
        files = ["--weights", f"{name}.weights", "--data", f"{name}.csv", "-o", f"{name}.upload"]
        assert main(["fisher", *common, *files]) == 0
    assert main(["merge", "a.upload", "b.upload", *common[2:], "--validate", "b.csv", "-o", "merged.safetensors"]) == 0
    Path("new.csv").write_text("ward,age\nz,40\n")
    Path("merged.md").write_text(f"```python\n{first}```\n\n```text\n['...ll']\n```\n")
    Reader(Path("merged.md")).follow()


_SECTIONS = ("What is in the merged file", "Parties that lack a category")
