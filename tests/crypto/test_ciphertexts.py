"""The scheme itself, and the traps that are known of it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedfi.crypto import seal
from fedfi.crypto.fixedpoint import FixedPoint
from fedfi.crypto.parameters import LIMIT, SETS, Parameters, parameters
from fedfi.crypto.secret import SecretKey, simulated_key
from fedfi.crypto.summing import CipherSum, PlainSum
from fedfi.errors import InputError

pytest.importorskip("tenseal", reason="the extra 'he' is not installed")
BOTH = pytest.mark.parametrize("name", sorted(SETS))


def numbers(count: int, seed: int = 0, most: int = 2**27) -> torch.Tensor:
    return torch.randint(-most, most, (count,), generator=torch.Generator().manual_seed(seed))


@BOTH
def test_a_sum_of_ciphertexts_is_the_exact_sum(name):
    chosen = parameters(name)
    key = SecretKey(chosen)
    values = [numbers(chosen.slots, k) for k in range(10)]
    total = CipherSum(chosen)
    for value in values:
        payload = key.encrypt(value)
        assert len(payload) == chosen.fresh_bytes
        total.add(payload)
    result = total.result()
    assert len(result) == chosen.sum_bytes
    assert torch.equal(key.decrypt(result), torch.stack(values).sum(0))


@BOTH
def test_the_largest_sum_that_is_allowed_does_not_wrap(name):
    chosen = parameters(name)
    key, total = SecretKey(chosen), CipherSum(chosen)
    for _ in range(4):
        total.add(key.encrypt(torch.tensor([LIMIT // 4, -(LIMIT // 4)])))
    assert key.decrypt(total.result())[:2].tolist() == [LIMIT // 4 * 4, -(LIMIT // 4 * 4)]


def test_as_many_additions_as_are_allowed_leave_noise_to_spare():
    chosen = dataclasses.replace(parameters("bfv-4096"))
    key, total = SecretKey(chosen), CipherSum(chosen)
    payload = key.encrypt(torch.tensor([3, -2]))
    for _ in range(chosen.additions):
        total.add(payload)  # the same noise each time, which adds up the worst way
    assert key.decrypt(total.result())[:2].tolist() == [3 * 1024, -2 * 1024]
    with pytest.raises(InputError, match="drowns in noise"):
        total.add(payload)


@BOTH
def test_two_encryptions_of_the_same_differ(name):
    key = SecretKey(parameters(name), bytes(64))
    assert key.encrypt(numbers(5)) != key.encrypt(numbers(5))


def test_a_key_is_a_function_of_its_bytes_and_another_key_is_noticed():
    chosen = parameters("bfv-4096")
    one, same, other = SecretKey(chosen, bytes(64)), SecretKey(chosen, bytes(64)), SecretKey(chosen)
    payload = one.encrypt(numbers(10))
    assert torch.equal(same.decrypt(payload)[:10], numbers(10))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    with pytest.raises(seal.CipherError, match="another key"):
        other.decrypt(payload)
    assert simulated_key(chosen, 1).fingerprint != simulated_key(chosen, 2).fingerprint


def test_nothing_but_the_listed_parameters_reaches_the_library():
    weak = Parameters("bfv-4096", "bfv", 2048, (54, 55), 32, 0, 2048, 1, 1, 1)
    with pytest.raises(InputError, match="not one of the list"):
        seal.context(weak)
    with pytest.raises(InputError, match="did you mean 'bfv-4096'"):
        parameters("bfv-4906")


@pytest.mark.parametrize("damage", [b"", b"x" * 500, "cut", "flip the header"])
def test_what_is_no_ciphertext_is_refused(damage):
    chosen = parameters("bfv-4096")
    payload = SecretKey(chosen).encrypt(numbers(5))
    if damage == "cut":
        damage = payload[:1000]
    elif damage == "flip the header":
        damage = bytes([payload[0] ^ 1]) + payload[1:]
    with pytest.raises(seal.CipherError, match="not a ciphertext"):
        CipherSum(chosen).add(damage)


def test_fixed_point_refuses_what_could_wrap_around():
    """4 contributions of 4000 at 2^40: the sum would be 1.8e16."""
    with pytest.raises(InputError, match=r"fraction_bits = 40: 4 values of up to 4000 .* \(nearest valid: 17\)"):
        FixedPoint(4000, 40, 4)
    assert FixedPoint.fitting(4000, 4).bits == 17  # 4 * 4000 * 2^17 = 2.097e9 < 2^31 - 2^18 < 4 * 4000 * 2^18
    assert FixedPoint.fitting(8, 10).bits == 24
    with pytest.raises(InputError, match="no digit after the point"):
        FixedPoint.fitting(2**31, 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused(bad):
    with pytest.raises(InputError, match="1 of 2 values are NaN or infinite"):
        FixedPoint.fitting(8, 3).encode(torch.tensor([1.0, bad]))


@pytest.mark.parametrize("clip", [0.5, 1.0, 8.0])
def test_the_mean_is_within_the_stated_bound(clip):
    """Weights .2, .5 and 1 of values within the clip; the reference is the weighted mean in float64."""
    fixed = FixedPoint.fitting(clip, 3)
    values = (torch.rand(3, 1000, generator=torch.Generator().manual_seed(1)) * 2 - 1) * clip
    weights = [0.2, 0.5, 1.0]
    sums = sum(fixed.encode(v, w) for v, w in zip(values, weights, strict=True))
    denominator = torch.tensor(sum(fixed.weight(w) for w in weights))
    exact = (torch.tensor(weights, dtype=torch.float64)[:, None] * values.double()).sum(0) / 1.7
    error = (fixed.mean(sums, denominator) - exact).abs().max()
    assert error <= fixed.error(3, 1.7)
    assert fixed.error(3, 1.7) < 1e-6


def test_values_beyond_the_clip_are_cut_and_counted():
    fixed = FixedPoint(2.0, 4, 3)
    values = torch.tensor([1.5, 3.0, -5.0])
    assert fixed.encode(values).tolist() == [24, 32, -32]
    assert fixed.clipped(values) == 2


@pytest.mark.parametrize(
    ("largest", "enough"),
    [(8.04125, "16"), (100.0, "128"), (0.0123456, "0.015625"), (16.0, "16"), (9e6, "16777216"), (0.5, "0.5")],
)
def test_a_value_that_would_be_cut_is_refused_with_a_power_of_two_and_no_other_number(largest, enough):
    """The text reaches the server, which is to learn nothing of the value but its binary order."""
    with pytest.raises(InputError) as caught:
        FixedPoint(0.01, 4, 3).refuse_cut(torch.tensor([0.0, -largest]))
    assert str(caught.value) == (
        f"encryption.clip = 0.01: a value is beyond it and would be cut (nearest power of two that is enough: {enough})"
    )
    FixedPoint(float(enough), 1, 3).refuse_cut(torch.tensor([-largest]))


@pytest.mark.parametrize("clip", [1e9, 268402688.0])
def test_the_nearest_clip_of_one_that_is_too_large_is_accepted(clip):
    """Of 4 contributors: 4 (R 2 + 1/2) <= 2^31 - 2^18, so R <= 268,402,687.75."""
    for make in (lambda: FixedPoint.fitting(clip, 4), lambda: FixedPoint(clip, 12, 4)):
        with pytest.raises(InputError, match=r"encryption.clip = .*nearest valid: 2.68402e\+08\)"):
            make()
    assert FixedPoint.fitting(2.68402e8, 4).bits == 1


def test_plain_sums_are_those_of_ciphertexts():
    chosen = parameters("bfv-4096")
    key, cipher, plain = SecretKey(chosen), CipherSum(chosen), PlainSum()
    for k in range(3):
        values = numbers(chosen.slots, k)
        cipher.add(key.encrypt(values))
        plain.add(values.to(torch.int32).numpy().tobytes())
    assert key.decrypt(cipher.result()).to(torch.int32).numpy().tobytes() == plain.result()
    with pytest.raises(InputError, match="payload of 1 numbers, expected 4096"):
        plain.add(b"1234")


def test_check_values_depend_on_all_they_are_about():
    key = SecretKey(parameters("bfv-4096"), bytes(64))
    found = {key.check_value(20, *about) for about in [("r", 0, 1, "a"), ("r", 0, 1, "b"), ("r", 1, 0, "a"), ("r",)]}
    assert len(found) == 4
    assert all(0 <= v < 2**20 for v in found)
