"""A small transformer that predicts the next character: float against LR-net ternary against BitNet b1.58.

LR-net comes twice: with the derivatives of its logits, as in the paper, and with natural gradients, which do not fade,
and scales that learn. Its scales are fitted to the float weights, since no batch norm makes up for a wrong one.

The text is Python's own language reference (pydoc_data.topics, half a million characters), which every Python has. All
networks have the same budget: half of the steps train one float network; then the float one goes on, and copies of it
go on as LR-nets and as BitNet (its weights alone: activations stay float in all). Embeddings, norms and the last layer
stay in float. What is measured is the loss on the last tenth of the text, in bits a character: of discrete networks,
never of the stochastic one.

    python examples/characters.py                        # about four minutes on one core
    python examples/characters.py --seeds 2 --steps 2000 --width 128 --layers 4
    python examples/characters.py --tiny                 # seconds: to see that it works
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import lrnets
from lrnets.layers import bake_sharpness_, learn_scales_, set_natural, set_sharpness
from lrnets.methods.twin import twins
from lrnets.tables import table
from lrnets.training.recipe import Sharpen

VALID_SHARE = 0.1
DRAWS = 5
Tick = Callable[[float], None]  # told the loss after each step


@dataclass(frozen=True)
class Settings:
    """Sizes of the network and its training."""

    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 64
    batch: int = 16
    steps: int = 800  # in all, of which half are the float network's
    lr: float = 3e-3
    # Rates are the best on this validation text, seed 0, 400 steps: LR-net's of 0.01, 0.03, 0.1 and 0.3, BitNet's of a
    # tenth of those. With natural gradients LR-net's rate was kept, and the decay is the best of 0.02, 0.05 and 0.1.
    logit_lr: float = 0.3
    logit_decay: float = 0.05
    latent_lr: float = 0.01


NATURAL = "LR-net ternary, natural"
SHARPEN = Sharpen(start=0.4, factor=10)  # so that LR-net's weights have decided in the end
SHARPEN_NATURAL = Sharpen(start=0, first=3.5, factor=10)  # natural gradients do not fade when logits are large
CONVERTED = (("LR-net ternary", "lr", "logit_lr"), (NATURAL, "lr", "logit_lr"), ("BitNet b1.58", "bitnet", "latent_lr"))
TINY = Settings(width=16, layers=1, heads=2, context=16, batch=8, steps=8)


def load_text() -> tuple[str, str]:
    """The text to learn from and the text to judge by."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    cut = int(len(text) * (1 - VALID_SHARE))
    return text[:cut], text[cut:]


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); x (batch, context, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, context, width / heads)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharacterModel(nn.Module):
    """Characters (batch, context) to logits of the next ones (batch, context, characters)."""

    def __init__(self, characters: int, s: Settings) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, s.width)
        self.place = nn.Embedding(s.context, s.width)
        self.blocks = nn.Sequential(*(Block(s.width, s.heads) for _ in range(s.layers)))
        self.norm = nn.LayerNorm(s.width)
        self.head = nn.Linear(s.width, characters)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.embed(x) + self.place(places))))


def fit(
    model: nn.Module, text: Tensor, s: Settings, *, rate: float, seed: int, tick: Tick, natural: bool = False
) -> list[float]:
    """Adam for half of the steps, one cycle, on windows at random places; `rate` is that of what weights come from.

    Returns the share of discrete weights whose most probable level changed in each fifth of the steps.
    """
    steps = s.steps // 2
    if natural:
        set_natural(model)
        learn_scales_(model)
    sharpen = SHARPEN_NATURAL if natural else SHARPEN
    optimizer = torch.optim.Adam(
        lrnets.param_groups(model, lr=s.lr, logit_lr=rate, logit_decay=s.logit_decay if natural else 0.0)
    )
    # The natural gradients of logits are of another size than derivatives, which Adam does not mind.
    clipped = [p for g in optimizer.param_groups if not natural or g["name"] != "logits" for p in g["params"]]
    peaks = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, total_steps=max(2, steps))
    places = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # LR-net's noise
    model.train()
    levels, changed = signs(model), []
    for step in range(steps):
        set_sharpness(model, sharpen.at(step / steps))
        starts = torch.randint(len(text) - s.context, (s.batch, 1), generator=places)
        window = text[starts + torch.arange(s.context + 1)]  # (batch, context + 1)
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        (loss if natural else loss + lrnets.penalty(model, probability_decay=1e-11)).backward()
        nn.utils.clip_grad_norm_(clipped, 1.0)
        optimizer.step()
        schedule.step()
        tick(loss.item())
        if (step + 1) * 5 // steps > step * 5 // steps:
            before, levels = levels, signs(model)
            changed.append((levels != before).float().mean().item())
    bake_sharpness_(model)
    return changed


@torch.no_grad()
def signs(model: nn.Module) -> Tensor:
    """The most probable level of every discrete weight, one after the other; of a float network none."""
    weights = [cast(Tensor, layer.weight) for _, layer in twins(model)]
    return torch.cat([torch.empty(0), *(weight.sign().flatten() for weight in weights)])


@torch.no_grad()
def bits(net: nn.Module, text: Tensor, s: Settings) -> float:
    """Loss in bits a character on neighbouring windows, in eval mode."""
    windows = text[: (len(text) - 1) // s.context * s.context + 1].unfold(0, s.context + 1, s.context)
    net.eval()
    losses = [
        F.cross_entropy(net(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten(), reduction="sum").item()
        for part in windows.split(64)
    ]
    return sum(losses) / (windows.shape[0] * s.context) / math.log(2)


def compare(
    train: Tensor, valid: Tensor, characters: int, s: Settings, seed: int, tick: Tick
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Bits a character, and changes of weights as `fit` gives them, by network: one budget, one float start for all."""
    torch.manual_seed(seed)
    start = CharacterModel(characters, s)
    fit(start, train, s, rate=s.lr, seed=seed, tick=tick)
    found, changes = {"float, half the steps": bits(start, valid, s)}, {}

    net = copy.deepcopy(start)
    fit(net, train, s, rate=s.lr, seed=seed + 1, tick=tick)
    found["float"] = bits(net, valid, s)

    for label, method, rate in CONVERTED:
        model = copy.deepcopy(start)
        options: dict[str, Any] = {"scale": "fitted"} if method == "lr" else {}
        lrnets.convert_(model, "ternary", method=method, **options)
        natural = label == NATURAL
        changes[label] = fit(model, train, s, rate=getattr(s, rate), seed=seed + 1, tick=tick, natural=natural)
        found[label] = bits(lrnets.discretize(model, "mode"), valid, s)
        if method == "lr":
            generator = torch.Generator().manual_seed(seed)
            draws = [bits(lrnets.discretize(model, generator=generator), valid, s) for _ in range(DRAWS)]
            found[f"{label}, mean of {DRAWS} draws"] = statistics.mean(draws)
    return found, changes


def sizes(s: Settings, characters: int) -> tuple[int, int]:
    """Bytes in float32, and with ternary weights packed."""
    model = CharacterModel(characters, s)
    lrnets.convert_(model, "ternary")
    cost = lrnets.summary(model, torch.zeros(1, s.context, dtype=torch.long))
    return cost.float_bytes, cost.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="repetitions (default %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a network that learns nothing, in seconds")
    for name, default in vars(Settings()).items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(default), help=f"default {default}")
    args = parser.parse_args()
    given = {name: value for name in vars(Settings()) if (value := getattr(args, name)) is not None}
    s = replace(TINY if args.tiny else Settings(), **given)
    if args.seeds < 1 or s.steps < 4 or min(s.width, s.layers, s.heads, s.context, s.batch) < 1:
        parser.error(f"--seeds and all sizes must be at least 1 and --steps at least 4, got {args.seeds} and {s}")
    if s.width % s.heads:
        parser.error(f"--width must be a multiple of --heads, got {s.width} and {s.heads}")
    console = Console()
    torch.set_num_threads(1)
    texts = load_text()
    alphabet = {character: i for i, character in enumerate(sorted(set("".join(texts))))}
    train, valid = (torch.tensor([alphabet[character] for character in text]) for text in texts)
    if args.tiny:
        valid = valid[:2000]
    float_bytes, ternary_bytes = sizes(s, len(alphabet))
    console.print(
        f"{len(train):,} characters to learn from, {len(valid):,} to judge by, {len(alphabet)} different ones; "
        f"{s.steps} steps of {s.batch} x {s.context} for each network",
        highlight=False,
    )
    started = time.perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("loss {task.fields[loss]:.3f}")
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("training", total=args.seeds * (2 + len(CONVERTED)) * (s.steps // 2), loss=math.nan)
        runs = [
            compare(train, valid, len(alphabet), s, seed, lambda loss: progress.update(task, advance=1, loss=loss))
            for seed in range(args.seeds)
        ]
    rows = []
    for label in runs[0][0]:
        found = [losses[label] for losses, _ in runs]
        spread = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
        size = float_bytes if label.startswith("float") else ternary_bytes
        rows.append((label, f"{statistics.mean(found):.3f}{spread}", f"{size:,}"))
    print(table(("network", "bits a character", "bytes"), rows, right=(1, 2)))
    print("\nweights that change in each fifth of the steps, %")
    shares = [
        (
            label,
            ", ".join(f"{100 * statistics.mean(fifth):.1f}" for fifth in zip(*(changes[label] for _, changes in runs))),
        )
        for label, _, _ in CONVERTED
    ]
    print(table(("network", "changes"), shares))
    print(f"{args.seeds} seed(s), ± is their deviation; {time.perf_counter() - started:.0f} seconds with one thread")


if __name__ == "__main__":
    main()
