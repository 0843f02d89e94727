"""Data read as somebody else's inputs say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
import torch

import fedfi
from fedfi.data.fixing import columns_differ
from fedfi.errors import InputError

ALL = pd.DataFrame(
    {
        "age": [20.0, 30.0, None, 50.0],
        "ward": ["a", "b", "c", "a"],
        "code": ["1", "2", "x", "1"],
        "label": ["ill", "well", "ill", "well"],
    }
)
FEW = pd.DataFrame({"nurse": ["n", "m"], "code": [2, 1], "ward": ["c", "a"], "age": [40.0, None], "label": ["ill"] * 2})


@pytest.fixture
def inputs() -> fedfi.Inputs:
    """Of all rows, with their normalisation: ages have the median 30 and, filled with it, the mean 32.5."""
    return fedfi.Inputs.of(fedfi.load(ALL)[0].fitted())


def test_two_rows_have_the_columns_and_classes_of_all(inputs: fedfi.Inputs, tmp_path: Path) -> None:
    """Another order, a column more, one class, and codes that look like numbers as long as nobody has an x."""
    FEW.to_csv(tmp_path / "few.csv", index=False)
    for source in (FEW, tmp_path / "few.csv"):
        data, _ = fedfi.load(source, inputs=inputs)
        assert (data.spec, data.label_names) == (inputs.spec, ("ill", "well"))
        hot = [[0, 0, 1, 0, 1, 0], [1, 0, 0, 1, 0, 0]]  # ward a, b, c; code 1, 2, x
        assert data.inputs[:, 1:].tolist() == hot
        assert data.targets.tolist() == [0, 0]
        assert data.notes[0] == "column 'nurse': left out, since the inputs do not name it"
        assert fedfi.Inputs.of(data).record() == inputs.record()
        ages = data.examples().batch()[0][:, 0] * inputs.std[0] + inputs.mean[0]
        assert ages.tolist() == pytest.approx([40.0, 30.0])
        assert data.examples().batch()[0].equal(inputs.prepare(source))


def test_without_a_normalisation_that_of_the_data_stays(inputs: fedfi.Inputs, tmp_path: Path) -> None:
    record = {k: v for k, v in inputs.record().items() if k not in ("fill", "mean", "std")}
    (tmp_path / "inputs.json").write_text(json.dumps(record))
    data, _ = fedfi.load(FEW, inputs=tmp_path / "inputs.json")
    assert data.mean is None
    assert float(data.fitted().mean[0]) == 40.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"ward": ["c", "d"]},
            "column 'ward', row 2: unknown category 'd' (choose from a, b, c), as the inputs fix them",
        ),
        ({"label": ["ill", "dead"]}, "unknown label 'dead' (choose from ill, well)"),
        ({"age": ["old", "older"]}, "column 'age' is not all numbers"),
    ],
)
def test_what_the_inputs_do_not_know_is_named(inputs: fedfi.Inputs, change: dict[str, list[str]], said: str) -> None:
    with pytest.raises(InputError) as caught:
        fedfi.load(FEW.assign(**change), inputs=inputs)
    assert said in str(caught.value)


def test_a_column_that_is_not_there_is_named(inputs: fedfi.Inputs) -> None:
    with pytest.raises(InputError, match="unknown column 'ward'"):
        fedfi.load(FEW.drop(columns="ward"), inputs=inputs)
    with pytest.raises(InputError, match="the inputs fix the columns: leave the option 'columns' out"):
        fedfi.load(FEW, inputs=inputs, columns=["age"])


def test_an_array_has_the_columns_of_the_inputs(inputs: fedfi.Inputs) -> None:
    rows = [[40.0, 0, 0, 1, 0, 1, 0], [50.0, 1, 0, 0, 1, 0, 0]]
    data, _ = fedfi.load((torch.tensor(rows), ["well", "ill"]), inputs=inputs)
    assert fedfi.Inputs.of(data).record() == inputs.record()
    assert data.targets.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"an example is tabular \[2\], but the inputs say tabular \[7\]"):
        fedfi.load((torch.zeros(3, 2), [0, 1, 0]), inputs=inputs)


def test_pictures_have_the_classes_of_the_inputs() -> None:
    pictures = torch.zeros(3, 8, 8, dtype=torch.uint8)
    inputs = fedfi.Inputs.of(fedfi.load((pictures, [0, 1, 2]))[0])
    data, _ = fedfi.load((pictures, [2, 2, 2]), inputs=inputs)
    assert (data.spec.classes, data.targets.tolist()) == (3, [2, 2, 2])
    _, tested = fedfi.load(((pictures, [2, 2, 2]), (pictures, [0, 1, 1])), inputs=inputs)
    assert tested is not None
    assert tested.targets.tolist() == [0, 1, 1]
    with pytest.raises(InputError, match="pixels are float32, but the inputs say uint8"):
        fedfi.load((pictures.float(), [0, 1, 2]), inputs=inputs)


def test_texts_have_the_tokens_of_the_inputs(tmp_path: Path) -> None:
    for name, words in (("all", ["one two", "three", "two"]), ("few", ["three two"])):
        frame = pd.DataFrame({"text": words, "label": [i % 2 for i in range(len(words))]})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    whole, _ = fedfi.load(tmp_path / "all.csv", text="text", vocabulary=270, length=12)
    inputs = fedfi.Inputs.of(whole)
    data, _ = fedfi.load(tmp_path / "few.csv", text="text", inputs=inputs)
    assert data.spec == whole.spec
    assert data.examples().batch()[0].equal(inputs.prepare(["three two"]))
    bare = dataclasses.replace(inputs, tokenizer=None)
    with pytest.raises(InputError, match="the inputs hold no tokenizer"):
        fedfi.load(tmp_path / "few.csv", text="text", inputs=bare)
    assert inputs.tokenizer is not None
    (tmp_path / "tokenizer.json").write_text(json.dumps(inputs.tokenizer["trained"]))
    named, _ = fedfi.load(tmp_path / "few.csv", text="text", tokenizer=str(tmp_path), inputs=bare)
    assert named.inputs.equal(data.inputs)
    with pytest.raises(InputError, match="leave the option 'length' out"):
        fedfi.load(tmp_path / "few.csv", text="text", length=9, inputs=inputs)


def test_categories_that_differ_are_named(inputs: fedfi.Inputs) -> None:
    other = fedfi.Inputs.of(fedfi.load(ALL.assign(ward=["a", "b", "d", "e"]))[0])
    assert columns_differ(inputs, inputs) is None
    assert columns_differ(inputs, other) == (
        "categories of 'ward': number 2 is 'c' and 'd' (only the first has 'c'; only the second has 'd', 'e')"
    )


def test_parties_that_lack_different_categories_agree_on_the_union() -> None:
    parts = [ALL.iloc[rows] for rows in ([0, 1, 3], [2, 2, 1])]
    own = [fedfi.Inputs.of(fedfi.load(part)[0]) for part in parts]
    both = own[0].union(own[1])
    assert (both.columns, both.labels) == (("age",), ("ill", "well"))
    assert both.categories == {"ward": ("a", "b", "c"), "code": ("1", "2", "x")}
    assert both.spec.shape == (7,)
    for part in parts:
        data, _ = fedfi.load(part, inputs=both)
        assert fedfi.Inputs.of(data).record() == both.record()


def test_a_union_is_of_the_same_columns() -> None:
    own = [fedfi.Inputs.of(fedfi.load(rows)[0]) for rows in (ALL, ALL.drop(columns="age"), ALL.assign(code=1))]
    for other, said in ((own[1], "'age' as a column of numbers"), (own[2], "'code' as a column of")):
        with pytest.raises(InputError, match=f"inputs 0 and 1 differ: only . has {said}"):
            own[0].union(other)
    with pytest.raises(InputError, match="inputs 1 name no columns"):
        own[0].union(fedfi.Inputs.of(fedfi.load((torch.zeros(2, 2), [0, 1]))[0]))
