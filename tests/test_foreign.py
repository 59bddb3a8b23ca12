"""Layers that are not torch's own convert as what they are registered as, or are left alone with the reason."""

import pytest
import torch
from torch import Tensor, nn

import lrnets
from lrnets import foreign


class InOut(nn.Module):
    """y = x W + b with W (in, out), as GPT-2's Conv1D has it."""

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size_in, size_out) * 0.02)
        self.bias = nn.Parameter(torch.randn(size_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Derived(InOut):
    """Another name, the same arithmetic."""


class OwnWay(InOut):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Kernel(nn.Module):
    """A convolution whose weight has another name."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.kernel, padding=1)


def kernel_as_conv(layer: Kernel) -> nn.Conv2d:
    conv = nn.Conv2d(3, 4, 3, padding=1, bias=False, device="meta")
    conv.weight = nn.Parameter(layer.kernel.detach().clone())
    return conv


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Each test has a registry of its own."""
    monkeypatch.setattr(foreign, "_REGISTERED", dict(foreign._REGISTERED))
    lrnets.register_layer(InOut, foreign.transposed_linear)
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", [InOut, Derived])
@pytest.mark.parametrize("method", ["lr", "bitnet"])
def test_a_registered_layer_converts_and_keeps_its_bias_scale_and_orientation(kind, method):
    model = nn.Sequential(kind(6, 5), nn.Linear(5, 2))
    weight, bias = model[0].weight, model[0].bias
    before = weight.detach().clone()
    report = lrnets.convert_(model, method=method)
    assert report.converted == ["0"]
    assert report.rows[0].kind == kind.__name__
    assert report.rows[0].shape == (5, 6)
    assert model[0].bias is bias
    torch.testing.assert_close(weight, before, rtol=0, atol=0)
    net = lrnets.discretize(model, "mode")
    assert type(net[0]) is nn.Linear
    # A weight that is not nearest to 0 has the sign it had, at its own place.
    chosen = net[0].weight.t()
    assert (chosen != 0).any()
    assert (chosen.sign() == before.sign())[chosen != 0].all()
    if method == "lr":
        assert model[0].scale.item() == pytest.approx(before.std(correction=0).item(), rel=1e-6)
        x = torch.randn(3, 6)
        sizes = net[0].weight.abs().unique()
        expected = torch.stack([sum(x[i, j] * chosen[j] for j in range(6)) + bias for i in range(3)])
        torch.testing.assert_close(net[0](x), expected)
        assert len(sizes) == 2  # 0 and the scale


def test_a_weight_of_any_name_and_any_kind_of_layer():
    lrnets.register_layer(f"{Kernel.__module__}.Kernel", kernel_as_conv)
    model = nn.Sequential(Kernel(), nn.ReLU(), Kernel())
    model[2].kernel = model[0].kernel
    lrnets.convert_(model)
    assert isinstance(model[0], lrnets.LRConv2d)
    assert model[0].logits is model[2].logits


def test_the_last_linear_layer_may_be_a_registered_one():
    model = nn.Sequential(nn.Linear(4, 6), InOut(6, 5))
    assert "classifier" in lrnets.convert_(model).kept["1"]


def test_tied_layers_of_one_kind_stay_tied_and_of_two_kinds_stay_in_float():
    model = nn.Sequential(InOut(6, 6), InOut(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    lrnets.convert_(model, keep=())
    assert model[0].logits is model[1].logits
    mixed = nn.Sequential(InOut(6, 6), nn.Linear(6, 6), nn.Linear(6, 6))
    mixed[1].weight = mixed[0].weight  # one reads it as (in, out), the other as (out, in)
    report = lrnets.convert_(mixed, keep=())
    assert report.converted == ["2"]
    assert "tied to '1', which reads its weights in another way" in report.kept["0"]
    assert mixed[0].weight is mixed[1].weight


def test_frozen_layers_stay_frozen_and_hooks_go_along():
    model, calls = nn.Sequential(InOut(6, 5), nn.Linear(5, 2)), []
    model[0].weight.requires_grad_(False)
    model[0].register_forward_hook(lambda *_: calls.append(1))
    lrnets.convert_(model)
    assert not model[0].logits.requires_grad
    model(torch.randn(1, 6))
    assert calls == [1]


def test_own_ways_and_unregistered_layers_are_left_alone():
    model = nn.Sequential(OwnWay(4, 4), Kernel(), nn.Linear(4, 4))
    report = lrnets.convert_(model, keep=())
    assert report.converted == ["2"]
    assert "OwnWay has no discrete twin" in report.kept["0.weight"]
    assert "Kernel has no discrete twin" in report.kept["1.kernel"]


def test_a_lone_registered_layer_cannot_be_replaced_in_place():
    with pytest.raises(ValueError, match=r"itself a InOut .*nn.Sequential"):
        lrnets.convert_(InOut(4, 4))


def test_bad_registrations_are_named():
    with pytest.raises(TypeError, match=r"kind must be a class of modules or its full name.*'Conv1D'"):
        lrnets.register_layer("Conv1D", foreign.transposed_linear)
    with pytest.raises(TypeError, match="kind must be a class of modules"):
        lrnets.register_layer(int, foreign.transposed_linear)
    with pytest.raises(TypeError, match="restate must be a function"):
        lrnets.register_layer(InOut, 3)
    lrnets.register_layer(InOut, lambda layer: layer.weight)
    with pytest.raises(TypeError, match=r"layer '0': the function registered for InOut gave"):
        lrnets.convert_(nn.Sequential(InOut(4, 4), nn.Linear(4, 4)))


class Flat(nn.Module):
    """A linear layer whose weights are one long vector."""

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        self.shape = (size_out, size_in)
        self.vector = nn.Parameter(torch.randn(size_out * size_in))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.vector.view(self.shape).T


def flat_as_linear(layer: Flat) -> nn.Linear:
    linear = nn.Linear(*reversed(layer.shape), bias=False, device="meta")
    linear.weight = nn.Parameter(layer.vector.detach().view(layer.shape).clone())
    return linear


class Wrapped(nn.Module):
    """A layer that has torch's own in it."""

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size_in, size_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_layers_without_a_matrix_of_their_own_are_not_tied():
    lrnets.register_layer(Flat, flat_as_linear)
    model = nn.Sequential(Flat(4, 4), Flat(4, 8))
    signs = [module.vector.detach().view(module.shape).sign() for module in model]
    lrnets.convert_(model, "binary", keep=())
    assert [torch.equal(layer.weight.sign(), sign) for layer, sign in zip(model, signs)] == [True, True]


def test_what_is_in_a_registered_layer_goes_with_it():
    lrnets.register_layer(Wrapped, lambda layer: layer.inner)
    report = lrnets.convert_(nn.Sequential(Wrapped(4, 4), nn.ReLU(), Wrapped(4, 4), Wrapped(4, 2)))
    assert report.converted == ["0", "2"]
    assert report.kept == {"3": "the classifier: the last linear layer"}


def test_registered_layers_with_tied_insides_stay_tied_and_shared_ones_shared():
    lrnets.register_layer(Wrapped, lambda layer: layer.inner)
    shared = Wrapped(4, 4)
    model = nn.Sequential(Wrapped(4, 4), Wrapped(4, 4), shared, shared)
    model[1].inner.weight = model[0].inner.weight
    assert lrnets.convert_(model, keep=()).converted == ["0", "1", "2"]
    assert model[0].logits is model[1].logits
    assert model[2] is model[3]
    assert model[2].logits is not model[0].logits
