import pytest
import torch

from fedfi.models.shapes import InputSpec
from fedfi.models.smallcnn import small_cnn

CIFAR = InputSpec("image", (3, 32, 32), 10)
CONVOLUTIONS = 27 * 32 + 9 * 32 * 64 + 9 * 64 * 128
LINEAR = 128 * 4 * 192 + 192 + 192 * 10 + 10


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_parameters(norm):
    """27*32 + 288*64 + 576*128 = 93,024; norms 2 (32 + 64 + 128) = 448; linear 513*192 + 193*10 = 100,426."""
    assert count(small_cnn(CIFAR, norm=norm)) == CONVOLUTIONS + 448 + LINEAR == 193_898


def test_without_norms_convolutions_have_biases():
    """32 + 64 + 128 = 224."""
    assert count(small_cnn(CIFAR, norm="none")) == CONVOLUTIONS + 224 + LINEAR


@pytest.mark.parametrize("norm", ["group", "batch", "none"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (1, 3, 5)])
def test_logits(shape, norm):
    model = small_cnn(InputSpec("image", shape, 7), width=0.25, norm=norm)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)


def test_examples_do_not_meet_in_a_batch():
    torch.manual_seed(0)
    model, x = small_cnn(CIFAR), torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(model(x)[:1], model(x[:1]))
