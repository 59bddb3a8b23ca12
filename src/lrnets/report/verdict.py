"""The run in one glance: a sentence and a few large numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lrnets.comparison.results import Spread
from lrnets.comparison.runs import chosen
from lrnets.report.found import Found, numbers

NETWORKS = {
    "chosen": "the chosen network", "chosen draw": "the chosen draw",
    "mode": "the discrete network", "float": "the float network",
}  # fmt: skip


@dataclass(frozen=True)
class Tile:
    """A large number, what it is, and a word more."""

    value: str
    label: str
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a reader sees first."""

    sentence: str
    tiles: tuple[Tile, ...]


def verdict_of(found: Sequence[Found]) -> Verdict:
    """Of one run, or of several seeds: mean ± deviation over those that are finished."""
    finished = [one for one in found if numbers(one.results.get("test_error")).keys() & NETWORKS.keys()]
    return _finished(finished) if finished else _so_far(found[0])


def _finished(found: Sequence[Found]) -> Verdict:
    tests = [numbers(one.results.get("test_error")) for one in found]
    name = next(name for name in NETWORKS if name in tests[0])
    error = Spread(tuple(chosen(test) for test in tests))
    over = f", mean over {len(found)} seeds" if len(found) > 1 else ""
    tiles = [Tile(f"{error} %", "test error", f"{NETWORKS[name]}{over}")]
    sentence = f"{NETWORKS[name].capitalize()} is wrong on {error} % of the test images{over}"
    starts = [test["float"] for one, test in zip(found, tests) if "float" in test and one.trained_start]
    if name != "float" and len(starts) == len(found):
        start = Spread(tuple(starts))
        change = error.mean - start.mean
        how = "as many as" if round(abs(change), 2) == 0 else f"{abs(change):.2f} points {_more(change)} than"
        sentence += f", {how} the float network it started from ({start} %)"
        tiles.append(Tile(_signed(change), "points against the float start", f"which has {start} %"))
    sizes = numbers(found[0].results.get("bytes"))
    size = sizes.get("float" if name == "float" else "discrete")
    if size:
        tiles.append(Tile(f"{size:,.0f}", "bytes", _large(size)))
        sentence += f". It takes {size:,.0f} bytes"
        if name != "float" and "float" in sizes:
            ratio = sizes["float"] / size
            tiles.append(Tile(f"{ratio:.1f}", "times smaller than float", f"{sizes['float']:,.0f} bytes in float32"))
            sentence += f" instead of {sizes['float']:,.0f}: {ratio:.1f} times less"
    return Verdict(sentence + ".", tuple(tiles))


def _so_far(found: Found) -> Verdict:
    """Of a run without results: the last epoch."""
    stage = "stochastic" if found.epochs["stochastic"] else "float"
    rows = found.epochs[stage]
    if not rows:
        return Verdict("There are no figures of this run yet: not one epoch is finished.", ())
    last, planned = rows[-1], found.planned(stage)
    of = "" if planned is None else f" of {planned}"
    tiles = [Tile(f"{last['epoch']:.0f}{of}", "epochs so far", f"{stage} stage")]
    kind = "float network" if stage == "float" else "discrete network"
    sentence = f"Not finished: epoch {last['epoch']:.0f}{of} of the {stage} stage is done"
    if "valid_error" in last:
        tiles.insert(0, Tile(f"{last['valid_error']:.2f} %", "validation error so far", f"of the {kind}"))
        sentence += f", and the {kind} is wrong on {last['valid_error']:.2f} % of the validation images"
    return Verdict(sentence + ". Test data has not been looked at.", tuple(tiles))


def _more(change: float) -> str:
    return "more" if change > 0 else "less"


def _signed(change: float) -> str:
    """With a true minus sign, and no sign on nought."""
    text = f"{abs(change):.2f}"
    return text if float(text) == 0 else ("+" if change > 0 else "\N{MINUS SIGN}") + text


def _large(size: float) -> str:
    """A size in words a person keeps: 116 kB."""
    for unit, worth in (("MB", 1e6), ("kB", 1e3)):
        if size >= worth:
            return f"{size / worth:.3g} {unit}"
    return ""
