"""One stage of training as a Lightning module: the float network's, or the discrete weights'."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrnets.data import Batches, Data, Transforms
from lrnets.data.shuffle import mix
from lrnets.diagnostics import entropy, undecided
from lrnets.discretize import discretize
from lrnets.layers import lr_layers, set_sharpness
from lrnets.methods.harness import after_step, anneal, extra_loss
from lrnets.methods.twin import is_random
from lrnets.penalties import param_groups, penalty
from lrnets.training.evaluation import channels_last, mend_norms, probabilities
from lrnets.training.recipe import DiscreteStage, FloatStage

Tell = Callable[[Mapping[str, float]], None]
NORM_BATCHES_IN_TRAINING = 4  # of 1000: enough to see where a run is going, and cheap


class DivergedError(RuntimeError):
    """The loss is no longer a finite number."""


class Stage(lightning.LightningModule):
    """Trains `model` for one stage; all randomness is a function of (seed, stage, epoch, rank), so a run can resume."""

    def __init__(
        self, model: nn.Module, settings: FloatStage, data: Data, transforms: Transforms,
        *, batch_size: int, seed: int, tell: Tell | None = None,
    ) -> None:  # fmt: skip
        """`batch_size` is what one process takes; `tell` gets the figures of every epoch, in the first process."""
        super().__init__()
        self.model = model
        self.settings = settings
        self.data, self.transforms = data, transforms
        self.batch_size, self.seed, self.tell = batch_size, seed, tell
        self.stochastic = isinstance(settings, DiscreteStage)

    def train_dataloader(self) -> Batches:
        self.batches = Batches(
            self.data.train, self.batch_size, transform=self.transforms.train, shuffle=True, drop_last=True,
            seed=mix(self.seed, self.stochastic), rank=self.global_rank, world=self.trainer.world_size,
            device=self.device,
        )  # fmt: skip
        return self.batches

    def configure_optimizers(self) -> Any:
        s = self.settings
        logit_lr, logit_decay = (s.logit_lr, s.logit_decay) if isinstance(s, DiscreteStage) else (None, 0.0)
        groups = param_groups(
            self.model, lr=s.lr, weight_decay=s.weight_decay, logit_lr=logit_lr, logit_decay=logit_decay
        )
        optimizer = torch.optim.Adam(groups, fused=True)
        if s.schedule == "step":
            steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, s.milestones)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": steps, "interval": "epoch"}}
        peaks = [group["lr"] for group in optimizer.param_groups]
        total = max(2, int(self.trainer.estimated_stepping_batches))
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

    def on_train_epoch_start(self) -> None:
        self.batches.set_epoch(self.current_epoch)
        self.loss_sum, self.started = torch.zeros((), device=self.device), time.perf_counter()
        torch.manual_seed(mix(self.seed, self.stochastic, self.current_epoch, self.global_rank))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if not isinstance(self.settings, DiscreteStage):
            return
        progress = min(1.0, self.global_step / max(1, int(self.trainer.estimated_stepping_batches)))
        anneal(self.model, progress)
        if self.settings.sharpen is not None:
            set_sharpness(self.model, self.settings.sharpen.at(progress))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.model(channels_last(x)), y, label_smoothing=self.settings.label_smoothing)
        if isinstance(self.settings, DiscreteStage):
            s = self.settings
            loss = loss + extra_loss(self.model, loss, len(self.data.train))
            loss = loss + penalty(self.model, probability_decay=s.probability_decay, beta=s.beta)
        if not torch.isfinite(loss):
            raise DivergedError(self._diverged(x, loss))
        self.loss_sum += loss.detach()
        self.log("batch_loss", loss.detach(), prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not isinstance(self.settings, DiscreteStage):
            return
        after_step(self.model)
        if self.settings.logit_limit is not None:
            limit_logits_(self.model, self.settings.logit_limit)

    def on_train_epoch_end(self) -> None:
        loss = self.trainer.strategy.reduce(self.loss_sum / len(self.batches), reduce_op="mean")
        figures = {"epoch": self.current_epoch + 1, "loss": float(loss), **self._validation()}
        figures["lr"] = self.optimizers().param_groups[-1]["lr"]  # type: ignore[union-attr]
        figures["seconds"] = time.perf_counter() - self.started
        for name, value in figures.items():
            # Every process has the same figures, of the same weights and of all images: nothing to gather.
            self.log(name, float(value), rank_zero_only=True)
        if self.tell is not None and self.trainer.is_global_zero:
            self.tell(figures)

    def _validation(self) -> dict[str, float]:
        """Errors of the float network, or of the discrete one and of a draw, if there are any, batch norm mended."""
        evaluate = self.transforms.evaluation
        if not self.stochastic:
            return {"valid_error": self._valid_error(self.model)}
        generator = torch.Generator(self.device).manual_seed(mix(self.seed, self.current_epoch) % 2**63)
        figures = {}
        modes = {"valid_error": "mode"} | ({"valid_error_draw": "sample"} if is_random(self.model) else {})
        for name, mode in modes.items():
            net = discretize(self.model, mode, generator=generator)  # type: ignore[arg-type]
            mend_norms(net, self.data.train, evaluate, NORM_BATCHES_IN_TRAINING)
            figures[name] = self._valid_error(net)
        figures |= {f"entropy/{name}": bits for name, bits in entropy(self.model).items()}
        figures |= {f"undecided/{name}": share for name, share in undecided(self.model).items()}
        for _, layer in islice(lr_layers(self.model), 1):  # all have the same; other methods have none
            figures["sharpness"] = 1.0 if layer.sharpness is None else layer.sharpness.item()
        return figures

    def _valid_error(self, net: nn.Module) -> float:
        """Validation error in per cent; each process looks at its share of the images."""
        counts = torch.zeros(2, dtype=torch.int64, device=self.device)  # wrong ones, all
        share = self.data.valid[self.global_rank :: self.trainer.world_size]
        if len(share):
            p, labels = probabilities(net, share, self.transforms.evaluation)
            counts += torch.tensor([int((p.argmax(1) != labels).sum()), len(labels)], device=self.device)
        wrong, count = self.trainer.strategy.reduce(counts, reduce_op="sum").tolist()
        return 100 * wrong / count

    @torch.no_grad()
    def _diverged(self, x: Tensor, loss: Tensor) -> str:
        where = next((name for name, p in self.model.named_parameters() if not torch.isfinite(p).all()), None)
        if where:
            where = f"parameter {where!r}"
        elif self.trainer.world_size > 1:
            where = "a layer's output (one process alone cannot run the network to tell which)"
        else:
            where = f"layer {_first_bad_layer(self.model, x)!r}"
        return (
            f"the loss is {loss.item()} at step {self.global_step} (epoch {self.current_epoch}); the first number "
            f"that is not finite is in {where}. The last good checkpoint is kept. Try a tenth of lr and "
            "logit_lr, or less sharpening"
        )


@torch.no_grad()
def limit_logits_(model: nn.Module, limit: float) -> None:
    """Clamp the logits themselves, whatever their sharpness, to +-limit."""
    for _, layer in lr_layers(model):
        layer.logits.clamp_(-limit, limit)


def _first_bad_layer(model: nn.Module, x: Tensor) -> str:
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(name)

        return hook

    hooks = [m.register_forward_hook(watch(name)) for name, m in model.named_modules() if not list(m.children())]
    try:
        model(x)
    finally:
        for handle in hooks:
            handle.remove()
    return found[0] if found else "unknown: it was finite when looked at again"
