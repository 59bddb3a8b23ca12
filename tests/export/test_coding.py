"""Weights are recognised from their numbers, and nothing is lost."""

import numpy as np
import pytest
import torch
from lrnets_runtime.graph import Weight
from lrnets_runtime.packing import decode
from torch import Tensor

from lrnets.export.coding import Coded, pack, quantized, recognise


def restored(coded: Coded, shape: tuple[int, ...]) -> np.ndarray:
    """scale * numbers, from the packed bytes."""
    numbers = decode(pack(coded), Weight("w", coded.coding, shape)).astype(np.float64)
    scale = np.ones(shape[0]) if coded.scale is None else coded.scale
    return numbers * scale.reshape(-1, *[1] * (len(shape) - 1))


def draw(levels: list[float], shape: tuple[int, ...]) -> Tensor:
    picks = torch.randint(len(levels), shape, generator=torch.Generator().manual_seed(0))
    return torch.tensor(levels)[picks]


@pytest.mark.parametrize("scale", [1.0, 0.0371])
@pytest.mark.parametrize(
    ("levels", "coding"),
    [
        ([-1, 1], "binary"),
        ([-1, 0, 1], "ternary"),
        ([0, 1], "ternary"),
        ([-2, -1, 0, 1, 2], "int8"),
        ([-1, -1 / 3, 1 / 3, 1], "int8"),
        ([-7, -3.5, 0.5, 7], "int8"),
        (list(range(-12, 13)), "int8"),
        ([0.1, 0.27182, 1], "float32"),
    ],
)
def test_the_smallest_exact_coding_is_found(levels: list[float], coding: str, scale: float) -> None:
    weight = draw(levels, (6, 3, 3, 3)) * scale
    coded = recognise(weight)
    assert coded.coding == coding
    np.testing.assert_allclose(restored(coded, (6, 3, 3, 3)), weight.double().numpy(), rtol=1.2e-7)


def test_binary_and_ternary_scales_are_exact() -> None:
    weight = draw([-1, 0, 1], (4, 5)) * 0.0371
    assert np.array_equal(restored(recognise(weight), (4, 5)), weight.double().numpy())


def test_levels_that_are_whole_numbers_have_no_scale() -> None:
    for levels in ([-1.0, 1.0], [-1.0, 0.0, 1.0], [-2.0, -1.0, 0.0, 1.0, 2.0]):
        assert recognise(draw(levels, (6, 6))).scale is None


@pytest.mark.parametrize(("levels", "coding"), [([-1, 1], "binary"), ([-1, 0, 1], "ternary")])
def test_a_scale_for_each_channel_is_recognised(levels: list[float], coding: str) -> None:
    weight = draw(levels, (4, 5)) * torch.tensor([[0.1], [0.2], [0.3], [0.4]])
    weight[3] = weight[3].abs() if coding == "binary" else 0  # a channel without signs, one without weights
    coded = recognise(weight)
    assert coded.coding == coding
    assert np.array_equal(restored(coded, (4, 5)), weight.double().numpy())


def test_floats_stay_floats_however_few() -> None:
    for shape in ((1, 1), (5, 1, 1, 1), (1, 2), (4, 3)):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(3))
        assert recognise(weight).coding == "float32"
        assert np.array_equal(recognise(weight).numbers, weight.numpy())


def test_zeros_are_ternary() -> None:
    coded = recognise(torch.zeros(3, 4))
    assert coded.coding == "ternary"
    assert coded.scale is None


def test_memory_format_does_not_matter() -> None:
    weight = draw([-0.5, 0, 0.5], (4, 3, 2, 2))
    other = recognise(weight.contiguous(memory_format=torch.channels_last))
    assert np.array_equal(pack(recognise(weight)), pack(other))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_number_formats(dtype: torch.dtype) -> None:
    weight = draw([-2, -1, 0, 1, 2], (4, 6)).to(dtype) * 0.0371
    assert recognise(weight).coding == "int8"
    assert recognise(weight.sign()).coding == "ternary"


def test_int8_by_hand() -> None:
    weight = np.array([[1.27, -0.635, 0.004], [0, 0, 0]], np.float32)
    coded = quantized(weight)
    np.testing.assert_array_equal(coded.numbers, [[127, -64, 0], [0, 0, 0]])  # -63.5 goes to the even -64
    np.testing.assert_allclose(coded.scale, [0.01, 1], rtol=1e-6)
    assert np.abs(restored(coded, (2, 3)) - weight).max() <= 0.005 + 1e-9
