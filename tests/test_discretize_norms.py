"""Batch norm of drawn networks: statistics anew, or the old ones back."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import lrnets


def test_update_bn_gives_the_average_of_batch_statistics_without_dropout():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 2))
    net.train()
    net[1].eval()
    net[1].momentum = 0.3
    batches = [torch.randn(50, 3) * (i + 1) + i for i in range(4)]
    assert lrnets.update_bn(net, ((x, "label") for x in batches), batches=3) is net
    used = [x.double().numpy() for x in batches[:3]]
    np.testing.assert_allclose(net[1].running_mean, np.mean([x.mean(0) for x in used], 0), rtol=1e-5)
    np.testing.assert_allclose(net[1].running_var, np.mean([x.var(0, ddof=1) for x in used], 0), rtol=1e-5)
    assert (net.training, net[0].training, net[1].training, net[1].momentum) == (True, True, False, 0.3)


def test_update_bn_mends_a_drawn_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
    lrnets.convert_(model, keep=())
    x = torch.randn(512, 2, 8, 8)
    net = lrnets.discretize(model)
    net[1].running_mean += 3.0
    after_conv = net[0](x)
    expected = (after_conv - after_conv.mean((0, 2, 3), keepdim=True)) / after_conv.std((0, 2, 3), keepdim=True)
    lrnets.update_bn(net, [x])
    torch.testing.assert_close(net[1](after_conv), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("loader", [[], [torch.ones(4, 3), "no tensor"], [torch.tensor([[1.0, 2, float("inf")]] * 4)]])
def test_a_failing_update_bn_brings_the_old_statistics_back(loader):
    net = nn.Sequential(nn.BatchNorm1d(3)).eval()
    net(torch.randn(8, 3))
    net[0].running_mean.fill_(7)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises((ValueError, TypeError)):
        lrnets.update_bn(net, loader)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values()))
    assert net[0].momentum == 0.1


def test_update_bn_refuses_zero_batches_and_passes_networks_without_batch_norm():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        lrnets.update_bn(nn.BatchNorm1d(3), [torch.ones(2, 3)], batches=0)
    net = nn.Linear(2, 2)
    assert lrnets.update_bn(net, None) is net


def test_update_bn_leaves_a_norm_that_no_batch_reaches_as_it_was():
    class WithSpare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.BatchNorm1d(2), nn.BatchNorm1d(2)

        def forward(self, x):
            return self.used(x)

    net = WithSpare()
    net.spare.running_mean.fill_(7)
    net.spare.num_batches_tracked.fill_(3)
    x = torch.randn(50, 2)
    lrnets.update_bn(net, [x])
    assert (net.spare.running_mean == 7).all()
    assert net.spare.num_batches_tracked == 3
    torch.testing.assert_close(net.used.running_mean, x.mean(0))


@pytest.mark.parametrize(
    ("batch", "came"),
    [
        ({"x": torch.ones(4, 3)}, "is a dict; give tensors"),
        (np.ones((4, 3)), "is a ndarray; give tensors"),
        (["text"], "is a list that begins with str"),
        ((), "is a tuple; give tensors"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_update_bn_names_what_is_no_batch(batch, came):
    net = nn.Sequential(nn.BatchNorm1d(3))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(TypeError, match=f"batch 2 of the loader {came}"):
        lrnets.update_bn(net, [torch.ones(4, 3), batch])
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values()))


def test_update_bn_refuses_a_tensor_for_a_loader_and_numbers_that_are_no_count():
    net = nn.BatchNorm1d(3)
    with pytest.raises(TypeError, match=r"got a tensor of shape \(8, 3\); pass \[tensor\]"):
        lrnets.update_bn(net, torch.randn(8, 3))
    for batches, shown in ((True, r"True \(bool\)"), (2.0, r"2.0 \(float\)"), ("2", r"'2' \(str\)")):
        with pytest.raises(ValueError, match=f"whole number of at least 1, got {shown}"):
            lrnets.update_bn(net, [torch.randn(8, 3)], batches=batches)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_update_bn_names_the_norm_whose_statistics_are_not_finite(value):
    net = nn.Sequential(nn.Identity(), nn.BatchNorm1d(3))
    x = torch.randn(8, 3)
    x[0, 1] = value
    with pytest.raises(ValueError, match=r"norm '1': the statistics of 1 of 3 channels .* after 2 batches"):
        lrnets.update_bn(net, [torch.randn(8, 3), x])
    assert net[1].running_mean.tolist() == [0, 0, 0]
