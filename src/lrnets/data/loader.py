"""Batches of a split, in an order that can be taken up again anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lrnets.data.augment import Transform
from lrnets.data.shuffle import mix
from lrnets.data.splits import AnySplit
from lrnets.errors import describe


class Batches:
    """Pairs (x, y) of whole batches, on `device`, or the split's own if there is none given.

    The order is a function of (seed, epoch), the noise of `transform` one of (seed, epoch, batch, rank), that with
    which images on disk are cut one of (seed, epoch, image): so a run continues exactly from any batch of any epoch.
    Step k of `world` processes takes the k-th `world * batch_size` examples of the order, a slice for each `rank`;
    every process has equally many batches, and together they have each example once. What is left for the last step is
    shared out evenly, or left out with `drop_last`. Without `augment` images on disk are cut evenly, as for evaluation.

    Iterating goes through the present epoch and then moves on to the next. `at` is the same without any state.
    """

    def __init__(
        self,
        split: AnySplit,
        batch_size: int,
        *,
        transform: Transform | None = None,
        augment: bool = True,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number of at least 1, got {describe(batch_size)}")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world} processes; ranks go from 0 to world - 1")
        self.split, self.batch_size, self.transform = split, batch_size, transform
        self.augment, self.shuffle, self.seed, self.device = augment, shuffle, seed, device
        self.rank, self.world = rank, world
        whole, rest = divmod(len(split), batch_size * world)
        if 0 < rest < world and not drop_last:
            raise ValueError(
                f"{len(split)} examples in steps of {world} x {batch_size} leave {rest} for the last one, less than "
                "one a process; use drop_last=True or another batch size"
            )
        self._whole = whole
        self._length = whole + (rest > 0 and not drop_last)
        self.set_epoch(0)

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """Let the next iteration go through `epoch`, from `batch` on."""
        if epoch < 0 or not 0 <= batch <= len(self):
            raise ValueError(f"epoch {epoch}, batch {batch}; there are epochs from 0 on, of {len(self)} batches")
        self._start = self._next = (epoch, batch)

    def state_dict(self) -> dict[str, int]:
        """Where the next batch is: epoch and batch."""
        epoch, batch = self._next
        return {"epoch": epoch + 1, "batch": 0} if batch == len(self) else {"epoch": epoch, "batch": batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration continue where `state_dict` was taken."""
        self.set_epoch(state["epoch"], state["batch"])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, first = self._start
        self._start = (epoch, 0)  # whoever gives up half-way begins anew
        for batch, pair in enumerate(self.at(epoch, first), first + 1):
            self._next = (epoch, batch)
            yield pair
        self.set_epoch(epoch + 1)

    def at(self, epoch: int, batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from the given one on, whatever was or is iterated elsewhere."""
        order = torch.arange(len(self.split))
        if self.shuffle:
            order = self.split.order(self.seed, epoch, batch_size=self.batch_size, world=self.world)
        groups = (order[self._slice(k)] for k in range(batch, len(self)))
        noise = mix(self.seed, epoch) if self.augment else None
        for k, (images, labels) in enumerate(self.split.take(groups, noise), batch):
            if self.device is not None:  # as bytes: a quarter of what floats would take
                images, labels = (t.to(self.device, non_blocking=True) for t in (images, labels))
            yield self._transformed(images, epoch, k), labels

    def _slice(self, batch: int) -> slice:
        """Places in the order that this rank takes in a step."""
        begin = batch * self.batch_size * self.world
        size = self.batch_size * self.world if batch < self._whole else len(self.split) - begin
        return slice(begin + size * self.rank // self.world, begin + size * (self.rank + 1) // self.world)

    def _transformed(self, images: Tensor, epoch: int, batch: int) -> Tensor:
        if self.transform is None:
            return images
        # On the CPU, a few numbers an image: the same noise on every device.
        generator = torch.Generator().manual_seed(mix(self.seed, epoch, batch, self.rank))
        return self.transform(images, generator)
