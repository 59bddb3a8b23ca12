"""The files of a run, and what each is for."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

KNOWN = {
    "recipe.yaml": "the recipe, defaults written out",
    "environment.json": "versions, machine, commit, command",
    "data.json": "how images are standardised, and the names of their classes",
    "damaged.txt": "images that could not be read",
    "results.json": "errors and sizes at the end",
    "evaluation.json": "what `lrnets evaluate` found",
    "cost.json": "what the network costs, for `lrnets table`",
    "examples.safetensors": "a few validation images and what draws answered",
    "float.safetensors": "weights of the float network",
    "stochastic.safetensors": "what the discrete weights come from",
    "drawn.safetensors": "weights of the network that was chosen",
    "metrics/*.csv": "figures of every epoch",
    "checkpoints/*": "for --resume",
    "tensorboard/*": "for TensorBoard",
    "network.packed.safetensors": "the chosen network, packed",
    "network.onnx": "the chosen network as ONNX",
    "network.c": "the chosen network as C",
    "*.html": "a report",
}
MOST = 100  # files listed


def files_of(folder: Path, out: Path | None = None) -> list[tuple[str, str, str]]:
    """Name, meaning and bytes of each file but the report itself; many of them end in a count of the rest."""
    itself = None if out is None else out.absolute()
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.absolute() != itself)
    rows = [(str(path.relative_to(folder)), _meaning(path.relative_to(folder)), _bytes(path)) for path in paths[:MOST]]
    if len(paths) > MOST:
        rows.append((f"and {len(paths) - MOST} more", "", ""))
    return rows


def _meaning(path: Path) -> str:
    return next((meaning for pattern, meaning in KNOWN.items() if fnmatch(path.as_posix(), pattern)), "")


def _bytes(path: Path) -> str:
    try:
        return f"{path.stat().st_size:,}"
    except OSError:  # gone in this moment
        return ""
