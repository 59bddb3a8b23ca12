"""The first kernels of the first layer, in float and discrete (fig. 3 to 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lrnets.figures.figure import Figure
from lrnets.figures.sources import ImpossibleError, Source
from lrnets.figures.style import SOFT, new_figure
from lrnets.figures.task import Task

if TYPE_CHECKING:
    import matplotlib.figure

KERNELS = 25
GAP = 1  # white pixels between kernels
Panel = tuple[str, Tensor]  # title, kernels (n, channels, height, width)


def tasks(sources: Sequence[Source], suffix: str) -> Iterator[Task]:
    """For each run its own kernels: the float ones it started from, and the discrete ones."""
    for source in sources:
        yield Task(f"kernels{suffix}", partial(of_run, source, suffix))


def pair_tasks(sources: Sequence[Source]) -> Iterator[Task]:
    """The paper's three panels, where there are a binary and a ternary LR-net of the same network."""
    lr = [source for source in sources if source.recipe.method == "lr"]
    binary = next((source for source in lr if source.recipe.weights == "binary"), None)
    if binary is not None:
        same = (binary.recipe.network, binary.recipe.width)
        for ternary in lr:
            if ternary.recipe.weights == "ternary" and (ternary.recipe.network, ternary.recipe.width) == same:
                yield Task("kernels-binary-ternary-float", partial(of_three, binary, ternary))
                return


def of_run(source: Source, suffix: str = "") -> Figure:
    """The float kernels, and the discrete ones they became."""
    panels: list[Panel] = []
    if source.recipe.discrete_stage is None:
        panels.append(("float", first_kernels(source.float_net)))
    else:
        if source.folder.weights_file("float").exists():
            panels.append(("float, the start", first_kernels(source.float_net)))
        panels.append((f"{_kind(source)}, chosen", first_kernels(source.drawn)))
    return _figure(f"kernels{suffix}", panels, f"of {source.label}")


def of_three(binary: Source, ternary: Source) -> Figure:
    """Figures 3, 4 and 5."""
    panels = [(_kind(source), first_kernels(source.drawn)) for source in (binary, ternary)]
    panels.append(("float", first_kernels(ternary.float_net)))
    return _figure("kernels-binary-ternary-float", panels, f"of {binary.label} and {ternary.label} (fig. 3 to 5)")


def first_kernels(net: nn.Module) -> Tensor:
    """The first 25 kernels of the first convolution: (n, channels, height, width)."""
    first = next((module for module in net.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None:
        raise ImpossibleError("the network has no convolution, so there are no kernels to show")
    return first.weight.detach()[:KERNELS].float()


def levels_of_kernels(kernels: Tensor) -> Tensor:
    """Numbers from -1 (black) over 0 (grey) to 1 (white): divided by the greatest size, of every kernel its own.

    Discrete kernels are a scale times -1, 0 and 1; a kernel of nothing but 0 stays 0.
    """
    size = kernels.abs().flatten(1).amax(1).clamp_min(torch.finfo(kernels.dtype).tiny)
    return kernels / size.view(-1, 1, 1, 1)


def sheet(kernels: Tensor) -> Tensor:
    """All kernels on one sheet, a square of them, side by side: (height, width, 3), numbers from 0 to 1."""
    grey = (levels_of_kernels(kernels) + 1) / 2  # (n, channels, height, width)
    count, channels, height, width = grey.shape
    # Three channels are colours; of any other number the mean is shown.
    pixels = grey if channels == 3 else grey.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    columns = max(1, round(count**0.5))
    lines = -(-count // columns)
    page = torch.full((lines * (height + GAP) + GAP, columns * (width + GAP) + GAP, 3), _FRAME)
    for number, kernel in enumerate(pixels):
        y, x = GAP + number // columns * (height + GAP), GAP + number % columns * (width + GAP)
        page[y : y + height, x : x + width] = kernel.permute(1, 2, 0)
    return page


_FRAME = 0.9  # between kernels: neither white, nor grey, nor black


def _kind(source: Source) -> str:
    weights = source.recipe.weights
    return weights if isinstance(weights, str) else "levels " + ", ".join(f"{level:g}" for level in weights)


def _figure(name: str, panels: list[Panel], whose: str) -> Figure:
    count, channels, *size = panels[0][1].shape

    def draw() -> matplotlib.figure.Figure:
        from matplotlib.patches import Patch

        figure = new_figure(3.1 * len(panels), 3.4 if channels == 3 else 3.75)
        for axis, (title, kernels) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
            axis.imshow(sheet(kernels).numpy(), interpolation="nearest", vmin=0, vmax=1)
            axis.set_title(title, fontsize=10)
            axis.set_axis_off()
        shades = [Patch(facecolor=str((level + 1) / 2), edgecolor=SOFT, label=f"{level:+d}" if level else "0")
                  for level in (-1, 0, 1)]  # fmt: skip
        if channels != 3:
            figure.legend(handles=shades, loc="outside lower center", ncols=3)
        return figure

    found = [f"{title} {_shares(kernels)}" for title, kernels in panels if "float" not in title]
    shares = "; ".join(found) or "all in float"
    colours = " (red, green and blue are the three channels)" if channels == 3 else ""
    rows = tuple(
        (title, kernel, channel, y, x, kernels[kernel, channel, y, x].item())
        for title, kernels in panels
        for kernel, channel, y, x in torch.cartesian_prod(*(torch.arange(n) for n in kernels.shape)).tolist()
    )
    return Figure(
        name,
        "Kernels of the first layer",
        f"The first {count} kernels ({size[0]}x{size[1]}) of the first layer {whose}; black, grey and white are -1, 0 "
        f"and +1, each float kernel divided by its greatest size{colours}. Shares: {shares}.",
        f"Sheets of {count} small kernels each: {', '.join(title for title, _ in panels)}. {shares}.",
        draw,
        ("network", "kernel", "channel", "row", "column", "weight"),
        rows,
    )


def _shares(kernels: Tensor) -> str:
    signs = kernels.sign()
    parts = ((name, (signs == sign).float().mean().item()) for name, sign in (("-", -1), ("0", 0), ("+", 1)))
    return ", ".join(f"{share:.0%} {name}" for name, share in parts if share > 0)
