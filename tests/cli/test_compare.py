from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import pytest

from fedfi.cli.comparing import parse_seeds
from fedfi.cli.summary import markdown, print_table, summarise
from fedfi.cli.variants import parse_item
from fedfi.errors import InputError
from fedfi.federation.checkpoint import tensors_from_file
from fedfi.federation.record import read_lines

VARIANTS = """
[compare.coarse]
preset = "as-published"
train = { learning_rate = 0.2, epochs = 1 }
"""


def test_table_of_two_methods_and_a_variant(file: Path, fedfi) -> None:
    file.write_text(file.read_text() + VARIANTS)
    code, out, _ = fedfi(
        "compare", file, "--algorithms", "fedavg,mine=fedfibos", "--seeds", "0,1", "--out", "c", "--workers", "2"
    )
    assert code == 0
    assert out == Path("c/table.md").read_text()
    rows = list(csv.DictReader(Path("c/table.csv").read_text().splitlines()))
    assert [(row["method"], row["seeds"]) for row in rows] == [("fedavg", "2"), ("mine", "2"), ("coarse", "2")]
    results = json.loads(Path("c/results.json").read_text())
    values = [results["methods"]["mine"]["seeds"][s]["global/accuracy"] for s in ("0", "1")]
    # mean and sample standard deviation of two values a, b are (a + b) / 2 and |a - b| / sqrt(2)
    assert float(rows[1]["global/accuracy"]) == pytest.approx(sum(values) / 2)
    assert float(rows[1]["global/accuracy sd"]) == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    last = read_lines(Path("c/mine/seed-1/metrics.jsonl"))[-1]
    assert values[1] == last["global/accuracy"]
    coarse = results["methods"]["coarse"]["config"]
    assert coarse["train"]["learning_rate"] == 0.2
    assert (coarse["train"]["epochs"], "steps" in coarse["train"]) == (1, False)
    assert coarse["algorithm"]["fisher"] == "masked"
    assert coarse["algorithm"]["participation"] == 0.5

    splits = [json.loads(Path(f"c/{label}/seed-1/split.json").read_text()) for label in ("fedavg", "mine")]
    assert splits[0] == splits[1]

    fedfi("run", file, "--set", "seed=1", "--out", "alone", "-q")
    alone = tensors_from_file(Path("alone/model.safetensors"))
    compared = tensors_from_file(Path("c/mine/seed-1/model.safetensors"))
    assert all(alone[name].equal(compared[name]) for name in alone)


def test_seeds_may_be_a_range() -> None:
    assert parse_seeds("0-2") == [0, 1, 2]
    assert parse_seeds("7, 1-2") == [7, 1, 2]
    for text, word in (("2-1", "backwards"), ("0-1,1", "twice"), ("-1", "whole number"), ("1-", "whole number")):
        with pytest.raises(InputError, match=word):
            parse_seeds(text)


def test_a_table_for_a_terminal_is_short(file: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    fedfi("compare", file, "--seeds", "0,1", "--out", "c", "-q")
    monkeypatch.setenv("COLUMNS", "100")
    print_table(Path("c/results.json"))
    _, out, _ = fedfi("--version")  # reads what was printed, too
    assert "fedfibos" in out
    assert "mean ± sd over 2 seeds; every number: c/table.md" in out
    assert re.search(r"fedfibos +\d+\.\d\d% ± \d+\.\d\d%", out)
    assert re.search(r"\d+\.\d kB +\d+\.\d kB", out)
    monkeypatch.setenv("COLUMNS", "60")
    print_table(Path("c/results.json"))
    out = fedfi("--version")[1]
    assert max(map(len, out.splitlines())) <= 60
    assert re.search(r"fedfibos +\d+\.\d\d% ± \d+\.\d\d%", out), "columns are left out, never cut"
    assert "local/accuracy " not in Path("c/table.md").read_text()


def test_finished_runs_are_kept_others_go_on(file: Path, fedfi) -> None:
    command = ["compare", file, "--algorithms", "fedavg", "--seeds", "0,1", "--out", "c"]
    assert fedfi(*command, "-q") == (0, "", "")
    table = Path("c/table.csv").read_text()
    kept, cut = Path("c/fedavg/seed-0"), Path("c/fedavg/seed-1")
    before = (kept / "events.jsonl").read_text()
    events = (cut / "events.jsonl").read_text().splitlines(keepends=True)
    (cut / "events.jsonl").write_text("".join(events[:-1]))  # as if it had been killed before its end
    newest = max((cut / "checkpoints").iterdir())
    newest.unlink()
    code, _, err = fedfi(*command)
    assert code == 0
    assert err.startswith("1 runs in c, 1 kept\n")
    assert (kept / "events.jsonl").read_text() == before
    assert sum(e["event"] == "resume" for e in read_lines(cut / "events.jsonl")) == 1
    strip = [[c for i, c in enumerate(r) if "seconds" not in h[i]] for h, r in _rows(table)]
    assert strip == [
        [c for i, c in enumerate(r) if "seconds" not in h[i]] for h, r in _rows(Path("c/table.csv").read_text())
    ]


def _rows(text: str) -> list[tuple[list[str], list[str]]]:
    head, *rows = list(csv.reader(text.splitlines()))
    return [(head, row) for row in rows]


def test_other_settings_are_refused_by_key(file: Path, fedfi) -> None:
    command = ["compare", file, "--algorithms", "fedavg", "--out", "c", "-q"]
    assert fedfi(*command)[0] == 0
    code, _, err = fedfi(*command, "--set", "train.learning_rate=0.2")
    assert code == 2
    assert err == (
        "c/fedavg/seed-0: holds a run with train.learning_rate = 0.1, now it is train.learning_rate = 0.2;"
        " choose another --out\n"
    )


def test_a_failing_run_does_not_stop_the_others(file: Path, fedfi) -> None:
    file.write_text(file.read_text() + "[compare.wild]\nname = 'fedavg'\ntrain = { learning_rate = 1e30 }\n")
    code, out, err = fedfi("compare", file, "--algorithms", "fedavg", "--out", "c")
    assert code == 3
    assert err.splitlines()[-1] == "1 of 2 runs failed: c/wild/seed-0"
    assert "| fedavg |     1 |" in out
    assert list(json.loads(Path("c/results.json").read_text())["failed"]) == ["wild/seed-0"]


def test_what_a_run_warned_of_while_it_ran_is_told_once_behind_the_table(file: Path, fedfi) -> None:
    file.write_text(file.read_text() + "[compare.wild]\nname = 'fedavg'\ntrain = { learning_rate = 50.0 }\n")
    code, _, err = fedfi("compare", file, "--algorithms", "fedavg", "--out", "c")
    assert code == 0
    found = re.findall(
        r"^wild seed 0: warning: the \w+ loss is .*training diverges; try a smaller learning_rate", err, re.M
    )
    assert len(found) == 1
    assert err.count("diverges") == 1
    code, out, _ = fedfi(
        "run", file, "--set", "algorithm={name='fedavg'}", "--set", "train.learning_rate=50", "--out", "a"
    )
    assert code == 0
    assert out.count("diverges") == 1


@pytest.mark.parametrize(
    ("item", "parsed"),
    [
        ("fedavg", ("fedavg", "fedavg", None)),
        ("fedfibos:as-published", ("fedfibos-as-published", "fedfibos", "as-published")),
        ("ours=fedfibos:as-published", ("ours", "fedfibos", "as-published")),
        ("my.methods:Mine", ("mine", "my.methods:Mine", None)),
        ("mine:Mine", ("mine", "mine:Mine", None)),
        ("mine:Mine:fast", ("mine-fast", "mine:Mine", "fast")),
        ("x=my.methods:Mine:fast", ("x", "my.methods:Mine", "fast")),
    ],
)
def test_parse_item(item: str, parsed: tuple[str, str, str | None]) -> None:
    assert parse_item(item) == parsed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithms", "fedavgg"], "did you mean 'fedavg'?"),
        (["--algorithms", "fedavg,fedavg"], "is given twice"),
        (["--algorithms", "fedavg", "--seeds", "0,0"], "a seed is given twice"),
        (["--algorithms", "fedavg", "--seeds", "0,x"], "'x' is not a whole number"),
        (["--algorithms", "a/b=fedavg"], "names a directory"),
        (["--algorithms", "fedavg:fast"], "has no presets"),
    ],
)
def test_usage(file: Path, fedfi, arguments: list[str], message: str) -> None:
    code, _, err = fedfi("compare", file, "--out", "c", *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_summary_by_hand() -> None:
    # 1, 2, 3: mean 2, sample variance ((1)^2 + 0 + 1^2) / 2 = 1
    summary = summarise([{"a": 1.0}, {"a": 2.0}, {"a": 3.0, "b": 4.0}])
    assert summary == {"a": {"mean": 2.0, "sd": 1.0, "n": 3}, "b": {"mean": 4.0, "sd": None, "n": 1}}
    shown = markdown({"m": summarise([{"global/accuracy": 0.5}, {"global/accuracy": 0.7}])}, {"m": 2})
    assert "60.00% ± 14.14%" in shown


def test_merges_share_what_clients_trained_and_measured(file: Path, fedfi, monkeypatch) -> None:
    """Each client trains once for both methods, and its Fisher information is measured once; no bit differs."""
    from fedfi.federation import training
    from fedfi.oneshot import method

    log = Path("calls.txt").absolute()

    def counted(name, function):
        def call(*arguments, **options):
            with log.open("a") as lines:
                lines.write(f"{name}\n")
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(training, "_train", counted("train", training._train))
    monkeypatch.setattr(method, "measure", counted("measure", method.measure))
    file.write_text(file.read_text().partition("[algorithm]")[0] + '[algorithm]\nname = "fedfiot"\n')
    arguments = ["--set", "rounds=1", "--set", "data.clients=3"]
    methods = "fedfiot,published=fedfiot:as-published,average"
    code, _, err = fedfi("compare", file, "--algorithms", methods, "--out", "c", "--workers", "1", *arguments)
    assert code == 0, err
    calls = log.read_text().split()
    assert (calls.count("train"), calls.count("measure")) == (3, 3)
    assert not Path("c/.trained").exists()
    code, _, err = fedfi("compare", file, "--algorithms", "average", "--out", "alone", *arguments)
    assert code == 0, err
    names = [Path(d) / "average/seed-0/model.safetensors" for d in ("c", "alone")]
    one, other = (tensors_from_file(name) for name in names)
    assert all(one[name].equal(other[name]) for name in one)


def test_numbers_are_shown_as_run_shows_them() -> None:
    values = {"global/accuracy": 0.5, "global/loss": 0.25, "bytes/up": 43210.0, "seconds": 1.25, "failures": 1.0}
    row = markdown({"m": summarise([values])}, {"m": 1}).splitlines()[2]
    assert [cell.strip() for cell in row.split("|")[3:-1]] == ["50.00%", "0.2500", "43.2 kB", "1.2 s", "1"]


def test_a_run_is_no_comparison(file: Path, fedfi) -> None:
    fedfi("run", file, "--out", "r1", "-q")
    before = sorted(Path("r1").rglob("*"))
    code, _, err = fedfi("compare", file, "--out", "r1")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("--out r1: is the directory of a single run")
    assert sorted(Path("r1").rglob("*")) == before


def test_methods_that_cannot_work_are_told_before_the_first_run(file: Path, fedfi) -> None:
    """A level of 1/1000 is no parameter of 8 x 64: HeteroFL has no network so small, FedLAGC keeps more in any case."""
    text = file.read_text().replace('{ "1.0" = 0.5, "0.25" = 0.5 }', '{ "1.0" = 0.5, "0.001" = 0.5 }')
    file.write_text(text)
    code, out, err = fedfi("compare", file, "--algorithms", "fedavg,heterofl,fedlagc", "--out", "c", "--rounds", "1")
    assert (code, out) == (2, "")
    assert "2 of 3 methods cannot work, nothing has been run: heterofl: " in err
    assert "; fedlagc: " in err
    assert "this model has nothing else; take one with more layers, or set keep_edges = false" in err
    assert not list(Path("c").glob("**/run.toml"))


def test_rounds_may_be_given(file: Path, fedfi) -> None:
    assert fedfi("compare", file, "--algorithms", "fedavg", "--rounds", "1", "--out", "c", "-q")[0] == 0
    assert len(read_lines(Path("c/fedavg/seed-0/metrics.jsonl"))) == 1


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("fedavg,fedfibos:litral", '--algorithms fedfibos:litral: algorithm.preset = "litral": unknown preset'),
        ("fedavg,x=fedmf", '--algorithms x=fedmf: algorithm.name = "fedmf": learns from ratings'),
    ],
)
def test_what_algorithms_gave_is_blamed_on_it(file: Path, fedfi, methods: str, said: str) -> None:
    code, _, err = fedfi("compare", file, "--algorithms", methods, "--out", "c")
    assert (code != 0, said in err) == (True, True), err


def test_a_variant_of_the_file_is_blamed_on_its_table(file: Path, fedfi) -> None:
    file.write_text(file.read_text() + '\n[compare.mine]\npreset = "litral"\n')
    err = fedfi("compare", file, "--set", 'algorithm.preset="as-published"', "--out", "c")[2]
    assert err.startswith('exp.toml [compare.mine]: algorithm.preset = "litral": unknown preset'), err


def test_a_run_that_ended_before_its_first_checkpoint_is_begun_again(file: Path, fedfi) -> None:
    """Whatever a run directory holds by then is cleared away, and nothing else."""
    command = ["compare", file, "--algorithms", "fedavg", "--out", "c", "-q", "--rounds", "1"]
    assert fedfi(*command)[0] == 0
    directory = Path("c/fedavg/seed-0")
    before = (directory / "model.safetensors").read_bytes()
    for made in ("model.safetensors", "events.jsonl", "metrics.jsonl"):
        (directory / made).unlink()
    for checkpoint in (directory / "checkpoints").iterdir():
        checkpoint.unlink()
    code, _, err = fedfi(*command)
    assert (code, err) == (0, "")
    assert (directory / "model.safetensors").read_bytes() == before
