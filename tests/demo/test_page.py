"""The page in Chromium: drawn on with mouse or finger, it answers as the run-time does for the image that it made."""

import lrnets_runtime
import numpy as np
import pytest
import torch
from chromium_pipe import Chromium, needs_chromium
from demo_pages import READY, digit_net, drawn, images, needs_clang, pack
from lrnets_runtime.images import prepare
from lrnets_runtime.packing import decode
from torch import nn

from lrnets.demo.command import Example
from lrnets.demo.facts import facts_of
from lrnets.demo.page import page
from lrnets.demo.wasm import compile_network
from lrnets.export.from_packed import from_packed

pytestmark = [needs_clang, needs_chromium]
SEVEN = [[(0.2, 0.2), (0.45, 0.21), (0.7, 0.2), (0.55, 0.5), (0.4, 0.8)]]
FOUR = [[(0.3, 0.1), (0.25, 0.3), (0.2, 0.5), (0.5, 0.5), (0.8, 0.5)], [(0.6, 0.2), (0.6, 0.5), (0.6, 0.9)]]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A packed file, and a page of it with two examples."""
    folder = tmp_path_factory.mktemp("page")
    packed = pack(drawn(digit_net()), (1, 28, 28), folder / "net.safetensors", classes=tuple("0123456789"))
    examples = [Example(image, name) for image, name in zip(images(2, 1, 28, 28), "38")]
    return packed, made(packed, folder, examples)


def made(packed, folder, examples=()):
    prepared = from_packed(packed)
    code, _ = compile_network(prepared, folder)
    path = folder / "page.html"
    path.write_text(page(code, facts_of(prepared.graph, prepared.tensors, examples=examples)))
    return path


def assert_answered(browser, packed):
    """What the page shows for its image is the run-time's answer, to the bit; returns the image."""
    shown = browser.evaluate("({ bytes: Array.from(shown.bytes), outputs: shown.outputs })")
    network = lrnets_runtime.load(packed)
    image = np.array(shown["bytes"], np.uint8).reshape(network.input_shape)
    outputs = network(prepare(image[None], network.graph.preparation))[0]
    np.testing.assert_array_equal(np.float32(shown["outputs"]), outputs)
    powers = np.exp(outputs.astype(np.float64) - outputs.max())
    best = int(outputs.argmax())
    assert browser.evaluate("get('best').textContent") == network.graph.classes[best]
    shares = browser.evaluate("rows.map(({ share }) => share.textContent)")
    assert shares == [f"{100 * p:.1f} %" for p in powers / powers.sum()]
    assert browser.evaluate("document.querySelectorAll('#bars li.best .name')[0].textContent") == str(best)
    return image[0]


@pytest.mark.parametrize("finger", [True, False])
def test_what_is_drawn_is_answered_as_by_the_runtime(digits, finger):
    packed, path = digits
    with Chromium(phone=finger) as browser:
        browser.open(path, READY)
        assert browser.evaluate("get('best').textContent") == "?"
        before = browser.evaluate("scrollY")
        browser.draw("paper", SEVEN)
        seven = assert_answered(browser, packed)
        assert seven[:, :8].max() > 0  # ink at the left ...
        assert seven[20:, 20:].max() == 0  # ... and none in the corner that a seven leaves
        assert browser.evaluate("strokes.map((stroke) => stroke.length)") == [5]
        assert browser.evaluate("scrollY") == before  # a finger draws, and does not scroll

        browser.evaluate("get('clear').focus()")
        browser.press("Enter", 13, "\r")
        assert browser.evaluate("[strokes.length, get('best').textContent]") == [0, "?"]
        assert not browser.evaluate("shown.bytes.some(Boolean)")

        browser.draw("paper", FOUR)
        four = assert_answered(browser, packed)
        assert browser.evaluate("strokes.length") == 2
        assert np.abs(four.astype(int) - seven).max() > 200
        browser.press("Escape", 27)
        assert browser.evaluate("strokes.length") == 0

        browser.evaluate("document.querySelectorAll('#examples button')[1].click()")
        browser.frame()
        np.testing.assert_array_equal(assert_answered(browser, packed), images(2, 1, 28, 28)[1, 0])
        browser.draw("paper", SEVEN)  # instead of the example
        np.testing.assert_array_equal(assert_answered(browser, packed), seven)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert browser.complaints == []


def test_maps_and_kernels_are_painted(digits):
    packed, path = digits
    with Chromium() as browser:
        browser.open(path, READY)
        pixels = "Array.from(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"
        red = f"(canvas) => {pixels}.filter((_, at) => at % 4 === 0)"
        kernels = browser.evaluate(f"[...document.querySelectorAll('.kernel')].map({red})")
        network = lrnets_runtime.load(packed)
        weight = network.graph.nodes[0].weight
        expected = decode(network.tensors[weight.tensor], weight).reshape(6, 25)
        greys = {-1: 1, 0: 128, 1: 255}
        assert kernels == [[greys[int(w)] for w in kernel] for kernel in expected]
        lit = f"tiles.map((canvas) => {pixels}.reduce((a, b) => a + b, 0))"
        before = browser.evaluate(lit)
        browser.draw("paper", SEVEN)
        after = browser.evaluate(lit)
        assert sum(a != b for a, b in zip(before, after)) >= 4  # some kernel may see nothing


def test_a_picture_in_colour_is_chosen(tmp_path):
    from PIL import Image

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    packed = pack(drawn(net), (3, 8, 8), tmp_path / "net.safetensors", classes=("0", "1", "2"))
    colours = np.zeros((24, 30, 3), np.uint8)
    colours[:] = 255, 0, 40
    Image.fromarray(colours).save(tmp_path / "picture.png")
    path = made(packed, tmp_path)
    with Chromium() as browser:
        browser.open(path, READY)
        node = browser("DOM.querySelector", nodeId=browser("DOM.getDocument")["root"]["nodeId"], selector="#file")
        browser("DOM.setFileInputFiles", files=[str(tmp_path / "picture.png")], nodeId=node["nodeId"])
        browser.wait("image !== null && shown.busy")
        assert_answered(browser, packed)
        assert browser.evaluate("[0, 64, 128].map((at) => shown.bytes[at])") == [255, 0, 40]
        assert browser.complaints == []


def test_without_webassembly_the_page_says_so(digits):
    _, path = digits
    with Chromium() as browser:
        broken = "WebAssembly.instantiate = async () => { throw Error('no') }"
        browser("Page.addScriptToEvaluateOnNewDocument", source=broken)
        browser.open(path, "document.getElementById('lead')?.textContent.includes('cannot run the network: no')")
        browser.draw("paper", SEVEN)  # and nothing breaks
        assert browser.complaints == []
