"""Files of the user's, small ones made on the spot."""

from __future__ import annotations

import contextlib
import gzip
import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedfi.data import Dataset, federate, load
from fedfi.errors import InputError
from fedfi.models import InputSpec

TABLE = pd.DataFrame(
    {
        "age": [50.0, None, 70.0, 40.0, 55.0, 61.0],
        "pain": ["mild", "none", None, "mild", "strong", "none"],
        "site": ["a", "a", "b", "b", "b", "a"],
        "outcome": ["well", "ill", "well", "ill", "well", "ill"],
    }
)


def picture(value: int, mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> Image.Image:
    return Image.new(mode, size, value if mode == "L" else (value, 0, 255 - value))


def encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


def test_csv_numbers_categories_and_groups(tmp_path: Path) -> None:
    path = write(TABLE, tmp_path / "ward.csv")
    data, test = load(path, label="outcome", group="site")
    assert test is None
    assert data.name == "ward"
    assert data.label_names == ("ill", "well")
    assert data.targets.tolist() == [1, 0, 1, 0, 1, 0]
    assert data.feature_names == ("age", "pain=mild", "pain=none", "pain=strong")
    assert data.one_hot == 3
    assert data.groups == tuple("aabbba")
    assert data.inputs[:, 0].isnan().tolist() == [False, True, False, False, False, False]
    assert data.inputs[:3, 1:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    federation = federate(data, None, clients=None, partition={"by": "natural"}, seed=0, test_fraction=0.4)
    x, _ = federation.clients["a"].train.batch()
    assert bool(x.isfinite().all())


def test_csv_test_set_follows_the_training_set(tmp_path: Path) -> None:
    train = write(TABLE, tmp_path / "train.csv")
    other = pd.DataFrame({"outcome": ["well"], "pain": ["awful"], "age": [3], "extra": [1]})
    write(other, tmp_path / "test.csv")
    by_folder = load(tmp_path, label="outcome", columns=["age", "pain"])
    by_option = load(train, label="outcome", columns=("age", "pain"), test=tmp_path / "test.csv")
    for data, test in (by_folder, by_option):
        assert test is not None
        assert test.spec == data.spec
        assert test.targets.tolist() == [1]
        assert test.inputs.tolist() == [[3, 0, 0, 0]]
    write(other.assign(outcome="weel"), tmp_path / "test.csv")
    with pytest.raises(InputError, match="test set: unknown label 'weel'; did you mean 'well'"):
        load(train, label="outcome", columns=["age"], test=tmp_path / "test.csv")
    write(other.drop(columns="age"), tmp_path / "test.csv")
    with pytest.raises(InputError, match="unknown column 'age'"):
        load(train, label="outcome", columns=["age"], test=tmp_path / "test.csv")
    write(other.assign(age="x"), tmp_path / "test.csv")
    with pytest.raises(InputError, match="column 'age' is not all numbers"):
        load(train, label="outcome", columns=["age"], test=tmp_path / "test.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name the column of labels with the option 'label'"),
        ({"label": "outcom"}, "unknown column 'outcom'; did you mean 'outcome'"),
        ({"label": "outcome", "group": "sit"}, "did you mean 'site'"),
        ({"label": "outcome", "columns": ["agee"]}, "did you mean 'age'"),
        ({"label": "outcome", "columns": ["outcome"]}, "'outcome' is also among the columns"),
        ({"label": "outcome", "columns": []}, "no columns to learn from"),
        ({"label": "outcome", "length": 3}, "the option 'length' means nothing there"),
        ({"label": "outcome", "test": "nowhere.csv"}, r"no test set at nowhere\.csv"),
        ({"label": "pain"}, r"1 value is missing in column 'pain' \(line 4\)"),
        ({"label": "outcome", "group": "pain"}, r"1 value is missing in the group 'pain' \(line 4\)"),
        ({"label": "outcome", "text": "pain"}, r"1 value is missing in column 'pain' \(line 4\)"),
        ({"label": "outcome", "augment": ["flip"]}, "only images can be augmented"),
    ],
)
def test_wrong_options_of_a_csv(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write(TABLE, tmp_path / "ward.csv")
    with pytest.raises(InputError, match=message):
        load(path, **options)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0, float("inf")], "label": [0, 1]}, r"1 infinite value in column 'a' \(line 3\)"),
        ({"a": [1, 2], "label": [0.5, 1]}, r"labels such as 0\.5 are no classes"),
        ({"a": [1, 2], "label": [1, 1]}, "expected at least 2 classes"),
        ({"a": [f"id{i}" for i in range(300)], "label": [0, 1] * 150}, "'a' has 300 different values"),
    ],
)
def test_wrong_values_of_a_csv(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = write(pd.DataFrame(columns), tmp_path / "a.csv")
    with pytest.raises(InputError, match=message):
        load(path)


def test_numeric_labels_are_sorted_by_value(tmp_path: Path) -> None:
    path = write(pd.DataFrame({"a": [1, 2, 3, 4], "label": [10, 9, 10, 2]}), tmp_path / "a.csv")
    data, _ = load(path)
    assert data.label_names == ("2", "9", "10")
    assert data.targets.tolist() == [2, 1, 2, 0]


def test_broken_files(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "broken.parquet").write_bytes(b"no")
    (tmp_path / "broken.npz").write_bytes(b"no")
    for name, why in (
        ("empty.csv", "is empty"),
        ("broken.parquet", "cannot be read"),
        ("broken.npz", "cannot be read"),
    ):
        with pytest.raises(InputError, match=f"{name} {why}"):
            load(tmp_path / name)
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}], dtype=object), y=[0, 1])
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "objects.npz")
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(InputError, match=r"unknown kind of file '\.xlsx'"):
        load(tmp_path / "a.xlsx")
    with pytest.raises(InputError, match="has 4 files"):
        load(tmp_path)


def test_parquet_of_numbers(tmp_path: Path) -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0], "target": ["x", "y", "x"]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet")[0].inputs.tolist() == [[1], [2], [3]]
    pq.write_table(table.set_column(0, "a", pa.array([1.0, None, 3.0])), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="1 value is missing in column 'a'"):
        load(tmp_path / "a.parquet")


def image_table(images: list[bytes], labels: list[int]) -> pa.Table:
    cells = [{"bytes": image, "path": None} for image in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table({"img": pa.array(cells, kind), "label": labels, "who": [f"w{i % 2}" for i in labels]})


def test_parquet_of_images_in_pieces(tmp_path: Path) -> None:
    for piece, values in enumerate([(7, 9), (11,)]):
        pq.write_table(
            image_table([encoded(picture(v)) for v in values], [3, 5][: len(values)]),
            tmp_path / f"train-0000{piece}.parquet",
        )
    pq.write_table(image_table([encoded(picture(1))], [5]), tmp_path / "test-00000.parquet")
    data, test = load(tmp_path, group="who", augment=["flip"])
    assert data.inputs.shape == (3, 3, 4, 5)
    assert data.inputs[:, 0, 0, 0].tolist() == [7, 9, 11]
    assert data.inputs[:, 2, 3, 4].tolist() == [248, 246, 244]
    assert data.targets.tolist() == [0, 1, 0]
    assert data.groups == ("w1", "w1", "w1")
    assert data.augment == ("flip",)
    assert test is not None
    assert test.targets.tolist() == [1]
    assert test.augment == ()


def test_images_of_several_kinds(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(image_table([encoded(picture(7, "L")), encoded(picture(9))], [0, 1]), path)
    data, _ = load(path)
    assert data.inputs[0].unique().tolist() == [7]
    assert data.inputs.shape == (2, 3, 4, 5)
    pq.write_table(image_table([encoded(picture(7)), encoded(picture(9, size=(4, 5)))], [0, 1]), path)
    with pytest.raises(InputError, match="image 1 is 5 x 4 pixels, the first image 4 x 5"):
        load(path)
    deep = Image.fromarray(np.full((4, 5), 999, dtype=np.uint16))
    pq.write_table(image_table([encoded(picture(7)), encoded(deep)], [0, 1]), path)
    with pytest.raises(InputError, match="image 1 has pixels of kind I;16, not of 8 bits"):
        load(path)
    pq.write_table(image_table([encoded(picture(7)), b"no image"], [0, 1]), path)
    with pytest.raises(InputError, match="image 1 cannot be decoded"):
        load(path)


def test_folders_of_pictures(tmp_path: Path) -> None:
    for part, classes in (("train", ("cat", "dog")), ("test", ("dog",))):
        for number, name in enumerate(classes):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            picture(10 * number + 1, "L").save(folder / "b.png")
            picture(10 * number + 2, "L").save(folder / "a.png")
    data, test = load(tmp_path)
    assert data.inputs.shape == (4, 1, 4, 5)
    assert data.inputs[:, 0, 0, 0].tolist() == [2, 1, 12, 11]
    assert data.label_names == ("cat", "dog")
    assert test is not None
    assert test.targets.tolist() == [1, 1]
    assert load(tmp_path / "train")[1] is None
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match="neither a table"):
        load(tmp_path / "nothing")


def test_npz_as_medmnist_has_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"train_images": rng.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)}
    arrays |= {"train_labels": np.array([[0], [1], [2]] * 2, dtype=np.uint8)}
    arrays |= {"val_images": arrays["train_images"][:1], "val_labels": arrays["train_labels"][:1]}
    arrays |= {"test_images": arrays["train_images"][:2], "test_labels": arrays["train_labels"][:2]}
    np.savez(tmp_path / "m.npz", **arrays)
    data, test = load(tmp_path / "m.npz")
    assert test is not None
    assert (len(data), len(test)) == (6, 2)
    assert torch.equal(data.inputs, torch.from_numpy(arrays["train_images"]).permute(0, 3, 1, 2))
    np.savez(tmp_path / "m.npz", **(arrays | {"train_labels": np.zeros((6, 14))}))
    with pytest.raises(InputError, match=r"\[6, 14\], expected one label an example"):
        load(tmp_path / "m.npz")
    del arrays["test_labels"]
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(InputError, match="has 'train_images' but no 'test_labels'"):
        load(tmp_path / "m.npz")


def test_npz_with_a_test_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=[1, 2, 1], groups=["p", "q", "p"])
    np.savez(tmp_path / "b.npz", x=np.ones((1, 3)), y=[2])
    data, test = load(tmp_path / "a.npz", test=tmp_path / "b.npz")
    assert data.spec.kind == "tabular"
    assert data.groups == ("p", "q", "p")
    assert test is not None
    assert test.targets.tolist() == [1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": [1]}, r"has the arrays \['a'\], expected one of"),
        ({"x": [[1.0]] * 2}, "has 'x' but no 'y'"),
        ({"x": [[1.0, np.nan], [1, 2]], "y": [0, 1]}, r"1 non-finite value in column 1 \(example 0\)"),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, "inputs must be an array of numbers"),
        ({"x": np.full((2, 4, 4), 256), "y": [0, 1]}, "pixels run from 256 to 256, expected 0 to 255"),
        ({"x": np.zeros((2, 1, 4, 4, 4)), "y": [0, 1]}, "must have 3 or 4 dimensions"),
        ({"x": np.zeros((2, 4)), "y": [0, 1, 1]}, "2 inputs, but 3 targets; expected one an input"),
        ({"x": np.zeros((2, 4)), "y": [0.0, np.nan]}, r"1 label is missing \(example 1\)"),
        ({"x": np.zeros((2, 4)), "y": [0.0, np.inf]}, "labels such as inf are no classes"),
        ({"x": np.zeros((2, 4)), "y": [1e30, 2e30]}, r"labels such as 1e\+30 are no classes"),
    ],
)
def test_wrong_arrays(arrays: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(arrays)


def test_float_images_are_used_as_they_are() -> None:
    images = np.random.default_rng(0).normal(size=(4, 3, 5, 5))
    data, _ = load({"x": images, "y": ["a", "b", "a", "b"]})
    assert data.spec.kind == "image"
    torch.testing.assert_close(data.examples().batch()[0], torch.from_numpy(images).float())


def test_idx_files(tmp_path: Path) -> None:
    def save(name: str, array: np.ndarray[Any, Any]) -> None:
        header = struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape)
        (tmp_path / name).write_bytes(gzip.compress(header + array.tobytes()))

    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    for part in ("train", "t10k"):
        save(f"{part}-images-idx3-ubyte.gz", pixels)
        save(f"{part}-labels-idx1-ubyte.gz", np.array([4, 9], dtype=np.uint8))
    data, test = load(tmp_path)
    assert torch.equal(data.inputs[:, 0], torch.from_numpy(pixels))
    assert data.label_names == ("4", "9")
    assert test is not None
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05ab"))
    with pytest.raises(InputError, match=r"holds 2 bytes, its header says \[5\]"):
        load(tmp_path)


TEXTS = pd.DataFrame({"label": [1, 2, 1, 2], "content": ["good news", "bad news", "a good day", "a bad day"]})


def test_texts_become_ids_of_a_vocabulary_of_the_training_texts(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra text")
    write(TEXTS, tmp_path / "train.csv")
    write(pd.DataFrame({"label": [2], "content": ["bad quokka" * 20]}), tmp_path / "test.csv")
    first = load(tmp_path, text="content", vocabulary=270, length=12)
    second = load(tmp_path, text="content", vocabulary=270, length=12)
    for (data, test), again in zip([first], [second], strict=True):
        assert data.spec.kind == "text"
        assert data.spec.padding == 0
        assert data.spec.vocabulary is not None
        assert 257 < data.spec.vocabulary <= 270
        assert data.label_names == ("1", "2")
        assert test is not None
        assert (test.inputs != 0).all()  # cut
        assert (data.inputs[0] == 0).any()  # padded
        assert torch.equal(data.inputs, again[0].inputs)
    write(pd.DataFrame({"label": [2], "content": ["other"]}), tmp_path / "test.csv")
    assert torch.equal(load(tmp_path, text="content", vocabulary=270, length=12)[0].inputs, first[0].inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "contents"}, "did you mean 'content'"),
        ({"text": "content", "vocabulary": 10}, "vocabulary = 10: must be at least 257"),
        ({"text": "content", "length": 0}, "length = 0: must be at least 1"),
        ({"text": "content", "tokenizer": "x", "vocabulary": 300}, "brings its own vocabulary"),
        ({"text": "content", "columns": ["label"]}, "the option 'columns' means nothing"),
    ],
)
def test_wrong_options_of_texts(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write(TEXTS, tmp_path / "a.csv")
    with pytest.raises(InputError, match=message):
        load(path, **options)


def test_missing_tokenizers_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module in ("tokenizers", "transformers"):
        monkeypatch.setitem(sys.modules, module, None)
    path = write(TEXTS, tmp_path / "a.csv")
    for options in ({}, {"tokenizer": str(tmp_path)}):
        with pytest.raises(InputError, match=r"pip install 'fedfi\[text\]'"):
            load(path, text="content", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((60, 0)), "y": np.arange(60) % 2}, r"inputs are \[60, 0\], expected sizes of at least 1"),
        ({"x": np.zeros((60, 0, 8)), "y": np.arange(60) % 2}, r"inputs are \[60, 0, 8\], expected sizes of at least 1"),
        ({"x": np.zeros((0, 8)), "y": np.zeros(0)}, "labels are"),
        ({"x": np.ones((4, 3)), "y": [0, 1, 0, 1], "test_x": np.ones((0, 3)), "test_y": []}, "test set.* no examples"),
        ({"x": np.ones((4, 3)), "y": [0, 1, 0, 1], "test_x": np.ones(0), "test_y": []}, "test set.* has no examples"),
        ({"x": [[1, 2], [3]], "y": [0, 1]}, "inputs are no array: ValueError"),
    ],
)
def test_arrays_of_nothing(arrays: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(arrays)
    assert "\n" not in str(caught.value)


def test_an_npy_file_by_the_name_of_an_npz(tmp_path: Path) -> None:
    with (tmp_path / "data.npz").open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(InputError, match=r"is a single array \(npy\), expected an npz"):
        load(tmp_path / "data.npz")


def test_a_damaged_npz(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((50, 9)), y=np.arange(50) % 2)
    whole = path.read_bytes()
    for place in range(60, len(whole), 97):
        path.write_bytes(whole[:place] + bytes(7) + whole[place + 7 :])
        with contextlib.suppress(InputError):
            load(path)


def test_tensors_that_need_gradients() -> None:
    x, y = torch.rand(4, 3, requires_grad=True), torch.tensor([0, 1, 0, 1])
    data, _ = load({"x": x, "y": y})
    assert not data.inputs.requires_grad
    with pytest.raises(InputError, match="require gradients"):
        Dataset(x, y, InputSpec("tabular", (3,), 2))


def test_a_slip_in_a_column_of_numbers_is_an_error(tmp_path: Path) -> None:
    ages = [str(20 + i % 60) for i in range(101)]
    ages[56] = "abc"
    ages[70] = ""  # a missing one is no slip
    frame = pd.DataFrame({"age": ages, "ward": [f"w{i % 3}" for i in range(101)], "label": [i % 2 for i in range(101)]})
    path = write(frame, tmp_path / "ward.csv")
    with pytest.raises(InputError) as error:
        load(path)
    assert str(error.value).startswith(
        "data 'ward': column 'age' is all numbers but for 1 of 100 values: line 58: 'abc';"
        " mend it, leave the cell empty"
    )
    data, _ = load(path, categories=["age"])
    assert "age=abc" in (data.feature_names or ())
    with pytest.raises(InputError, match="categories: unknown column 'agee'; did you mean 'age'"):
        load(path, categories=["agee"])
    frame["age"] = [str(i % 4) if i % 5 else "none" for i in range(101)]  # a fifth of them: categories
    data, _ = load(write(frame, path))
    assert data.feature_names == tuple(f"age={v}" for v in ("0", "1", "2", "3", "none")) + tuple(
        f"ward=w{i}" for i in range(3)
    )


def test_codes_may_be_categories(tmp_path: Path) -> None:
    frame = pd.DataFrame({"site": [1, 2, 1, 3], "age": [1.0, 2.0, 3.0, 4.0], "label": [0, 1, 0, 1]})
    data, _ = load(write(frame, tmp_path / "codes.csv"), categories=["site"])
    assert data.feature_names == ("age", "site=1", "site=2", "site=3")


def test_a_slip_in_the_test_set_is_named(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": ["1", "2", "3"], "label": [0, 1, 0]})
    path = write(frame, tmp_path / "train.csv")
    frame["age"] = ["1", "x", "3"]
    with pytest.raises(InputError, match=r"column 'age' is not all numbers in the test set: line 3: 'x'"):
        load(path, test=write(frame, tmp_path / "test.csv"))


def test_columns_with_nothing_to_learn_from_are_noted(tmp_path: Path) -> None:
    """Once each; a few rows, measurements and columns with a value twice are no ids."""
    n = 30
    frame = pd.DataFrame(
        {
            "id": range(10**8, 10**8 + n),  # which 32-bit numbers do not tell apart
            "code": [f"p{i}" for i in range(n)],
            "empty": [None] * n,
            "length": [i + 0.5 for i in range(n)],
            "year": [2000.0 + i for i in range(n)],
            "age": [20 + i % 29 for i in range(n)],
            "label": [i % 2 for i in range(n)],
        }
    )
    data, _ = load(write(frame, tmp_path / "odd.csv"))
    said = [note.split(":")[0] for note in data.notes]
    ids = f"has another value in each of the {n} rows, as ids have"
    assert sorted(said) == sorted(
        [*(f"column {c!r} {ids}" for c in ("id", "code", "year")), "column 'empty' has no value at all"]
    )
    few, _ = load(frame[:10])
    assert few.notes == ("column 'empty' has no value at all: nothing is learnt from it; leave it out (columns)",)
    assert load(frame, columns=["age", "length"])[0].notes == ()
