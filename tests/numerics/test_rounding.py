from __future__ import annotations

import pytest

from fedfi.numerics.rounding import rounded


@pytest.mark.parametrize(
    ("value", "digits", "up", "text"),
    [
        (8.04125, 3, True, "8.05"),
        (8.04125, 3, False, "8.04"),
        (8.0, 3, True, "8"),
        (9.991, 3, True, "10"),
        (99.99, 2, True, "1e+02"),
        (268402687.75, 6, False, "2.68402e+08"),
        (1.2345e-7, 2, True, "1.3e-07"),
        (0.1, 3, False, "0.1"),  # the double is a little above
    ],
)
def test_numbers_are_rounded_to_the_side_that_holds(value, digits, up, text):
    assert rounded(value, digits, up=up) == text
    assert float(text) >= value if up else float(text) <= value
