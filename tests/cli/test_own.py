"""Methods of one's own: the example of the documentation, in every command, and what is said of mistakes."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.blocks import blocks
from tests.tiny import by_hand, small

import fedfi as library
from fedfi import registry
from fedfi.importing import importing_from

ROOT = Path(__file__).parents[2]

UNREAD = """
import fedfi

class Unread(fedfi.Averaging):
    strength: float = 1.0

    def train(self, client):
        return fedfi.train_locally(client)

class Half(fedfi.Averaging):
    pass

def net(spec, *, units: int = 8):
    "A network of one's own."

class Other:
    pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in ("mymethod.py", "mymethod.toml"):
        shutil.copy(ROOT / "examples" / name, name)
    text = Path("mymethod.toml").read_text().replace("rounds = 10", "rounds = 2").replace("steps = 20", "steps = 2")
    Path("mymethod.toml").write_text(text)
    Path("unread.py").write_text(UNREAD)
    yield tmp_path
    for name in ("mymethod", "unread"):
        sys.modules.pop(name, None)


def test_the_example_runs_and_is_compared(here: Path, fedfi) -> None:
    assert fedfi("run", "mymethod.toml", "--out", "a", "-q") == (0, "", "")
    methods = "fedavg,mymethod:Noisy,mymethod:Noisy:loud,shy=mymethod:Noisy"
    assert fedfi("compare", "mymethod.toml", "--algorithms", methods, "--out", "c", "-q") == (0, "", "")
    rows = list(csv.DictReader(Path("c/table.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == ["fedavg", "noisy", "noisy-loud", "shy", "median"]
    assert all(row["failures"] == "0.0" for row in rows)


def test_the_example_is_what_the_documentation_shows() -> None:
    source = (ROOT / "examples" / "mymethod.py").read_text()
    shown = blocks(ROOT / "docs" / "your-own.md", "python")
    assert any("class Noisy" in block.text and block.text in source for block in shown)


def test_without_noise_the_short_one_is_fedavg_and_the_median_of_two_is_the_smaller(here: Path) -> None:
    with importing_from(here):
        noisy, median = registry.algorithm("mymethod:Noisy"), registry.algorithm("mymethod:Median")
    plain, silent = (library.run(m, small(), rounds=2) for m in (library.FedAvg(), noisy(noise=0)))
    assert all(silent.model[name].equal(plain.model[name]) for name in plain.model)
    # From w = 0 and rate 1 the clients end at (1/2, -1/2) and (-1, 1); torch's median of two is the smaller one.
    result = library.run(median(), by_hand(), rounds=1)
    assert torch.allclose(result.model["weight"], torch.tensor([[-1.0], [-0.5]]))


def test_show_of_ones_own(here: Path, fedfi) -> None:
    code, out, _ = fedfi("show", "mymethod:Noisy")
    assert code == 0
    for part in ("standard deviation of the noise", "float, >= 0", "0.01", 'preset = "loud"', "adds noise"[:3]):
        assert part in out
    code, out, _ = fedfi("show", "unread:net")
    assert (code, "units" in out, "A network of one's own." in out) == (0, True, True)
    assert fedfi("show", "unread:Other")[2].startswith("algorithm 'unread:Other' is not a subclass")
    assert "did you mean 'Noisy'?" in fedfi("show", "mymethod:Nosy")[2]


def test_options_that_nothing_reads_are_refused(here: Path, fedfi) -> None:
    code, _, err = fedfi("run", "mymethod.toml", "--set", "algorithm.name=unread:Unread")
    assert (code, err.count("\n")) == (2, 1)
    assert "class Unread declares strength, but nothing reads them: put @fedfi.method above" in err
    with importing_from(here):
        import unread
    with pytest.raises(library.InputError, match="class Unread declares strength"):
        unread.Unread()
    with pytest.raises(library.InputError, match="class Half is abstract: it lacks train"):
        unread.Half()


def test_an_unknown_method_of_a_comparison_says_how_ones_own_are_named(here: Path, fedfi) -> None:
    code, _, err = fedfi("compare", "mymethod.toml", "--algorithms", "noisy", "--out", "c")
    assert code == 2
    assert '[compare.LABEL] name = "module:Class"' in err


BROKEN = """
import fedfi

class Fails(fedfi.Averaging):
    def train(self, client):
        return {}["missing"]

class Forgets(fedfi.Averaging):
    def aggregate(self, state, round, replies, rng):
        list(replies)

    def train(self, client):
        return fedfi.train_locally(client)
"""


def test_an_error_in_ones_own_code_names_its_line_and_debug_shows_the_clients_trace(here: Path, fedfi) -> None:
    Path("broken.py").write_text(BROKEN)
    run = ("run", "mymethod.toml", "-q", "--set", "algorithm.name=broken:Fails", "--out")
    for workers in ("1", "2"):
        code, _, err = fedfi(*run, f"a{workers}", "--workers", workers)
        assert code == 3
        assert err.endswith("in client_update: KeyError: 'missing' (broken.py, line 6)\n")
        assert len(err.splitlines()) == 1
    code, _, err = fedfi(*run, "b", "--debug")
    assert code == 3
    assert re.search(r'broken.py", line 6, in train\n', err)
    code, _, err = fedfi("run", "mymethod.toml", "-q", "--set", "algorithm.name=broken:Forgets", "--out", "c")
    assert code == 2
    assert "Forgets.aggregate must return the next state and a dictionary of numbers, got None" in err


def test_clients_who_are_not_judged_are_named_at_the_start_but_not_to_the_quiet(here: Path, fedfi) -> None:
    text = Path("mymethod.toml").read_text() + "\n"
    Path("few.toml").write_text(text)
    few = ("--set", "data.clients=200", "--set", "train.steps=1", "--rounds", "1")
    code, _, err = fedfi("run", "few.toml", *few, "--out", "a")
    assert code == 0
    assert re.search(r"warning: \d+ of 200 clients \(.*\) have no test examples and will be missing from local/\*", err)
    assert fedfi("run", "few.toml", *few, "--out", "b", "-q") == (0, "", "")
