# %% [markdown]
# # Ternary MNIST in five minutes
#
# A network that reads handwritten digits with weights of -1, 0 and +1 only: from the data to a file of 140 kB that runs
# without torch. This is a script with cells: run it whole, or cell by cell in an editor that knows `# %%` (VS Code,
# PyCharm, Spyder, Jupyter with jupytext).
#
#     make setup
#     .venv/bin/python examples/ternary_mnist.py
#
# It takes about five minutes on two cores. With `LRNETS_TINY=1` it takes seconds, on scikit-learn's small digits in the
# place of MNIST: enough to see every step, not to learn much.

# %%
import os
from pathlib import Path

import lrnets_runtime
import torch
from torch import nn

import lrnets
from lrnets.data import TRANSFORMS, Data, Split, fetch, load, stratified
from lrnets.training import load_recipe
from lrnets.training.packing import export_run
from lrnets.training.pipeline import build_network, convert_by, run
from lrnets.training.run_folder import RunFolder
from lrnets.training.stored import drawn_network

TINY = os.environ.get("LRNETS_TINY", "") not in ("", "0")

# %% [markdown]
# ## Data
#
# `fetch` brings MNIST once and verifies it; `load` reads it into memory and sets 5,000 training images aside to choose
# by. The test images are not opened before they are asked for.


# %%
def small_digits() -> Data:
    """300 of scikit-learn's 8x8 digits, enlarged to MNIST's 28x28."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels[:300]).view(-1, 1, 8, 8) * 15.9
    larger = nn.functional.interpolate(images, size=28, mode="bilinear").byte()
    everything = Split(larger, torch.tensor(labels[:300]))
    rest, test = stratified(everything.labels, 50)
    train, valid = stratified(everything.labels[rest], 50)
    return Data(
        "digits", tuple("0123456789"), everything[rest[train]], everything[rest[valid]], lambda: everything[test]
    )


if not TINY:
    fetch("mnist")
data = small_digits() if TINY else load("mnist")
print(f"{len(data.train)} images to train on, {len(data.valid)} to choose by")

# %% [markdown]
# ## The recipe
#
# A recipe says all there is to say about an experiment. This one trains the paper's network in float for 3 epochs,
# turns its weights into distributions over -1, 0, +1, trains those for 4 epochs, and draws 5 networks, of which the
# best on validation data is kept. `logit_lr` is the learning rate of the distributions, `sharpen` decides them towards
# the end of training.

# %%
settings = ["float_stage.epochs=1", "discrete_stage.epochs=1", "batch_size=50", "draws=2"] if TINY else []
recipe = load_recipe("mnist-ternary-quick", settings)
print(recipe.to_yaml())

# %% [markdown]
# ## Training
#
# Each epoch reports two validation errors: of the *most probable* network, and of a *drawn* one. They come together as
# the distributions are decided. Everything is kept in the run's folder; an interrupted run goes on from there.

# %%
folder = RunFolder(Path("runs/ternary-mnist-tiny" if TINY else "runs/ternary-mnist"))
results = run(recipe, folder, data=data, resume=folder.recipe_file.exists())
for name, error in results["test_error"].items():
    print(f"test error, {name}: {error:.2f} %")

# %% [markdown]
# ## What the weights have become
#
# The drawn network is an ordinary one. Here are four kernels of its first layer: `#` is +1, `.` is 0, `-` is -1, and
# one float number multiplies them all.

# %%
net = drawn_network(folder)
kernels = net.get_parameter("conv1.weight").detach()[:4, 0]  # (4, 5, 5)
for row in kernels.unbind(1):
    print("   ".join("".join({-1: "-", 0: ".", 1: "#"}[int(sign)] for sign in part.sign()) for part in row))
print(f"levels of the first layer: {[round(level, 4) for level in kernels.unique().tolist()]}")

# %% [markdown]
# The distributions themselves are kept as well. Their entropy tells how decided they are: log2(3) = 1.58 bits is a
# weight that may be anything, 0 one that is certain.

# %%
model = build_network(recipe)
convert_by(recipe, model)
folder.load_weights("stochastic", model)
for name, bits in lrnets.entropy(model).items():
    print(f"{name}: {bits:.3f} bits a weight")

# %% [markdown]
# ## A file for elsewhere
#
# Five ternary weights go into a byte, and batch norm is folded into the layer before it. The run-time needs NumPy and
# no torch. It also reads how an image becomes the network's input, and what the classes are called, so
# `lrnets run FILE digit.png` works with the file alone.

# %%
packed = folder.path / "network.packed.safetensors"
print(export_run(folder, packed, data=data))

# %%
network = lrnets_runtime.load(packed)
images, labels = next(iter(data.valid.take([torch.arange(10)])))
answers = network(TRANSFORMS["mnist"].evaluation(images).numpy()).argmax(1)
print(f"digits  {labels.tolist()}")
print(f"answers {answers.tolist()}")
