"""Whole-batch transforms against a hand-written loop over images."""

import numpy as np
import pytest
import torch

from lrnets.data import TRANSFORMS, flip, pad_crop, standardize_each, to_float

BYTES = torch.from_numpy(np.random.default_rng(0).integers(256, size=(40, 3, 9, 7), dtype=np.uint8))


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_bytes_become_numbers_from_zero_to_one():
    x = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8)
    assert to_float(x).dtype == torch.float32
    np.testing.assert_array_equal(to_float(x).flatten().numpy(), np.arange(256, dtype=np.float32) / np.float32(255))
    with pytest.raises(ValueError, match=r"dtype torch.float32, expected torch.uint8"):
        to_float(x.float())


def test_each_image_is_standardised_by_itself():
    x = to_float(BYTES)
    for image, found in zip(x.double().numpy(), standardize_each(x).numpy()):
        np.testing.assert_allclose(found, (image - image.mean()) / image.std(), atol=2e-6)


@pytest.mark.parametrize("value", [0, 1, 77, 255])
def test_a_constant_image_becomes_zero(value):
    x = to_float(torch.full((2, 3, 32, 32), value, dtype=torch.uint8))
    # The mean of N equal float32 numbers is off by rounding, which the smallest deviation 1 / (255 sqrt(N)) magnifies.
    assert standardize_each(x).abs().max() < 255 * (3 * 1024) ** 0.5 * 2e-7
    assert standardize_each(torch.zeros(2, 3, 32, 32)).eq(0).all()


def test_a_single_grey_level_in_a_single_value_is_still_seen():
    x = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    x[0, 0, 3, 3] = 1
    np.testing.assert_allclose(standardize_each(to_float(x))[0, 0, 3, 3], 63 / 64 * 8, rtol=1e-5)


@pytest.mark.parametrize("pad", [0, 1, 4])
def test_pad_and_crop_is_what_a_loop_over_images_does(pad):
    x = to_float(BYTES)
    top, left = torch.randint(2 * pad + 1, (2, len(x)), generator=generator())
    cropped = pad_crop(x, pad, generator=generator())
    for image, found, i, j in zip(x.numpy(), cropped.numpy(), top, left):
        padded = np.zeros((3, 9 + 2 * pad, 7 + 2 * pad), dtype=np.float32)
        padded[:, pad : pad + 9, pad : pad + 7] = image
        np.testing.assert_array_equal(found, padded[:, i : i + 9, j : j + 7])


def test_every_place_of_a_crop_is_equally_likely():
    x = torch.zeros(8100, 1, 9, 9)
    x[:, 0, 4, 4] = 1
    places = pad_crop(x, 4, generator=generator()).sum(0)[0]  # 81 places, 100 expected in each
    assert places.sum() == 8100
    assert ((places - 100).abs() < 45).all()  # 4.5 deviations of 10: 5e-4 for all 81


def test_flip_mirrors_half_of_the_images_left_to_right():
    x = to_float(BYTES)
    mirrored = torch.randint(2, (len(x), 1, 1, 1), generator=generator()).flatten().bool()
    assert 0 < mirrored.sum() < len(x)
    for image, found, yes in zip(x.numpy(), flip(x, generator=generator()).numpy(), mirrored):
        np.testing.assert_array_equal(found, image[:, :, ::-1] if yes else image)
    many = torch.tensor([1.0, 0.0]).expand(10_000, 1, 1, 2)
    assert abs(flip(many, generator=generator())[..., 0].mean() - 0.5) < 0.025  # 5 deviations of 0.005


def test_mnist_is_only_scaled():
    for transform in TRANSFORMS["mnist"]:
        assert torch.equal(transform(BYTES, generator()), to_float(BYTES))


def test_cifar10_is_standardised_and_in_training_padded_with_zeros_cropped_and_flipped():
    x = standardize_each(to_float(BYTES))
    assert torch.equal(TRANSFORMS["cifar10"].evaluation(BYTES, generator()), x)
    shared = generator()
    expected = flip(pad_crop(x, 4, generator=shared), generator=shared)
    assert torch.equal(TRANSFORMS["cifar10"].train(BYTES, generator()), expected)


def test_the_generator_alone_decides():
    train = TRANSFORMS["cifar10"].train
    state = torch.get_rng_state()
    first = train(BYTES, generator(1))
    assert torch.equal(first, train(BYTES, generator(1)))
    assert not torch.equal(first, train(BYTES, generator(2)))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(3)
    without = train(BYTES)
    torch.manual_seed(3)
    assert torch.equal(without, train(BYTES))


def test_the_images_given_are_left_alone():
    before = BYTES.clone()
    for transforms in TRANSFORMS.values():
        for transform in transforms:
            transform(BYTES, generator())
    assert torch.equal(before, BYTES)


def test_negative_padding_is_refused():
    with pytest.raises(ValueError, match=r"pad must be at least 0 pixels, got -1 \(int\)"):
        pad_crop(to_float(BYTES), -1)
