"""The code on the pages runs as printed, with fewer epochs."""

import re
from pathlib import Path

import pytest
import torch

from lrnets.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r'^```(python|yaml)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def run_page(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]) -> dict:
    """Run a page's blocks, one after the other; those with a title become files beside them."""
    text = (DOCS / page).read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    torch.manual_seed(0)
    names: dict = {}
    for language, title, code in BLOCK.findall(text):
        if title:
            (folder / title).write_text(code)
        else:
            assert language == "python"
            exec(code, names)
    return names


def test_tutorial(tmp_path, monkeypatch, capsys):
    names = run_page("tutorial.md", tmp_path, monkeypatch, {"epochs = 20": "epochs = 2"})
    printed = capsys.readouterr().out
    (report,) = re.findall(r"^```text\n(layer.*?)```$", (DOCS / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
    assert report in printed
    assert len(names["net"][0].weight.unique()) == 3
    assert names["report"].bytes == (tmp_path / "digits.safetensors").stat().st_size
    assert names["small"].bytes < names["report"].bytes
    with torch.no_grad():
        expected = names["net"](names["test_x"])
    torch.testing.assert_close(torch.from_numpy(names["logits"]), expected, atol=1e-4, rtol=1e-4)
    assert (expected.argmax(1) == names["test_y"]).float().mean() > 0.5  # 0.1 is chance


def test_how_to_add_a_value_set(tmp_path, monkeypatch):
    names = run_page("how-to/value-set.md", tmp_path, monkeypatch, {})
    assert names["net"][0].weight.unique().tolist() == [0, names["model"][0].scale.item()]


def test_how_to_add_a_method(tmp_path, monkeypatch):
    before = dict(METHODS)
    try:
        names = run_page("how-to/method.md", tmp_path, monkeypatch, {})
    finally:
        METHODS.clear()
        METHODS.update(before)
    low, zero, high = names["net"][0].weight.unique().tolist()
    assert (zero, low) == (0, -high)
    assert (names["net"][0].weight == 0).float().mean() == 0.5


def test_how_to_add_a_network(tmp_path, monkeypatch, capsys):
    names = run_page("how-to/network.md", tmp_path, monkeypatch, {"epochs: 10": "epochs: 1", "epochs: 12": "epochs: 1"})
    assert set(names["results"]["test_error"]) == {"float", "mode", "chosen", "ensemble"}
    assert (tmp_path / "runs/digits/0/digits.safetensors").is_file()
    assert "by the run-time from the file" in capsys.readouterr().out


def test_the_cost_of_imagenet_on_the_page_is_what_its_code_prints(tmp_path, monkeypatch, capsys):
    run_page("many-machines.md", tmp_path, monkeypatch, {})
    (printed,) = re.findall(r"^```text\n(.*?)```$", (DOCS / "many-machines.md").read_text(), re.MULTILINE | re.DOTALL)
    assert capsys.readouterr().out == printed
    # Layers 2, 3 and 4 cost the same: half the side, twice the channels.
    stage = 28 * 28 * (128 * 64 * 9 + 3 * 128 * 128 * 9 + 128 * 64)
    by_hand = 112 * 112 * 64 * 3 * 49 + 4 * 56 * 56 * 64 * 64 * 9 + 3 * stage + 512 * 1000
    assert printed.startswith(f"{by_hand:,} products")
