import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrnets_runtime import PackedFileError
from lrnets_runtime.graph import Weight
from lrnets_runtime.packing import check_packed, decode, pack, unpack

LEVELS = {"binary": (-1, 1), "ternary": (-1, 0, 1)}
CODINGS = sorted(LEVELS)


def packed_by_hand(weights, coding):
    per = {"binary": 8, "ternary": 5}[coding]
    result = []
    for start in range(0, len(weights), per):
        byte = 0
        for place in range(per):
            weight = weights[start + place] if start + place < len(weights) else None
            if coding == "binary":
                byte += (weight == 1) << place
            else:
                byte += ((weight or 0) + 1) * 3**place
        result.append(byte)
    return result


@pytest.mark.parametrize(
    ("coding", "weights", "expected"),
    [
        ("binary", [1], [0x01]),
        ("binary", [-1] * 8, [0x00]),
        ("binary", [1, -1, -1, -1, -1, -1, -1, 1, -1, 1], [0x81, 0x02]),
        ("ternary", [0], [121]),
        ("ternary", [-1] * 5, [0]),
        ("ternary", [1] * 5, [242]),
        ("ternary", [-1, 0, 1, 0, -1, 1], [0 + 3 + 18 + 27 + 0, 122]),
        ("binary", [], []),
        ("ternary", [], []),
    ],
)
def test_known_bytes(coding, weights, expected):
    packed = pack(np.array(weights, np.int8), coding)
    assert packed.dtype == np.uint8
    assert packed.tolist() == expected
    assert unpack(packed, coding, len(weights)).tolist() == weights


@pytest.mark.parametrize("coding", CODINGS)
@given(data=st.data())
def test_round_trip_and_loop(coding, data):
    weights = data.draw(st.lists(st.sampled_from(LEVELS[coding]), max_size=40))
    packed = pack(np.array(weights, np.int8), coding)
    assert packed.tolist() == packed_by_hand(weights, coding)
    back = unpack(packed, coding, len(weights))
    assert back.dtype == np.int8
    assert back.tolist() == weights


@pytest.mark.parametrize("coding", CODINGS)
@given(raw=st.binary(max_size=4), data=st.data())
def test_bytes_are_refused_or_canonical(coding, raw, data):
    """Whatever bytes are accepted are what packing their weights gives: one file for a network."""
    packed = np.frombuffer(raw, np.uint8)
    count = data.draw(st.integers(0, 36))
    try:
        weights = unpack(packed, coding, count)
    except PackedFileError:
        return
    assert pack(weights, coding).tolist() == packed.tolist()


def test_row_major_and_noncontiguous():
    weights = np.random.default_rng(0).integers(-1, 2, (3, 4, 5)).astype(np.int8)
    flat = [int(weights[i, j, k]) for i in range(3) for j in range(4) for k in range(5)]
    assert pack(weights, "ternary").tolist() == packed_by_hand(flat, "ternary")
    assert (
        pack(weights.transpose(2, 0, 1), "ternary").tolist()
        == pack(np.ascontiguousarray(weights.transpose(2, 0, 1)), "ternary").tolist()
    )
    decoded = decode(pack(weights, "ternary"), Weight("w", "ternary", (3, 4, 5)))
    np.testing.assert_array_equal(decoded, weights)


def test_decode_leaves_whole_bytes_and_floats():
    for dtype, coding in ((np.int8, "int8"), (np.float32, "float32")):
        tensor = np.arange(6).astype(dtype).reshape(2, 3)
        decoded = decode(tensor, Weight("w", coding, (2, 3)))
        assert decoded.dtype == dtype
        np.testing.assert_array_equal(decoded, tensor)


@pytest.mark.parametrize(
    ("coding", "weights", "message"),
    [
        ("binary", [1, 0, 1], r"weight 1 is 0; binary weights are -1 and \+1"),
        ("ternary", [1, 0, -1, 2], r"weight 3 is 2; ternary weights are -1, 0 and \+1"),
        ("ternary", [-128], "weight 0 is -128"),
        ("ternary", [0.5], "weight 0 is 0.5"),
        ("ternary", [float("nan")], "weight 0 is nan"),
        ("int8", [1], "only 'binary' and 'ternary'"),
    ],
)
def test_pack_refuses(coding, weights, message):
    with pytest.raises(ValueError, match=message):
        pack(np.array(weights), coding)


@pytest.mark.parametrize(
    ("coding", "packed", "count", "message"),
    [
        ("ternary", [121, 243], 10, "byte 1 is 243, above 242"),
        ("ternary", [120], 4, None),
        ("ternary", [40], 4, "what follows weight 3 must be weights of 0"),
        ("ternary", [121 + 81], 4, "what follows weight 3"),
        ("binary", [0b10], 1, "what follows weight 0 must be bits of 0"),
        ("binary", [0xFF, 0x80], 15, "what follows weight 14"),
        ("binary", [1, 2], 8, "2 bytes of binary weights, 1 expected for 8"),
        ("binary", [], 8, "0 bytes of binary weights, 1 expected"),
        ("ternary", [121], 6, "1 bytes of ternary weights, 2 expected"),
        ("binary", [[1]], 8, "one-dimensional uint8"),
    ],
)
def test_unpack_refuses(coding, packed, count, message):
    packed = np.array(packed, np.uint8)
    if message is None:
        check_packed(packed, coding, count)
        return
    with pytest.raises(PackedFileError, match=message):
        unpack(packed, coding, count)


def test_unpack_refuses_other_types():
    with pytest.raises(PackedFileError, match="got int64"):
        unpack(np.array([1]), "binary", 8)
