"""From data to a chosen discrete network: float stage, conversion, distributions, draws, choice, one test."""

from __future__ import annotations

import copy
import inspect
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lrnets import models
from lrnets.convert import convert_
from lrnets.cores import cores
from lrnets.data import Data, Transforms, load
from lrnets.data.shuffle import mix
from lrnets.data.splits import require_classes
from lrnets.layers import bake_sharpness_, learn_scales_, lr_layers, set_natural
from lrnets.methods import method_named
from lrnets.methods.twin import is_random
from lrnets.training.data_notes import keep_data, kept_colours, left_out, require_kept
from lrnets.training.evaluation import transforms_of
from lrnets.training.finish import finish_fixed, finish_float, finish_random
from lrnets.training.hardware import Hardware, is_first_process, restart_advice
from lrnets.training.metrics import note_epoch, seconds_of
from lrnets.training.recipe import STAGE_OPTIONS, FloatStage, Recipe
from lrnets.training.run_folder import RunFolder
from lrnets.training.weight_files import load_init
from lrnets.words import counted

Say = Callable[[str], None]
PUBLIC_COLOURS = "--set 'data_options.mean=[0.485, 0.456, 0.406]' 'data_options.deviation=[0.229, 0.224, 0.225]'"


def build_network(recipe: Recipe) -> nn.Module:
    """The recipe's network in float, initialised from its seed."""
    torch.manual_seed(mix(recipe.seed))
    make = getattr(models, recipe.network)
    arguments = {name: getattr(recipe, name) for name in inspect.signature(make).parameters}
    # Channels last is the faster layout for convolutions on CPUs, and no slower on GPUs.
    return make(**arguments).to(memory_format=torch.channels_last)


def load_by(
    recipe: Recipe, data_dir: str | None = None, *, workers: int | None = None, folder: RunFolder | None = None,
    class_count: int | None = None,
) -> Data:  # fmt: skip
    """The recipe's data. Those on disk are decoded by `workers`, with the colours that the run in `folder` kept."""
    options = dict(recipe.data_options)
    if recipe.data == "imagenet":
        options |= {"workers": workers, "class_count": class_count} | (kept_colours(folder) if folder else {})
    return load(recipe.data, data_dir, valid_size=recipe.valid_size, **options)


def convert_by(recipe: Recipe, model: nn.Module) -> str:
    """Convert in place as the recipe says; returns the report."""
    s = recipe.discrete_stage
    assert s is not None
    method = method_named(str(recipe.method))
    options = {name: getattr(s, name) for name in STAGE_OPTIONS if name in method.options} | recipe.method_options
    report = convert_(model, recipe.weights, method=method.name, keep_first=s.keep_first, **options)
    for _, layer in lr_layers(model):
        layer.variance_floor = s.variance_floor
    set_natural(model, s.natural)
    if s.learn_scale:
        learn_scales_(model)
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
    workers: int | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """Run a recipe from start to end in a folder, or go on where it stopped; returns the results.

    An own float `model` (any classifier) and own `data` with `transforms` may replace those of the recipe. With several
    processes (see Hardware) the first one writes and returns the results; the others return an empty dictionary.
    `workers` decode images from disk for each process; by default its share of the cores.
    """
    writes = is_first_process()
    share = hardware.share_of(recipe.batch_size)
    if init is not None and recipe.discrete_stage is not None and recipe.discrete_stage.start == "random":
        raise ValueError(
            f"recipe {recipe.name!r} starts from random weights, so --init {init} has no use; leave it out"
        )
    if writes:
        folder.require(recipe, resume)
    own = model is not None
    if model is None:
        model = build_network(recipe)
    given = init if init is not None and not folder.weights_file("float").exists() else None
    if given is not None:  # before the folder is taken: a file that does not fit leaves nothing behind
        load_init(model, given)
        if writes and data is None and recipe.data == "imagenet" and "mean" not in recipe.data_options:
            print(f"if {given} is a public checkpoint, give its mean and deviation: {PUBLIC_COLOURS}", file=sys.stderr)
    if data is None:  # after all that is cheap to look at: mean and deviation may take hours
        by_cores = max(1, cores() // hardware.devices)
        data = load_by(
            recipe, data_dir, workers=by_cores if workers is None else workers, folder=folder if resume else None,
            class_count=None if own else recipe.classes,
        )  # fmt: skip
    transforms = transforms or transforms_of(data, recipe.data)
    if resume:
        require_kept(folder, data, transforms)
    if not own:
        require_classes(data.classes, recipe.classes)
    _require_a_batch(recipe, data)
    parameters = sum(p.numel() for p in model.parameters())
    with folder.held() if writes else nullcontext():
        if writes:
            folder.prepare(recipe, resume, needed_bytes=40 * 4 * parameters)
            keep_data(folder, data, transforms)
            for note in (data.about(), restart_advice()):
                if note:
                    say(note)
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

        if given is not None:
            say(f"float network: from {given}")
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
        for net in (model, float_net):
            net.to(hardware.device)  # from where Lightning left it: on the CPU
        if recipe.discrete_stage is None:
            results = finish_float(recipe, folder, float_net, data, transforms)
        else:
            if is_random(model):
                say(f"drawing {counted(recipe.draws, 'network')}, to choose the best on validation data")
                results = finish_random(recipe, folder, float_net, model, data, transforms)
            else:
                say(f"method {recipe.method} draws nothing: its one discrete network is the result")
                results = finish_fixed(recipe, folder, float_net, model, data, transforms)
        results |= left_out(folder, data)
        results["seconds"] = {name: seconds_of(folder, name) for name in ("float", "stochastic")}
        folder.write_json("results.json", results)
        return results


def _require_a_batch(recipe: Recipe, data: Data) -> None:
    """Only whole batches are trained on: of fewer images nothing would be learnt, and nobody told."""
    if len(data.train) < recipe.batch_size:
        raise ValueError(
            f"a batch of {recipe.batch_size} is more than the {len(data.train)} training images; "
            f"--set batch_size={max(1, len(data.train) // 8)}, say"
        )


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
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    from lrnets.training.checkpoints import WholeCheckpoints
    from lrnets.training.module import Stage
    from lrnets.training.progress import bars, epoch_line, quiet_lightning
    from lrnets.training.same_start import SameStart
    from lrnets.training.sync_norm import synced_norms

    def tell(figures: Mapping[str, float]) -> None:
        note_epoch(folder, name, figures)
        say(epoch_line(label or name, settings.epochs, figures))

    several = hardware.processes > 1
    last = folder.checkpoints(name) / "last.ckpt"
    checkpoint = last if last.exists() else None
    keep_last = ModelCheckpoint(
        folder.checkpoints(name), filename="last", save_on_train_epoch_end=True, enable_version_counter=False
    )
    with quiet_lightning(), synced_norms(model) if several else nullcontext():
        trainer = lightning.Trainer(
            accelerator=hardware.accelerator, devices=hardware.devices, num_nodes=hardware.nodes,
            precision=hardware.precision, strategy="ddp" if several else "auto", max_epochs=settings.epochs,
            enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
            callbacks=[SameStart(name, checkpoint, folder.path), keep_last, *bars()],
            enable_progress_bar=bool(bars()), log_every_n_steps=50,
            logger=TensorBoardLogger(folder.path, name="tensorboard", version=name), plugins=[WholeCheckpoints()],
        )  # fmt: skip
        stage = Stage(model, settings, data, transforms, batch_size=batch_size, seed=seed, tell=tell)
        try:
            trainer.fit(stage, ckpt_path=checkpoint, weights_only=True)
        except SIGTERMException as end:  # an exit without a code, which would pass for success
            raise SystemExit(128 + signal.SIGTERM) from end
        except SystemExit as exit:
            # Lightning turns Ctrl-C into an exit, and leaves the signal ignored.
            if isinstance(exit.__context__, KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.default_int_handler)
                raise KeyboardInterrupt from exit
            raise
