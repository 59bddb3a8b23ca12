"""Batches: every example once, the same order for the same seed, and exact continuation."""

from itertools import islice

import pytest
import torch

from lrnets.data import TRANSFORMS, Batches, Split


def numbered(count: int) -> Split:
    """A split whose labels are the places of its examples, and whose images show them."""
    labels = torch.arange(count)
    return Split(labels.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).contiguous(), labels)


def noisy(count: int, **arguments) -> Batches:
    torch.manual_seed(0)
    split = Split(torch.randint(256, (count, 3, 8, 8), dtype=torch.uint8), torch.arange(count))
    return Batches(split, 5, transform=TRANSFORMS["cifar10"].train, shuffle=True, **arguments)


def same(first, second) -> bool:
    first, second = list(first), list(second)
    return len(first) == len(second) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(first, second)
    )


def test_in_order_without_shuffling_and_as_they_are_without_a_transform():
    split = numbered(11)
    batches = Batches(split, 4)
    assert [y.tolist() for _, y in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert torch.equal(torch.cat([x for x, _ in batches]), split.images)
    assert len(batches) == 3
    assert [len(y) for _, y in Batches(split, 4, drop_last=True)] == [4, 4]


@pytest.mark.parametrize("count", [12, 20, 22, 23, 24, 40])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_together_have_every_example_once_in_equally_many_batches(count, world, drop_last):
    shards = [
        Batches(numbered(count), 4, shuffle=True, seed=3, rank=rank, world=world, drop_last=drop_last)
        for rank in range(world)
    ]
    steps = list(zip(*([y for _, y in shard] for shard in shards), strict=True))
    assert {len(steps)} == {len(shard) for shard in shards}
    seen = torch.cat([y for step in steps for y in step])
    assert len(seen) == len(seen.unique()) == (count // (4 * world) * 4 * world if drop_last else count)
    for step in steps[:-1]:
        assert [len(y) for y in step] == [4] * world
    assert all(1 <= len(y) <= 4 for y in steps[-1])
    # A step of all ranks is the step of one process with the larger batch.
    alone = Batches(numbered(count), 4 * world, shuffle=True, seed=3, drop_last=drop_last)
    assert all(torch.equal(torch.cat(step), y) for step, (_, y) in zip(steps, alone, strict=True))


def test_images_stay_with_their_labels():
    for x, y in Batches(numbered(50), 8, shuffle=True):
        assert torch.equal(x[:, 0, 0, 0].long(), y)


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [
        tuple(torch.cat([y for _, y in Batches(numbered(50), 8, shuffle=True, seed=seed).at(epoch)]).tolist())
        for seed in (0, 1)
        for epoch in (0, 1, 2)
    ]
    assert len(set(orders)) == 6
    batches = Batches(numbered(50), 8, shuffle=True)
    assert [tuple(torch.cat([y for _, y in batches]).tolist()) for _ in range(3)] == orders[:3]


def test_the_global_random_state_is_neither_used_nor_touched():
    batches = noisy(22)
    first = list(batches.at(0))
    state = torch.get_rng_state()
    torch.manual_seed(9)
    moved = torch.get_rng_state()
    assert same(first, batches.at(0))
    assert torch.equal(torch.get_rng_state(), moved)
    torch.set_rng_state(state)


@pytest.mark.parametrize("taken", [0, 1, 3, 5, 7, 9])
def test_a_run_continues_exactly_where_its_state_was_taken_augmentation_included(taken):
    straight = noisy(22)
    everything = [pair for _ in range(3) for pair in straight]  # 3 epochs of 5 batches
    interrupted = noisy(22)
    used, state = [], interrupted.state_dict()
    while len(used) < taken:
        for pair in interrupted:
            used.append(pair)
            if len(used) == taken:
                break
        state = interrupted.state_dict()
    resumed = noisy(22)
    resumed.load_state_dict(state)
    rest = [pair for _ in range(3 - state["epoch"]) for pair in resumed]
    assert same(used + rest, everything)
    assert state == {"epoch": taken // 5, "batch": taken % 5}


def test_ranks_have_noise_of_their_own_and_keep_it_when_resumed():
    shards = [noisy(40, rank=rank, world=2) for rank in range(2)]
    for shard in shards:
        assert same(islice(shard.at(1), 2, None), shard.at(1, 2))
    one = Split(torch.randint(256, (1, 3, 8, 8), dtype=torch.uint8).expand(40, 3, 8, 8), torch.arange(40))
    first, second = (
        next(iter(Batches(one, 20, transform=TRANSFORMS["cifar10"].train, rank=rank, world=2)))[0] for rank in range(2)
    )
    assert not torch.equal(first, second)


def test_every_seed_epoch_and_batch_has_noise_of_its_own():
    one = Split(torch.randint(256, (1, 3, 8, 8), dtype=torch.uint8).expand(40, 3, 8, 8), torch.arange(40))
    runs = [Batches(one, 20, transform=TRANSFORMS["cifar10"].train, seed=seed) for seed in range(2)]
    inputs = [x for run in runs for epoch in range(2) for x, _ in run.at(epoch)]
    assert all(not torch.equal(a, b) for i, a in enumerate(inputs) for b in inputs[:i])


def test_an_iteration_given_up_half_way_does_not_shift_the_next():
    batches = noisy(22)
    expected = list(batches.at(0))
    list(islice(batches, 2))  # such as statistics of batch norm take
    assert batches.state_dict() == {"epoch": 0, "batch": 2}
    assert same(batches, expected)
    assert batches.state_dict() == {"epoch": 1, "batch": 0}


def test_looking_at_an_epoch_leaves_the_position_alone():
    batches = noisy(22)
    running = iter(batches)
    next(running)
    list(batches.at(7))
    assert batches.state_dict() == {"epoch": 0, "batch": 1}
    assert same(running, batches.at(0, 1))


def test_set_epoch_starts_where_it_says():
    batches = noisy(22)
    batches.set_epoch(4, 3)
    assert same(batches, batches.at(4, 3))
    assert batches.state_dict() == {"epoch": 5, "batch": 0}
    batches.set_epoch(4, 3)
    next(iter(batches))
    assert same(batches, batches.at(4))  # begun and given up: anew, from the first batch
    with pytest.raises(ValueError, match="epoch 0, batch 6; there are epochs from 0 on, of 5 batches"):
        batches.set_epoch(0, 6)


def test_an_empty_split_has_no_batches():
    assert list(Batches(numbered(0), 4, shuffle=True)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, r"batch_size must be a whole number of at least 1, got 0 \(int\)"),
        ({"batch_size": 2.5}, r"got 2.5 \(float\)"),
        ({"batch_size": 4, "rank": 2, "world": 2}, "rank 2 of 2 processes"),
        ({"batch_size": 5, "world": 2}, "21 examples in steps of 2 x 5 leave 1 for the last one.*drop_last=True"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Batches(numbered(21), **arguments)
