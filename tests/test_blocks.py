"""Blocks change where arithmetic happens in memory, never its result."""

from __future__ import annotations

import pytest
import torch

from lrnets import blocks
from lrnets.blocks import in_blocks, works_in_blocks


def recorded(function):
    """`function` and the list of how many weights each of its calls was given."""
    calls: list[int] = []

    def recording(logits, *others):
        calls.append(logits[0].numel())
        assert all(other.shape == logits.shape[1:] for other in others)
        return function(logits, *others)

    return recording, calls


def two_tensors(logits, other):
    """A tuple of tensors of the weight's shape, different for every logit and weight."""
    return logits[0] - 2 * logits[1] + 3 * other, logits[0] * logits[1] * other


def one_tensor(logits, other):
    """One tensor with a dimension in front, of another size than the logits'."""
    return torch.stack([logits[0] + other, logits[1] * other, logits[0] - logits[1]])


def results(part):
    return part if isinstance(part, tuple) else (part,)


def logits_in(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (2, *shape) and a tensor of `shape` whose dimensions lie in memory in `order`, outermost first."""
    generator = torch.Generator().manual_seed(0)
    back = sorted(range(len(order)), key=order.__getitem__)
    stored = [shape[d] for d in order]
    logits = torch.randn(2, *stored, generator=generator).permute(0, *(d + 1 for d in back))
    other = torch.randn(stored, generator=generator).permute(back)
    assert logits.shape == (2, *shape)
    assert other.shape == shape
    return logits, other


@pytest.mark.parametrize("function", [two_tensors, one_tensor])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((50,), (0,)),
        ((7, 11), (0, 1)),
        ((7, 11), (1, 0)),
        ((4, 3, 2, 5), (0, 1, 2, 3)),
        ((4, 3, 2, 5), (0, 2, 3, 1)),  # channels last
        ((4, 3, 2, 5), (3, 1, 0, 2)),
        ((4, 1, 5, 1), (0, 2, 3, 1)),  # strides of dimensions of size 1 say nothing
    ],
)
def test_blocks_give_exactly_the_result_of_one_go(monkeypatch, function, shape, order):
    logits, other = logits_in(shape, order)
    whole = function(logits, other)
    monkeypatch.setattr(blocks, "BLOCK", 8)
    recording, calls = recorded(function)
    parts = in_blocks(recording, logits, other)
    count = other.numel()
    assert calls == [8] * (count // 8) + [count % 8] * bool(count % 8)
    assert type(parts) is type(whole)
    for part, expected in zip(results(parts), results(whole)):
        assert part.dtype == expected.dtype
        assert torch.equal(part, expected)  # the same arithmetic on the same numbers: no rounding to allow for


def test_tensors_laid_out_differently_from_the_logits_meet_the_right_logits(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 8)
    logits, _ = logits_in((4, 3, 2, 5), (0, 2, 3, 1))
    _, other = logits_in((4, 3, 2, 5), (0, 1, 2, 3))
    for part, expected in zip(in_blocks(two_tensors, logits, other), two_tensors(logits, other)):
        assert torch.equal(part, expected)


def test_a_slice_of_larger_logits_is_read_where_it_lies(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 8)
    logits, other = logits_in((12, 7), (0, 1))
    for part, expected in zip(
        in_blocks(two_tensors, logits[:, 2:9], other[2:9]), two_tensors(logits[:, 2:9], other[2:9])
    ):
        assert torch.equal(part, expected)


@pytest.mark.parametrize(("count", "calls_made"), [(15, 1), (16, 1), (17, 3)])
def test_blocks_start_above_twice_their_size(monkeypatch, count, calls_made):
    monkeypatch.setattr(blocks, "BLOCK", 8)
    logits, other = logits_in((count,), (0,))
    recording, calls = recorded(two_tensors)
    in_blocks(recording, logits, other)
    assert len(calls) == calls_made
    assert sum(calls) == count


def test_no_blocks_off_the_cpu(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 8)
    logits = torch.zeros(2, 100, device="meta")
    recording, calls = recorded(two_tensors)
    difference, product = in_blocks(recording, logits, torch.zeros(100, device="meta"))
    assert calls == [100]
    assert difference.is_meta
    assert product.is_meta
    assert works_in_blocks(torch.zeros(1))
    assert not works_in_blocks(logits)


def test_results_may_be_changed_in_place_without_touching_the_logits(monkeypatch):
    """The sampler scales moments in place, so blocks must hand out memory of their own."""
    monkeypatch.setattr(blocks, "BLOCK", 8)
    logits, other = logits_in((50,), (0,))
    before = logits.clone(), other.clone()
    for result in in_blocks(lambda logits, other: (logits[0], other), logits, other):
        result.mul_(7)
    assert torch.equal(logits, before[0])
    assert torch.equal(other, before[1])
