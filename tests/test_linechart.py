"""Charts of lines."""

from __future__ import annotations

from fedfi.linechart import Panel, svg


def test_a_chart_is_the_same_for_the_same_numbers() -> None:
    panels = [Panel("a", {"one": [(1.0, 2.0), (10.0, 3.0)]}, {"floor": 1.0}), Panel("b", {"one": [(1.0, 2.0)]})]
    drawn = svg(panels, "MB", "%", logarithmic=True)
    assert drawn == svg(panels, "MB", "%", logarithmic=True)
    assert all(f">{name}<" in drawn for name in ("a", "b", "one", "floor", "MB", "%"))


def test_what_has_no_place_on_a_logarithmic_scale_is_left_out() -> None:
    svg(
        [Panel("a", {"nothing": [(0.0, 1.0)], "some": [(0.0, 1.0), (1.0, 2.0)]}, {"floor": 1.0})],
        "x",
        "y",
        logarithmic=True,
    )
    svg([Panel("only levels", {}, {"floor": 1.0})], "x", "y", logarithmic=True)
