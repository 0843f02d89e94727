"""Why clients failed, in words."""

from __future__ import annotations

from fedfi.federation.failing import cause, reasons


def _failure(client: str, round: int, error: str, stage: str = "client_update") -> dict:
    return {"event": "failure", "client": client, "round": round, "error": error, "stage": stage}


def test_one_line_a_reason_the_most_frequent_first() -> None:
    found = reasons(
        [
            _failure("eve", 1, "KeyError: 'x'", "client_evaluate"),
            *(
                _failure(c, r, f"RunError: client {c!r}: the loss is nan at step {r} of 10")
                for r in (1, 2)
                for c in "ab"
            ),
            _failure("lonely", 1, "ValueError: one row"),
            _failure("lonely", 2, "ValueError: one row"),
        ]
    )
    assert found == [
        "2 clients ('a', 'b'), 2 rounds: RunError: client 'a': the loss is nan at step 1 of 10",
        "client 'lonely', 2 rounds: ValueError: one row",
        "client 'eve', 1 round in client_evaluate: KeyError: 'x'",
    ]
    assert reasons([]) == []
    unplaced = {"client": "a", "stage": "reply", "error": "too late"}  # without a round
    assert reasons([unplaced, unplaced]) == ["client 'a', 2 times in reply: too late"]


def test_many_reasons_and_many_clients_stay_short() -> None:
    found = reasons(_failure(c, 1, f"ValueError: {c}") for c in "abcdefg")
    assert found[5:] == ["2 more reasons"]
    assert reasons(_failure(c, 1, "x" * 999) for c in "abcdefg")[0].startswith(
        "7 clients ('a', 'b', 'c', ...), 1 round: x"
    )
    assert len(reasons([_failure("a", 1, "x" * 999)])[0]) < 400


def test_what_can_be_done_is_said_where_it_is_known() -> None:
    known = ValueError("Expected more than 1 value per channel when training, got input size torch.Size([1, 8])")
    assert cause(known).endswith("such as group or layer norm")
    assert cause(ValueError("another")) == "ValueError: another"
