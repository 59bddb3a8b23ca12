"""The validation split is the same everywhere; the test set waits until it is asked for."""

import hashlib
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import place

from lrnets.data import Split, load, stratified
from lrnets.data.shuffle import mix, permutation, stream


def test_the_stream_is_splitmix64():
    """Numbers of the published C code for the seed 1234567."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert stream(4, 1234567).tolist() == expected


def test_keys_are_mixed_in_their_order_and_each_counts():
    seeds = {mix(*keys) for keys in [(), (0,), (1,), (-1,), (0, 0), (0, 1), (1, 0), (2**64 + 1, 7), (2**63,)]}
    assert len(seeds) == 9
    assert mix(1) == mix(2**64 + 1)


def test_a_permutation_is_one_and_looks_like_chance():
    order = permutation(10_000, 3)
    assert torch.equal(order.sort().values, torch.arange(10_000))
    # Rank correlation with the place has deviation 1 / sqrt(n - 1) = 0.01; fixed points are Poisson with mean 1.
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.04
    assert (order == torch.arange(10_000)).sum() < 8
    assert not torch.equal(order, permutation(10_000, 4))


def test_the_split_is_pinned():
    """This must never change: validation errors that were published belong to this split."""
    labels = torch.from_numpy((stream(60_000, 1) % np.uint64(10)).astype(np.int64))
    _, valid = stratified(labels, 5000)
    digest = hashlib.sha256(valid.numpy().astype("<i8").tobytes()).hexdigest()
    assert digest == "4b1ba65f829793dbf9936e8580ff36274a8f328ac456ef6302b46b8a0fe67e57"


def test_the_split_is_what_plain_whole_numbers_give():
    def scramble(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    gamma = 0x9E3779B97F4A7C15
    labels = [0] * 50 + [1] * 31 + [2] * 19
    numbers = [scramble((scramble(gamma ^ 2018) + (i + 1) * gamma) % 2**64) for i in range(100)]
    order = sorted(range(100), key=numbers.__getitem__)
    chosen = []
    for label, places in ((0, 10), (1, 6), (2, 4)):  # of 10, 6.2 and 3.8
        chosen += [i for i in order if labels[i] == label][:places]
    assert stratified(torch.tensor(labels), 20)[1].tolist() == sorted(chosen)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_classes_are_as_frequent_in_the_split_as_in_all(labels, data):
    size = data.draw(st.integers(0, len(labels) - 1))
    labels = torch.tensor(labels)
    train, valid = stratified(labels, size)
    assert len(valid) == size
    assert torch.equal(torch.cat([train, valid]).sort().values, torch.arange(len(labels)))
    for part in (train, valid):
        assert torch.equal(part, part.sort().values)
    for label in labels.unique():
        fair = size * (labels == label).sum() / len(labels)
        assert abs((labels[valid] == label).sum() - fair) < 1


def test_of_classes_with_equal_claims_the_first_have_the_places():
    assert stratified(torch.arange(40), 5)[1].tolist() == [0, 1, 2, 3, 4]


def test_the_split_ignores_and_leaves_the_global_random_state():
    labels = torch.arange(100) % 10
    torch.manual_seed(1)
    first = stratified(labels, 30)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = stratified(labels, 30)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_train_and_valid_are_the_official_training_set_and_nothing_of_the_test_set(small, tmp_path):
    place(small.plain, tmp_path)
    data = load(small.data_set.name, tmp_path, valid_size=10)
    images, labels = (torch.from_numpy(array) for array in small.examples["train"])
    train, valid = stratified(labels, 10)
    for split, index in ((data.train, train), (data.valid, valid)):
        assert torch.equal(split.images, images[index])
        assert torch.equal(split.labels, labels[index].long())
    assert data.valid.labels.bincount().tolist() == [1] * 10
    assert data.classes == small.data_set.classes
    assert data.name == small.data_set.name


def test_test_files_are_not_opened_before_they_are_asked_for(small, tmp_path):
    test_names = {file.name for file in small.data_set.test}
    place({name: content for name, content in small.plain.items() if name not in test_names}, tmp_path)
    data = load(small.data_set.name, tmp_path, valid_size=10)
    assert not data.test_was_read
    with pytest.raises(FileNotFoundError, match=f"lrnets data {small.data_set.name}"):
        _ = data.test
    assert not data.test_was_read
    place(small.plain, tmp_path)
    assert np.array_equal(data.test.images.numpy(), small.examples["test"][0])
    assert data.test_was_read
    assert data.test is data.test


def test_data_travels_to_other_processes_with_the_test_set_still_unread(small, tmp_path):
    place(small.plain, tmp_path)
    data = pickle.loads(pickle.dumps(load(small.data_set.name, tmp_path, valid_size=10)))
    assert not data.test_was_read
    assert np.array_equal(data.test.labels.numpy(), small.examples["test"][1])


def test_all_training_images_may_be_trained_on(small, tmp_path):
    place(small.plain, tmp_path)
    data = load(small.data_set.name, tmp_path, valid_size=0)
    assert len(data.train) == len(small.examples["train"][1])
    assert len(data.valid) == 0
    assert data.valid.images.shape[1:] == data.train.images.shape[1:]


@pytest.mark.parametrize("size", [-1, 100, 0.1, True])
def test_impossible_validation_sizes_are_refused(size):
    with pytest.raises(ValueError, match="validation examples of 100; choose a whole number from 0 to 99"):
        stratified(torch.zeros(100, dtype=torch.long), size)


def test_a_split_of_images_and_labels_that_do_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"\(3, 1, 2, 2\) and labels of shape \(2,\)"):
        Split(torch.zeros(3, 1, 2, 2), torch.zeros(2))


def test_a_split_moves_to_a_device():
    split = Split(torch.zeros(3, 1, 2, 2), torch.zeros(3)).to("meta")
    assert split.images.device.type == split.labels.device.type == "meta"
    assert len(split[:2]) == 2
