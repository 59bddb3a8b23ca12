"""What stands around a layer, in networks of several shapes, and what conversion makes of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lrnets
from lrnets.methods.activations import SignConv2d, SignLinear
from lrnets.methods.expectation_backprop import ProbabilisticSign
from lrnets.methods.flow import surroundings
from lrnets.models import cifar10_vgg, mnist_net, resnet18
from lrnets.models.resnet import BasicBlock


class Residual(nn.Module):
    """A block like torchvision's: one ReLU module in two places, a sum, a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu, self.head_relu = nn.ReLU(), nn.ReLU6()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = F.max_pool2d(self.relu(self.norm(self.stem(x))), 2)
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.head(self.head_relu(x + y).mean((2, 3)))


class Functional(nn.Module):
    def __init__(self, activation) -> None:
        super().__init__()
        self.first, self.second, self.activation = nn.Linear(4, 4), nn.Linear(4, 2), activation

    def forward(self, x):
        return self.second(F.dropout(self.activation(self.first(x)), training=self.training))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


def test_the_papers_network():
    found = surroundings(mnist_net(), ["conv1", "conv2", "fc1", "fc2"], "bnn")
    assert found["conv1"].reads_input
    assert not any(found[name].reads_input for name in ("conv2", "fc1", "fc2"))
    assert [found[name].before for name in ("conv1", "conv2", "fc1", "fc2")] == [[], ["relu1"], ["relu2"], ["relu3"]]
    assert [found[name].norm for name in ("conv1", "conv2", "fc1")] == ["norm1", "norm2", None]
    assert [found[name].after for name in ("conv1", "conv2", "fc1", "fc2")] == ["relu1", "relu2", "relu3", None]


class Normalised(nn.Module):
    """Pixels normalised by a fixed mean and deviation, then by a batch norm; `tokens` learns to add to them."""

    def __init__(self, tokens: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((1, 1, 1), 0.1))
        self.norm, self.first, self.relu = nn.BatchNorm2d(1), nn.Conv2d(1, 2, 1), nn.ReLU()
        self.second = nn.Conv2d(2, 2, 1)
        self.tokens = nn.Parameter(torch.zeros(1, 4, 4)) if tokens else None

    def forward(self, x):
        x = (x - self.mean) / 0.3
        if self.tokens is not None:
            x = x + self.tokens
        return self.second(self.relu(self.first(self.norm(x))))


@pytest.mark.parametrize("tokens", [False, True])
def test_an_input_that_the_network_normalises_is_still_its_own(tokens):
    """Until something with weights was added, which makes features of it."""
    model = Normalised(tokens)
    found = surroundings(model, ["first", "second"], "bnn")
    assert [found[name].reads_input for name in ("first", "second")] == [not tokens, False]
    lrnets.convert_(model, method="bnn", keep=())
    net, x = lrnets.discretize(model, "mode"), torch.rand(2, 1, 4, 4)
    assert isinstance(net.second, SignConv2d)
    assert (type(net.first) is nn.Conv2d) is not tokens
    assert net(x).shape == (2, 2, 4, 4)


def test_a_residual_network():
    found = surroundings(Residual(), ["stem", "conv1", "conv2", "head"], "bnn")
    before = [found[name].before for name in ("stem", "conv1", "conv2", "head")]
    assert before == [[], ["relu"], ["relu"], ["head_relu"]]
    assert (found["stem"].norm, found["stem"].after) == ("norm", "relu")
    assert found["conv2"].after is None  # a sum comes first


def test_signs_stand_at_the_input_and_the_relus_before_them_go():
    model = cifar10_vgg(width=0.05)
    report = lrnets.convert_(model, method="xnor", keep_first=True)
    assert isinstance(model.conv11, nn.Conv2d)
    kinds = {name: type(module) for name, module in model.named_children() if name.startswith("relu")}
    assert kinds.pop("relu_fc1") is nn.ReLU  # the classifier stays in float, and so does what it reads
    assert set(kinds.values()) == {nn.Identity}
    net = lrnets.discretize(model, "mode")
    assert all(hasattr(net.get_submodule(name), "binarize") for name in ("conv12", "conv31", "fc1"))
    assert "conv12, conv21, conv22, conv31, conv32, fc1" in report.notes[0]
    assert "relu11, relu12, relu21, relu22, relu31, relu32" in report.notes[1]


def test_pooling_before_the_sign_gives_what_pooling_after_it_would():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 3))
    lrnets.convert_(model, method="bnn", keep="0")
    x = torch.randn(2, 1, 10, 10)
    values = model[1](model[0](x))
    by_hand = F.max_pool2d(torch.where(values >= 0, 1.0, -1.0), 2)
    expected = F.conv2d(by_hand, model[4].weight, model[4].bias)
    model[1].momentum = 0.0
    torch.testing.assert_close(model(x), expected)


def test_the_gradient_goes_to_the_maximum_and_not_to_the_first_of_equal_signs():
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(1, 2, 1))
    model[0].weight.data.fill_(1.0)
    model[3].weight.data[:, 0, 0, 0] = torch.tensor([0.5, -0.3])
    lrnets.convert_(model, method="bnn", keep="0", scale=False)
    x = torch.tensor([[[[0.2, 0.9], [0.3, 0.1]]]], requires_grad=True)
    model(x)[0, 0].sum().backward()
    assert x.grad.flatten().tolist() == [0, 1, 0, 0]


def test_a_residual_network_converts_and_trains():
    model = Residual()
    report = lrnets.convert_(model, method="bnn")
    assert report.converted == ["stem", "conv1", "conv2"]
    assert type(model.relu) is nn.Identity
    assert type(model.head_relu) is nn.ReLU6
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert model.conv1.latent.grad.abs().sum() > 0
    assert isinstance(lrnets.discretize(model, "mode").conv1, SignConv2d)


class Shared(nn.Module):
    """One ReLU module before a layer that takes signs, and before the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.head(self.relu(self.second(self.relu(self.first(x)))))


def test_a_shared_relu_that_goes_in_both_places_is_told():
    notes = lrnets.convert_(Shared(), method="bnn").notes
    assert [note for note in notes if "no sign follows" in note and note.endswith(": relu")]
    for model in (Shared(), Residual()):  # followed by a sign wherever it is called
        keep = () if isinstance(model, Shared) else None
        assert not any("no sign follows" in note for note in lrnets.convert_(model, method="bnn", keep=keep).notes)


def test_the_papers_resnet_keeps_the_relu_before_its_classifier():
    model = resnet18(width=0.05)
    notes = lrnets.convert_(model, method="xnor").notes
    blocks = [module for module in model.modules() if isinstance(module, BasicBlock)]
    kinds = [type(relu) for block in blocks for relu in (block.relu, block.relu2)]
    assert kinds == [nn.Identity] * 15 + [nn.ReLU]
    assert not any("no sign follows" in note for note in notes)


def test_a_relu_that_is_a_function_cannot_give_way():
    for activation in (F.relu, torch.relu, lambda x: x.relu()):
        with pytest.raises(ValueError, match=r"layer 'second'.*never negative.*nn.ReLU.*keep='second'"):
            lrnets.convert_(Functional(activation), method="bnn", keep=())
    model = Functional(torch.tanh)
    lrnets.convert_(model, method="bnn", keep=())
    assert isinstance(lrnets.discretize(model, "mode").second, SignLinear)


def test_what_cannot_be_followed_is_refused_and_left_as_it_was():
    model = Branching()
    with pytest.raises(ValueError, match=r"method bnn .*torch.fx cannot follow it through Branching"):
        lrnets.convert_(model, method="bnn", keep=())
    assert type(model.layer) is nn.Linear
    lrnets.convert_(model, method="bwn", keep=())  # leaves activations alone, so it need not know
    inside = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=r"'0.linear1'.*does not show.*keep="):
        lrnets.convert_(inside, method="xnor", keep=())


def test_a_layer_without_an_activation_behind_it_has_no_expected_sign():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"layer '2': no activation follows.*keep='2'"):
        lrnets.convert_(model, method="ebp")
    assert [type(module) for module in model] == [nn.Linear, nn.ReLU, nn.Linear, nn.Linear]


def test_expected_signs_know_signs_from_other_inputs():
    model = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 4),
        nn.ReLU(), nn.Linear(4, 2),
    )  # fmt: skip
    lrnets.convert_(model, method="ebp", keep_first=True)
    assert type(model[1]) is nn.ReLU  # of the float layer
    assert not model[2].binary_input
    assert model[6].binary_input
    assert [type(model[i]) for i in (3, 4, 7)] == [nn.Identity, ProbabilisticSign, ProbabilisticSign]
