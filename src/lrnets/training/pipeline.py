"""From data to a chosen discrete network: float stage, conversion, distributions, draws, choice, one test."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lrnets import models
from lrnets.convert import convert_
from lrnets.data import TRANSFORMS, Data, Transforms, load
from lrnets.data.progress import progress_bars
from lrnets.data.shuffle import mix
from lrnets.discretize import discretize, select_best
from lrnets.layers import bake_sharpness_, lr_layers
from lrnets.methods import method_named
from lrnets.methods.twin import is_random
from lrnets.summary import summary
from lrnets.training.evaluation import error, error_of, mend_norms, probabilities
from lrnets.training.examples import answers_of, save_examples
from lrnets.training.hardware import Hardware, is_first_process
from lrnets.training.metrics import note_epoch, seconds_of
from lrnets.training.recipe import STAGE_OPTIONS, FloatStage, Recipe
from lrnets.training.run_folder import RunFolder, read_weights

Say = Callable[[str], None]
FINAL_DRAWS = -2  # beside a recipe's seed: not the draws after any epoch, nor those of `lrnets evaluate`


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
    method = method_named(str(recipe.method))
    options = {name: getattr(s, name) for name in STAGE_OPTIONS if name in method.options} | recipe.method_options
    report = convert_(model, recipe.weights, method=method.name, keep_first=s.keep_first, **options)
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

    An own float `model` (any classifier) and own `data` with `transforms` may replace those of the recipe. With several
    processes (see Hardware) the first one writes and returns the results; the others return an empty dictionary.
    """
    writes = is_first_process()
    share = hardware.share_of(recipe.batch_size)
    data = data or load(recipe.data, data_dir, valid_size=recipe.valid_size)
    transforms = transforms or TRANSFORMS[recipe.data]
    model = model or build_network(recipe)
    parameters = sum(p.numel() for p in model.parameters())
    if writes:
        folder.prepare(recipe, resume, needed_bytes=40 * 4 * parameters)
    else:
        say = _silence

    def stage(name: str, settings: FloatStage, label: str) -> None:
        if folder.weights_file(name).exists():
            folder.load_weights(name, model)
            say(f"{label} network: from {folder.weights_file(name)}")
            return
        fit(
            model,
            settings,
            name,
            folder,
            data,
            transforms,
            batch_size=share,
            seed=recipe.seed,
            hardware=hardware,
            say=say,
            label=label,
        )
        bake_sharpness_(model)
        if writes:
            folder.save_weights(name, model)

    if init is not None and not folder.weights_file("float").exists():
        model.load_state_dict(read_weights(init))
        say(f"float network: from {init}")
        if writes:
            folder.save_weights("float", model)
    elif recipe.discrete_stage is None or recipe.discrete_stage.start == "pretrained":
        stage("float", recipe.float_stage, "float")
    float_net = copy.deepcopy(model).eval()
    if recipe.discrete_stage is not None:
        say(convert_by(recipe, model))
        stage("stochastic", recipe.discrete_stage, "stochastic" if recipe.method == "lr" else str(recipe.method))
    if not writes:
        return {}
    if recipe.discrete_stage is None:
        results = _finish_float(recipe, folder, float_net, data, transforms)
    else:
        if is_random(model):
            say(f"drawing {recipe.draws} networks, to choose the best on validation data")
            results = _finish_random(recipe, folder, float_net, model, data, transforms)
        else:
            say(f"method {recipe.method} draws nothing: its one discrete network is the result")
            results = _finish_fixed(recipe, folder, float_net, model, data, transforms)
    results["seconds"] = {name: seconds_of(folder, name) for name in ("float", "stochastic")}
    folder.write_json("results.json", results)
    return results


def _silence(text: str) -> None:
    """What the other processes say."""


def fit(
    model: nn.Module, settings: FloatStage, name: str, folder: RunFolder, data: Data, transforms: Transforms,
    *, batch_size: int, seed: int, hardware: Hardware, say: Say = print, label: str | None = None,
) -> None:  # fmt: skip
    """One stage under Lightning, with a checkpoint after every epoch, continued from the last one if there is one."""
    if settings.epochs == 0:
        return
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import TensorBoardLogger

    from lrnets.training.module import Stage
    from lrnets.training.progress import bars, epoch_line, quiet_lightning
    from lrnets.training.sync_norm import synced_norms

    def tell(figures: Mapping[str, float]) -> None:
        note_epoch(folder, name, figures)
        say(epoch_line(label or name, settings.epochs, figures))

    several = hardware.processes > 1
    keep_last = ModelCheckpoint(
        folder.checkpoints(name), filename="last", save_on_train_epoch_end=True, enable_version_counter=False
    )
    with quiet_lightning(), synced_norms(model) if several else nullcontext():
        trainer = lightning.Trainer(
            accelerator=hardware.accelerator, devices=hardware.devices, num_nodes=hardware.nodes,
            precision=hardware.precision, strategy="ddp" if several else "auto", max_epochs=settings.epochs,
            enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
            callbacks=[keep_last, *bars()], enable_progress_bar=bool(bars()), log_every_n_steps=50,
            logger=TensorBoardLogger(folder.path, name="tensorboard", version=name),
        )  # fmt: skip
        stage = Stage(model, settings, data, transforms, batch_size=batch_size, seed=seed, tell=tell)
        last = folder.checkpoints(name) / "last.ckpt"
        try:
            trainer.fit(stage, ckpt_path=last if last.exists() else None, weights_only=True)
        except SystemExit as exit:
            # Lightning turns Ctrl-C into an exit, and leaves the signal ignored.
            if isinstance(exit.__context__, KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.default_int_handler)
                raise KeyboardInterrupt from exit
            raise


def _finish_float(
    recipe: Recipe, folder: RunFolder, net: nn.Module, data: Data, transforms: Transforms
) -> dict[str, Any]:
    size = summary(net, tuple(data.train.images.shape[1:]))
    save_examples(folder, data.valid, transforms.evaluation)
    return {
        "recipe": recipe.name,
        "method": recipe.method,
        "seed": recipe.seed,
        "valid_error": {"float": error(net, data.valid, transforms.evaluation)},
        "test_error": {"float": error(net, data.test, transforms.evaluation)},
        "bytes": {"float": size.float_bytes},
    }


def _finish_fixed(
    recipe: Recipe, folder: RunFolder, float_net: nn.Module, model: nn.Module, data: Data, transforms: Transforms,
) -> dict[str, Any]:  # fmt: skip
    """The one network of a method without randomness, batch norm re-estimated, and one look at the test data."""
    evaluate = transforms.evaluation
    mode = mend_norms(discretize(model, "mode"), data.train, evaluate, recipe.norm_batches)
    folder.save_weights("drawn", mode)
    save_examples(folder, data.valid, evaluate)
    nets = {"float": float_net.to(next(model.parameters()).device), "mode": mode}
    size = summary(mode, tuple(data.train.images.shape[1:]))
    return {
        "recipe": recipe.name,
        "method": recipe.method,
        "seed": recipe.seed,
        "valid_error": {name: error(net, data.valid, evaluate) for name, net in nets.items()},
        "test_error": {name: error(net, data.test, evaluate) for name, net in nets.items()},
        "bytes": {"float": size.float_bytes, "discrete": size.bytes},
    }


def _finish_random(
    recipe: Recipe, folder: RunFolder, float_net: nn.Module, model: nn.Module, data: Data, transforms: Transforms,
) -> dict[str, Any]:  # fmt: skip
    """Draws with re-estimated batch norm, the choice on validation data, and one look at the test data."""
    evaluate = transforms.evaluation
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(mix(recipe.seed, FINAL_DRAWS) % 2**63)
    draws: list[nn.Module] = []
    on_valid: list[Tensor] = []  # (n, classes) each
    with progress_bars() as report:

        def score(net: nn.Module) -> float:
            draws.append(mend_norms(net, data.train, evaluate, recipe.norm_batches))
            report("draws", len(draws), recipe.draws)
            on_valid.append(probabilities(net, data.valid, evaluate))
            return -error_of(on_valid[-1], data.valid.labels)

        chosen, scores = select_best(model, score, draws=recipe.draws, generator=generator)
    mode = mend_norms(discretize(model, "mode"), data.train, evaluate, recipe.norm_batches)
    folder.save_weights("drawn", chosen)
    nets: dict[str, nn.Module] = {"float": float_net.to(device), "mode": mode, "chosen draw": chosen}
    size = summary(chosen, tuple(data.train.images.shape[1:]))
    valid = {name: error(net, data.valid, evaluate) for name, net in nets.items()}
    test = {name: error(net, data.test, evaluate) for name, net in nets.items()}
    of_draws = torch.stack([probabilities(net, data.test, evaluate) for net in draws])  # (draws, n, classes)
    save_examples(folder, data.valid, evaluate, answers_of(on_valid, data.valid, list(of_draws), data.test))
    test["ensemble"] = error_of(of_draws.mean(0), data.test.labels)
    return {
        "recipe": recipe.name,
        "method": recipe.method,
        "seed": recipe.seed,
        "valid_error": valid,
        "valid_error_of_draws": [-s for s in scores],
        "test_error": test,
        "test_error_of_draws": [error_of(p, data.test.labels) for p in of_draws],
        "draws": recipe.draws,
        "bytes": {"float": size.float_bytes, "discrete": size.bytes},
    }
