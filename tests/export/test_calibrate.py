"""Steps for bytes, against NumPy by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from export_networks import Branches, ResNet, drawn
from lrnets_runtime import reference
from torch import Tensor, nn

from lrnets.export.calibrate import calibrate
from lrnets.export.fold import fold, quantize_weights
from lrnets.export.trace import Traced, trace
from lrnets.models import mnist_net


def random(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def folded() -> Traced:
    """input -> conv (relu) -> pool -> reshape -> fc -> softmax."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(),
        nn.Linear(4, 3), nn.Softmax(-1),
    )  # fmt: skip
    return fold(trace(net, random(1, 2, 4, 4)))


def value_after(traced: Traced, name: str, x: np.ndarray) -> np.ndarray:
    """What the reference has for a value: the whole graph, with this as its output."""
    return reference.run(replace(traced.graph, output=name), traced.tensors, x)


@pytest.mark.parametrize("method", ["max", "percentile"])
def test_ranges_by_hand(folded: Traced, method: str) -> None:
    batches = [random(8, 2, 4, 4, seed=seed) for seed in (1, 2, 3)]
    found = calibrate(*folded, batches, method=method, percentile=90)
    conv, pool, flat, fc = (node.output for node in folded.graph.nodes[:4])
    assert set(found) == {"input", conv, pool, flat, fc}  # not what softmax reads, not the output
    for name, steps, zero in (("input", 127, 128), (conv, 255, 0), (fc, 255, 0)):
        sizes = [np.abs(value_after(folded, name, batch.numpy())) for batch in batches]
        limit = max(s.max() if method == "max" else np.percentile(s, 90) for s in sizes)
        assert found[name] == (pytest.approx(limit / steps, rel=1e-6), zero)
    assert found[pool] == found[flat] == found[conv]


def test_batches_may_be_arrays_pairs_or_one_tensor(folded: Traced) -> None:
    x = random(8, 2, 4, 4)
    expected = calibrate(*folded, [x])
    for batches in (x, [x.numpy()], [(x, torch.zeros(8))], iter([[x]])):
        assert calibrate(*folded, batches) == expected


def test_what_passes_bytes_to_the_output_stays_in_float() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.MaxPool2d(2), nn.Flatten())
    assert set(calibrate(*fold(trace(net, random(1, 2, 4, 4))), random(4, 2, 4, 4))) == {"input"}


def test_sums_too_deep_for_int32_are_left_in_float() -> None:
    wide = 2**31 // (255 * 128) + 1
    net = nn.Sequential(nn.Linear(2, wide), nn.Linear(wide, 2), nn.ReLU(), nn.Linear(2, 2))
    exact = fold(trace(net, random(1, 2)))
    assert len(calibrate(*exact, random(4, 2))) == 3
    found = calibrate(*quantize_weights(exact), random(4, 2))
    assert set(found) == {"input", exact.graph.nodes[1].output}


def test_a_value_that_is_0_or_almost_always_0_has_a_step() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    folded = fold(trace(net, random(1, 2)))
    assert calibrate(*folded, torch.zeros(4, 2))["input"] == (1.0, 0)
    rare = torch.zeros(100, 2)
    rare[0, 0] = 510
    assert calibrate(*folded, rare, percentile=50)["input"] == (2.0, 0)


def test_wrong_arguments_are_refused(folded: Traced) -> None:
    x = random(2, 2, 4, 4)
    with pytest.raises(ValueError, match="method must be 'percentile' or 'max', got 'mean'"):
        calibrate(*folded, [x], method="mean")
    with pytest.raises(ValueError, match="percentile must be above 0 and at most 100, got 0"):
        calibrate(*folded, [x], percentile=0)
    with pytest.raises(ValueError, match="no batch to calibrate with"):
        calibrate(*folded, [])
    with pytest.raises(ValueError, match=r"has shape \(2, 4, 4\); the network takes \(batch, 2, 4, 4\)"):
        calibrate(*folded, [x[0]])
    with pytest.raises(TypeError, match="calibration must be batches, such as a DataLoader gives, got 5"):
        calibrate(*folded, 5)
    with pytest.raises(TypeError, match=r"a calibration batch is .*; give an array or tensor of inputs, or a tuple"):
        calibrate(*folded, [{"pixels": x}])
    with pytest.raises(ValueError, match="value 'input' is NaN or infinite"):
        calibrate(*folded, [x * float("nan")])


@pytest.mark.parametrize("build", [mnist_net, ResNet, Branches])
@pytest.mark.parametrize("values", ["binary", "ternary"])
def test_bytes_decide_like_floats(build: type[nn.Module], values: str) -> None:
    """Top-1 agreement with float32, on inputs the calibration has not seen; and close outputs."""
    torch.manual_seed(0)
    shape = {mnist_net: (1, 28, 28), ResNet: (3, 16, 16), Branches: (3, 8, 8)}[build]
    net = drawn(build(), values)
    exact = fold(trace(net, random(1, *shape)))
    small = quantize_weights(exact)
    steps = calibrate(*small, [random(32, *shape, seed=seed) for seed in (1, 2)])
    x = random(128, *shape, seed=9).numpy()
    floats = reference.run(*exact, x)
    bytes_ = reference.run(replace(small.graph, quantization=steps), small.tensors, x)
    assert np.mean(floats.argmax(1) == bytes_.argmax(1)) >= 0.9
    assert np.sqrt(np.mean((floats - bytes_) ** 2)) <= 0.05 * floats.std()
