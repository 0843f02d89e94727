"""Runs in processes of their own."""

from __future__ import annotations

from fedfi.parallel import in_processes


def test_work_may_say_what_it_came_to_and_a_failure_ends_only_its_own() -> None:
    def good(tell):
        tell({"round": 1, "train/loss": 0.5})
        return "42"

    def silent(tell):
        return None

    def bad(tell):
        raise RuntimeError("no\nluck")

    told = list(in_processes(iter([good, bad, silent]), 2))
    assert [t for t in told if t[0] == 0] == [(0, "round", "round 1  train loss 0.500"), (0, "result", "42")]
    assert [t for t in told if t[0] == 1] == [(1, "failed", "RuntimeError: no luck")]
    assert [t for t in told if t[0] == 2] == []
