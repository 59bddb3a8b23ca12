"""Where values lie in memory: against a search place by place, and in the number that a file may ask for."""

import random

import pytest

from lrnets_runtime.arena import Span, place


def lowest_free(spans, offsets, number):
    """The lowest place where no byte is another's at any step of this one, of those that have an offset."""
    span = spans[number]
    taken = set()
    for other, offset in offsets.items():
        if set(range(span.first, span.last + 1)) & set(range(spans[other].first, spans[other].last + 1)):
            taken |= set(range(offset, offset + spans[other].bytes))
    offset = 0
    while taken & set(range(offset, offset + span.bytes)):
        offset += 1
    return offset


@pytest.mark.parametrize("seed", range(30))
def test_each_lies_as_low_as_it_can_the_largest_first(seed):
    rng = random.Random(seed)
    spans = []
    for _ in range(rng.randint(1, 25)):
        first = rng.randrange(12)
        spans.append(Span(rng.randint(1, 20), first, first + rng.randrange(5)))
    expected: dict[int, int] = {}
    for number in sorted(range(len(spans)), key=lambda number: -spans[number].bytes):
        expected[number] = lowest_free(spans, expected, number)
    offsets, total = place(spans)
    assert offsets == [expected[number] for number in range(len(spans))]
    assert total == max(offset + span.bytes for offset, span in zip(offsets, spans))


def test_nothing_takes_nothing():
    assert place([]) == ([], 0)


def test_a_chain_needs_the_two_largest_neighbours_and_a_fan_needs_all():
    chain = [Span(64, step, step + 1) for step in range(10_000)]
    assert place(chain)[1] == 128
    fan = [Span(64, step, 10_000) for step in range(10_000)]
    assert place(fan)[1] == 64 * 10_000
