from __future__ import annotations

import torch

from fedfi.federation.rng import key, keyed_generator, keyed_global_rng


def draw(*parts):
    return torch.rand(3, generator=keyed_generator(0, *parts)).tolist()


def test_the_same_key_gives_the_same_draws_and_each_part_counts():
    assert draw("client", 1, "7", "batches") == draw("client", 1, "7", "batches")
    others = [("client", 2, "7", "batches"), ("client", 1, "8", "batches"), ("client", 1, "7", "augment")]
    assert all(draw(*other) != draw("client", 1, "7", "batches") for other in others)


def test_parts_do_not_run_into_each_other():
    assert (
        len(
            {
                key(0, "a", "bc"),
                key(0, "ab", "c"),
                key(0, 1, 23),
                key(0, 12, 3),
                key(0, "1", 23),
                key(1, "a", "bc"),
            }
        )
        == 6
    )


def test_the_global_generator_is_lent_and_given_back():
    before = torch.get_rng_state()
    with keyed_global_rng(0, "x"):
        first = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)
    with keyed_global_rng(0, "x"):
        assert torch.equal(torch.rand(2), first)
