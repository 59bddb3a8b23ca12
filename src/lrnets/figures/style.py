"""The house style of all pictures: one set of colours, light grids, labels that can be read, a white background."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by colour-blind readers.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#999999"
INK, SOFT, GRID = "#222222", "#666666", "#E3E3E3"  # text, second text, grid
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, INK, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # with the colours, for print without them
DASHES = ("-", "--", "-.", ":")
# By what a weight may be; the hatches serve print without colours.
KINDS = {"binary": (ORANGE, "//"), "ternary": (BLUE, ""), "float": (GREY, "..")}
# By what is trained: the float network, the discrete weights, and single draws of them.
FLOAT, DISCRETE, DRAW = VERMILION, BLUE, GREEN
DOTS = 160  # an inch, of PNG files
WIDE = 10  # a range of so many times is drawn on a logarithmic axis

SETTINGS: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.color": SOFT,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.9,
    "lines.markersize": 5.5,
    "figure.facecolor": "white",  # not transparent: pages may be dark
    "savefig.facecolor": "white",
    "savefig.dpi": DOTS,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "lrnets",  # the same picture is the same file
}


def require_matplotlib() -> None:
    """Say how to get matplotlib where it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from error


@contextmanager
def house_style() -> Iterator[None]:
    """What is drawn and saved meanwhile looks like ours; matplotlib's own settings come back."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, with no window and nothing of pyplot's state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    cast(Any, figure.get_layout_engine()).set(w_pad=0.08, h_pad=0.08)
    return figure


def light_grid(axis: Axes, which: str = "y") -> None:
    """Lines to read values by, "x", "y" or "both", behind what is drawn."""
    axis.grid(True, axis=which)  # type: ignore[arg-type]
    axis.tick_params(length=0 if which == "both" else 3)


def whole_numbers(axis: Axes) -> None:
    """Epochs have no fractions."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def value_axis(axis: Axes, values: Iterable[float]) -> None:
    """From nought, with room above; logarithmic if the values span more than a power of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = min(values := list(values)), max(values)
    if low > 0 and high / low > WIDE:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < WIDE**2 else (1,)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_ylim(min(0.0, low), 1.08 * max(high, 1e-9))


def legend_below(figure: Figure, axes: Iterable[Axes], columns: int = 4) -> None:
    """One legend for some panels, below all of them, each label once."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            entries.setdefault(str(label), handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=min(columns, len(entries)))


def few_markers(points: int) -> int:
    """Every how many points a line has a marker: at most a dozen."""
    return max(1, -(-points // 12))


def sequential() -> Colormap:
    """From white over blue to almost black: rises in darkness alone, so everybody reads it, in print as well."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("lrnets", ["#F7FBFF", SKY, BLUE, "#00263C"])
