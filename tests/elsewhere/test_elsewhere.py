"""Models built as other libraries build them: converted, trained, drawn, summed up, exported or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import hugging_face
import lrnets_runtime
import numpy as np
import pytest
import timm_style
import torch
import torch.nn.functional as F
import torchvision_style
from torch import Tensor, nn

import lrnets
from lrnets.export import UnsupportedError, save_packed
from lrnets.layers import lr_layers
from lrnets.methods.twin import twins

STEPS = 30
MANY = 100  # weights of a layer, of which a share is one


@dataclass(frozen=True)
class Case:
    """A model, how many of its layers convert by default, and what its export is refused for, if it is."""

    build: Callable[[], nn.Module]
    converted: int
    refused: str | None = None
    tokens: bool = False


CASES = {
    "torchvision ResNet, basic": Case(torchvision_style.resnet_basic, 14),
    "torchvision ResNet, bottleneck": Case(torchvision_style.resnet_bottleneck, 20),
    "torchvision MobileNetV2": Case(torchvision_style.MobileNetV2, 16),
    "timm ResNet": Case(timm_style.ResNet, 9),
    "timm ResNet, squeeze-excite": Case(
        timm_style.resnet_se, 15,
        r"aten.silu of module 'conv1.2' \(SiLU\) .*either: aten.sigmoid of 'layer1.0.se.gate'",
    ),
    "timm ConvNeXt": Case(
        timm_style.ConvNeXt, 7,
        r"aten.permute of module 'stem.1' \(LayerNorm2d\) .*aten.layer_norm of 'stem.1', aten.gelu of 'stages.0.mlp",
    ),
    "Hugging Face GPT-2": Case(
        hugging_face.gpt2, 8,
        r"of module 'transformer' \(GPT2Model\) of torch.int64 .*aten.embedding of 'transformer.wte', .*layer_norm",
        tokens=True,
    ),
    "Hugging Face ViT": Case(
        hugging_face.vit, 13,
        r"aten.transpose of module 'vit.embeddings.patch_embeddings' .*aten.scaled_dot_product_attention of 'vit.layer",
    ),
}  # fmt: skip


def batch(case: Case) -> tuple[Tensor, Tensor]:
    """A batch to learn by heart."""
    generator = torch.Generator().manual_seed(3)
    if case.tokens:
        text = torch.randint(40, (4, 13), generator=generator)
        return text[:, :-1], text[:, 1:]
    labels = torch.arange(5).repeat(6)
    pictures = torch.randn(5, 3, 4, 4, generator=generator).repeat_interleave(8, 2).repeat_interleave(8, 3)
    return pictures[labels] + 0.1 * torch.randn(30, 3, 32, 32, generator=generator), labels


def logits(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    return y if isinstance(y, Tensor) else y.logits


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits(model, x).flatten(0, -2), y.flatten())


@cache
def trained(name: str) -> tuple[nn.Module, lrnets.ConversionReport, list[float]]:
    """A model converted by default and trained on one batch, its report and its losses. Tests leave it as it is."""
    case = CASES[name]
    if "Hugging" in name:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = case.build().train()
    report = lrnets.convert_(model)
    optimizer = torch.optim.Adam(lrnets.param_groups(model, lr=1e-2, logit_lr=5e-2))
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, *batch(case))
        optimizer.zero_grad()
        (loss + lrnets.penalty(model, probability_decay=1e-11)).backward()
        optimizer.step()
        losses.append(loss.item())
    return model, report, losses


@pytest.mark.parametrize("name", CASES)
def test_all_layers_but_the_last_convert_and_learn(name):
    model, report, losses = trained(name)
    assert len(report.converted) == CASES[name].converted == len(list(lr_layers(model)))
    assert sum("classifier" in reason for reason in report.kept.values()) == 1
    assert sum(losses[-3:]) / 3 < 0.85 * losses[0]
    torch.manual_seed(0)
    start = CASES[name].build()
    lrnets.convert_(start)
    for (layer, before), (_, after) in zip(lr_layers(start), lr_layers(model), strict=True):
        assert after.logits.grad.abs().max() > 1e-6, layer  # probability decay alone: 1e-10 at most
        modes = (twin.values.mode(twin.weight_logits) for twin in (before, after))
        changed = torch.ne(*modes)
        assert changed.numel() <= MANY or changed.double().mean() > 0.005, layer  # 1 % to 15 % of them


@pytest.mark.parametrize("name", CASES)
def test_drawn_networks_are_ordinary_discrete_and_finite(name):
    model, report, _ = trained(name)
    x, _ = batch(CASES[name])
    net = lrnets.discretize(model, generator=torch.Generator().manual_seed(1))
    assert not list(twins(net))
    for layer in report.converted:
        sizes = net.get_submodule(layer).weight.abs().unique()
        assert sizes[-1] > 0
        assert len(sizes) == 2 - int(sizes[0] > 0)  # the layer's scale, and 0 if it was drawn
    lrnets.update_bn(net, [x])
    with torch.no_grad():
        assert logits(net, x).isfinite().all()


@pytest.mark.parametrize("name", CASES)
def test_summaries_count_ternary_weights(name):
    model, report, _ = trained(name)
    x, _ = batch(CASES[name])
    found = lrnets.summary(model, x[:1])
    rows = {row.name: row for row in found.layers}
    assert {rows[layer].values for layer in report.converted} == {"ternary"}
    assert all(rows[layer].additions > 0 for layer in report.converted)
    assert found.bytes < found.float_bytes


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.refused is None])
def test_networks_that_the_run_time_knows_run_there(name, tmp_path):
    model, _, _ = trained(name)
    x, _ = batch(CASES[name])
    net = lrnets.update_bn(lrnets.discretize(model, "mode"), [x])
    save_packed(net, x, tmp_path / "net.packed.safetensors")
    found = lrnets_runtime.load(tmp_path / "net.packed.safetensors")(x.numpy())
    with torch.no_grad():
        expected = copy.deepcopy(net).double()(x.double()).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.refused is not None])
def test_networks_that_it_does_not_know_are_refused_with_operators_and_modules(name, tmp_path):
    model, _, _ = trained(name)
    x, _ = batch(CASES[name])
    with pytest.raises(UnsupportedError, match=CASES[name].refused):
        save_packed(lrnets.discretize(model, "mode"), x, tmp_path / "net.packed.safetensors")
    assert not list(tmp_path.iterdir())


def test_gpt2_keeps_its_tied_embedding_in_float_and_tied():
    model, report, _ = trained("Hugging Face GPT-2")
    assert {row.kind for row in report.rows if not row.reason} == {"Conv1D"}
    assert model.lm_head.weight is model.transformer.wte.weight
    net = lrnets.discretize(model)
    assert net.lm_head.weight is net.transformer.wte.weight
    everything = hugging_face.gpt2()
    assert "tied to 'transformer.wte'" in lrnets.convert_(everything, keep=()).kept["lm_head"]


def test_gpt2_computes_as_its_own_layer_does():
    """Conv1D's own arithmetic, x W + b with W (in, out), with the drawn weights put back into it."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = hugging_face.gpt2().eval()
    twin = copy.deepcopy(model)
    lrnets.convert_(twin)
    net = lrnets.discretize(twin, "mode")
    with torch.no_grad():
        for name, layer in net.named_modules():
            if isinstance(layer, nn.Linear) and name != "lm_head":
                model.get_submodule(name).weight.copy_(layer.weight.t())
        x, _ = batch(CASES["Hugging Face GPT-2"])
        torch.testing.assert_close(net(x).logits, model(x).logits)
