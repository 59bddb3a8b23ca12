"""The paper's networks have the paper's shapes."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from lrnets.models import cifar10_vgg, mnist_net, resnet18
from lrnets.training.weight_files import read_weights


def weights(model: nn.Module) -> list[int]:
    return [m.weight.numel() for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]


def order(model: nn.Module) -> str:
    short = {
        "Conv2d": "C",
        "BatchNorm2d": "B",
        "ReLU": "R",
        "MaxPool2d": "P",
        "Flatten": "F",
        "Linear": "L",
        "Dropout": "D",
    }
    return "".join(short[type(module).__name__] for module in model)


def test_mnist_network():
    model = mnist_net()
    assert weights(model) == [32 * 25, 64 * 32 * 25, 1024 * 512, 512 * 10]
    assert order(model) == "CBRP" * 2 + "FLRDL"
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert model.dropout.p == 0.5


def test_cifar10_network():
    model = cifar10_vgg()
    chain = [3, 128, 128, 256, 256, 512, 512]
    assert weights(model) == [a * b * 9 for a, b in pairwise(chain)] + [8192 * 1024, 1024 * 10]
    assert order(model) == "CBRCBRP" * 3 + "FLRDL"
    assert model.dropout.p == 0.5


def test_cifar10_width():
    model = cifar10_vgg(width=0.25)
    assert model.conv11.out_channels == 32
    assert model.fc1.in_features == 128 * 16
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="width must be above 0, got 0"):
        cifar10_vgg(width=0)


def resnet18_names() -> dict[str, tuple[int, ...]]:
    """Names and shapes in the public ImageNet checkpoint, by rule: 4 stages of 2 blocks of 2 convolutions."""

    def norm(name: str, channels: int) -> dict[str, tuple[int, ...]]:
        vectors = ("weight", "bias", "running_mean", "running_var")
        return {f"{name}.{vector}": (channels,) for vector in vectors} | {f"{name}.num_batches_tracked": ()}

    names = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    before = 64
    for stage, channels in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            here = f"layer{stage}.{block}"
            for number in (1, 2):
                names[f"{here}.conv{number}.weight"] = (channels, before, 3, 3)
                names |= norm(f"{here}.bn{number}", channels)
                before = channels
        if stage > 1:
            names[f"layer{stage}.0.downsample.0.weight"] = (channels, channels // 2, 1, 1)
            names |= norm(f"layer{stage}.0.downsample.1", channels)
    return names | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


def test_resnet18_has_the_names_and_shapes_of_public_checkpoints():
    model = resnet18()
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == resnet18_names()
    assert len(resnet18_names()) == 122
    assert sum(p.numel() for p in model.parameters()) == 11_689_512


@pytest.mark.parametrize(("pixels", "last"), [(224, 7), (64, 2), (32, 1)])
def test_resnet18_halves_the_side_five_times_at_any_size(pixels, last):
    model = resnet18(classes=7, width=0.125).eval()
    sides = []
    for stage in (model.maxpool, model.layer1, model.layer2, model.layer3, model.layer4):
        stage.register_forward_hook(lambda _, __, output: sides.append(tuple(output.shape[2:])))
    with torch.no_grad():
        assert model(torch.zeros(2, 3, pixels, pixels)).shape == (2, 7)
    assert sides == [(last * scale, last * scale) for scale in (8, 8, 4, 2, 1)]
    with pytest.raises(ValueError, match="width must be above 0, got 0"):
        resnet18(width=0)


@pytest.mark.parametrize("old", [False, True])
def test_resnet18_takes_public_checkpoint_files_old_ones_too(tmp_path, old):
    """Those from before torch 0.4.1 do not count batches."""
    public = {
        name: torch.full(shape, 0.5) for name, shape in resnet18_names().items() if not (old and "num_batches" in name)
    }
    torch.save(public, tmp_path / "resnet18.pth")
    model = resnet18()
    model.load_state_dict(read_weights(tmp_path / "resnet18.pth"))  # as --init does
    state = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    assert len(state) == 102
    assert all((tensor == 0.5).all() for tensor in state.values())
