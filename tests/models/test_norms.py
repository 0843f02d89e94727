import copy

import pytest
import torch
from torch import nn

from fedfi.errors import InputError
from fedfi.models.norms import forget_statistics, group_count, norm_layer, recompute_statistics

UNIT = torch.tensor([-1.0, 1.0])


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(64, 32), (512, 32), (32, 16), (48, 24), (96, 32), (50, 25), (37, 1), (6, 3), (4, 2), (2, 1), (1, 1)],
)
def test_group_count(channels, groups):
    """The largest divisor up to 32 with two channels or more a group: 50 = 25 * 2; 37 is prime."""
    assert group_count(channels) == groups


def test_unknown_norm():
    with pytest.raises(InputError, match="unknown norm 'bach'; did you mean 'batch'"):
        norm_layer("bach", 4)


def images(mean, spread):
    """One channel, two examples of 1 x 1: mean -+ spread, unbiased variance 2 spread^2."""
    return torch.tensor([mean - spread, mean + spread]).reshape(2, 1, 1, 1)


def test_evaluation_uses_the_batch_before_the_pass():
    """Mean 5, biased variance 9: (2 - 5) / 3 and (8 - 5) / 3."""
    layer = norm_layer("static", 1).eval()
    torch.testing.assert_close(layer(images(5.0, 3.0)).flatten(), torch.tensor([-1.0, 1.0]), atol=1e-5, rtol=0)


def test_statistics_are_the_mean_over_batches():
    """Means 1 and 5, unbiased variances 2 and 18: mean 3 and 10, so 3 + 10 ** 0.5 becomes 1."""
    layer = norm_layer("static", 1).eval()
    recompute_statistics(layer, iter([images(1.0, 1.0), images(5.0, 3.0)]))
    assert layer.running_mean.item() == pytest.approx(3)
    assert layer.running_var.item() == pytest.approx(10)
    x = torch.full((1, 1, 1, 1), 3 + 10**0.5)
    torch.testing.assert_close(layer(x).item(), 1.0, atol=1e-5, rtol=0)


def test_training_ignores_and_keeps_the_statistics():
    layer = norm_layer("static", 1)
    recompute_statistics(layer, [images(1.0, 1.0)])
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    torch.testing.assert_close(layer(images(5.0, 3.0)).flatten(), torch.tensor([-1.0, 1.0]), atol=1e-5, rtol=0)
    assert list(state) == ["weight", "bias", "running_mean", "running_var"]
    assert all(torch.equal(state[name], tensor) for name, tensor in layer.state_dict().items())


def test_later_layers_see_batches_normalised_by_the_batch():
    """The first layer turns both batches into -+ 1, unbiased variance 2, for the second."""
    model = nn.Sequential(norm_layer("static", 1), norm_layer("static", 1))
    recompute_statistics(model, [images(1.0, 1.0), images(5.0, 3.0)])
    assert model[1].running_mean.item() == pytest.approx(0, abs=1e-5)
    assert model[1].running_var.item() == pytest.approx(2, abs=1e-4)


def test_again_starts_anew_and_forgetting_returns_to_the_batch():
    layer = norm_layer("static", 1).eval()
    recompute_statistics(layer, [images(1.0, 1.0)])
    recompute_statistics(layer, [images(5.0, 3.0)])
    assert layer.running_mean.item() == pytest.approx(5)
    forget_statistics(layer)
    assert list(layer.state_dict()) == ["weight", "bias"]
    torch.testing.assert_close(layer(images(1.0, 1.0)).flatten(), torch.tensor([-1.0, 1.0]), atol=1e-5, rtol=0)


def test_modes_other_norms_and_dropout_are_left_alone():
    model = nn.Sequential(norm_layer("static", 1), nn.Dropout(0.5), norm_layer("batch", 1))
    model[2].eval()
    running = copy.deepcopy(model[2].state_dict())
    recompute_statistics(model, [images(1.0, 1.0)])
    assert [m.training for m in model] == [True, True, False]
    assert all(torch.equal(running[name], tensor) for name, tensor in model[2].state_dict().items())


@pytest.mark.parametrize("batches", [[], [images(5.0, 3.0), torch.zeros(2, 3)]])
def test_a_failed_pass_changes_nothing(batches):
    layer = norm_layer("static", 1)
    recompute_statistics(layer, [images(1.0, 1.0)])
    with pytest.raises(ValueError, match=r"at least one batch|4D input"):
        recompute_statistics(layer, batches)
    assert layer.running_mean.item() == pytest.approx(1)
    assert not layer.track_running_stats
    assert layer.training


def test_without_static_norms_nothing_is_read():
    def batches():
        raise AssertionError("read")
        yield

    recompute_statistics(norm_layer("group", 4), batches())
