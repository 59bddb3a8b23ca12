"""Where draws disagree: in which layers' weights, on which classes, on which validation images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lrnets.data.known import known
from lrnets.diagnostics import disagreement as weights_disagreement
from lrnets.figures.figure import Figure
from lrnets.figures.sources import ImpossibleError, Source
from lrnets.figures.style import BLUE, INK, VERMILION, light_grid, new_figure
from lrnets.figures.task import Task
from lrnets.training.examples import FILE, Answers, disagreement

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

SHOWN = 18  # disputed images
CLASSES = 30  # bars of them at most: of a thousand, those on which draws differ most


def tasks(sources: Sequence[Source], layers: Sequence[str], suffix: str) -> Iterator[Task]:
    """For each run of a method with distributions."""
    for source in sources:
        if source.has_logits:
            yield Task(f"draws-disagree{suffix}", partial(where, source, layers, suffix))
            yield Task(f"disputed-images{suffix}", partial(disputed, source, suffix))


def where(source: Source, layers: Sequence[str] = (), suffix: str = "") -> Figure:
    """Bars: weights on which two draws differ, a layer; validation images on which not all draws agree, a class."""
    names = source.layers(layers)
    found = weights_disagreement(source.trained)
    weights = {name: 100 * found[name] for name in names}
    try:
        answers: Answers | None = _answers(source)
    except (OSError, ValueError):
        answers = None  # an older run: the layers are still to be seen
    classes = {} if answers is None else by_class(answers)

    def draw() -> matplotlib.figure.Figure:
        most = dict(sorted(classes.items(), key=lambda item: -item[1])[:CLASSES]) if len(classes) > CLASSES else classes
        rows = [len(shares) for shares in (weights, most) if shares]
        figure = new_figure(6.4, sum(0.9 + 0.3 * count for count in rows))
        panels = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
        _bars(panels[0], list(weights), list(weights.values()), BLUE, "Weights on which two draws differ",
              "share of a layer's weights (%)")  # fmt: skip
        if classes:
            named = [_class_name(source, label) for label in most]
            some = f", the {CLASSES} classes with most" if most is not classes else ""
            _bars(panels[1], named, list(most.values()), VERMILION, f"Images on which draws differ{some}",
                  "share of a class's validation images (%)")  # fmt: skip
        return figure

    said = ", ".join(f"{name} {share:.1f} %" for name, share in weights.items())
    told = "" if answers is None else f" {_answers_said(answers)}"
    rows: list[tuple[Any, ...]] = [("layer", name, share) for name, share in weights.items()]
    rows += [("class", _class_name(source, label), share) for label, share in classes.items()]
    return Figure(
        f"draws-disagree{suffix}",
        "Where draws disagree",
        f"Weights in which two draws of {source.label} are expected to differ: {said}.{told}",
        f"Bars of the share of weights, a layer{', and of images, a class' if classes else ''}. {said}.{told}",
        draw,
        ("of", "name", "share (%)"),
        tuple(rows),
    )


def disputed(source: Source, suffix: str = "") -> Figure:
    """The validation images that draws name most differently, with what they say and what is true."""
    answers = _answers(source)
    if not len(answers.disputed):
        raise ImpossibleError(
            f"all {len(answers.valid)} draws of {source.folder.path} agree on all validation images: there is nothing "
            "to show; that is as it should be"
        )
    shown = answers.disputed[:SHOWN].tolist()
    votes = {index: Counter(answers.valid[:, index].tolist()).most_common() for index in shown}

    def draw() -> matplotlib.figure.Figure:
        columns = min(6, len(shown))
        lines = -(-len(shown) // columns)
        figure = new_figure(max(5.0, 1.55 * columns), 2.05 * lines + 0.5)
        figure.suptitle("Validation images that draws name differently", x=0.01, ha="left", fontsize=11,
                        fontweight="bold")  # fmt: skip
        panels = figure.subplots(lines, columns, squeeze=False).flatten()
        for axis in panels:
            axis.set_axis_off()
        for axis, index, image in zip(panels, shown, answers.disputed_images):
            pixels = image.permute(1, 2, 0)
            axis.imshow(pixels[..., 0] if pixels.shape[2] == 1 else pixels, cmap="gray_r", vmin=0, vmax=255)
            truth = int(answers.valid_labels[index])
            axis.set_title(f"true: {_class_name(source, truth)}", fontsize=8.5, color=INK, loc="center", pad=3)
            told = [f"{_class_name(source, label)} ({count})" for label, count in votes[index][:3]]
            wrong = votes[index][0][0] != truth
            axis.text(0.5, -0.04, ", ".join(told), transform=axis.transAxes, ha="center", va="top", fontsize=8,
                      color=VERMILION if wrong else INK, fontweight="bold" if wrong else "normal")  # fmt: skip
        return figure

    agree = float((disagreement(answers.valid) == 0).double().mean())
    rows = tuple(
        (index, _class_name(source, int(answers.valid_labels[index])), _class_name(source, label), count)
        for index in shown
        for label, count in votes[index]
    )
    said = (
        f"The {len(shown)} validation images on which the {len(answers.valid)} draws of {source.label} disagree most, "
        f"with how many draws name which class; bold where most of them are wrong"
    )
    return Figure(
        f"disputed-images{suffix}",
        "Images that draws name differently",
        f"{said}. On {agree:.2%} of the validation images all draws agree.",
        f"{len(shown)} small images, each with its true class and the draws' answers. {said}.",
        draw,
        ("validation image", "true class", "answer", "draws"),
        rows,
    )


def by_class(answers: Answers) -> dict[int, float]:
    """Share of each class's validation images on which not all draws agree, in per cent."""
    differ = disagreement(answers.valid) > 0
    classes = answers.valid_labels.unique().tolist()
    return {label: 100 * differ[answers.valid_labels == label].double().mean().item() for label in classes}


def _answers(source: Source) -> Answers:
    answers = source.examples.answers
    if answers is None:
        raise ImpossibleError(f"{source.folder.path / FILE} has no answers of draws; method {source.recipe.method} "
                              "draws nothing")  # fmt: skip
    if len(answers.valid) < 2:
        raise ImpossibleError(f"{source.folder.path} made one draw only; train with draws=5, say, to see them differ")
    return answers


def _answers_said(answers: Answers) -> str:
    """Of validation and test data: how often two draws differ, and how often not all agree."""
    parts = []
    for name, named in (("validation", answers.valid), ("test", answers.test)):
        differ = disagreement(named)
        parts.append(
            f"{differ.mean():.2%} of {name} answers (all {len(named)} agree on {(differ == 0).double().mean():.2%})"
        )
    return f"Two draws differ in {' and in '.join(parts)}."


def _class_name(source: Source, label: int) -> str:
    names = known(source.recipe.data).classes
    return names[label] if label < len(names) else str(label)


def _bars(axis: Axes, names: Sequence[str], shares: Sequence[float], colour: str, title: str, label: str) -> None:
    """A bar a name, the first on top."""
    axis.barh(range(len(names)), shares, color=colour, height=0.66)
    top = max(shares) or 1.0
    for place, share in enumerate(shares):
        axis.text(share + 0.015 * top, place, f"{share:.1f}", va="center", fontsize=8.5,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})  # fmt: skip
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_xlim(0, 1.12 * top)
    axis.set(title=title, xlabel=label)
    light_grid(axis, "x")
    axis.tick_params(axis="y", length=0)
