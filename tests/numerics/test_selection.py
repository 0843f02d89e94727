"""Selection against a reference that sorts (score, tie, -index) triples."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfi.numerics.selection import (
    count_for,
    jaccard,
    keep_rates,
    pack_bits,
    select,
    top_k_mask,
    unpack_bits,
)

# Few distinct values, so that most examples have ties at the threshold.
VALUES = st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 1e-40, 1.0, 3.5, math.inf])
PAIRS = st.lists(st.tuples(VALUES, st.sampled_from([0.0, 1.0, 2.0])), min_size=1, max_size=40)


def reference(scores: list[float], ties: list[float], pool: list[int], k: int) -> set[int]:
    return set(sorted(pool, key=lambda i: (-scores[i], -ties[i], i))[:k])


def chosen(mask: Tensor) -> set[int]:
    return set(mask.nonzero().flatten().tolist())


def runs(sizes: list[int]) -> list[list[int]]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


@settings(deadline=None)
@given(pairs=PAIRS, share=st.floats(0, 1), with_ties=st.booleans())
def test_top_k_equals_sorting(pairs, share, with_ties):
    scores, ties = [p[0] for p in pairs], [p[1] if with_ties else 0.0 for p in pairs]
    k = round(share * len(pairs))
    mask = top_k_mask(torch.tensor(scores), k, ties=torch.tensor(ties) if with_ties else None)
    assert chosen(mask) == reference(scores, ties, list(range(len(pairs))), k)


@settings(deadline=None)
@given(
    pairs=PAIRS,
    ratio=st.sampled_from([0.01, 0.0625, 0.1, 0.25, 0.5, 0.9, 1.0]),
    floor=st.sampled_from([0.0, 0.5, 1.0]),
    scope=st.sampled_from(["global", "layer"]),
    data=st.data(),
)
def test_select_equals_sorting(pairs, ratio, floor, scope, data):
    scores, ties = [p[0] for p in pairs], [p[1] for p in pairs]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(pairs)), max_size=5)) - {len(pairs)})
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, len(pairs)], strict=True)]
    exact = Fraction(str(ratio))
    segments, k = runs(sizes), math.ceil(exact * len(pairs))
    if scope == "layer":
        expected = set().union(*(reference(scores, ties, s, math.ceil(exact * len(s))) for s in segments))
    else:
        shares = [math.floor(Fraction(str(floor)) * exact * size) for size in sizes]
        raised = [max(1, share) for share in shares] if floor else shares
        counts = raised if sum(raised) <= k else shares
        expected = set().union(*(reference(scores, ties, s, n) for s, n in zip(segments, counts, strict=True)))
        rest = [i for i in range(len(pairs)) if i not in expected]
        expected |= reference(scores, ties, rest, k - len(expected))
        assert len(expected) == k
    mask = select(torch.tensor(scores), ratio, sizes=sizes, scope=scope, floor=floor, ties=torch.tensor(ties))
    assert chosen(mask) == expected


def test_floor_keeps_a_weak_layer_alive():
    """d = 12, ratio 1/2: 6 kept. The first 4 score lowest; floor 1 reserves 2 of them, floor .5 one."""
    scores = torch.arange(12.0)
    for floor, kept in ((0.0, 0), (0.1, 1), (0.5, 1), (1.0, 2)):
        mask = select(scores, 0.5, sizes=[4, 8], floor=floor)
        assert keep_rates(mask, [4, 8]) == [kept / 4, (6 - kept) / 8]
    # One entry for each of 12 layers would exceed the 6 allowed, so that reservation is dropped.
    assert chosen(select(scores, 0.5, sizes=[1] * 12, floor=0.5)) == set(range(6, 12))


@pytest.mark.parametrize(
    ("ratio", "size", "expected"),
    [
        (0.1, 30, 3),
        (0.7, 10, 7),
        (1 - 0.7, 10, 3),
        (0.1 + 0.2, 10, 3),
        (5 / 9, 9, 5),
        (0.0625, 17, 2),
        (0.5, 3, 2),
        (1e-9, 5, 1),
        (1.0, 11_173_962, 11_173_962),
        (0.3, 0, 0),
        (0.0625, 11_173_962, 698_373),
    ],
)
def test_count_for(ratio, size, expected):
    """11 173 962 / 16 = 698 372.6; the others are short divisions."""
    assert count_for(ratio, size) == expected


@settings(deadline=None)
@given(size=st.integers(1, 10**9), data=st.data())
def test_count_for_recovers_every_count(size, data):
    count = data.draw(st.integers(1, size))
    assert count_for(count / size, size) == count


@settings(deadline=None)
@given(bits=st.lists(st.booleans(), max_size=40))
def test_packed_bits_round_trip(bits):
    mask = torch.tensor(bits, dtype=torch.bool)
    data = pack_bits(mask)
    assert data == sum(bit << i for i, bit in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little")
    assert torch.equal(unpack_bits(data, len(bits)), mask)


def test_jaccard_and_keep_rates():
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    assert jaccard(a, b) == 1 / 3
    assert jaccard(a & ~a, b & ~b) == 1.0
    assert keep_rates(a, [1, 3]) == [1.0, 1 / 3]


def test_half_precision_and_gradients_are_accepted():
    scores = torch.tensor([1.0, 3.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    assert top_k_mask(scores, 1).tolist() == [False, True, False]


SCORES = torch.tensor([1.0, 2.0])
WRONG = [
    (lambda: top_k_mask(torch.tensor([1.0, math.nan]), 1), "NaN"),
    (lambda: top_k_mask(SCORES, 3), "expected 0 to 2"),
    (lambda: top_k_mask(SCORES, -1), "expected 0 to 2"),
    (lambda: top_k_mask(SCORES[None], 1), "vector"),
    (lambda: top_k_mask(SCORES, 1, ties=torch.ones(3)), "ties has 3"),
    (lambda: select(SCORES, 0.5, sizes=[2], ties=torch.ones(3)), "ties has 3"),
    (lambda: count_for(0.0, 3), "ratio is 0.0"),
    (lambda: count_for(math.nan, 3), "ratio is nan"),
    (lambda: count_for(0.5, -1), "size is -1"),
    (lambda: select(SCORES, 1.5, sizes=[2]), "ratio is 1.5"),
    (lambda: select(SCORES, 0.5, sizes=[1]), "summing to 2"),
    (lambda: select(SCORES, 0.5, sizes=[2, 0]), "at least 1"),
    (lambda: select(SCORES, 0.5, sizes=[2], floor=1.1), "floor is 1.1"),
    (lambda: select(SCORES, 0.5, sizes=[2], scope="block"), "scope is 'block'"),
    (lambda: unpack_bits(b"\x01\x00", 8), "expected 1 bytes"),
    (lambda: unpack_bits(b"\x08", 3), "padding bit"),
    (lambda: unpack_bits(b"", -1), "-1 bits"),
    (lambda: pack_bits(SCORES), "boolean"),
    (lambda: jaccard(torch.ones(2).bool(), torch.ones(3).bool()), "same length"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_time_is_linear_for_every_order():
    """A million scores in any order take tens of milliseconds; a quadratic selection would take minutes."""
    size, generator = 1_000_000, torch.Generator().manual_seed(1)
    rising = torch.arange(size, dtype=torch.float32)
    start = time.perf_counter()
    for scores in (rising, rising.flip(0), torch.zeros(size), torch.rand(size, generator=generator)):
        assert int(top_k_mask(scores, size // 16, ties=rising).sum()) == size // 16
    assert time.perf_counter() - start < 5


SIZE = 1 << 16  # large enough for the threshold to be bracketed by a sample
_RNG = np.random.default_rng(0)
_NOISE = _RNG.standard_normal(SIZE).astype(np.float32)
_STRIDE = SIZE // 4096 | 1
KINDS = {
    "noise": _NOISE,
    "almost all at the minimum": np.where(_RNG.random(SIZE) < 0.01, abs(_NOISE), 0),
    "almost all at the maximum": np.where(_RNG.random(SIZE) < 0.01, -abs(_NOISE), 0),
    "almost all in the middle": np.where(_RNG.random(SIZE) < 0.01, _NOISE, 0),
    "half zeros": np.maximum(_NOISE, 0),
    "few values": (4 * _NOISE).round(),
    "infinities": np.where(abs(_NOISE) > 1, np.sign(_NOISE) * np.inf, 0),
    "all equal": np.zeros(SIZE, dtype=np.float32),
    "both zeros": np.where(_NOISE > 0, np.float32(0.0), np.float32(-0.0)),
    "a sample all too high": np.where(np.arange(SIZE) % _STRIDE == 0, 9, _NOISE),
    "a sample all too low": np.where(np.arange(SIZE) % _STRIDE == 0, -9, _NOISE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_large_vectors_equal_sorting(kind):
    """The reference sorts by (-score, -tie, index); `lexsort` takes its keys last first."""
    scores, ties = KINDS[kind].astype(np.float32), np.abs(_NOISE[::-1]).round(1)
    order = np.lexsort((np.arange(SIZE), -ties, -scores))
    for k in (1, 7, 200, SIZE // 16, SIZE // 2, SIZE - 300, SIZE - 1):
        mask = top_k_mask(torch.from_numpy(scores), k, ties=torch.from_numpy(ties.copy()))
        expected = np.zeros(SIZE, dtype=bool)
        expected[order[:k]] = True
        assert np.array_equal(mask.numpy(), expected), k
