"""What `fedfi recommend` speaks of: the run's own users and items, its round, and numbers alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fedfi.report.reading import read_run

EXPERIMENT = """
rounds = 4

[data]
name = "shop.csv"
kind = "ratings"

[model]
name = "item_table"
dimension = 4

[train]
batch_size = 16

[algorithm]
name = "fedrkg"
interval = 2

[evaluate]
every = 2
"""


def rows(users: int, items: int, each: int = 5) -> list[str]:
    """Each user has so many items in a row."""
    return [f"u{u:02},i{(u + t) % items:02},5,{t}" for u in range(users) for t in range(each)]


def write(lines: list[str]) -> None:
    Path("shop.csv").write_text("user_id,item_id,rating,timestamp\n" + "\n".join(lines) + "\n")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve users, ten items."""
    monkeypatch.chdir(tmp_path)
    write(rows(12, 10))
    Path("shop.toml").write_text(EXPERIMENT)
    return Path("shop.toml")


def recommended(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(name).read_text().splitlines()))


def test_users_and_items_are_those_that_the_run_began_with(shop: Path, fedfi) -> None:
    """The file has grown by a user and an item in front, and one item has another name."""
    assert fedfi("run", shop, "--out", "a", "-q")[0] == 0
    assert fedfi("recommend", "a", "-k", "3", "--out", "before.csv")[0] == 0
    grown = ["new,i99,5,1", "new,i01,5,2", "new,i02,5,3", "new,i03,5,4", "new,i04,5,5", *rows(12, 10)]
    write([line.replace("i05", "pear") for line in grown])
    assert fedfi("recommend", "a", "-k", "3", "--out", "after.csv")[0] == 0
    assert recommended("after.csv") == recommended("before.csv")
    assert "unknown user 'new'" in fedfi("recommend", "a", "--user", "new")[2]
    Path("shop.csv").unlink()
    code, out, err = fedfi("recommend", "a", "--user", "u03", "-k", "3")
    assert (code, err) == (0, "a after round 4\n")
    assert [line.split()[1] for line in out.splitlines()] == [
        r["item"] for r in recommended("before.csv") if r["user"] == "u03"
    ]


def test_resume_names_who_and_what_changed(shop: Path, fedfi) -> None:
    assert fedfi("run", shop, "--out", "a", "-q")[0] == 0
    first = rows(12, 10)
    for lines, said in (
        ([*first, *(f"new,i0{t},5,{t}" for t in range(5))], "user 'new' is new; put them back as they were"),
        (
            [line.replace("i05", "pear") for line in first],
            "item 'pear' is new; item 'i05' is gone; the interactions of",
        ),
        (first[:-5], "user 'u11' is gone;"),
        ([*first, "u03,i00,5,9"], "began with: the interactions of user 'u03' are others;"),
    ):
        write(lines)
        code, _, err = fedfi("resume", "a", "--rounds", "5", "-q")
        assert code == 2
        assert said in err
        assert "fedfi run a/run.toml --out a-anew" in err


def test_an_older_record_without_names_is_compared_with_the_file(shop: Path, fedfi) -> None:
    assert fedfi("run", shop, "--out", "a", "-q")[0] == 0
    assert fedfi("recommend", "a", "-k", "3", "--out", "before.csv")[0] == 0
    record = json.loads(Path("a/split.json").read_text())
    del record["items"]["names"]
    Path("a/split.json").write_text(json.dumps(record))
    assert fedfi("recommend", "a", "-k", "3", "--out", "after.csv")[0] == 0
    assert recommended("after.csv") == recommended("before.csv")
    write([*rows(12, 10), "u03,i99,5,9"])
    code, _, err = fedfi("recommend", "a", "-k", "3", "--out", "after.csv")
    assert (code, "there are 11 items or other ones, there were 10" in err) == (2, True)
    Path("a/split.json").unlink()
    assert "nobody knows which table is whose" in fedfi("recommend", "a", "--user", "u03")[2]
    Path("a/split.json").write_text("{")
    assert "split.json: is damaged" in fedfi("recommend", "a", "--user", "u03")[2]


def test_a_user_who_has_all_items_is_told_so(shop: Path, fedfi) -> None:
    write([*rows(12, 10), *(f"all,i{t:02},5,{t}" for t in range(10))])
    assert fedfi("run", shop, "--out", "a", "-q")[0] == 0
    code, out, err = fedfi("recommend", "a", "--user", "all")
    assert (code, out) == (0, "")
    assert "user 'all' has all 10 items: none is left to recommend" in err
    code, _, err = fedfi("recommend", "a", "--user", "u03", "--out", "one.csv")
    assert "recommendations of 1 user, after round 4: one.csv" in err


def test_no_number_is_recommended_and_nobody_judged_is_said(shop: Path, fedfi) -> None:
    """Training diverges at once; without an exchange there is no training loss either that would say so."""
    changes = ("train.learning_rate=1e30", "algorithm.interval=100")
    settings = [part for change in changes for part in ("--set", change)]
    for more in ((), ("--set", 'evaluate.best="validation/hr@10"')):
        out = f"a{len(more)}"
        code, said, _ = fedfi("run", shop, "--out", out, *settings, *more)
        assert code == 0
        assert "no result: in no evaluation could anybody be judged" in said
        assert "warning: after round 4 nobody could be judged: 12 clients ('u00', 'u01', 'u02', ...)" in said
        code, said, err = fedfi("recommend", out, "--user", "u03")
        assert (code, said) == (3, "")
        assert "the scores of user 'u03' are no numbers" in err
        assert fedfi("recommend", out, "--out", "all.csv")[0] == 3
        assert not Path("all.csv").exists()


def test_some_without_numbers_are_named_and_the_others_get_theirs(shop: Path, fedfi) -> None:
    """Of users whose tables stay with them, those that never took part rank by the first mean, which is in order."""
    changes = ("train.learning_rate=1e30", "algorithm.interval=100", "algorithm.participation=0.2", "rounds=1")
    settings = [part for change in changes for part in ("--set", change)]
    _, said, _ = fedfi("run", shop, "--out", "a", *settings)
    assert "HR@10" in said
    code, _, err = fedfi("recommend", "a", "--out", "all.csv", "-k", "3")
    assert code == 0
    users = {row["user"] for row in recommended("all.csv")}
    assert len(users) == 10
    assert "warning: a: the scores of 2 users ('u" in err
    assert "nan" not in Path("all.csv").read_text()


def test_nothing_is_recommended_before_the_first_round(shop: Path, fedfi) -> None:
    assert fedfi("run", shop, "--out", "a", "-q", "--set", "checkpoint_every=9")[0] == 0
    for path in Path("a/checkpoints").glob("round-000004-*"):
        path.unlink()
    code, _, err = fedfi("recommend", "a", "--user", "u03")
    assert code == 3
    assert "newest checkpoint is of no round yet, so nothing is learned; `fedfi resume a` goes on" in err


def test_the_best_round_is_named_and_what_to_do_where_it_is_damaged(shop: Path, fedfi) -> None:
    assert fedfi("run", shop, "--out", "a", "-q", "--set", 'evaluate.best="validation/hr@10"')[0] == 0
    best = read_run(Path("a")).result["round"]
    assert fedfi("recommend", "a", "--user", "u03")[2] == f"a after round {best}, the best by validation/hr@10\n"
    (kept,) = Path("a/checkpoints").glob("best-*")
    kept.write_bytes(kept.read_bytes()[:-1])
    code, _, err = fedfi("recommend", "a", "--user", "u03")
    assert code == 3
    assert f"the best round, {best}, cannot be used" in err
    assert "put it back from a copy of the directory, or begin the run anew" in err


def test_a_table_is_no_program(shop: Path, fedfi) -> None:
    assert fedfi("run", shop, "--out", "a", "-q")[0] == 0
    code, _, err = fedfi("export", "a", "-o", "x.pt2")
    assert code == 2
    assert "a recommender's model is a table of items, no program" in err
    assert "`fedfi recommend a --out FILE.csv`" in err
    assert fedfi("export", "a", "-o", "x.safetensors")[0] == 0
