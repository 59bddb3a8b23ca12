"""Images by name through a packed file, against a network whose answers are plain to see."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lrnets_runtime import Network, file
from lrnets_runtime.graph import Graph, Linear, Preparation, Reshape, Softmax, Weight

from lrnets.cli import main
from lrnets.predict import find_images, predict, predictions_table, probabilities

CLASSES = ("top left", "top right", "bottom left", "bottom right")


def brightest(classes=CLASSES, preparation: Preparation | None = Preparation("fixed"), softmax=False) -> Network:  # noqa: B008
    """Grey images of 2 x 2 pixels; the output is 8 times each pixel."""
    nodes = (
        Reshape("flat", ("input",), "flat", (4,)),
        Linear("fc", ("flat",), "fc", Weight("fc.weight", "float32", (4, 4))),
        *([Softmax("softmax", ("fc",), "softmax")] if softmax else []),
    )
    graph = Graph("input", (1, 2, 2), nodes[-1].output, nodes, None, preparation, classes)
    return Network(graph, {"fc.weight": 8 * np.eye(4, dtype=np.float32)})


def save(network: Network, path: Path) -> Path:
    file.write(path, network.graph, network.tensors)
    return path


def image(*pixels: int) -> np.ndarray:
    return np.array(pixels, np.uint8).reshape(1, 2, 2)


@pytest.fixture
def pictures(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, pixels in {"b.png": (0, 255, 0, 0), "a.PNG": (0, 0, 0, 255), "c.jpg": (255, 0, 0, 0)}.items():
        picture = pillow.fromarray(np.array(pixels, np.uint8).reshape(2, 2))
        picture.resize((32, 32), pillow.Resampling.NEAREST).save(folder / name)
    (folder / "notes.txt").write_text("not an image")
    return folder


def test_pictures_are_named(pictures):
    found = list(predict(brightest(), [pictures, pictures / "b.png"], top=2))
    names = [(Path(p.image).name, p.top[0][0]) for p in found]
    assert names == [("a.PNG", CLASSES[3]), ("b.png", CLASSES[1]), ("c.jpg", CLASSES[0]), ("b.png", CLASSES[1])]
    assert all(len(p.top) == 2 for p in found)


def test_probabilities_are_the_softmax_unless_the_network_has_one(tmp_path):
    np.save(tmp_path / "x.npy", image(255, 51, 0, 0))
    powers = np.exp(8 * np.array([1, 0.2, 0, 0]))
    for network in (brightest(), brightest(softmax=True)):
        (found,) = predict(network, [tmp_path / "x.npy"], top=99)
        assert [name for name, _ in found.top] == list(CLASSES)  # of equals the first comes first
        np.testing.assert_allclose([p for _, p in found.top], powers / powers.sum(), rtol=1e-5)
    large = probabilities(brightest(), np.full((1, 1, 2, 2), 1e4, np.float32))
    np.testing.assert_allclose(large, np.full((1, 4), 0.25))


@pytest.mark.parametrize(
    ("array", "names"),
    [
        (image(0, 0, 255, 0), [""]),
        (image(0, 0, 255, 0)[0], [""]),
        (np.stack([image(0, 0, 255, 0)] * 3), ["[0]", "[1]", "[2]"]),
        (np.stack([image(0, 0, 255, 0)[0]] * 2), ["[0]", "[1]"]),
        (np.array([[[0, 0], [1.5, 0]]]), [""]),
        (np.array([[[[0, 0], [1.5, 0]]]] * 2, np.float16), ["[0]", "[1]"]),
        (np.zeros((0, 1, 2, 2)), []),
    ],
)
def test_arrays_are_one_or_several_raw_images_or_prepared_inputs(tmp_path, array, names):
    path = tmp_path / "x.npy"
    np.save(path, array)
    found = list(predict(brightest(), [path]))
    assert [(p.image, p.top[0][0]) for p in found] == [(f"{path}{name}", "bottom left") for name in names]


def test_bytes_are_prepared_and_floats_are_not(tmp_path):
    shifted = brightest(preparation=Preparation("fixed", (1.0,), (0.5,)))
    np.save(tmp_path / "bytes.npy", image(255, 0, 0, 0))
    np.save(tmp_path / "floats.npy", np.array([[[0, -2], [-2, -2]]], np.float32))
    from_bytes, from_floats = (next(predict(shifted, [tmp_path / f"{name}.npy"])) for name in ("bytes", "floats"))
    assert from_bytes.top == from_floats.top


def test_more_images_than_fit_at_once_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr("lrnets.predict.AT_ONCE", 3)
    which = np.random.default_rng(0).integers(0, 4, 10)
    np.save(tmp_path / "x.npy", (255 * np.eye(4)[which]).astype(np.uint8).reshape(-1, 1, 2, 2))
    found = [p.top[0][0] for p in predict(brightest(), [tmp_path / "x.npy"])]
    assert found == [CLASSES[k] for k in which]


def test_classes_without_names_have_numbers(tmp_path):
    np.save(tmp_path / "x.npy", image(0, 0, 255, 0))
    (found,) = predict(brightest(classes=None), [tmp_path / "x.npy"], top=1)
    assert found.top[0][0] == "2"


def refused(network: Network, path: Path, **choices) -> str:
    with pytest.raises((ValueError, OSError)) as caught:
        list(predict(network, [path], **choices))
    return str(caught.value)


def test_files_without_a_preparation_ask_for_arrays_of_floats(tmp_path, pictures):
    old = brightest(preparation=None)
    asks = "does not say how an image becomes its input; give .npy arrays of float32 [1, 2, 2]"
    assert asks in refused(old, pictures / "b.png")
    np.save(tmp_path / "bytes.npy", image(0, 0, 255, 0))
    assert asks in refused(old, tmp_path / "bytes.npy")
    np.save(tmp_path / "floats.npy", image(0, 0, 255, 0) / 255)
    assert next(predict(old, [tmp_path / "floats.npy"])).top[0][0] == "bottom left"


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 3), np.uint8), "x.npy: an array of shape [3, 3]; give [1, 2, 2] or [2, 2], or a batch of such"),
        (np.zeros((2, 2)), "x.npy: an array of shape [2, 2]; give [1, 2, 2], or a batch of such"),
        (np.zeros((1, 2, 2), np.int64), "x.npy: numbers of type int64; give raw images as uint8"),
        (np.full((1, 2, 2), np.nan), "x.npy: the network's output is NaN or infinite"),
        (np.array([{}]), "x.npy: is no .npy array that can be read"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, array, words):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    assert words in refused(brightest(), tmp_path / "x.npy")


def test_what_is_no_image_is_refused_by_name(tmp_path):
    np.save(tmp_path / "cut.npy", np.zeros((100, 1, 2, 2), np.uint8))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:200])
    assert "cut.npy: is no .npy array" in refused(brightest(), tmp_path / "cut.npy")
    (tmp_path / "x.gif").touch()
    assert "x.gif: neither a picture (.png, .jpg, .jpeg) nor a .npy array" in refused(brightest(), tmp_path / "x.gif")
    assert "there is no image or array at" in refused(brightest(), tmp_path / "gone.npy")
    (tmp_path / "empty").mkdir()
    assert "empty has no .png, .jpg, .jpeg or .npy file" in refused(brightest(), tmp_path / "empty")


def test_what_is_no_classifier_is_refused(tmp_path):
    assert "top is 0; give a whole number from 1" in refused(brightest(), tmp_path, top=0)
    picture = Network(Graph("x", (1, 2, 2), "x", ()), {})
    assert "output has shape [1, 2, 2], which is no list of classes" in refused(picture, tmp_path)


def test_files_are_taken_as_given_and_folders_by_name(tmp_path):
    for name in ("b.npy", "a.JPEG", "c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more/z").touch()
    assert find_images([tmp_path / "more/z", tmp_path]) == [tmp_path / name for name in ("more/z", "a.JPEG", "b.npy")]


def test_the_table(tmp_path):
    np.save(tmp_path / "x.npy", np.stack([image(255, 0, 0, 0), image(0, 60, 50, 0)]))
    lines = predictions_table(predict(brightest(), [tmp_path / "x.npy"], top=2)).splitlines()
    assert lines[0].split() == ["image", "best", "second"]
    assert [cell.strip() for cell in lines[2].split("  ")[1:3]] == ["top left", "99.90 %"]
    assert lines[3].startswith(f"{tmp_path / 'x.npy'}[1]")
    assert predictions_table(predict(brightest(), [tmp_path / "x.npy"], top=4)).splitlines()[0].endswith("4th")
    assert predictions_table([]).startswith("image")


def test_the_command_prints_a_table_or_json(tmp_path, capsys):
    model = save(brightest(), tmp_path / "net.safetensors")
    np.save(tmp_path / "x.npy", image(0, 255, 0, 0))
    assert main(["run", str(model), str(tmp_path / "x.npy"), "--threads", "1"]) == 0
    assert "top right" in capsys.readouterr().out
    assert main(["run", str(model), str(tmp_path / "x.npy"), "--top", "1", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["image"] == str(tmp_path / "x.npy")
    assert found["top"] == [{"class": "top right", "probability": pytest.approx(0.999, abs=1e-3)}]
    assert main(["run", str(model), str(tmp_path / "gone.npy")]) == 1
    assert "lrnets run: there is no image or array at" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "x.npy"), str(tmp_path / "x.npy")]) == 1
    assert "no packed network" in capsys.readouterr().err
    assert main(["run", str(model), str(tmp_path / "x.npy"), "--threads", "0"]) == 1
    assert "threads is 0" in capsys.readouterr().err


def test_torch_is_not_needed(tmp_path):
    model = save(brightest(), tmp_path / "net.safetensors")
    np.save(tmp_path / "x.npy", image(0, 255, 0, 0))
    code = "import sys; sys.modules['torch'] = None; from lrnets.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "run", str(model), str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "top right" in done.stdout
    code = code.replace("'torch'", "'lrnets_runtime'")
    done = subprocess.run(
        [sys.executable, "-c", code, *command[3:]], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "pip install lrnets-runtime" in done.stderr
