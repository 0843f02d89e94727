"""Data sets by name and by function, and what is said where there are none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfi.data import Dataset, available, federate, hub, load
from fedfi.data.recommendation import load_ratings
from fedfi.errors import InputError
from fedfi.models import InputSpec


@pytest.fixture
def real() -> str:
    root = os.environ.get("FEDFI_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("needs real data: set FEDFI_DATA to its folder")
    return root


def test_digits_are_the_embedded_ones_as_bytes() -> None:
    from sklearn.datasets import load_digits

    data, test = load("digits")
    assert test is None
    assert data.inputs.shape == (1797, 1, 8, 8)
    assert data.inputs.dtype == torch.uint8
    levels = data.inputs[:, 0].double().numpy() * 16 / 255
    assert np.abs(levels - load_digits().images).max() < 0.04


def test_breast_cancer_is_a_table() -> None:
    data, _ = load("breast_cancer")
    assert data.spec.shape == (30,)
    assert data.label_names == ("malignant", "benign")
    federation = federate(data, None, clients=5, partition={"by": "iid"}, seed=0)
    x = torch.cat([client.train.batch()[0] for client in federation.clients.values()])
    torch.testing.assert_close(x.mean(0), torch.zeros(30), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(30), atol=1e-4, rtol=0)


def test_unknown_names_and_options() -> None:
    with pytest.raises(InputError, match="unknown data set 'digit'; did you mean 'digits'"):
        load("digit")
    with pytest.raises(InputError, match=r"no data at nowhere/x\.csv \(there is no folder nowhere\)$"):
        load("nowhere/x.csv")
    with pytest.raises(InputError, match="'digits': unknown option 'label'"):
        load("digits", label="x")
    with pytest.raises(InputError, match=r"; got 3$"):
        load(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="did you mean 'crop'"):
        load("digits", augment=["corp"])
    assert "digits" in available()


def test_given_data_sets_pass_through() -> None:
    data, _ = load("digits")
    assert load(data) == (data, None)
    assert load((data, data)) == (data, data)
    with pytest.raises(InputError, match=r"got a tuple of Dataset, int$"):
        load((data, 3))  # type: ignore[arg-type]
    assert load(data, augment=("flip",))[0].augment == ("flip",)


def test_function_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_data_source.py").write_text(
        "from fedfi.data import load\n"
        "def make():\n    return load({'x': [[0.0], [1.0]], 'y': [0, 1]})\n"
        "def wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    data, test = load("my_data_source:make")
    assert isinstance(data, Dataset)
    assert test is None
    assert sys.path == before
    with pytest.raises(InputError, match="unknown name 'mak'; did you mean 'make'"):
        load("my_data_source:mak")
    with pytest.raises(InputError, match=r"or a fedfi.Dataset; .*; got 3"):
        load("my_data_source:wrong")
    with pytest.raises(InputError, match="'no_such_module' cannot be imported"):
        load("no_such_module:make")
    monkeypatch.delitem(sys.modules, "my_data_source")


def test_absent_data_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def fail(*arguments: Any) -> None:
        raise ConnectionError("Couldn't reach the hub\nretrying")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr(hub, "_reachable", lambda: True)
    monkeypatch.delenv("FEDFI_DATA", raising=False)
    with pytest.raises(InputError, match=r"FEDFI_DATA is not set, and 'uoft-cs/cifar10' .* reach the hub\);"):
        load("cifar10")
    with pytest.raises(InputError, match="set FEDFI_DATA to a folder with a sub-folder 'heart_disease'"):
        load("heart_disease")
    monkeypatch.setattr(hub, "_reachable", lambda: False)
    monkeypatch.setattr(hub, "_cached", lambda repository: False)
    monkeypatch.setenv("FEDFI_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"no folder .*svhn .*no network.* go online once"):
        load("svhn")
    with pytest.raises(InputError, match=r"nothing in .*put nomnist\.npz of MedMNIST there"):
        load("medmnist:nomnist")
    monkeypatch.setenv("FEDFI_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="which is no folder"):
        load("cifar10")


def test_hub_tables_are_read_as_local_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from PIL import Image

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    pictures = [Image.new("L", (4, 4), value) for value in (3, 200)]
    split = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1]}, features=features)
    loaded = datasets.DatasetDict({"train": split, "test": split})
    monkeypatch.setattr(datasets, "load_dataset", lambda *arguments: loaded)
    monkeypatch.setattr(hub, "_reachable", lambda: True)
    monkeypatch.delenv("FEDFI_DATA", raising=False)
    data, test = load("fashion_mnist")
    assert test is not None
    assert data.inputs[:, 0, 0, 0].tolist() == test.inputs[:, 0, 0, 0].tolist() == [3, 200]


def test_importing_loads_nothing_heavy() -> None:
    heavy = "{'pandas', 'pyarrow', 'PIL', 'sklearn', 'datasets', 'flwr_datasets', 'tokenizers', 'transformers'}"
    code = f"import sys, fedfi.data; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_cifar10(real: str) -> None:
    data, test = load("cifar10", augment=("crop", "flip"))
    assert test is not None
    assert (data.inputs.shape, test.inputs.shape) == ((50000, 3, 32, 32), (10000, 3, 32, 32))
    federation = federate(
        data, test, clients=6, partition={"by": "dirichlet-per-client", "alpha": 0.1}, validation=500, seed=0
    )
    assert federation.validation is not None
    assert federation.validation.class_counts().tolist() == [50] * 10
    assert sum(len(client.train) for client in federation.clients.values()) == 49500
    assert sum(len(client.test) for client in federation.clients.values()) == 10000
    mean = federation.test.dataset.mean
    assert mean is not None
    torch.testing.assert_close(mean, torch.tensor([0.4914, 0.4822, 0.4465]), atol=0.003, rtol=0)


def test_fashion_mnist(real: str) -> None:
    data, test = load("fashion_mnist")
    assert test is not None
    assert data.examples().class_counts().tolist() == [6000] * 10
    assert test.inputs.shape == (10000, 1, 28, 28)


def test_pneumonia_mnist(real: str) -> None:
    data, test = load("pneumonia_mnist")
    assert test is not None
    assert (len(data), len(test)) == (3882, 624)
    assert torch.equal(load("medmnist:pneumoniamnist")[0].inputs, data.inputs)


def test_heart_disease_is_four_hospitals(real: str) -> None:
    data, _ = load("heart_disease")
    assert len(data) == 920
    assert data.spec.classes == 2
    assert data.feature_names is not None
    assert not {"id", "num", "dataset"} & set(data.feature_names)
    federation = federate(data, None, clients=None, partition={"by": "natural", "column": "dataset"}, seed=0)
    assert list(federation.clients) == ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
    x, _ = federation.test.batch()
    assert bool(x.isfinite().all())
    assert load("heart_disease", label="num")[0].spec.classes == 5


def test_ag_news(real: str) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra text")
    data, test = load("ag_news", vocabulary=1000, length=32)
    assert test is not None
    assert data.inputs.shape == (8000, 32)
    assert data.label_names == ("1", "2", "3", "4")
    assert data.examples().class_counts().tolist() == [2000] * 4
    assert (data.spec.vocabulary, test.spec) == (1000, data.spec)


def test_arrays_are_a_data_set_and_say_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.zeros((6, 4), np.float32), np.array(["b", "a"] * 3)
    data, test = load((x, y))
    assert (data.spec, data.label_names, test) == (InputSpec("tabular", (4,), 2), ("a", "b"), None)
    images = torch.zeros(6, 8, 8, dtype=torch.uint8)
    data, test = load(((images, torch.arange(6) % 3), (images[:2], torch.tensor([0, 2]))))
    assert data.spec == InputSpec("image", (1, 8, 8), 3)
    assert test is not None
    assert test.targets.tolist() == [0, 2]
    (tmp_path / "my_arrays.py").write_text(
        "import numpy as np\n"
        "def pair():\n    return np.zeros((4, 2)), np.arange(4) % 2\n"
        "def named():\n    return {'x': np.zeros((4, 2)), 'y': np.arange(4) % 2}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert len(load("my_arrays:pair")[0]) == len(load("my_arrays:named")[0]) == 4
    monkeypatch.delitem(sys.modules, "my_arrays")
    with pytest.raises(InputError, match="got a tuple of ndarray, int"):
        load((x, 3))


def test_a_file_that_is_not_there_is_told_the_nearest_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("patients.csv", "scores.inter", "notes.md"):
        Path(name).write_text("age,outcome\n1,0\n2,1\n")
    Path("scans").mkdir()
    looked = f" (looked in {tmp_path})"
    for given, said in (
        ("patient.csv", f"no data at patient.csv{looked}; did you mean 'patients.csv'?"),
        ("patients.tsv", f"no data at patients.tsv{looked}; did you mean 'patients.csv'?"),
        (str(tmp_path / "patient.csv"), f"no data at {tmp_path}/patient.csv; did you mean '{tmp_path}/patients.csv'?"),
        ("score.inter", f"no data at score.inter{looked}; did you mean 'scores.inter'?"),
        (Path("scan"), f"no data at scan{looked}; did you mean 'scans'?"),
        ("note.csv", f"no data at note.csv{looked}"),
        ("notes.txt", f"no data at notes.txt{looked}"),
    ):
        with pytest.raises(InputError) as error:
            load(given)
        assert str(error.value) == said
    for call in (load, load_ratings):
        with pytest.raises(InputError, match=r"package\.module:function; did you mean 'patients\.csv'\?$"):
            call("patients")
    with pytest.raises(InputError, match=r"no test set at patient\.csv \(looked in .*\); did you mean 'patients\.csv'"):
        load("patients.csv", label="outcome", test="patient.csv")
    with pytest.raises(InputError, match=r"no data at rating\.csv \(looked in"):
        load_ratings("rating.csv")
