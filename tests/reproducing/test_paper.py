"""The paper's own figures beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reproducing.files import DIGITS, grid, pretend

from fedfi.errors import InputError
from fedfi.reproducing.grid import Cell
from fedfi.reproducing.paper import fitting, told
from fedfi.reproducing.tables import table


def test_figures_are_told_as_the_paper_has_them() -> None:
    assert [told(v) for v in (52.0, (52.0, 0.9), "14 to 23")] == ["52.0", "52.0 ± 0.9", "14 to 23"]


def test_a_figure_is_of_a_method_in_a_setting(tmp_path: Path) -> None:
    paper = grid(tmp_path, DIGITS).paper
    assert paper is not None
    assert paper.figure("global/accuracy", "plain", {"skew": "iid"}) == ("91.5 ± 0.4", "Table 9")
    assert paper.figure("global/accuracy", "plain", {"skew": "dirichlet"}) is None
    assert paper.figure("global/accuracy", "near", {"skew": "dirichlet"}) == ("80 to 90", "Section 2")
    assert paper.figure("local/accuracy_mean", "near", {"skew": "iid"}) is None


def test_inherited_figures_are_those_of_what_is_there() -> None:
    figures = [{"at": {"alpha": "0.1"}, "values": {"a": 1, "b": 2}}, {"at": {"alpha": "0.2"}, "values": {"a": 3}}]
    assert fitting(figures, {"alpha": {"0.1": {}}}, {"b": {}}) == [{"at": {"alpha": "0.1"}, "values": {"b": 2}}]
    assert fitting(figures, {"norm": {"group": {}}}, {"a": {}}) == []


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("plain = [91.5", "plane = [91.5", "paper.figures.0: unknown method 'plane'; did you mean 'plain'?"),
        ('skew = "iid"', 'skew = "id"', "paper.figures.0: unknown value of axis skew 'id'"),
        ('at = { skew = "iid" }', 'at = { axis = "iid" }', "paper.figures.0: unknown axis 'axis'"),
        ('source = "Section 2"', "", "source: is missing"),
        ("hours = 0.1", "hours = 0", "paper.hours = 0: must be above 0"),
        ("hours = 0.1", "hour = 0.1", "paper.hour: unknown key; did you mean 'hours'?"),
    ],
)
def test_what_is_wrong_with_figures_is_one_line(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in DIGITS
    with pytest.raises(InputError) as error:
        grid(tmp_path, DIGITS.replace(old, new))
    assert text in str(error.value)


def test_a_table_has_the_papers_column_where_the_paper_has_a_figure(tmp_path: Path) -> None:
    """Seeds 0 and 1 came to 80 and 90 %: mean 85, sample sd sqrt(50) = 7.07; the rate comes from tuning.json."""
    found = grid(tmp_path, DIGITS)
    (tmp_path / "tuning.json").write_text('{"rounds": 1, "best": {"plain/iid": 0.5}}')
    for seed, accuracy in ((0, 0.8), (1, 0.9)):
        pretend(found, tmp_path, Cell("plain", ("iid",), seed), 0.5, global__accuracy=[[1, 0.1], [2, accuracy]])
    pretend(found, tmp_path, Cell("near", ("dirichlet",), 0), 0.1, global__accuracy=[[2, 0.5]])
    lines = table(found, tmp_path).splitlines()
    assert lines[0] == "Some Paper: Table 9. Accuracy. Scale: small."
    assert lines[2] == (
        "Columns *(paper)*: the paper's own figures, of its own setting. The setting here is cut: see the file. A note."
    )
    iid, dirichlet = lines.index("### iid"), lines.index("### dirichlet")
    assert lines[iid + 2] == "| method | rate | seeds | accuracy | accuracy (paper) | local | MB down / up | s |"
    assert lines[iid + 4] == "| plain | 0.5 | 2 | 85.0 ± 7.1 | 91.5 ± 0.4 | – | 2.0 / 1.0 | 3 |"
    assert lines[iid + 6] == "*accuracy (paper)*: Table 9: plain; Section 2: near."
    assert lines[dirichlet + 4] == "| near | 0.1 | 1 | 50.0 | 80 to 90 | – | 2.0 / 1.0 | 3 |"
    assert lines[dirichlet + 6] == "*accuracy (paper)*: Section 2."


def test_a_table_without_figures_says_so(tmp_path: Path) -> None:
    head, figures = DIGITS.index("[[paper.figures]]"), DIGITS.index("[base.data]")
    found = grid(tmp_path, DIGITS[:head] + DIGITS[figures:])
    assert "The paper's figures: none. A note." in table(found, tmp_path)
    assert "(paper)" not in table(found, tmp_path)
    paper = DIGITS.index("[paper]")
    assert "paper" not in table(grid(tmp_path, DIGITS[:paper] + DIGITS[figures:]), tmp_path)
