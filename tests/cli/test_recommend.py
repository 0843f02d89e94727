"""From a file of ratings to recommendations."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedfi.experiment import load_experiment

EXPERIMENT = """
rounds = 3
checkpoint_every = 2

[data]
name = "synthetic_ratings"

[model]
name = "item_table"
dimension = 4

[train]
batch_size = 64

[algorithm]
name = "fedrkg"
interval = 2
participation = 0.5
"""


@pytest.fixture
def ratings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rec.toml").write_text(EXPERIMENT)
    return Path("rec.toml")


def test_run_resume_and_recommend(ratings: Path, fedfi) -> None:
    code, out, _ = fedfi("run", ratings, "--out", "a")
    assert code == 0
    assert "HR@10" in out
    assert sorted(p.name[:12] for p in Path("a/checkpoints").iterdir()) == ["round-000002", "round-000003"]
    assert fedfi("resume", "a", "--rounds", "4", "-q")[0] == 0
    code, out, _ = fedfi("recommend", "a", "--user", "u7", "-k", "5")
    assert code == 0
    items = [line.split()[1] for line in out.splitlines()]
    assert len(set(items)) == 5
    code, _, _ = fedfi("recommend", "a", "-k", "5", "--out", "all.csv")
    assert code == 0
    rows = list(csv.DictReader(Path("all.csv").read_text().splitlines()))
    assert len(rows) == 200 * 5
    assert [r["item"] for r in rows if r["user"] == "u7"] == items
    data = load_experiment(ratings).task().data
    own = data.clients["u7"]
    assert not {data.items[i] for i in own.train} & set(items)


def test_an_encrypted_run_is_resumed_and_recommends(ratings: Path, fedfi) -> None:
    """The same items as without encryption, but for what rounding puts the other way."""
    text = (
        EXPERIMENT.replace("participation = 0.5", "clients_per_round = 20\n\n[evaluate]\nevery = 3")
        + "\n[algorithm.encrypted]\n"
    )
    Path("secret.toml").write_text(text + "encryption = { enabled = false, clip = 64.0 }\n")
    Path("plain.toml").write_text(text.partition("\n[algorithm.encrypted]")[0])
    assert fedfi("run", "plain.toml", "--out", "plain", "-q")[0] == 0
    assert fedfi("run", "secret.toml", "--out", "whole", "-q")[0] == 0
    assert fedfi("run", "secret.toml", "--out", "parts", "-q", "--set", "rounds=2")[0] == 0
    assert fedfi("resume", "parts", "--rounds", "3", "-q")[0] == 0
    found = {}
    for name in ("plain", "whole", "parts"):
        assert fedfi("recommend", name, "-k", "5", "--out", f"{name}.csv")[0] == 0
        found[name] = list(csv.DictReader(Path(f"{name}.csv").read_text().splitlines()))
    assert found["whole"] == found["parts"]
    assert len(found["whole"]) == 200 * 5
    same = sum(a["item"] == b["item"] for a, b in zip(found["plain"], found["whole"], strict=True))
    assert same >= 0.99 * len(found["plain"])


def test_what_cannot_be_recommended_is_one_line(ratings: Path, file: Path, fedfi) -> None:
    fedfi("run", ratings, "--out", "a", "-q")
    assert fedfi("recommend", "a", "--user", "u999")[0] == 2
    assert "did you mean 'u99'" in fedfi("recommend", "a", "--user", "u999")[2]
    assert fedfi("recommend", "a", "--user", "zz")[2].endswith(" and 180 more)\n")
    assert "--user: is missing" in fedfi("recommend", "a")[2]
    assert "no run.toml" in fedfi("recommend", ".", "--user", "u1")[2]
    fedfi("run", file, "--out", "b", "-q")
    assert "'fedfibos': recommends nothing" in fedfi("recommend", "b", "--user", "0")[2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.clients=3", "data.clients: means nothing for ratings"),
        ("model={name='mlp'}", "model 'mlp' needs images or tabular data, got ratings"),
        ("algorithm.name=popular", "did you mean 'popularity'?"),
        ("data.negatives=exclude_none", 'nearest valid: "exclude_train"'),
        ("data.name=digits", 'means nothing for examples, which "digits" holds'),
        (
            "train.optimizer=adam",
            'train.optimizer = "adam": methods of recommendation take plain steps (nearest valid: "sgd")',
        ),
    ],
)
def test_settings_that_do_not_fit_are_one_line(ratings: Path, fedfi, change: str, said: str) -> None:
    text = ratings.read_text()
    ratings.write_text(text.replace('name = "synthetic_ratings"', 'name = "synthetic_ratings"\nmin_interactions = 5'))
    code, _, err = fedfi("run", ratings, "--out", "a", "--set", change)
    assert code == 2
    assert said in err.splitlines()[-1]


def test_kinds_do_not_mix(ratings: Path, file: Path, fedfi) -> None:
    code, _, err = fedfi("run", file, "--out", "a", "--set", "algorithm={name='fedrkg'}")
    assert (code, 'learns from ratings, but data.name = "digits" holds examples' in err) == (2, True)
    code, _, err = fedfi("run", ratings, "--out", "a", "--set", "algorithm={name='fedavg'}")
    assert (code, "learns from examples" in err) == (2, True)


def test_methods_are_compared_in_one_table(ratings: Path, fedfi) -> None:
    code, _, _ = fedfi("compare", ratings, "--algorithms", "fedrkg,popularity,random", "--out", "c", "-q")
    assert code == 0
    table = Path("c/table.md").read_text()
    assert "ranking/hr@10" in table
    assert "ranking/hr@5" not in table
    assert "ranking/hr@5" in Path("c/table.csv").read_text()


def test_a_csv_needs_no_kind_and_tells_what_is_doubtful(ratings: Path, fedfi) -> None:
    rows = [f"u{u},i{(u + k) % 9},{k}" for u in range(6) for k in range(6)]
    Path("own.csv").write_text("\n".join(["Customer,Item,stars", *rows]))
    given = ["--set", "data.name=own.csv", "--set", "data.columns.user=Customer"]
    code, _, err = fedfi("run", ratings, "--out", "a", *given)
    assert code == 0
    assert "columns that nothing reads: 'stars'" in err
    assert "columns that nothing reads" in Path("a/report.html").read_text()
    assert 'kind = "ratings"' in Path("a/run.toml").read_text()
    code, _, err = fedfi("run", ratings, "--out", "b", *given, "--set", "data.columns.usr=x")
    assert code == 2
    assert err.splitlines()[-1].startswith("--set data.columns.usr: unknown key 'usr'; did you mean 'user'?")
