"""Bias and variance of gradient estimators for discrete weights: LR-net, Gumbel-softmax, log-derivative (appendix A).

    python experiments/gradient_variance.py --out runs/gradient-variance --start runs/mnist/float/0/float.safetensors
    python experiments/gradient_variance.py --out runs/gradient-variance --redraw     # the picture, from the CSV alone

Two problems. (a) One neuron with so few ternary weights that the expected loss and its gradient are a sum over all
weight vectors: bias and variance are measured against that. (b) The three discrete layers of the paper's MNIST network
as training finds them, started from a float network: variance only, at one fixed batch, with all layers random at once.
Both are in units of a squared gradient: the exact one in (a), in (b) the mean of LR-net's own samples.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrnets.data import TRANSFORMS, load
from lrnets.figures.figure import Figure
from lrnets.figures.style import CYCLE, GRID, SOFT, light_grid, new_figure
from lrnets.layers import LRConv2d, LRLinear, lr_layers
from lrnets.methods.gumbel import GumbelConv2d, GumbelLinear, set_temperature
from lrnets.methods.log_derivative import LogDerivativeConv2d, LogDerivativeLinear, surrogate_loss
from lrnets.methods.sampled import log_probabilities
from lrnets.models import mnist_net
from lrnets.training.weight_files import read_weights
from lrnets.weights import TERNARY, ValueSet
from lrnets.whole_files import write_whole

TEMPERATURES = (0.01, 0.1, 0.3, 0.5, 1.0)
WARM_UP = 50  # passes before a running baseline counts
ROUNDS = 20  # of samples in (a) where a pass gives many at once: bias must show below the noise of the mean
SMALL = 0.01  # of the root mean square: a weight with a gradient below it has as good as none


@dataclass(frozen=True)
class Estimator:
    """One way to a gradient of the logits."""

    label: str
    linear: Any  # classes of layers
    convolution: Any
    temperature: float | None = None
    baseline: bool = False

    def loss(self, model: nn.Module, loss: Tensor) -> Tensor:
        """What to differentiate: the loss, or for the log-derivative estimator its surrogate."""
        if self.linear is not LogDerivativeLinear:
            return loss
        return surrogate_loss(model, loss) if self.baseline else surrogate_loss(model, loss, baseline=0.0)


ESTIMATORS = (
    Estimator("LR-net", LRLinear, LRConv2d),
    *(Estimator(f"Gumbel-softmax, τ = {t:g}", GumbelLinear, GumbelConv2d, temperature=t) for t in TEMPERATURES),
    Estimator("log-derivative, baseline", LogDerivativeLinear, LogDerivativeConv2d, baseline=True),
    Estimator("log-derivative", LogDerivativeLinear, LogDerivativeConv2d),
)


@dataclass(frozen=True)
class Row:
    """One estimator on one layer; variance and bias are relative, see the module's docstring."""

    problem: str
    layer: str
    estimator: str
    samples: int
    variance: float  # total variance by the squared norm of the reference gradient
    bias: float  # norm of (mean - exact) by that of exact, sampling noise taken out; NaN in (b)
    bias_noise: float  # what sampling alone would show of a bias, likewise
    cosine: float  # of the mean with the reference gradient
    small: float  # share of weights with hardly any gradient in one sample


class Moments:
    """Sums over samples of a gradient, in double precision."""

    def __init__(self) -> None:
        self.count, self.small = 0, 0.0
        self.total: Tensor | None = None
        self.squares: Tensor | None = None

    def add(self, samples: Tensor) -> None:
        """Take in some samples, (samples, ...)."""
        flat = samples.flatten(1).double()
        total, squares = flat.sum(0), flat.square().sum(0)
        self.total = total if self.total is None else self.total + total
        self.squares = squares if self.squares is None else self.squares + squares
        rms = flat.square().mean(1, keepdim=True).sqrt()
        self.small += float((flat.abs() <= SMALL * rms).double().mean(1).sum())
        self.count += len(flat)

    @property
    def mean(self) -> Tensor:
        assert self.total is not None
        return self.total / self.count

    @property
    def variance(self) -> float:
        """Trace of the covariance."""
        assert self.squares is not None
        return float((self.squares / self.count - self.mean.square()).sum()) * self.count / (self.count - 1)

    def squared_distance(self, other: Tensor | float) -> float:
        """|E g - other|^2 without the sampling noise of the mean, which adds variance / count."""
        return float((self.mean - other).square().sum()) - self.variance / self.count

    def row(self, problem: str, layer: str, estimator: str, reference: Tensor, size: float, exact: bool) -> Row:
        """`size` is the squared norm of the reference gradient, its own sampling noise taken out."""
        bias = math.sqrt(max(0.0, self.squared_distance(reference)) / size) if exact else math.nan
        noise = math.sqrt(self.variance / self.count / size) if exact else math.nan
        cosine = float(F.cosine_similarity(self.mean, reference.flatten(), 0))
        return Row(
            problem, layer, estimator, self.count, self.variance / size, bias, noise, cosine, self.small / self.count
        )


# ---- (a) all weight vectors -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """One neuron: x (batch, inputs), labels y in {-1, +1}, logits (logits a weight, inputs)."""

    x: Tensor
    y: Tensor
    logits: Tensor
    values: ValueSet = TERNARY

    def loss(self, z: Tensor) -> Tensor:
        """Mean logistic loss; z (batch, ...), result of the rest of its shape."""
        y = self.y.view(-1, *[1] * (z.dim() - 1))
        return F.softplus(-y * z).mean(0)


def make_problem(inputs: int = 10, batch: int = 16, seed: int = 0) -> Problem:
    """Random inputs, labels and distributions, those started from weights drawn from N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, inputs, generator=generator, dtype=torch.float64) * 2 / math.sqrt(inputs)
    y = torch.randn(batch, generator=generator, dtype=torch.float64).sign()
    return Problem(x, y, TERNARY.random_start((inputs,), generator=generator, dtype=torch.float64))


def exact_gradient(problem: Problem) -> Tensor:
    """d/dtheta sum_W P(W) L(W) over all weight vectors; shape of the logits."""
    logits = problem.logits.clone().requires_grad_()
    levels, inputs = problem.values.levels, logits.shape[1]
    chosen = torch.cartesian_prod(*[torch.arange(len(levels))] * inputs)  # (vectors, inputs)
    log_p = log_probabilities(problem.values, logits)[chosen, torch.arange(inputs)].sum(1)
    z = problem.x @ torch.tensor(levels, dtype=logits.dtype)[chosen].T  # (batch, vectors)
    (log_p.exp() * problem.loss(z)).sum().backward()
    assert logits.grad is not None
    return logits.grad


def sample_gradients(problem: Problem, estimator: Estimator, samples: int, seed: int = 0) -> Tensor:
    """Independent samples of the gradient, (samples, logits a weight, inputs).

    The outputs of one layer are as many copies of the neuron, each with weights and noise of its own. The
    log-derivative estimator multiplies by a loss that must be that of one copy alone: there it is one copy a pass.
    """
    single = estimator.linear is LogDerivativeLinear
    copies = 1 if single else samples
    k, inputs = problem.logits.shape
    layer = estimator.linear(inputs, copies, bias=False, values=problem.values, scale=False, dtype=torch.float64)
    layer.generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.logits.copy_(problem.logits.unsqueeze(1).expand(k, copies, inputs).flatten(0, 1))
    if estimator.temperature is not None:
        set_temperature(layer, estimator.temperature)
    warm_up = WARM_UP if estimator.baseline else 0
    gradients = []
    for _ in range(warm_up + samples if single else 1):
        layer.logits.grad = None
        estimator.loss(layer, problem.loss(layer(problem.x)).sum()).backward()
        assert layer.logits.grad is not None
        gradients.append(layer.logits.grad.view(k, copies, inputs).transpose(0, 1))
    return torch.cat(gradients[warm_up:])


def measure_problem(problem: Problem, samples: int, estimators: Iterable[Estimator] = ESTIMATORS) -> list[Row]:
    """Bias and variance of each estimator against the exact gradient."""
    exact, rows = exact_gradient(problem).flatten(), []
    for estimator in estimators:
        moments = Moments()
        for seed in range(1 if estimator.linear is LogDerivativeLinear else ROUNDS):
            moments.add(sample_gradients(problem, estimator, samples, seed))
        size = float(exact.square().sum())
        rows.append(moments.row("enumerated", "neuron", estimator.label, exact, size, exact=True))
        print(rows[-1], flush=True)
    return rows


# ---- (b) a real network ---------------------------------------------------------------------------------------------


def stochastic_network(start: dict[str, Tensor], estimator: Estimator) -> nn.Module:
    """The MNIST network with ternary weights from a float start, only their logits to learn, without dropout."""
    model = mnist_net(dropout=0.0)
    model.load_state_dict(start)
    for name, layer in list(model.named_children()):
        kind = {"conv1": estimator.convolution, "conv2": estimator.convolution, "fc1": estimator.linear}.get(name)
        if kind is not None:
            setattr(model, name, kind.from_plain(layer, TERNARY, scale=True))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for _, lr_layer in lr_layers(model):
        lr_layer.logits.requires_grad_(True)
    if estimator.temperature is not None:
        set_temperature(model, estimator.temperature)
    return model.train()


def measure_network(
    start: dict[str, Tensor], x: Tensor, y: Tensor, samples: int, estimators: Iterable[Estimator] = ESTIMATORS
) -> list[Row]:
    """Variance of each estimator on each layer at one batch; LR-net, the reference, is the first."""
    rows: list[Row] = []
    reference: dict[str, Moments] = {}
    for estimator in estimators:
        torch.manual_seed(0)
        model = stochastic_network(start, estimator)
        layers = dict(lr_layers(model))
        moments = {name: Moments() for name in layers}
        warm_up = WARM_UP if estimator.baseline else 0
        for sample in range(warm_up + samples):
            loss = estimator.loss(model, F.cross_entropy(model(x), y))
            gradients = torch.autograd.grad(loss, [layer.logits for layer in layers.values()])
            if sample >= warm_up:
                for name, gradient in zip(layers, gradients):
                    moments[name].add(gradient.unsqueeze(0))
        reference = reference or moments
        for name, found in moments.items():
            size = reference[name].squared_distance(0.0)
            rows.append(found.row("MNIST", name, estimator.label, reference[name].mean, size, exact=False))
            print(rows[-1], flush=True)
    return rows


def mnist_batch(size: int) -> tuple[Tensor, Tensor]:
    """The first training images, as training sees them."""
    images, labels = next(load("mnist").train.take([torch.arange(size)]))
    return TRANSFORMS["mnist"].evaluation(images), labels


# ---- files ----------------------------------------------------------------------------------------------------------


def write_rows(rows: list[Row], path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    temporary.replace(path)


def read_rows(path: Path) -> list[Row]:
    numbers: dict[str, Any] = {
        field.name: int if field.type == "int" else float for field in fields(Row) if field.type != "str"
    }
    with path.open(newline="") as file:
        return [
            Row(**{name: numbers.get(name, str)(text) for name, text in row.items()}) for row in csv.DictReader(file)
        ]


COLOURS = dict(zip(("LR-net", "Gumbel-softmax", "log-derivative"), CYCLE))
MARKERS = {"neuron": "o", "conv1": "^", "conv2": "s", "fc1": "D"}
OFFSETS = {"neuron": 0.0, "conv1": -0.22, "conv2": 0.0, "fc1": 0.22}  # so that none hides another
PANELS = (
    ("enumerated", "variance", "(a) one neuron: variance", "variance / |exact gradient|²"),
    ("enumerated", "bias", "(a) one neuron: bias", "|bias| / |exact gradient|"),
    ("MNIST", "variance", "(b) MNIST network: variance", "variance / |mean LR gradient|²"),
)


def picture(rows: list[Row]) -> Figure:
    """One row an estimator: variance and bias on the enumerated problem, variance in the network's layers."""
    panels = [panel for panel in PANELS if any(row.problem == panel[0] for row in rows)]
    ours, *others = (row for row in rows if row.problem == "enumerated")  # LR-net is the first
    rivals = [row.variance for row in others]
    said = (
        f"On the neuron whose gradient is known exactly, LR-net has a relative variance of {ours.variance:.2g} and a "
        f"bias of {ours.bias:.1%}; the variances of the others are {min(rivals):.2g} to {max(rivals):.2g}"
    )
    return Figure(
        "gradient-variance",
        "Bias and variance of gradient estimators",
        f"{said}. A hollow mark is an upper bound, twice the sampling noise.",
        f"Points on logarithmic axes, a line an estimator. {said}.",
        lambda: drawn(rows, panels),
        tuple(field.name for field in fields(Row)),
        tuple(tuple(asdict(row).values()) for row in rows),
    )


def drawn(rows: list[Row], panels: list[tuple[str, str, str, str]]) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogFormatterSciNotation, NullFormatter

    labels = list(dict.fromkeys(row.estimator for row in rows))
    figure = new_figure(3.6 * len(panels) + 1.6, 4.2)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (problem, quantity, title, label) in zip(axes, panels):
        for row in (row for row in rows if row.problem == problem):
            value = getattr(row, quantity)
            hidden = quantity == "bias" and value < 2 * row.bias_noise  # not to be told from sampling noise
            value = 2 * row.bias_noise if hidden else value
            colour = COLOURS[row.estimator.split(",")[0]]
            axis.plot(value, labels.index(row.estimator) + OFFSETS[row.layer], "<" if hidden else MARKERS[row.layer],
                      markersize=7, color=colour, markerfacecolor="white" if hidden else colour)  # fmt: skip
        axis.set(xscale="log", title=title, xlabel=label)
        axis.xaxis.set_major_formatter(LogFormatterSciNotation() if quantity == "variance" else "{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        if quantity == "bias":
            axis.set_xlim(0.005, 2)
        light_grid(axis, "x")
        axis.tick_params(axis="y", length=0)
        for place in range(1, len(labels)):
            axis.axhline(place - 0.5, color=GRID, linewidth=0.8, zorder=0)
    axes[0].set_yticks(range(len(labels)), labels)
    axes[0].set_ylim(len(labels) - 0.5, -0.5)  # LR-net on top
    names = [name for name in MARKERS if any(row.layer == name for row in rows)]
    handles = [Line2D([], [], color=SOFT, marker=MARKERS[name], linestyle="", label=name) for name in names]
    handles.append(Line2D([], [], color=SOFT, marker="<", linestyle="", markerfacecolor="white",
                          label="upper bound: twice the sampling noise"))  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def draw(rows: list[Row], out: Path) -> None:
    """The picture as SVG and PNG."""
    made = picture(rows)
    write_whole(out / f"{made.name}.svg", made.svg().encode())
    write_whole(out / f"{made.name}.png", made.png())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gradient-variance"))
    parser.add_argument(
        "--samples", type=int, default=20_000, help=f"gradients in (a), {ROUNDS} times as many where it is cheap"
    )
    parser.add_argument("--start", type=Path, help="float MNIST network; without it (b) is left out")
    parser.add_argument("--network-samples", type=int, default=300, help="gradients an estimator in (b)")
    parser.add_argument("--batch", type=int, default=64, help="images in (b)")
    parser.add_argument("--redraw", action="store_true", help="only the picture, from the CSV")
    args = parser.parse_args()
    table = args.out / "gradient-variance.csv"
    if not args.redraw:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        rows = measure_problem(make_problem(), args.samples)
        if args.start is not None:
            rows += measure_network(read_weights(args.start), *mnist_batch(args.batch), args.network_samples)
        args.out.mkdir(parents=True, exist_ok=True)
        write_rows(rows, table)
    draw(read_rows(table), args.out)
    print(f"wrote {table} and gradient-variance.svg, .png beside it")


if __name__ == "__main__":
    main()
