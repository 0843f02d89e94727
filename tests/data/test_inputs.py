"""What a run keeps of how rows become inputs: applied to new rows, it does what the data set did with its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedfi
from fedfi.data.inputs import Inputs
from fedfi.errors import InputError

WARD = pd.DataFrame(
    {
        "site": ["a", "b"] * 6,
        "code": [1, 2, 3, 1, 2, 3] * 2,
        "age": [20.0, 30.0, None, 50.0, 60.0, 70.0] * 2,
        "sex": ["f", "m", None, "f", "m", "f"] * 2,
        "outcome": ["well", "ill", "ill"] * 4,
    }
)


def federation(source, **options):
    return fedfi.federate(*fedfi.load(source, **options), clients=2, test_fraction=0.25)


def again(data: fedfi.FederatedData, folder: Path) -> Inputs:
    """By way of the file."""
    (folder / "inputs.json").write_text(json.dumps(data.inputs_record(), allow_nan=False))
    return Inputs.read(folder)


@pytest.fixture
def ward(tmp_path: Path) -> fedfi.FederatedData:
    return federation(WARD, label="outcome", group="site")


def ward_with_codes(folder: Path) -> fedfi.FederatedData:
    WARD.to_csv(folder / "ward.csv", index=False)
    return federation(folder / "ward.csv", label="outcome", group="site", categories=["code"])


def test_rows_of_a_table_become_what_training_rows_became(tmp_path: Path) -> None:
    data = ward_with_codes(tmp_path)
    inputs = again(data, tmp_path)
    expected, _ = data.test.dataset.examples().batch()
    for rows in (tmp_path / "ward.csv", str(tmp_path / "ward.csv"), WARD, WARD.to_dict("records")):
        assert inputs.prepare(rows).equal(expected)
    shuffled = WARD[["sex", "code", "age"]].assign(extra=1)  # other columns, another order, no label
    assert inputs.prepare(shuffled).equal(expected)
    assert inputs.labels == ("ill", "well")
    assert (inputs.columns, dict(inputs.categories or {})) == (("age",), {"code": ("1", "2", "3"), "sex": ("f", "m")})


def test_the_file_is_enough_to_do_it_by_hand(tmp_path: Path) -> None:
    data = ward_with_codes(tmp_path)
    again(data, tmp_path)
    how = json.loads((tmp_path / "inputs.json").read_text())
    rows = []
    for row in WARD.to_dict("records"):
        values = [row[c] for c in how["columns"]]
        values += [float(str(row[c]) == v) for c, known in how["categories"].items() for v in known]
        filled = [f if v is None or v != v else v for v, f in zip(values, how["fill"], strict=True)]
        rows.append([(v - m) / s for v, m, s in zip(filled, how["mean"], how["std"], strict=True)])
    expected, _ = data.test.dataset.examples().batch()
    torch.testing.assert_close(torch.tensor(rows), expected)


def test_nothing_but_statistics_of_training_rows_and_names_is_kept(ward: fedfi.FederatedData) -> None:
    """Ten times the rows: the same size of record; and no ids of the clients' groups."""
    record = ward.inputs_record()
    assert set(record) == {
        *("kind", "shape", "classes", "labels", "columns", "categories", "fill", "mean", "std"),
    }
    many = federation(pd.concat([WARD] * 10, ignore_index=True), label="outcome", group="site").inputs_record()
    sizes = [[len(v) for v in r.values() if isinstance(v, list | dict)] for r in (record, many)]
    assert sizes[0] == sizes[1]
    assert "site" not in json.dumps(record)
    train = torch.cat([client.train.indices for client in ward.clients.values()])
    fitted = ward.test.dataset.fitted(train)
    assert fitted.mean is not None
    assert record["mean"] == fitted.mean.tolist()  # of training rows, not of those held out


def test_a_category_is_found_however_its_number_is_written(tmp_path: Path) -> None:
    """A column with a missing cell is read as 1.0, 2.0; without one, as 1, 2."""
    gaps = WARD.assign(code=[1, None, 3, 1, 2, 3] * 2)
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    inputs = Inputs.of(federation(tmp_path / "gaps.csv", label="outcome", categories=["code"]).test.dataset)
    assert inputs.categories is not None
    assert inputs.categories["code"] == ("1.0", "2.0", "3.0")
    rows = {"age": [1], "site": ["a"], "sex": ["m"]}
    ways = [inputs.prepare({**rows, "code": [code]}) for code in (2, 2.0, "2", "2.0")]
    assert all(way.equal(ways[0]) for way in ways)
    start = 1 + list(inputs.categories).index("code") + len(inputs.categories["site"]) - 1
    assert ways[0][0, start : start + 3].tolist() == [0, 1, 0]
    assert inputs.prepare({**rows, "code": ["new"]})[0, start : start + 3].tolist() == [0, 0, 0]


def test_arrays_images_and_paths_of_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(12) % 3
    for name, x in (
        ("table", rng.normal(size=(12, 4)) * 9),
        ("image", rng.integers(256, size=(12, 5, 4, 3), dtype="u1")),
    ):
        data = federation((x, y))
        inputs = again(data, tmp_path)
        expected, _ = data.test.dataset.examples().batch()
        assert inputs.prepare(x).equal(expected), name
        assert inputs.prepare(torch.from_numpy(x)).equal(expected), name
    paths = []
    for number, pixels in enumerate(x[:3]):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels).save(paths[-1])
    assert inputs.prepare(paths).equal(expected[:3])
    with pytest.raises(InputError, match="pixels are float32, the model takes uint8"):
        inputs.prepare(x / 255)
    with pytest.raises(InputError, match=r"new rows are \[12, 3, 5, 3\], the model takes \['n', 3, 5, 4\]"):
        inputs.prepare(x[:, :, :3])


def test_texts(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    texts = [f"news of {word} number {n}" for n, word in enumerate(["sun", "rain", "snow", "wind"] * 3)]
    pd.DataFrame({"content": texts, "label": [0, 1, 2] * 4}).to_csv(tmp_path / "news.csv", index=False)
    data = federation(tmp_path / "news.csv", text="content", vocabulary=300, length=9)
    inputs = again(data, tmp_path)
    expected, _ = data.test.dataset.examples().batch()
    assert inputs.prepare(texts).equal(expected)
    assert inputs.prepare(["snow"]).shape == (1, 9)
    for wrong in ("snow", [1], []):
        with pytest.raises(InputError, match="new rows: "):
            inputs.prepare(wrong)


def test_rows_that_do_not_fit_are_told_so(tmp_path: Path) -> None:
    inputs = again(ward_with_codes(tmp_path), tmp_path)
    with pytest.raises(InputError, match="unknown column 'age'; did you mean 'aged'"):
        inputs.prepare(WARD.rename(columns={"age": "aged"}))
    with pytest.raises(InputError, match="column 'age' is not all numbers in new rows: row 1: 'old'"):
        inputs.prepare([{"age": "old", "code": 1, "sex": "f"}])
    with pytest.raises(InputError, match=r"no file at .*nowhere\.csv"):
        inputs.prepare(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match=r"no such file"):
        Inputs.read(tmp_path / "nowhere")
    for damaged in ("{", "{}", '{"kind": "sound", "shape": [1], "classes": 2}', "[]"):
        (tmp_path / "inputs.json").write_text(damaged)
        with pytest.raises(InputError, match=r"inputs\.json: is damaged"):
            Inputs.read(tmp_path)
