from __future__ import annotations

import pytest
import torch

from fedfi.federation.rows import RowStore


def row(value: float) -> torch.Tensor:
    return torch.full((5,), value)


def test_rows_come_back_and_only_what_was_written_takes_room(tmp_path):
    store = RowStore(5, "float32")
    store.attach(tmp_path, "0")
    store.write("a", row(1.5))
    store.write("b", row(-2))
    assert torch.equal(store.read("a"), row(1.5))
    assert (list(store), len(store), "c" in store) == (["a", "b"], 2, False)
    assert (tmp_path / "0.rows").stat().st_size == 2 * 5 * 4
    with pytest.raises(KeyError):
        store.read("c")


def test_bfloat16_keeps_the_range_of_fisher_values():
    """bfloat16 has float32's exponent and 8 bits of significand: relative error at most 2^-8."""
    store, values = RowStore(3, "bfloat16"), torch.tensor([1e-30, 3.3e-9, 7.0])
    store.write("a", values)
    assert bool(((store.read("a") - values).abs() <= values * 2**-8).all())


def test_a_held_version_outlives_new_ones_until_it_is_dropped(tmp_path):
    store = RowStore(5, "float32")
    store.attach(tmp_path, "0")
    store.write("a", row(0))
    described = store.describe()
    store.hold(2)
    for value in (1.0, 2.0, 3.0):
        store.write("a", row(value))
    store.restore(described)
    assert torch.equal(store.read("a"), row(0))


def test_a_fork_leaves_its_origin_as_it_is(tmp_path):
    store = RowStore(5, "float32")
    store.attach(tmp_path, "0")
    store.write("a", row(0))
    child = store.fork()
    for value in (1.0, 2.0, 3.0):
        child.write("a", row(value))
        assert torch.equal(store.read("a"), row(0))
    assert torch.equal(child.read("a"), row(3))


def test_restoring_leaves_the_rows_of_older_checkpoints_alone(tmp_path):
    store = RowStore(5, "float32")
    store.attach(tmp_path, "0")
    store.write("a", row(0))
    older = store.describe()
    store.hold(2)
    store.write("a", row(1))
    newer = store.describe()
    store.hold(2)
    again = RowStore(5, "float32")
    again.attach(tmp_path, "0")
    again.restore(newer, [older])
    again.write("a", row(2))
    again.restore(older)
    assert torch.equal(again.read("a"), row(0))


def test_versions_that_no_checkpoint_holds_are_reused(tmp_path):
    """One row, at most two checkpoints that hold one version each: never more than three slots."""
    store = RowStore(5, "float32")
    store.attach(tmp_path, "0")
    for value in range(20):
        store.write("a", row(float(value)))
        store.hold(2)
    assert (tmp_path / "0.rows").stat().st_size <= 3 * 5 * 4


def test_a_damaged_row_is_detected(tmp_path):
    store = RowStore(5, "float32")
    store.attach(tmp_path, "0")
    store.write("a", row(1))
    described = store.describe()
    path = tmp_path / "0.rows"
    path.write_bytes(b"\x01" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match="row of client 'a' is damaged"):
        store.restore(described)


def test_wrong_widths_and_unknown_storage_are_refused():
    with pytest.raises(ValueError, match=r"shape \(4,\).*rows of \(5,\)"):
        RowStore(5).write("a", torch.zeros(4))
    with pytest.raises(ValueError, match="'float16' is unknown"):
        RowStore(5, "float16")
    with pytest.raises(ValueError, match="expected 4 bfloat16"):
        RowStore(4).restore(RowStore(5).describe())
