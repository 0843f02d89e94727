"""Errors about a file say on which line, and what is odd about the file as a whole."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedfi.data import load
from fedfi.data.lines import placed, read_csv
from fedfi.data.ratingsfile import read_ratings
from fedfi.errors import InputError

GOOD = [f"{20 + n},{n % 2},w{n % 3},{n % 2}" for n in range(30)]


def file(folder: Path, changed: dict[int, str], header: str = "age,sex,ward,outcome", name: str = "ward.csv") -> Path:
    """A file of 31 lines, some of which are others; lines count from 1."""
    lines = [header, *GOOD]
    for number, text in changed.items():
        lines[number - 1] = text
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({5: "13o,1,w1,1"}, "but for 1 of 30 values: line 5: '13o'"),
        ({5: "30,1,w1,"}, "1 value is missing in column 'outcome' (line 5)"),
        ({5: "30,1,w1,", 9: "30,1,w1,"}, "2 values are missing in column 'outcome' (lines 5 and 9)"),
        (
            dict.fromkeys((3, 5, 8, 9, 11), "30,1,w1,"),
            "5 values are missing in column 'outcome' (lines 3, 5, 8 and 2 more)",
        ),
        ({7: "30,1,,1"}, "1 value is missing in the group 'ward' (line 7)"),
        ({7: "inf,1,w1,1"}, "1 infinite value in column 'age' (line 7)"),
        ({5: "30,1,1"}, "ward.csv: line 5 has 3 cells, expected 4"),
        ({5: "30,1,w1,1,1"}, "ward.csv: line 5 has 5 cells, expected 4"),
        ({5: '30,1,"w\n1",1', 9: "30,1,w1,"}, "1 value is missing in column 'outcome' (line 10)"),
        ({5: "", 9: "30,1,w1,"}, "1 value is missing in column 'outcome' (line 9)"),
    ],
)
def test_the_line_is_named(tmp_path: Path, changed: dict[int, str], said: str) -> None:
    with pytest.raises(InputError) as error:
        load(file(tmp_path, changed), label="outcome", group="ward")
    assert said in str(error.value)


def test_a_row_that_ends_with_a_separator_is_not_read_a_column_aside(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,label\n1,0,\n2,1,\n")
    with pytest.raises(InputError, match=r"a\.csv: line 2 has 3 cells, expected 2"):
        load(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("age,label\nrow1,1,0\nrow2,2,1\n")  # as R writes names of rows
    data, _ = load(tmp_path / "a.csv")
    assert data.inputs.flatten().tolist() == [1, 2]


def test_a_table_of_several_files_names_the_file(tmp_path: Path) -> None:
    file(tmp_path, {}, name="train-1.csv")
    file(tmp_path, {6: "30,1,w1,"}, name="train-2.csv")
    with pytest.raises(InputError, match=r"missing in column 'outcome' \(line 6 of train-2\.csv\)"):
        load(tmp_path, label="outcome")


def test_rows_of_a_frame_count_from_one() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "label": [0, None, 1]}, index=[7, 8, 9])
    with pytest.raises(InputError, match=r"1 value is missing in column 'label' \(row 2\)"):
        load(frame)
    assert placed(frame, [True, True, True]) == "rows 1, 2 and 3"


@pytest.mark.parametrize(("sep", "name"), [(";", "';'"), ("\t", "tabs"), ("|", "'|'")])
def test_another_separator_is_recognised(tmp_path: Path, sep: str, name: str) -> None:
    path = tmp_path / "semi.csv"
    path.write_text("age;bp;outcome\n13,5;1;0\n14,5;2;1\n".replace(";", sep))
    with pytest.raises(InputError) as error:
        load(path, label="outcome")
    assert f"semi.csv looks separated by {name}, expected ',' in a file of the kind .csv" in str(error.value)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_without_rows(tmp_path: Path, end: str) -> None:
    (tmp_path / "empty.csv").write_bytes(f"age,outcome{end}".encode())
    with pytest.raises(InputError, match="data 'empty' has no rows, only the columns age, outcome"):
        load(tmp_path / "empty.csv", label="outcome")
    good = tmp_path / "good.csv"
    good.write_text("age,outcome\n1,0\n2,1\n")
    with pytest.raises(InputError, match="data 'good', test set has no rows"):
        load(good, label="outcome", test=tmp_path / "empty.csv")


def test_lines_of_any_ending(tmp_path: Path) -> None:
    for end in ("\n", "\r\n"):
        for last in ("", end):
            (tmp_path / "a.csv").write_bytes((end.join(["a,b", "1,2", "", "3,4"]) + last).encode())
            frame = read_csv([tmp_path / "a.csv"], ",", "a")
            assert (list(frame.index), frame["b"].tolist()) == ([2, 4], [2, 4])


def test_ratings_with_a_heading_and_without(tmp_path: Path) -> None:
    for head, line in (("user,item\n", 3), ("", 2)):
        (tmp_path / "r.csv").write_text(f"{head}1,2\n,3\n")
        with pytest.raises(InputError, match=rf"1 value is missing in 'user' \(line {line}\)"):
            read_ratings(tmp_path / "r.csv", "r")


def test_a_text_longer_than_a_reader_takes_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text,label\n{'x' * 200_000},1\nb,\nc,2\n\n")
    frame = read_csv([tmp_path / "a.csv"], ",", "a")
    assert (frame["text"].map(len).tolist(), placed(frame, frame["label"].isna())) == ([200_000, 1, 1], "row 2")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ward\.csv: columns 1 and 3 are both called 'age'"):
        load(file(tmp_path, {}, header="age,sex,age,outcome"), label="outcome")
    frame = pd.DataFrame([[1, 2, 0], [3, 4, 1]], columns=["a", "a", "label"])
    with pytest.raises(InputError, match="columns 1 and 2 are both called 'a'"):
        load(frame)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (70_000, 5)])
@pytest.mark.parametrize("cells", ["1,caf\u00e9", "\u00e9,1"])
def test_bytes_that_are_no_text_are_found_anywhere(tmp_path: Path, before: int, after: int, cells: str) -> None:
    rows = [b"1,x"] * before + [cells.encode("latin-1")] + [b"2,y"] * after
    path = tmp_path / "a.csv"
    path.write_bytes(b"\n".join([b"user,item", *rows]))
    said = rf"data 'a': .*a\.csv: line {before + 2} is not UTF-8 text .* Latin-1"
    with pytest.raises(InputError, match=said):
        read_csv([path], ",", "a")
    with pytest.raises(InputError, match=said):
        read_ratings(path, "a")


def test_a_file_that_is_text_is_read_by_pandas_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfi.data.lines.check_text", None)
    path = tmp_path / "a.csv"
    path.write_text("user,item\n" + "1,x\n2,y\n" * 9)
    assert len(read_csv([path], ",", "a")) == 18
    assert len(read_ratings(path, "a").user) == 2
