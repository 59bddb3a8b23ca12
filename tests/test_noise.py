"""Noise is standard normal, laid out like its model, and reproducible whatever the number of threads."""

from __future__ import annotations

import math

import pytest
import torch

from lrnets import noise
from lrnets.noise import LONG, noise_blocks, standard_normal_like

SHORT, LONGER = LONG - 1, 3 * LONG + 12345  # torch's own numbers; the table's, with a last part that is not full
every_length = pytest.mark.parametrize("count", [1000, SHORT, LONGER], ids=["1000", "short", "long"])


@pytest.fixture
def threads():
    """Set torch's number of threads; it is put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def seeded(seed: int, like: torch.Tensor) -> torch.Tensor:
    return standard_normal_like(like, torch.Generator().manual_seed(seed))


# ---- distribution ---------------------------------------------------------------------------------------------------


@every_length
def test_noise_is_standard_normal(count):
    sample = seeded(0, torch.empty(count, dtype=torch.float64))
    # The k-th sample moment of n normal numbers has variance (E[x^2k] - E[x^k]^2) / n; E[x^2, 4, 6, 8] = 1, 3, 15, 105.
    for power, expected, variance in [(1, 0, 1), (2, 1, 3 - 1), (3, 0, 15), (4, 3, 105 - 9)]:
        assert abs(sample.pow(power).mean().item() - expected) < 5 * math.sqrt(variance / count)
    # Kolmogorov-Smirnov: P(sup |F_n - F| > d) <= 2 exp(-2 n d^2), which is 1e-6 at this d (Massart).
    rising = torch.special.ndtr(sample.sort().values)
    steps = torch.arange(1, count + 1, dtype=torch.float64) / count
    assert (rising - steps).abs().max() < math.sqrt(math.log(2e6) / (2 * count)) + 1 / count


@every_length
@pytest.mark.parametrize("lag", [1, 2, 3, 4, 7, 500])
def test_neighbours_are_uncorrelated_and_so_are_their_squares(count, lag):
    """Four long numbers come from one 64-bit word, so lags 1 to 3 stay within it and 4 leaves it.

    The mean of n products has standard error 1 / sqrt(n) for standard normal numbers, Var[x^2] / sqrt(n) = 2 / sqrt(n)
    for their squares.
    """
    sample = seeded(1, torch.empty(count, dtype=torch.float64))
    ahead, behind = sample[lag:], sample[:-lag]
    n = len(ahead)
    assert abs((ahead * behind).mean().item()) < 5 / math.sqrt(n)
    assert abs(((ahead**2 - 1) * (behind**2 - 1)).mean().item()) < 5 * 2 / math.sqrt(n)


@every_length
def test_successive_calls_are_independent_of_each_other(count):
    generator = torch.Generator().manual_seed(2)
    first, second = (standard_normal_like(torch.empty(count), generator) for _ in range(2))
    assert abs((first * second).mean().item()) < 5 / math.sqrt(count)


def test_long_noise_takes_65536_values_that_have_the_moments_of_a_normal_number():
    """In 2^21 numbers each of the 2^16 values is missing with probability e^-32, so the values seen are the table."""
    table = seeded(3, torch.empty(1 << 21)).unique().double()
    slices = 1 << 16
    assert len(table) == slices
    # Equally probable: plain means over the table are expectations. Float32 rounds each value at 2^-24 of at most 4.4.
    assert abs(table.mean().item()) < 1e-6
    assert abs(table.square().mean().item() - 1) < 1e-6
    # A slice narrower than 2^-16 in probability holds a value of its own: no further from the distribution function.
    lower = torch.arange(slices, dtype=torch.float64) / slices
    reached = torch.special.ndtr(table)
    assert (reached >= lower - 1e-7).all()
    assert (reached <= lower + 1 / slices + 1e-7).all()
    # What lies beyond the last slice's mean is lost to it: E[x^4; x > 4.17] - 2^-16 * 4.39^4 on both sides is 3e-4.
    assert abs(table.pow(4).mean().item() - 3) < 5e-4
    torch.testing.assert_close(table, -table.flip(0), rtol=0, atol=1e-6)


def test_values_of_long_noise_are_equally_frequent():
    """2^22 numbers in 2^16 equal cells, 64 each: chi^2 with k degrees of freedom exceeds this one time in a million.

    P(chi^2 >= k + 2 sqrt(k t) + 2 t) <= e^-t (Laurent and Massart), t = 14.
    """
    _, counts = seeded(4, torch.empty(1 << 22)).unique(return_counts=True)
    chi_square = ((counts.double() - 64) ** 2 / 64).sum().item()
    k, t = (1 << 16) - 1, 14
    assert chi_square < k + 2 * math.sqrt(k * t) + 2 * t


# ---- seeds ----------------------------------------------------------------------------------------------------------


@every_length
def test_equal_seeds_give_equal_noise_and_others_do_not(count):
    like = torch.empty(count)
    assert torch.equal(seeded(3, like), seeded(3, like))
    assert not torch.equal(seeded(3, like), seeded(4, like))


def test_short_noise_is_torchs_own():
    """Bit for bit, so that a seed means what it means to torch."""
    torch.manual_seed(5)
    expected = torch.randn(SHORT)
    torch.manual_seed(5)
    assert torch.equal(standard_normal_like(torch.empty(SHORT)), expected)


@every_length
def test_noise_does_not_depend_on_the_number_of_threads(threads, count):
    drawn = []
    for number in (1, 2, 3):
        threads(number)
        drawn.append(seeded(6, torch.empty(count)))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


@every_length
def test_without_a_generator_torchs_own_is_used(count):
    like = torch.empty(count)
    torch.manual_seed(6)
    first, second = standard_normal_like(like), standard_normal_like(like)
    torch.manual_seed(6)
    assert torch.equal(standard_normal_like(like), first)
    assert not torch.equal(first, second)


@every_length
def test_a_generator_leaves_torchs_own_alone(count):
    state = torch.get_rng_state()
    sample = seeded(7, torch.empty(count))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    assert torch.equal(seeded(7, torch.empty(count)), sample)


@pytest.mark.parametrize("block", [4, 64, 1000, 1 << 20])
@pytest.mark.parametrize("count", [1, 63, 1001])
def test_blocks_of_noise_make_up_the_same_sequence(block, count):
    def sequence(block: int) -> torch.Tensor:
        parts = [part.clone() for part in noise_blocks(count, block, torch.Generator().manual_seed(0))]
        assert [len(part) for part in parts[:-1]] == [block] * (len(parts) - 1)
        return torch.cat(parts)

    assert len(sequence(block)) == count
    assert torch.equal(sequence(block), sequence(count + 3 - (count + 3) % 4))


# ---- layout ---------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": torch.empty(4, 3, 5, 6),
    "channels last": torch.empty(4, 3, 5, 6).to(memory_format=torch.channels_last),
    "channels last, one channel": torch.empty(4, 1, 5, 6).to(memory_format=torch.channels_last),
    "channels last 3d": torch.empty(2, 3, 2, 5, 6).to(memory_format=torch.channels_last_3d),
    "transposed": torch.empty(8, 9).T,
    "every other column": torch.empty(8, 10)[:, ::2],
    "expanded": torch.empty(1, 10).expand(6, 10),
    "scalar": torch.empty(()),
    "empty": torch.empty(0, 3),
}


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_noise_has_shape_dtype_and_layout_of_its_model(monkeypatch, layout, dtype, long):
    if long:
        monkeypatch.setattr(noise, "LONG", 24)
    like = LAYOUTS[layout].to(dtype)
    sample = seeded(9, like)
    assert sample.shape == like.shape
    assert sample.dtype == dtype
    assert sample.stride() == torch.empty_like(like).stride()
    assert len(sample.unique()) >= min(sample.numel(), 30)  # all of it was filled, and with different numbers


@pytest.mark.parametrize("length", [24, 1000], ids=["long", "short"])
def test_channels_last_noise_is_filled_in_the_order_of_memory(monkeypatch, length):
    monkeypatch.setattr(noise, "LONG", length)
    like = torch.empty(4, 3, 5, 6)
    flat = seeded(10, torch.empty(like.numel()))
    last = seeded(10, like.to(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last.permute(0, 2, 3, 1).reshape(-1), flat)


def test_noise_on_another_device_stays_there():
    assert standard_normal_like(torch.empty(2 * LONG, device="meta")).is_meta
