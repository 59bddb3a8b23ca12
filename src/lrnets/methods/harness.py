"""What a method asks of a training loop beside gradients: three calls, which do nothing where nothing is asked.

    for step, (x, y) in enumerate(loader):
        anneal(model, step / steps)                              # Gumbel-softmax: the temperature
        loss = criterion(model(x), y)
        loss = loss + extra_loss(model, loss, len(train_set))    # log-derivative: the estimator; Gaussian: the KL term
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        after_step(model)                                        # BinaryConnect: clipping

A layer takes part by having a method of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from lrnets.methods.twin import Twin, tied_key, twins


def anneal(model: nn.Module, progress: float) -> None:
    """Tell the layers which share of training is done, before a step."""
    if not 0 <= progress <= 1:
        raise ValueError(f"progress must be from 0 to 1, a share of training, got {progress}")
    for hook in _hooks(model, "anneal"):
        hook(progress)


def extra_loss(model: nn.Module, loss: Tensor, examples: int) -> Tensor:
    """What the layers want added to the mean loss of a batch, given a training set of this many examples; a scalar."""
    if loss.dim():
        raise ValueError(f"the loss must be a scalar, got shape {tuple(loss.shape)}; average it over the batch")
    if examples < 1:
        raise ValueError(f"examples must be the number of training examples, at least 1, got {examples}")
    total = loss.new_zeros(())
    for hook in _hooks(model, "extra_loss"):
        total = total + hook(loss.detach(), examples)
    return total


def after_step(model: nn.Module) -> None:
    """What a method does to its parameters after each step of the optimiser."""
    for hook in _hooks(model, "after_step"):
        hook()


def _hooks(model: nn.Module, name: str) -> Iterator[Any]:
    done: set[tuple[int, ...]] = set()
    for _, layer in twins(model):
        hook = getattr(layer, name, None)
        if hook is None or (isinstance(layer, Twin) and tied_key(layer) in done):
            continue  # tied weights count once; tied logits do not, as each layer has a sample of its own
        done.add(tied_key(layer))
        yield hook
