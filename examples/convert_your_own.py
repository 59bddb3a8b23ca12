# %% [markdown]
# # Convert your own model
#
# You have a trained float network, and a training loop. This script takes both, and ends with a packed file whose
# answers are those of the network. The model here is not a plain stack: it has a residual block, a depthwise
# convolution and functions in its forward pass. Put your own in its place.
#
#     make setup
#     .venv/bin/python examples/convert_your_own.py
#
# It takes about half a minute. With `LRNETS_TINY=1` it trains for a moment only.

# %%
import os
import tempfile
import warnings
from pathlib import Path

import lrnets_runtime
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import lrnets
import lrnets.export
from lrnets.diagnostics import RandomnessWarning
from lrnets.layers import bake_sharpness_, set_sharpness

TINY = os.environ.get("LRNETS_TINY", "") not in ("", "0")
EPOCHS = 1 if TINY else 20
torch.manual_seed(0)

# %% [markdown]
# ## What you bring: data, a model, a training loop


# %%
class Block(nn.Module):
    """Depthwise and pointwise convolution around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.depthwise(x)))
        return F.relu(x + self.norm2(self.pointwise(y)))


class Reader(nn.Module):
    """8x8 digits to ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.block = Block(32)
        self.hidden, self.head = nn.Linear(512, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(F.relu(self.norm(self.stem(x))))
        x = F.max_pool2d(x, 2).flatten(1)  # (batch, 512)
        return self.head(F.relu(self.hidden(x)))


pixels, labels = load_digits(return_X_y=True)
shuffled = torch.randperm(len(labels))
x = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)[shuffled]
y = torch.tensor(labels)[shuffled]
train, valid, test = ((x[part], y[part]) for part in (slice(0, 1200), slice(1200, 1500), slice(1500, None)))


def fit(model: nn.Module, lr: float, logit_lr: float | None = None) -> None:
    """Your own loop. What discrete weights add to it are the three calls of lrnets and the sharpening."""
    optimizer = torch.optim.Adam(lrnets.param_groups(model, lr=lr, logit_lr=logit_lr, weight_decay=1e-4))
    model.train()
    for epoch in range(EPOCHS):
        set_sharpness(model, 1 + 9 * max(0.0, epoch / EPOCHS - 0.4) / 0.6)  # from 1 at 40 % towards 10
        for batch in torch.randperm(len(train[0])).split(64):
            loss = F.cross_entropy(model(train[0][batch]), train[1][batch])
            loss = loss + lrnets.penalty(model, probability_decay=1e-11)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    bake_sharpness_(model)


@torch.no_grad()
def accuracy(net: nn.Module, part: tuple[Tensor, Tensor]) -> float:
    return (net.eval()(part[0]).argmax(1) == part[1]).float().mean().item()


model = Reader()
fit(model, lr=3e-3)  # in your case: model.load_state_dict(torch.load("float.pt", weights_only=True))
print(f"float network: {accuracy(model, valid):.1%} of the validation digits")

# %% [markdown]
# ## Convert it
#
# `convert_` replaces linear and convolution layers in place and reports on all of them. The last linear layer stays in
# float unless you say otherwise. Here rules name it, and the depthwise convolution as well: with 9 weights an output
# its sums are far from Gaussian, and it holds little of the network. (So it is with the first layer, which is converted
# all the same, as in the paper; `keep_first=True` would keep that, too.)

# %%
report = lrnets.convert_(model, "ternary", keep=["head", "*.depthwise"])
print(report)

# %% [markdown]
# The start keeps the mean of every weight, up to clipping. `train()` samples, `eval()` computes with the most probable
# weights, so your validation code need not change. Now train the distributions; their logits take a rate of their own,
# about ten times that of the rest.

# %%
fit(model, lr=3e-3, logit_lr=3e-2)

# %% [markdown]
# ## Look at it before you trust it
#
# Entropy near 0 and few undecided weights: draws will agree. The distance to the Gaussian is that of the worst of a few
# neurons. A warning about a layer whose randomness has died out is right, and wanted after sharpening.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore", RandomnessWarning)
    print(lrnets.diagnose(model, train[0][:64]))

# %% [markdown]
# ## Draw, mend batch norm, choose
#
# Batch norm gathered its statistics under noise, so they are estimated anew for each drawn network. The choice is made
# on validation data; the test data is looked at once.

# %%
batches = train[0].split(200)
net, scores = lrnets.select_best(model, lambda drawn: accuracy(lrnets.update_bn(drawn, batches), valid), draws=5)
print(f"5 draws: {min(scores):.1%} to {max(scores):.1%}; on test data the best has {accuracy(net, test):.1%}")

# %% [markdown]
# ## Export
#
# The file is traced, folded, written, read back and compared before it gets its name. With int8 activations everything
# between the layers is bytes as well; a few batches of training data give the steps.

# %%
out = Path(tempfile.mkdtemp())
print(lrnets.export.save_packed(net, test[0][:4], out / "digits.safetensors"))
lrnets.export.save_packed(net, test[0][:4], out / "digits8.safetensors", activations="int8", calibration=batches)
lrnets.export.save_c(net, test[0][:4], out / "digits.c", activations="int8", calibration=batches)

# %%
with torch.no_grad():
    expected = net(test[0]).argmax(1).numpy()
for name in ("digits.safetensors", "digits8.safetensors"):
    network = lrnets_runtime.load(out / name)  # no torch from here on
    same = (network(test[0].numpy()).argmax(1) == expected).mean()
    print(f"{name}: {(out / name).stat().st_size:,} bytes, {same:.1%} of the answers are the network's")
