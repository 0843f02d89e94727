"""Every wrong setting is one line on stderr, exit code 2: file, key, value, nearest valid value."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("algorithm.participation=2", "algorithm.participation = 2: must be at most 1 (nearest valid: 1)"),
        ("algorithm.participaton=0.5", "algorithm.participaton: unknown key; did you mean 'participation'?"),
        (
            "algorithm.participation=0",
            "algorithm.participation = 0: must be above 0 (nearest valid: any number above 0, such as 0.1)",
        ),
        (
            "algorithm.preset=as-publishd",
            "algorithm.preset = \"as-publishd\": unknown preset 'as-publishd'; did you mean 'as-published'?"
            " (choose from as-published)",
        ),
        (
            'algorithm.capacities={"2.0"=1.0}',
            'algorithm.capacities."2.0" = 2.0: the key must be at most 1 (nearest valid: 1)',
        ),
        (
            'algorithm.capacities={"1.0"=0.4}',
            "algorithm.capacities: the shares of clients sum to 0.4, expected 1",
        ),
        ("algorithm.fisher_bits=16", "algorithm.fisher_bits = 16: must be 32 or 8 (nearest valid: 8)"),
        (
            "algorithm.clients_per_round=50",
            "algorithm.clients_per_round = 50: there are only 6 clients (nearest valid: 6)",
        ),
        ("rounds=0", "rounds = 0: must be at least 1 (nearest valid: 1)"),
        ('rounds="3"', 'rounds = "3": must be a whole number (nearest valid: 3)'),
        ("rounds=true", "rounds = true: must be a whole number"),
        ("seed=1.5", "seed = 1.5: must be a whole number (nearest valid: 2)"),
        (
            "train.optimizer=sdg",
            "train.optimizer = \"sdg\": must be 'sgd', 'adam' or 'adamw' (nearest valid: \"sgd\")",
        ),
        ("train.learning_rate=inf", "train.learning_rate = inf: must be a finite number"),
        ("train.learning_rate=2020-01-01", None),
        ("train=3", "train = 3: must be a table"),
        ("trian.steps=1", "trian: unknown key; did you mean 'train'?"),
        ("evaluate.every=0", "evaluate.every = 0: must be at least 1 (nearest valid: 1)"),
        ('data.augment=["flop"]', None),
        ("data.clients=5000", None),
        ("model.hiden=3", None),
    ],
)
def test_setting(file: Path, fedfi, setting: str, line: str | None) -> None:
    code, out, err = fedfi("run", file, "--set", setting, "--out", "new")
    assert code == 2
    assert out == ""
    assert err.startswith("exp.toml: ")
    assert err.count("\n") == 1
    if line is not None:
        assert err == f"exp.toml: {line}\n"
    assert not Path("new").exists(), "a refused experiment leaves no run directory"


def test_nearest_names(file: Path, fedfi) -> None:
    for setting, near in [
        ("algorithm.name=fedfib", "fedfibos"),
        ("data.name=digit", "digits"),
        ("model.name=mpl", "mlp"),
        ('data.partition={by="dirichle"}', "dirichlet"),
    ]:
        code, _, err = fedfi("run", file, "--set", setting)
        assert code == 2
        table = setting.split("=")[0] + (".by" if "by=" in setting else "")
        assert err.startswith(f"exp.toml: {table} = ")
        assert f"did you mean '{near}'?" in err


def test_file_is_missing_or_broken(file: Path, fedfi) -> None:
    assert fedfi("run", "ex.toml") == (2, "", "ex.toml: no such file; did you mean 'exp.toml'?\n")
    file.write_text("rounds = = 3")
    assert fedfi("run", file) == (
        2,
        "",
        "exp.toml: is not valid TOML: Invalid value (at line 1, column 10)\n",
    )
    file.write_text("rounds = 3")
    code, _, err = fedfi("run", file)
    assert code == 2
    assert err == "exp.toml: data: is missing (and 2 more)\n"


def test_steps_and_epochs(file: Path, fedfi) -> None:
    file.write_text(file.read_text().replace("steps = 3", "steps = 3\nepochs = 1"))
    assert fedfi("run", file) == (
        2,
        "",
        "exp.toml: train: give steps or epochs, not both (got steps = 3, epochs = 1)\n",
    )


def test_override_without_value(file: Path, fedfi) -> None:
    code, _, err = fedfi("run", file, "--set", "rounds")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("--set rounds: expected table.key=value")


def test_usage(file: Path, fedfi) -> None:
    for arguments in (["lst"], ["run"], ["run", "exp.toml", "--workrs", "2"], ["list", "algorithm"]):
        code, _, err = fedfi(*arguments)
        assert (code, err.count("\n")) == (2, 1)
    assert "'algorithms'" in err


def test_out_is_not_empty(file: Path, fedfi) -> None:
    Path("full").mkdir()
    Path("full/note").write_text("mine")
    code, _, err = fedfi("run", file, "--out", "full")
    assert code == 2
    assert err.startswith("--out full: exists and is not empty")


def test_debug_shows_where(file: Path, fedfi) -> None:
    code, _, err = fedfi("run", file, "--set", "rounds=0", "--debug")
    assert code == 2
    assert "Traceback" in err
