"""Calls that do not fit: one line that names the argument and the nearest one."""

from __future__ import annotations

import numpy as np
import pytest

from fedfi.arguments import ArgumentError, Named, as_call, described, expect, named, whole
from fedfi.errors import InputError


@named
def go(first: int, second: int = 0, *, rounds: int, seed: int = 0) -> int:
    return first + second + rounds + seed


@named
def anything(first: int, **more: int) -> int:
    return len(more) + first


class Thing(metaclass=Named):
    def __init__(self, size: int, *, colour: str = "red") -> None:
        self.size, self.colour = size, colour
        if size < 0:
            raise TypeError("from within")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: go(1, round=2), r"^go: unknown argument 'round'; did you mean 'rounds'\?$"),
        (lambda: go(1, num_rounds=2), r"^go: unknown argument 'num_rounds'; did you mean 'rounds'\?$"),
        (lambda: go(1, rounds=2, xyz=3), "^go: unknown argument 'xyz'; choose from first, second, rounds, seed$"),
        (lambda: go(1), "^go: rounds is missing$"),
        (lambda: go(), "^go: first, rounds are missing$"),
        (
            lambda: go(1, 2, 3),
            r"^go: got 3 arguments without a name, expected at most 2 \(first, second\); give rounds",
        ),
        (lambda: go(1, first=2, rounds=3), "^go: first is given twice, once without its name$"),
        (lambda: anything(), "^anything: first is missing$"),
        (lambda: Thing(3, color="blue"), r"^Thing: unknown argument 'color'; did you mean 'colour'\?$"),
        (lambda: Thing(), "^Thing: size is missing$"),
    ],
)
def test_a_call_that_does_not_fit(call, text) -> None:
    with pytest.raises(ArgumentError, match=text) as caught:
        call()
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, TypeError)  # what Python raises for it


def test_a_call_that_fits_is_left_alone() -> None:
    assert go(1, rounds=2) == 3
    assert anything(1, some=2) == 2
    assert Thing(3).size == 3
    with pytest.raises(TypeError, match=r"^from within$"):
        Thing(-1)


def test_words_for_objects() -> None:
    found = [described(v) for v in (None, 3, "text", True, (), int, InputError(""))]
    assert found == ["None", "3", "'text'", "True", "a tuple", "the class int", "an InputError"]
    assert described("x" * 99) == "a str"
    assert as_call("fedfi.Evaluate", {"every": 2, "local": False}, "every=1") == "fedfi.Evaluate(every=2, local=False)"
    assert as_call("fedfi.Evaluate", {"a b": 2}, "every=1") == as_call("fedfi.Evaluate", None, "every=1")
    expect("count", 3, int, "a whole number")
    with pytest.raises(InputError, match=r"^count is True, expected a whole number$"):
        expect("count", True, int, "a whole number")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (True, "n is True, expected a whole number of at least 1"),
        ("2", "n is '2', expected a whole number of at least 1"),
        (2.6, "n is 2.6, expected a whole number of at least 1 (nearest valid: 3)"),
        (np.int64(0), "n is 0, expected a whole number of at least 1 (nearest valid: 1)"),
        (10**400, f"n is an int, expected a whole number of at least 1 (nearest valid: {2**63 - 1})"),
    ],
)
def test_whole_numbers_of_any_kind(value, said):
    assert whole("n", np.int64(3), 1) == whole("n", 3, 1) == 3
    with pytest.raises(InputError) as error:
        whole("n", value, 1)
    assert str(error.value) == said
