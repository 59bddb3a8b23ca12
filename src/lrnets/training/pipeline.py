"""From data to a chosen discrete network: float stage, conversion, distributions, draws, choice, one test."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lrnets import models
from lrnets.convert import convert_
from lrnets.data import TRANSFORMS, Data, Transforms, load
from lrnets.data.shuffle import mix
from lrnets.discretize import discretize, select_best
from lrnets.ensemble import Ensemble
from lrnets.layers import bake_sharpness_, lr_layers
from lrnets.summary import summary
from lrnets.training.evaluation import error, mend_norms
from lrnets.training.recipe import FloatStage, Recipe
from lrnets.training.run_folder import RunFolder, read_weights

Say = Callable[[str], None]


@dataclass(frozen=True)
class Hardware:
    """Where to train: Lightning's own words."""

    devices: int = 1
    nodes: int = 1
    precision: Any = "32-true"
    accelerator: str = "auto"


def build_network(recipe: Recipe) -> nn.Module:
    """The recipe's network in float, initialised from its seed."""
    torch.manual_seed(mix(recipe.seed))
    arguments: dict[str, Any] = {"dropout": recipe.dropout}
    if recipe.network == "cifar10_vgg":
        arguments["width"] = recipe.width
    # Channels last is the faster layout for convolutions on CPUs, and no slower on GPUs.
    return getattr(models, recipe.network)(**arguments).to(memory_format=torch.channels_last)


def convert_by(recipe: Recipe, model: nn.Module) -> str:
    """Convert in place as the recipe says; returns the report."""
    s = recipe.discrete_stage
    assert s is not None
    report = convert_(model, recipe.weights, scale=s.scale, keep_first=s.keep_first, p_min=s.p_min, p_max=s.p_max)
    for _, layer in lr_layers(model):
        layer.variance_floor = s.variance_floor
    return str(report)


def run(
    recipe: Recipe,
    folder: RunFolder,
    *,
    data: Data | None = None,
    data_dir: str | None = None,
    transforms: Transforms | None = None,
    model: nn.Module | None = None,
    init: Path | None = None,
    resume: bool = False,
    hardware: Hardware = Hardware(),  # noqa: B008 (frozen)
    say: Say = print,
) -> dict[str, Any]:
    """Run a recipe from start to end in a folder, or go on where it stopped; returns the results.

    An own float `model` (any classifier) and own `data` with `transforms` may replace those of the recipe.
    """
    data = data or load(recipe.data, data_dir, valid_size=recipe.valid_size)
    transforms = transforms or TRANSFORMS[recipe.data]
    model = model or build_network(recipe)
    parameters = sum(p.numel() for p in model.parameters())
    folder.prepare(recipe, resume, needed_bytes=40 * 4 * parameters)
    seconds: dict[str, float] = {}

    def stage(name: str, settings: FloatStage) -> None:
        if folder.weights_file(name).exists():
            folder.load_weights(name, model)
            return
        start = time.perf_counter()
        fit(model, settings, name, folder, data, transforms, recipe, hardware)
        bake_sharpness_(model)
        folder.save_weights(name, model)
        seconds[name] = time.perf_counter() - start

    if init is not None:
        model.load_state_dict(read_weights(init))
        say(f"float network: from {init}")
    elif recipe.discrete_stage is None or recipe.discrete_stage.start == "pretrained":
        stage("float", recipe.float_stage)
    float_net = copy.deepcopy(model).eval()
    if recipe.discrete_stage is None:
        return _finish_float(recipe, folder, float_net, data, transforms, seconds)
    say(convert_by(recipe, model))
    stage("stochastic", recipe.discrete_stage)
    return _finish_discrete(recipe, folder, float_net, model, data, transforms, seconds)


def fit(
    model: nn.Module, settings: FloatStage, name: str, folder: RunFolder, data: Data, transforms: Transforms,
    recipe: Recipe, hardware: Hardware,
) -> None:  # fmt: skip
    """One stage under Lightning, with a checkpoint after every epoch, continued from the last one if there is one."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    from lrnets.training.module import Stage
    from lrnets.training.progress import EpochLines, on_a_terminal

    if settings.epochs == 0:
        return
    checkpoints = folder.checkpoints(name)
    last = checkpoints / "last.ckpt"
    keep_last = ModelCheckpoint(
        checkpoints, filename="last", save_on_train_epoch_end=True, enable_version_counter=False
    )
    loggers = {CSVLogger: "metrics", TensorBoardLogger: "tensorboard"}
    processes = hardware.devices * hardware.nodes
    trainer = lightning.Trainer(
        accelerator=hardware.accelerator, devices=hardware.devices, num_nodes=hardware.nodes,
        precision=hardware.precision, strategy="ddp" if processes > 1 else "auto", sync_batchnorm=processes > 1,
        max_epochs=settings.epochs, enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
        callbacks=[keep_last, *([] if on_a_terminal() else [EpochLines(name)])], enable_progress_bar=on_a_terminal(),
        logger=[Logger(folder.path, name=kind, version=name) for Logger, kind in loggers.items()],
        log_every_n_steps=50,
    )  # fmt: skip
    stage = Stage(
        model,
        settings,
        data,
        transforms,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        norm_batches=recipe.norm_batches,
    )
    trainer.fit(stage, ckpt_path=last if last.exists() else None, weights_only=True)


def _finish_float(
    recipe: Recipe, folder: RunFolder, net: nn.Module, data: Data, transforms: Transforms, seconds: dict[str, float]
) -> dict[str, Any]:
    size = summary(net, tuple(data.train.images.shape[1:]))
    results = {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "valid_error": {"float": error(net, data.valid, transforms.evaluation)},
        "test_error": {"float": error(net, data.test, transforms.evaluation)},
        "bytes": {"float": size.float_bytes},
        "seconds": seconds,
    }
    folder.write_json("results.json", results)
    return results


def _finish_discrete(
    recipe: Recipe, folder: RunFolder, float_net: nn.Module, model: nn.Module, data: Data, transforms: Transforms,
    seconds: dict[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Draws with re-estimated batch norm, the choice on validation data, and one look at the test data."""
    evaluate = transforms.evaluation
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(mix(recipe.seed, 4) % 2**63)
    draws: list[nn.Module] = []

    def score(net: nn.Module) -> float:
        draws.append(mend_norms(net, data.train, evaluate, recipe.norm_batches))
        return -error(net, data.valid, evaluate)

    chosen, scores = select_best(model, score, draws=recipe.draws, generator=generator)
    mode = mend_norms(discretize(model, "mode"), data.train, evaluate, recipe.norm_batches)
    folder.save_weights("drawn", chosen)
    nets: dict[str, nn.Module] = {"float": float_net.to(device), "mode": mode, "chosen draw": chosen}
    size = summary(chosen, tuple(data.train.images.shape[1:]))
    valid = {name: error(net, data.valid, evaluate) for name, net in nets.items()}
    test = {name: error(net, data.test, evaluate) for name, net in nets.items()}
    test_of_draws = [error(net, data.test, evaluate) for net in draws]
    test["ensemble"] = error(Ensemble(draws), data.test, evaluate)
    results = {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "valid_error": valid,
        "valid_error_of_draws": [-s for s in scores],
        "test_error": test,
        "test_error_of_draws": test_of_draws,
        "draws": recipe.draws,
        "bytes": {"float": size.float_bytes, "discrete": size.bytes},
        "seconds": seconds,
    }
    folder.write_json("results.json", results)
    return results
