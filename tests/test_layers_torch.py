"""Layers under torch.func, torch.compile and data-parallel training."""

from __future__ import annotations

import shutil
from datetime import timedelta

import pytest
import torch
from layer_examples import FIVE, REORDERED, assert_same, every_kind, example, loss_gradients, seeded
from torch import nn

from lrnets import noise
from lrnets.layers import LRConv1d, LRConv2d, LRConvTranspose2d, LRLinear

# ---- torch.func and torch.compile -----------------------------------------------------------------------------------


@every_kind
def test_functional_call_computes_with_the_parameters_it_is_given(kind):
    layer, x = example(kind)
    other, _ = example(kind, seed=9)
    given = {name: tensor.detach().clone() for name, tensor in other.state_dict().items()}
    before = seeded(layer, x)
    torch.manual_seed(1)
    z = torch.func.functional_call(layer, given, x)
    assert torch.equal(z, seeded(other, x))
    assert torch.equal(seeded(layer, x), before)
    layer.eval()
    assert torch.equal(torch.func.functional_call(layer, given, x), other.eval()(x))


@every_kind
def test_functional_gradients_equal_those_of_backward(kind):
    layer, x = example(kind)
    parameters = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}

    def loss(parameters):
        z = torch.func.functional_call(layer, parameters, x)
        return (z * torch.linspace(-1, 2, z.numel(), dtype=z.dtype).view(z.shape)).sum()

    torch.manual_seed(1)
    gradients = torch.func.grad(loss)(parameters)
    assert_same(gradients, loss_gradients(layer, seeded(layer, x)), **REORDERED)


def test_functional_second_derivatives_are_refused():
    layer, x = example(LRLinear)
    parameters = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}

    def penalty(parameters):
        first = torch.func.grad(lambda p: torch.func.functional_call(layer, p, x).sum())(parameters)
        return sum(gradient.square().sum() for gradient in first.values())

    assert penalty(parameters) > 0
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.func.grad(penalty)(parameters)


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        LRConv2d(2, 4, 3, padding="same", values="ternary"), nn.BatchNorm2d(4), nn.ReLU(),
        LRConvTranspose2d(4, 3, 2, stride=2, values=FIVE), nn.ReLU(), nn.Flatten(), LRLinear(108, 5, values="binary"),
    )  # fmt: skip


def check_compiled(backend: str) -> None:
    """Compiled, a network gives the values and gradients of eager mode, the noise being that of the same seed."""
    torch._dynamo.reset()
    model, x = small_network(), torch.randn(3, 2, 3, 3)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    # Sums of a hundred float32 products in another order; batch norm divides by deviations of size 1.
    tolerance = {"rtol": 1e-4, "atol": 1e-4}
    z = seeded(compiled, x)
    gradients = loss_gradients(model, z)
    expected = seeded(model, x)
    torch.testing.assert_close(z, expected, **tolerance)
    assert_same(gradients, loss_gradients(model, expected), **tolerance)
    assert not torch.equal(compiled(x), compiled(x))  # new noise for every call: it was not folded into the graph
    model.eval()
    torch.testing.assert_close(compiled(x), model(x), **tolerance)


def test_a_compiled_network_equals_an_eager_one():
    """Backend aot_eager: traced and functionalised, run by torch's own operations and generator."""
    check_compiled("aot_eager")


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler")
@pytest.mark.thorough
def test_a_network_compiled_by_inductor_equals_an_eager_one():
    with torch._inductor.config.patch(layout_optimization=False):
        check_compiled("inductor")


def test_compiled_noise_is_the_long_noise_of_eager_mode(monkeypatch):
    """From the table, drawn once: were it drawn anew for the backward pass, gradients would be those of other noise."""
    monkeypatch.setattr(noise, "LONG", 8)
    check_compiled("aot_eager")


def test_a_compiled_layer_does_not_ignore_its_generator():
    """Reproducible by the generator it was given, whatever torch's own is set to; or at least an error."""
    torch._dynamo.reset()
    layer, x = example(LRLinear)
    layer.generator = torch.Generator()
    compiled = torch.compile(layer, backend="aot_eager")
    samples = []
    for seed in (1, 2):
        layer.generator.manual_seed(0)
        samples.append(seeded(compiled, x, seed=seed))
    assert torch.equal(*samples)


# ---- data-parallel training -----------------------------------------------------------------------------------------


def train_in_parallel(rank: int, folder: str) -> None:
    """One of two processes: its gradients with and without DistributedDataParallel, from the same noise."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    try:
        model = nn.Sequential(LRConv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), LRLinear(15, 2, values="binary")).double()
        torch.manual_seed(rank)
        with torch.no_grad():  # different in each process: the wrapper has to make them equal
            for tensor in model.state_dict().values():
                tensor.add_(0.1 * rank)
        x = torch.randn(4, 2, 7, dtype=torch.float64)
        parallel = nn.parallel.DistributedDataParallel(model)
        together = loss_gradients(model, seeded(parallel, x, seed=10 + rank))
        alone = loss_gradients(model, seeded(model, x, seed=10 + rank))
        torch.save({"together": together, "alone": alone, "state": model.state_dict()}, f"{folder}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


def test_two_processes_share_their_gradients(tmp_path):
    torch.multiprocessing.spawn(train_in_parallel, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert_same(first["state"], second["state"], rtol=0, atol=0)
    assert_same(first["together"], second["together"], rtol=0, atol=0)
    average = {name: (first["alone"][name] + second["alone"][name]) / 2 for name in first["alone"]}
    assert_same(first["together"], average, **REORDERED)
    assert set(average) == {"0.logits", "0.bias", "3.logits", "3.bias"}
    assert (first["alone"]["0.logits"] != second["alone"]["0.logits"]).all()  # two batches, two noises
