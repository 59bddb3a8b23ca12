"""What the network is made of, layer by layer: what it costs, and how its distributions are doing."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lrnets.comparison.costs import input_shape
from lrnets.diagnostics import Diagnosis, LayerDiagnosis, RandomnessWarning, diagnose
from lrnets.discretize import discretize
from lrnets.layers import lr_layers
from lrnets.report.found import Found, Note, attempt
from lrnets.summary import Summary, summary
from lrnets.training.pipeline import build_network, convert_by
from lrnets.training.stored import load_into

NEURONS, DRAWS = 8, 4000  # of the Gaussian fit
EXAMPLES = 16  # images the fit looks at

HEADER = (
    "layer", "kind", "weights' shape", "values", "weights", "bits a weight", "other numbers", "bytes", "additions",
    "multiplications", "entropy (bits)", "undecided", "distance to Gaussian",
    "inputs of that neuron",
)  # fmt: skip
TEXTS = 4  # columns of text, before those of numbers
STATES = 4  # columns of distributions, which not all networks have


@dataclass(frozen=True)
class LayerTable:
    """Cells as text; `of` says which network it is, `foot` has the file's header and the totals."""

    of: str
    size: Summary
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    foot: tuple[tuple[str, ...], ...]
    sampling_error: float | None  # the distance that a perfect Gaussian would show; None without a fit


def layer_table(found: Found, model: nn.Module | None = None, inputs: Tensor | None = None) -> LayerTable | None:
    """The table of the furthest network in the folder; None, and a note, if none can be built.

    `inputs` are as the network sees them; without them the Gaussian fit is left out.
    """
    if found.recipe is None:
        return None
    networks = attempt(found.notes, "the network", lambda: _networks(found, model), None)
    if networks is None:
        return None
    of, net, stochastic = networks
    shape = input_shape(found.recipe) if inputs is None else tuple(inputs.shape[1:])
    size = attempt(found.notes, "the sizes of layers", lambda: summary(net, shape), None)
    if size is None:
        return None
    state = None
    if stochastic is not None:
        state = attempt(found.notes, "the state of layers", lambda: _diagnosis(found.notes, stochastic, inputs), None)
    return _tabulate(of, net, size, state.layers if state else ())


def _networks(found: Found, model: nn.Module | None) -> tuple[str, nn.Module, nn.Module | None]:
    """What the table is of, that network, and the stochastic one if it has been trained and has logits."""
    recipe, folder = found.recipe, found.folder
    assert recipe is not None
    net = build_network(recipe) if model is None else copy.deepcopy(model)
    there = [name for name in ("float", "stochastic", "drawn") if folder.weights_file(name).is_file()]
    if recipe.discrete_stage is None or there in ([], ["float"]):
        if "float" in there:
            load_into(net, folder, "float", recipe)
            return "the float network", net.eval(), None
        return "the float network before training, by the recipe", net.eval(), None
    convert_by(recipe, net)
    if "stochastic" in there:
        load_into(net, folder, "stochastic", recipe)
    random = net if "stochastic" in there and next(lr_layers(net), None) else None
    if "drawn" not in there:
        return "the most probable network so far", discretize(net, "mode").eval(), random
    drawn = discretize(net, "mode")
    load_into(drawn, folder, "drawn", recipe)
    return "the network that the run chose", drawn.eval(), random


def _diagnosis(notes: list[Note], net: nn.Module, inputs: Tensor | None) -> Diagnosis:
    """Layers whose randomness has died out become notes, since nobody sees warnings on a page."""
    few = None if inputs is None else inputs[:EXAMPLES]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RandomnessWarning)
        state = diagnose(net, few, neurons=NEURONS, draws=DRAWS, generator=torch.Generator().manual_seed(0))
    notes += [Note(f"{one.message}.") for one in told if issubclass(one.category, RandomnessWarning)]
    return state


def _tabulate(of: str, net: nn.Module, size: Summary, states: Sequence[LayerDiagnosis]) -> LayerTable:
    by_name = {state.name: state for state in states}
    shapes = {name: tuple(m.weight.shape) for name, m in net.named_modules() if isinstance(_weight(m), Tensor)}
    rows = []
    for row in size.layers:
        bits = f"{row.bits:.2f}" if row.weights else ""
        counts = [f"{n:,}" for n in (row.others, row.bytes, row.additions, row.multiplications)]
        shape = "x".join(map(str, shapes.get(row.name, ())))
        rows.append((row.name, row.kind, shape, row.values, f"{row.weights:,}", bits, *counts,
                     *_state(by_name.get(row.name))))  # fmt: skip
    others = sum(row.others for row in size.layers)
    counts = [f"{n:,}" for n in (others, size.bytes, size.additions, size.multiplications)]
    foot = [("total", "", "", "", f"{size.weights:,}", "", *counts, "", "", "", "")]
    if size.problem is None:
        foot.insert(0, ("header", "", "", "", "", "", "", f"{size.header_bytes:,}", *[""] * 6))
    # Columns of a state that no layer has say nothing.
    kept = [i for i in range(len(HEADER)) if i < len(HEADER) - STATES or any(row[i] for row in rows)]
    header, rows, foot = (
        tuple(HEADER[i] for i in kept),
        [tuple(row[i] for i in kept) for row in rows],
        [tuple(row[i] for i in kept) for row in foot],
    )
    errors = [state.fit.sampling_error for state in states if state.fit is not None]
    return LayerTable(of, size, header, tuple(rows), tuple(foot), max(errors, default=None))


def _state(state: LayerDiagnosis | None) -> tuple[str, str, str, str]:
    if state is None:
        return "", "", "", ""
    fit, open_share = state.fit, f"{state.undecided:.1%}"
    if fit is None:
        return f"{state.entropy:.3f}", open_share, "", ""
    distance = "none is random" if math.isnan(fit.distance) else f"{fit.distance:.3f}"
    return f"{state.entropy:.3f}", open_share, distance, f"{fit.inputs:,}"


def _weight(module: nn.Module) -> object:
    return getattr(module, "weight", None)
