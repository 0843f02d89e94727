"""Batches: normalisation, imputation, crops and flips against plain loops."""

from __future__ import annotations

import pytest
import torch

from fedfi.data import Dataset, Examples
from fedfi.data.augment import PAD, random_crop, random_flip
from fedfi.errors import InputError
from fedfi.models.shapes import InputSpec


def images(n: int = 12, channels: int = 3, size: int = 6, **options: object) -> Dataset:
    rng = torch.Generator().manual_seed(n)
    pixels = torch.randint(0, 256, (n, channels, size, size), generator=rng, dtype=torch.uint8)
    spec = InputSpec("image", (channels, size, size), classes=3)
    return Dataset(pixels, torch.arange(n) % 3, spec, **options)  # type: ignore[arg-type]


def table(values: list[list[float]], **options: object) -> Dataset:
    x = torch.tensor(values, dtype=torch.float32)
    targets = torch.arange(len(x)) % 2
    return Dataset(x, targets, InputSpec("tabular", (x.shape[1],), 2), **options)  # type: ignore[arg-type]


def test_crop_is_a_window_of_the_zero_padded_image() -> None:
    pixels = images(20).inputs
    cropped = random_crop(pixels, torch.Generator().manual_seed(5))
    down, right = torch.randint(0, 2 * PAD + 1, (2, 20), generator=torch.Generator().manual_seed(5)).tolist()
    for i, image in enumerate(pixels):
        for y in range(6):
            for x in range(6):
                row, col = y + down[i] - PAD, x + right[i] - PAD
                inside = 0 <= row < 6 and 0 <= col < 6
                expected = image[:, row, col] if inside else torch.zeros(3, dtype=torch.uint8)
                assert torch.equal(cropped[i, :, y, x], expected)


def test_flip_mirrors_half_of_the_images() -> None:
    pixels = images(40).inputs
    flipped = random_flip(pixels, torch.Generator().manual_seed(5))
    bits = torch.randint(0, 2, (40,), generator=torch.Generator().manual_seed(5)).tolist()
    assert 0 < sum(bits) < 40
    for image, result, bit in zip(pixels, flipped, bits, strict=True):
        assert torch.equal(result, image[:, :, list(range(5, -1, -1))] if bit else image)


def test_batch_normalises_and_augments_only_when_asked() -> None:
    data = images(augment=("crop", "flip")).fitted()
    examples = data.examples(torch.tensor([5, 3, 8]))
    assert data.mean is not None
    assert data.std is not None
    x, y = examples.batch(torch.tensor([2, 0]))
    expected = (data.inputs[[8, 5]].float() / 255 - data.mean[:, None, None]) / data.std[:, None, None]
    torch.testing.assert_close(x, expected)
    assert y.tolist() == [8 % 3, 5 % 3]

    again = [examples.batch(augment=torch.Generator().manual_seed(1))[0] for _ in range(2)]
    assert torch.equal(*again)
    rng = torch.Generator().manual_seed(1)
    pixels = random_flip(random_crop(data.inputs[[5, 3, 8]], rng), rng)
    expected = (pixels.float() / 255 - data.mean[:, None, None]) / data.std[:, None, None]
    torch.testing.assert_close(again[0], expected)
    plain = images().examples()
    assert torch.equal(plain.batch(augment=rng)[0], plain.batch()[0])  # the data set asks for nothing


def test_pixel_statistics_are_those_of_the_rows_alone() -> None:
    data = images(30)
    fitted = data.fitted(torch.arange(10))
    pixels = data.inputs[:10].double() / 255
    assert fitted.mean is not None
    assert fitted.std is not None
    torch.testing.assert_close(fitted.mean.double(), pixels.mean((0, 2, 3)), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(fitted.std.double(), pixels.std((0, 2, 3), correction=0), rtol=1e-6, atol=1e-7)


def test_table_is_filled_with_the_median_then_scaled_but_not_its_one_hot_columns() -> None:
    """Of rows 0..3, column 0 is 1, 3, missing, 5: median 3, mean 3, variance (4+0+0+4)/4 = 2."""
    nan = float("nan")
    data = table([[1, nan, 0], [3, nan, 1], [nan, nan, 1], [5, nan, 0], [100, nan, 1]], one_hot=1)
    x, _ = data.fitted(torch.arange(4)).examples().batch()
    root = 2**0.5
    torch.testing.assert_close(x[:, 0], torch.tensor([-2 / root, 0, 0, 2 / root, 97 / root]))
    assert x[:, 1].tolist() == [0] * 5  # missing everywhere
    assert x[:, 2].tolist() == [0, 1, 1, 0, 1]


def test_text_becomes_int64_ids() -> None:
    ids = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)
    data = Dataset(ids, torch.tensor([0, 1]), InputSpec("text", (2,), 2, vocabulary=4, padding=0))
    x, y = data.fitted().examples().batch()
    assert x.dtype == y.dtype == torch.int64
    assert x.tolist() == ids.tolist()


def test_view_counts_and_subsets() -> None:
    examples = images(12).examples(torch.tensor([0, 3, 6, 1]))
    assert len(examples) == 4
    assert examples.class_counts().tolist() == [3, 1, 0]
    assert examples.subset(torch.tensor([3, 0])).indices.tolist() == [1, 0]
    assert len(examples.subset(torch.tensor([], dtype=torch.int64)).batch()[0]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": torch.zeros(4, 3)}, "image inputs must be"),
        ({"inputs": torch.zeros(4, 1, 2, 3, dtype=torch.uint8)}, r"its spec says \(1, 2, 2\)"),
        ({"targets": torch.zeros(3, dtype=torch.int64)}, "4 inputs, but 3 targets"),
        ({"targets": torch.tensor([0, 1, 2, 0])}, "targets run from 0 to 2, expected 0 to 1"),
        ({"groups": ("a",)}, "1 group ids for 4 examples"),
        ({"augment": ("crap",)}, "did you mean 'crop'"),
        ({"inputs": torch.full((4, 1, 2, 2), float("nan"))}, r"16 non-finite values \(examples 0, 1, 2 and 1 more\)"),
    ],
)
def test_wrong_data_sets_are_refused(change: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {
        "inputs": torch.zeros(4, 1, 2, 2, dtype=torch.uint8),
        "targets": torch.tensor([0, 1, 1, 0]),
        "spec": InputSpec("image", (1, 2, 2), 2),
    }
    with pytest.raises(InputError, match=message):
        Dataset(**(fields | change))  # type: ignore[arg-type]


def test_more_wrong_data() -> None:
    with pytest.raises(InputError, match=r"1 infinite value in column 'b' \(example 0\)"):
        table([[1, float("inf")], [1, 2]], feature_names=("a", "b"))
    with pytest.raises(InputError, match="only images can be augmented"):
        table([[1.0], [2.0]], augment=("flip",))
    with pytest.raises(InputError, match="token ids run from 0 to 9, expected 0 to 3"):
        Dataset(torch.tensor([[0, 9]], dtype=torch.int32), torch.tensor([0]), InputSpec("text", (2,), 2, 4, 0))
    with pytest.raises(InputError, match="index 12 is outside"):
        Examples(images(12), torch.tensor([0, 12]))
    with pytest.raises(InputError, match="indices of 'data' must be int64"):
        Examples(images(12), torch.tensor([0], dtype=torch.int32))
