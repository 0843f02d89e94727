"""Every wrong setting is one line on stderr, exit code 2: file, key, value, nearest valid value."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from fedfi.validation import as_toml


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
            " (choose from all-round, as-published)",
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
        (
            "train.learning_rate=1e308",
            "train.learning_rate = 1e+308: must be at most 3.403e+38 in size, as 32-bit numbers are",
        ),
        (
            "train.weight_decay=1e300",
            "train.weight_decay = 1e+300: must be at most 3.403e+38 in size, as 32-bit numbers are",
        ),
        (
            "train.batch_size=99999999999999999999",
            "train.batch_size = 99999999999999999999: must be a 64-bit whole number"
            " (nearest valid: 9223372036854775807)",
        ),
        ("trian.steps=1", "trian: unknown key; did you mean 'train'?"),
        ("evaluate.every=0", "evaluate.every = 0: must be at least 1 (nearest valid: 1)"),
        ('data.augment=["flop"]', None),
        (
            "data.clients=5000",
            "data.clients = 5000: there are only 1438 training examples to divide (nearest valid: 1438)",
        ),
        (
            "data.partition.alpha=-1",
            "data.partition.alpha = -1: must be above 0 (nearest valid: any number above 0, such as 0.3)",
        ),
        ("data.partition.alhpa=1", "data.partition.alhpa: unknown key; did you mean 'alpha'?"),
        ("data.partition.alpha=true", "data.partition.alpha = true: must be a number, such as 0.3"),
        (
            "data.partition.minimum=1000",
            "data.partition.minimum = 1000: 6 clients with at least so many examples each need 6000,"
            " there are 1438 (nearest valid: 239)",
        ),
        (
            'data.partition={by="pathological",classes_per_client=11}',
            "data.partition.classes_per_client = 11: the training examples have only 10 classes (nearest valid: 10)",
        ),
        (
            'data.partition={by="size",sizes=[3,4]}',
            "data.clients = 6: partition.sizes lists 2 (nearest valid: 2, or none)",
        ),
        ("data.partition={alpha=1}", None),
        ("data.validation=9999", "data.validation = 9999: 'digits' has only 1797 examples (nearest valid: 1796)"),
        ("data.test_fraction=1e-9", "data.test_fraction = 1e-09: leaves no test example of 1797; raise it"),
        (
            "model.hiden=3",
            "model.hiden: unknown option 'hiden'; did you mean 'hidden'? (choose from bias, dropout, hidden)",
        ),
        ("model.hidden=[true]", "model.hidden.0 = true: must be a whole number"),
        ("model.hidden=[0]", "model.hidden.0 = 0: must be at least 1 (nearest valid: 1)"),
        ("model.bias=0", "model.bias = 0: must be true or false"),
        ("model.hidden=[1000000000000]", None),
    ],
)
def test_setting(file: Path, fedfi, setting: str, line: str | None) -> None:
    code, out, err = fedfi("run", file, "--set", setting, "--out", "new")
    assert code == 2
    assert out == ""
    assert err.startswith(("exp.toml: ", "--set "))
    assert err.count("\n") == 1
    if line is not None:  # whoever gave the key is blamed: here never the file, unless its own key is wrong now
        given = setting.partition("=")[0]
        to_blame = line.startswith(given) or given.startswith(f"{line.partition(':')[0]}.")
        assert err == f"{'--set ' if to_blame else 'exp.toml: '}{line}\n"
    assert not Path("new").exists(), "a refused experiment leaves no run directory"


def test_an_empty_setting_is_refused_though_another_follows(file: Path, fedfi) -> None:
    code, _, err = fedfi("run", file, "--set", "rounds=", "--rounds", "1")
    assert code == 2
    assert err == "--set rounds=: has no value, expected table.key=value; an empty text is 'rounds=\"\"'\n"


def test_no_hint_stands_twice(file: Path, fedfi) -> None:
    for command in (("runn", file), ("run", file, "--worker", "1")):
        code, _, err = fedfi(*command)
        assert code == 2
        assert err.count("Did you mean") == 1


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
        assert err.startswith(f"--set {table} = ")
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
    assert err == "exp.toml: data, model, algorithm: are missing\n"


def test_steps_and_epochs(file: Path, fedfi) -> None:
    file.write_text(file.read_text().replace("steps = 3", "steps = 3\nepochs = 1"))
    assert fedfi("run", file) == (
        2,
        "",
        "exp.toml: train: give steps or epochs, not both (got steps = 3, epochs = 1)\n",
    )


def test_participation_and_clients_per_round(file: Path, fedfi) -> None:
    """Both in a file are one too many; an override replaces, and the default of a method does not count."""
    text = file.read_text()
    file.write_text(text.replace("participation = 0.5", "participation = 0.5\nclients_per_round = 2"))
    assert fedfi("run", file) == (
        2,
        "",
        "exp.toml: algorithm: give participation or clients_per_round, not both"
        " (got participation = 0.5, clients_per_round = 2)\n",
    )
    file.write_text(text)
    for setting, out in (("algorithm.clients_per_round=2", "a"), ("rounds=1", "b")):
        assert fedfi("run", file, "--set", setting, "--out", out, "-q")[0] == 0
    written = Path("a/run.toml").read_text()
    assert "clients_per_round = 2" in written
    assert "participation" not in written
    assert fedfi("resume", "a", "--rounds", "3", "-q") == (0, "", "")


@pytest.mark.parametrize(
    "setting",
    ["data.partition.alpha=0", "data.partition.by=idd", "model.bias=0", 'data.partition={by="size",sizes=[3]}'],
)
def test_what_the_file_tells_is_checked_before_data_are_loaded(file: Path, fedfi, setting: str) -> None:
    file.write_text(file.read_text().replace('"digits"', '"no/such/file.csv"'))
    code, _, err = fedfi("run", file, "--set", setting)
    assert code == 2
    assert "no/such" not in err


def test_byte_order_mark(file: Path, fedfi) -> None:
    """Editors on Windows begin UTF-8 files with one."""
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert fedfi("run", file, "--out", "a", "-q") == (0, "", "")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.name=wrong:inputs", "model: model 'wrong:inputs' on inputs [2, 1, 8, 8] failed: RuntimeError"),
        ("model.name=wrong:outputs", "model: model 'wrong:outputs' makes [2, 7] of inputs"),
        ("model.name=wrong:nothing", "model: the model Linear: 'weight' is on the device 'meta'"),
        ("model.name=wrong:lazy", "model: the model LazyLinear: 'weight' has no shape yet"),
        ("algorithm.name=wrong:Half", "algorithm 'wrong:Half' lacks aggregate, client_update"),
        ("algorithm.name=wrong:Broken", "algorithm 'wrong:Broken' failed: KeyError: 'x' (wrong.py, line "),
    ],
)
def test_models_and_methods_of_ones_own_that_are_wrong(file: Path, fedfi, setting: str, said: str) -> None:
    text = file.read_text().replace("hidden = [8]", "").replace('capacities = { "1.0" = 0.5, "0.25" = 0.5 }', "")
    file.write_text(text)
    Path("wrong.py").write_text(
        "from torch import nn\n"
        "from fedfi import Algorithm, FedAvg\n"
        "def inputs(spec): return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))\n"
        "def outputs(spec): return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))\n"
        "def nothing(spec): return nn.Linear(64, 10, device='meta')\n"
        "def lazy(spec): return nn.LazyLinear(10)\n"
        "class Half(Algorithm): pass\n"
        "class Broken(FedAvg):\n"
        "    def __post_init__(self): {}['x']\n"
    )
    try:
        code, _, err = fedfi("run", file, "--set", setting)
    finally:
        sys.modules.pop("wrong", None)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", r"data.name = \"mine_data:make\": function 'mine_data:make' failed: ZeroDivisionError"),
        ("{}['x']", r"failed: KeyError: 'x' (mine_data.py, line 2)"),
        ("__import__('torch').empty(10**14)", "needs more memory than there is"),
    ],
)
def test_a_data_function_that_fails(file: Path, fedfi, code: str, said: str) -> None:
    Path("mine_data.py").write_text(f"def make():\n    return {code}\n")
    try:
        exit_code, _, err = fedfi("run", file, "--set", "data.name=mine_data:make", "-q")
    finally:
        sys.modules.pop("mine_data", None)
    assert (exit_code, err.count("\n")) == (2, 1)
    assert said.replace("\\", "") in err


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
    code, out, err = fedfi("run", file, "--out", "full")
    assert (code, out) == (2, "")
    assert err == "--out full: exists and is not empty, and is no run that could be resumed; name another\n"
    Path("full/run.toml").write_text("")
    assert "resume it with `fedfi resume full`" in fedfi("run", file, "--out", "full")[2]
    file.write_text(file.read_text().replace('"digits"', '"no/such/file.csv"'))  # told before data are loaded
    for command in ("run", "compare"):
        code, _, err = fedfi(command, file, "--out", "exp.toml/a")
        assert (code, err) == (2, "--out exp.toml/a: exp.toml is a file, no directory\n")
    assert fedfi("run", file, "--out", "exp.toml")[2] == (
        "--out exp.toml: is a file; name a directory that is new or empty\n"
    )


def test_a_place_that_cannot_be_written_is_blamed_itself(file: Path, fedfi, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("ro").mkdir()
    with monkeypatch.context() as patched:  # whoever runs the tests may write anywhere
        patched.setattr("fedfi.cli.running.os.access", lambda place, mode, **_: not mode & os.W_OK)
        file.write_text(file.read_text().replace('"digits"', '"no/such/file.csv"'))
        code, out, err = fedfi("run", file, "--out", "ro/x")
    assert (code, out) == (2, "")
    assert err == "--out ro/x: cannot write to ro: permission denied\n"


def test_a_run_that_began_otherwise_is_named_once(file: Path, fedfi) -> None:
    assert fedfi("run", file, "--out", "k0", "-q")[0] == 0
    run = Path("k0/run.toml")
    run.write_text(run.read_text().replace("learning_rate = 0.1", "learning_rate = 0.2"))
    code, _, err = fedfi("resume", "k0", "--rounds", "3", "-q")
    assert code == 2
    assert err.startswith("k0/run.toml: train.learning_rate = 0.2, the run began with 0.1")


def test_only_what_set_gave_is_its_fault(file: Path, fedfi) -> None:
    file.write_text(file.read_text().replace("learning_rate = 0.1", "learning_rate = -1"))
    _, _, err = fedfi("run", file, "--set", "train.steps=1")
    assert err.startswith("exp.toml: train.learning_rate = ")
    assert fedfi("run", file, "--set", "train.learning_rate=-2")[2].startswith("--set train.learning_rate = -2: ")


def test_tables_and_lists_say_how_they_are_written(file: Path, fedfi) -> None:
    text = file.read_text()
    file.write_text(text.replace('{ by = "dirichlet", alpha = 1.0 }', '"iid"'))
    assert fedfi("run", file)[2] == ('exp.toml: data.partition = "iid": must be a table, such as { by = "iid" }\n')
    file.write_text(text)
    code, _, err = fedfi("run", file, "--set", "data.augment=[crop]")  # what the shell leaves of ["crop"]
    assert (code, err.count("\n")) == (2, 1)
    assert "keep the shell from taking them, such as --set 'data.augment=[\"crop\"]'" in err
    assert """--set 'data.partition={by="iid"}'""" in fedfi("run", file, "--set", "data.partition={by=iid}")[2]


def test_names_that_are_not_near_are_not_suggested(file: Path, fedfi) -> None:
    file.rename("bm.toml")
    assert fedfi("run", "missing.toml")[2] == "missing.toml: no such file\n"
    for arguments in (("list", "nonsense"), ("show", "nonsense"), ("show", "zzzz")):
        code, _, err = fedfi(*arguments)
        assert (code, "did you mean" in err) == (2, False), err
    for arguments, near in (
        (("show", "dirichle"), "'dirichlet'"),
        (("run", "bm.toml", "--set", "algorithm.name=fedav"), "'fedavg'"),
        (("run", "bm.toml", "--set", "data.name=movielens"), "ml_100k"),
    ):
        err = fedfi(*arguments)[2]
        assert near in err
        assert len(err) < 400


def test_more_workers_than_help_are_told(file: Path, fedfi) -> None:
    code, _, err = fedfi("run", file, "--workers", "64", "--out", "a")
    assert code == 0
    assert re.search(r"^--workers 64: more than [123] do not help here: \d+ cores, 3 clients a round$", err, re.M)
    assert "--workers" not in fedfi("run", file, "--workers", "1", "--out", "b")[2]


def test_debug_shows_where(file: Path, fedfi) -> None:
    code, _, err = fedfi("run", file, "--set", "rounds=0", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_settings_that_replace_each_other_are_not_both_set(file: Path, fedfi) -> None:
    code, _, err = fedfi("run", file, "--set", "train.steps=5", "--set", "train.epochs=1")
    assert code == 2
    assert "give steps or epochs, not both (got steps = 5, epochs = 1)" in err
    code, _, err = fedfi("run", file, "--set", "train.epochs=1", "--set", "data.clients=0")
    assert "data.clients = 0" in err  # and no word of the file's steps


@pytest.mark.parametrize(
    ("settings", "front"),
    [
        (["model.hidden=[]"], "--set model.hidden with exp.toml: algorithm: no channels of Sequential can be cut"),
        (
            ['algorithm.capacities={"0.001"=1.0}', "train.steps=2"],
            "--set algorithm.capacities: ratio 0.001 is too small",
        ),
        (
            ["model.hidden=[4]", 'algorithm.capacities."0.001"=0.0'],
            '--set algorithm.capacities."0.001" with exp.toml: algorithm.capacities: the shares',
        ),
        (["train.steps=2"], None),
    ],
)
def test_what_is_built_of_tables_blames_who_gave_them(file: Path, fedfi, settings: list[str], front: str) -> None:
    text = file.read_text().replace('"fedfibos"', '"heterofl"')
    if front is None:
        text, front = text.replace("[8]", "[]"), "exp.toml: algorithm: no channels of Sequential can be cut"
    if "0.001" in settings[-1]:
        text = text.replace('"0.25" = 0.5', '"0.25" = 0.4')
    file.write_text(text)
    code, _, err = fedfi("run", file, "-q", "--out", "a", *(part for s in settings for part in ("--set", s)))
    assert (code, err[: len(front)]) == (2, front)


WARD = "age,hospital,outcome\n" + "".join(f"{20 + n},{'ab'[n % 2]},{n % 3 // 2}\n" for n in range(30))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("data.label", "outcom", "unknown column 'outcom'; did you mean 'outcome'?"),
        ("data.label", "age2", "unknown column 'age2'; did you mean 'age'?"),
        ("data.partition.column", "hosptial", "unknown column 'hosptial'; did you mean 'hospital'?"),
        ("data.group", "hosptial", "unknown column 'hosptial'; did you mean 'hospital'?"),
        ("data.columns", ["agee"], "unknown column 'agee'; did you mean 'age'?"),
        ("data.categories", ["agee"], "categories: unknown column 'agee'; did you mean 'age'?"),
        ("data.text", "nots", "unknown column 'nots'"),
        ("data.test", "tset.csv", "no test set at tset.csv"),
        ("data.length", 3, "the option 'length' means nothing there"),
    ],
)
def test_an_option_of_the_data_is_blamed_on_who_gave_it(file: Path, fedfi, key: str, value, said: str) -> None:
    """The same key, from the file and from the command line."""
    Path("ward.csv").write_text(WARD)
    data = {"name": "ward.csv", "label": "outcome", "partition": {"by": "natural", "column": "hospital"}}
    text = re.sub(r"\[data\].*?\n\n", "", file.read_text(), flags=re.DOTALL)

    def written(table) -> None:
        file.write_text(text + "\n[data]\n" + "".join(f"{k} = {as_toml(v)}\n" for k, v in table.items()))

    written(data)
    front = f"{key} = {as_toml(value)}: data 'ward'"
    code, _, err = fedfi("run", file, "-q", "--set", f"{key}={as_toml(value)}", "--out", "a")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"--set {front}"), err
    assert said in err
    table, _, last = key.removeprefix("data.").rpartition(".")
    (data["partition"] if table else data)[last] = value
    written(data)
    code, _, err = fedfi("run", file, "-q", "--out", "a", "--set", "train.steps=1")
    assert code == 2
    assert err.startswith(f"exp.toml: {front}"), err


def test_the_data_themselves_are_blamed_on_their_name(file: Path, fedfi) -> None:
    Path("ward.csv").write_text(WARD.replace("20,a", "20,"))
    sets = ("--set", 'data={name="ward.csv",label="outcome",partition={by="natural",column="hospital"}}')
    err = fedfi("run", file, "-q", *sets, "--out", "a")[2]
    assert err.startswith("--set data.partition.column = \"hospital\": data 'ward': 1 value is missing"), err
    Path("ward.csv").write_text("outcome\n")
    err = fedfi("run", file, "-q", *sets, "--out", "a")[2]
    assert err.startswith("--set data.name = \"ward.csv\": data 'ward' has no rows"), err


def test_odd_columns_are_told_once_at_the_start(file: Path, fedfi) -> None:
    rows = "".join(f"{n},{20 + n % 9},,{n % 2}\n" for n in range(60))
    Path("ward.csv").write_text("id,age,empty,outcome\n" + rows)
    sets = ("--set", 'data={name="ward.csv",label="outcome",clients=3}', "--set", "data.partition={by='iid'}")
    code, _, err = fedfi("run", file, *sets, "--out", "a")
    assert code == 0, err
    for said in ("column 'id' has another value in each of the 60 rows", "column 'empty' has no value at all"):
        assert err.count(f"warning: {said}") == 1, err
        assert Path("a/events.jsonl").read_text().count(said) == 1
