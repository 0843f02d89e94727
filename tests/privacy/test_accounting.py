from __future__ import annotations

import builtins

import pytest
import torch

from fedfi.errors import InputError
from fedfi.privacy import noise
from fedfi.privacy.accounting import Sampling, epsilon, multiplier

pytest.importorskip("dp_accounting", reason="the extra 'dp' is not installed")
ALL = Sampling(10, 10)


def test_the_analytic_gaussian_mechanism():
    """Balle and Wang, ICML 2018: (1, 1e-5) needs 3.7306 times the sensitivity, which here is 2 C."""
    assert multiplier(1.0, 1, 1e-5, ALL) == pytest.approx(2 * 3.7306, rel=6e-3)
    assert epsilon(2 * 3.7306, 1, 1e-5, ALL) == pytest.approx(1.0, abs=1e-3)


def test_composition_of_a_hundred_rounds():
    """Multiplier 5 in units of the sensitivity, 100 rounds, delta 1e-5: epsilon 9.997 by privacy loss distributions."""
    assert epsilon(10.0, 100, 1e-5, ALL) == pytest.approx(9.997, abs=2e-3)


def test_epsilon_grows_with_rounds_and_falls_with_noise_and_sampling():
    assert epsilon(5.0, 0, 1e-5, ALL) == 0
    assert epsilon(5.0, 2, 1e-5, ALL) > epsilon(5.0, 1, 1e-5, ALL) > epsilon(6.0, 1, 1e-5, ALL)
    few = Sampling(1000, 10)
    assert epsilon(5.0, 50, 1e-5, few) < 0.2 * epsilon(5.0, 50, 1e-5, Sampling(1000, 1000))
    assert epsilon(multiplier(2.0, 50, 1e-5, few), 50, 1e-5, few) <= 2.0


@pytest.mark.parametrize(
    "bad", [lambda: multiplier(0, 1, 1e-5, ALL), lambda: epsilon(0, 1, 1e-5, ALL), lambda: Sampling(3, 4)]
)
def test_what_makes_no_sense_is_refused(bad):
    with pytest.raises(InputError):
        bad()


@pytest.mark.parametrize("sampling", [ALL, Sampling(10, 3)], ids=["all", "drawn"])
@pytest.mark.parametrize("noise", [1e-300, 1e-12, 0.99e-9])
def test_noise_that_hides_nothing_is_refused_with_the_least(noise, sampling):
    with pytest.raises(InputError, match=rf"noise = {noise:g}: .*nearest valid: 1e-09"):
        epsilon(noise, 3, 1e-5, sampling)
    assert epsilon(1e-9, 3, 1e-5, sampling) > 1e18


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sampling", [ALL, Sampling(10, 3)], ids=["all", "drawn"])
def test_a_budget_out_of_reach_names_the_least_that_is_not(sampling):
    """Of a usual delta none is: with noise enough, all of the difference is within delta."""
    delta = 1e-300
    assert epsilon(multiplier(1e-30, 3, 1e-5, sampling), 3, 1e-5, sampling) == 0
    with pytest.raises(InputError, match=r"epsilon = 1e-30: for 3 rounds at delta = .*1e\+06 times the clip") as caught:
        multiplier(1e-30, 3, delta, sampling)
    nearest = float(str(caught.value).rsplit("nearest valid: ")[1].rstrip(")"))
    assert multiplier(nearest, 3, delta, sampling) <= 1e6


@pytest.mark.parametrize("error", [RuntimeError, OverflowError])
def test_what_the_library_cannot_compute_is_bad_input(error, monkeypatch):
    import dp_accounting

    def fails(*rest):
        raise error("no convergence")

    monkeypatch.setattr(dp_accounting, "get_epsilon_gaussian", fails)
    with pytest.raises(InputError, match=r"noise = 0.123 and delta = 1e-05: .*3 rounds: no convergence"):
        epsilon(0.123, 3, 1e-5, ALL)


def test_a_missing_extra_is_named(monkeypatch):
    from fedfi.privacy import accounting

    plain = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "dp_accounting":
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"fedfi\[dp\]"):
        accounting._library()


def test_clipping_by_hand():
    """(3, 4) has norm 5; clipped to 1 it is (.6, .8), a hair less; (0, .5) stays."""
    found = noise.clipped({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 1.0)
    assert noise.norm(found) <= 1.0
    assert found["a"].item() == pytest.approx(0.6, abs=1e-5)
    assert found["b"].item() == pytest.approx(0.8, abs=1e-5)
    small = {"a": torch.tensor([0.0, 0.5])}
    assert torch.equal(noise.clipped(small, 1.0)["a"], small["a"])


def test_noise_has_the_deviation_that_was_asked_for():
    """100,000 samples: the sample deviation is within 1 % (4.5 standard errors)."""
    found = noise.perturbed({"a": torch.zeros(100_000)}, 2.5, torch.Generator().manual_seed(0))["a"]
    assert found.std().item() == pytest.approx(2.5, rel=0.01)
    assert abs(found.mean().item()) < 0.04


def test_a_version_that_is_too_old_is_named(monkeypatch):
    import dp_accounting

    from fedfi.privacy import accounting

    assert accounting.available()
    monkeypatch.delattr(dp_accounting, "get_epsilon_gaussian")
    assert not accounting.available()
    with pytest.raises(InputError, match=r"fedfi\[dp\].*get_epsilon_gaussian"):
        accounting._library()
