"""Python batches are data, whatever program a pickle may be."""

import os
import pickle
import subprocess

import numpy as np
import pytest
from layouts import cifar_python

from lrnets.data.pickles import Inert, read_batch

IMAGES = np.random.default_rng(0).integers(256, size=(4, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1], dtype=np.uint8)


class Calls:
    """A pickle of this asks for a call."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def test_a_batch_as_python_2_wrote_it_reads_as_pickle_itself_reads_it():
    content = cifar_python(IMAGES, LABELS)
    trusted = pickle.loads(content, encoding="latin1")  # our own bytes
    pixels, labels = read_batch(content, "batch")
    assert np.array_equal(pixels, trusted["data"])
    assert labels.tolist() == trusted["labels"]
    assert np.array_equal(pixels, IMAGES.reshape(4, 3072))


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("keys", [("data", "labels"), (b"data", b"labels")])
def test_batches_pickled_by_python_3_are_read_too(protocol, keys):
    content = pickle.dumps(dict(zip(keys, (IMAGES.reshape(4, 3072), LABELS.tolist()))), protocol=protocol)
    pixels, labels = read_batch(content, "batch")
    assert np.array_equal(pixels, IMAGES.reshape(4, 3072))
    assert np.array_equal(labels, LABELS)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("place", ["whole", "data", "labels", "key"])
@pytest.mark.parametrize("function", [os.mkdir, eval, subprocess.check_call, np.load])
def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path, protocol, place, function):
    mark = tmp_path / "mark"
    argument = {eval: f"__import__('os').mkdir({str(mark)!r})", subprocess.check_call: ["mkdir", str(mark)]}
    evil = Calls(function, argument.get(function, str(mark)))
    batch = {"data": IMAGES.reshape(4, 3072), "labels": LABELS.tolist()}
    content = pickle.dumps(
        evil if place == "whole" else {evil: 1, **batch} if place == "key" else {**batch, place: evil},
        protocol=protocol,
    )
    with pytest.raises(ValueError, match=r"batch: not a CIFAR-10 Python batch \(ValueError: it asks for .*nothing was"):
        read_batch(content, "batch")
    assert not mark.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\nndarray\n}b.",  # state for the class itself
        b"cnumpy\nndarray\n}U\x08__init__Nsb.",
        b"cnumpy\nndarray\n(N}U\x0c__setstate__Nstb.",
        b"cnumpy\nndarray\n)\x81}U\x05stateNsb.",
        b"cnumpy\ndtype.__class__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
        b"cos\nsystem\n(U\x04truetR.",
        b"(U\x04trueios\nsystem\n.",
        b"(cos\nsystem\nU\x04trueo.",
        b"\x82\x01.",  # an extension code
        b"U\x01aQ.",  # a persistent name
        b"]q\x01h\x01a.",  # a list that holds itself
        b"N.",
        b".",
        b"",
    ],
)
def test_crooked_programs_are_refused_and_leave_the_reader_as_it_was(program):
    before = dict(vars(Inert))
    for prefix in (b"", b"\x80\x02"):
        with pytest.raises(ValueError, match="batch: not a CIFAR-10 Python batch"):
            read_batch(prefix + program, "batch")
    assert dict(vars(Inert)) == before


def test_arrays_of_another_type_shape_or_order_are_refused():
    pixels = IMAGES.reshape(4, 3072)
    for wrong in (pixels.astype(np.int32), pixels[:, :3000], pixels.reshape(-1), np.asfortranarray(pixels)):
        content = pickle.dumps({"data": wrong, "labels": LABELS.tolist()}, protocol=4)
        with pytest.raises(ValueError, match="expected b'u1' and \\(n, 3072\\) in C order"):
            read_batch(content, "batch")
    with pytest.raises(ValueError, match="batch: 3 labels, 4 expected"):
        read_batch(pickle.dumps({"data": pixels, "labels": [1, 2, 3]}, protocol=4), "batch")


def test_a_batch_cut_anywhere_is_refused():
    content = cifar_python(IMAGES, LABELS)
    for length in [*range(200), *range(200, len(content), 997), len(content) - 1]:
        with pytest.raises(ValueError, match="not a CIFAR-10 Python batch"):
            read_batch(content[:length], "batch")
