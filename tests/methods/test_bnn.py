"""BNN: BinaryConnect's weights with a window for the gradient, and signs at the input."""

import numpy as np
import torch
from straight import some_weights, twin_of, weights_and_gradient
from torch import nn

import lrnets
from lrnets.methods.harness import after_step


def test_the_gradient_passes_where_the_float_weight_is_within_one():
    weight, upstream = some_weights(4, 6), some_weights(4, 6, seed=1)
    twin = twin_of(weight, "bnn", scale=False)
    with torch.no_grad():
        twin.latent.mul_(2)  # beyond what clipping would leave
    r = twin.latent.detach().numpy()
    weights, gradient = weights_and_gradient(twin, upstream)
    np.testing.assert_array_equal(weights, np.where(r >= 0, 1.0, -1.0))
    np.testing.assert_array_equal(gradient, np.where(np.abs(r) <= 1, upstream, 0))
    assert (gradient == 0).any()
    after_step(twin)
    assert twin.latent.abs().max() == 1


def test_all_but_the_first_layer_take_signs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    first, second = (model[i].weight.detach().numpy() for i in (0, 2))
    report = lrnets.convert_(model, method="bnn", scale=False)
    assert report.converted == ["0", "2"]
    assert [type(model[i]) for i in (1, 3)] == [nn.Identity, nn.ReLU]  # the classifier's own stays
    assert any("sign of their input: 2" in note for note in report.notes)
    x = np.random.default_rng(0).normal(size=(7, 6))
    hidden = x @ np.where(first >= 0, 1, -1).T + model[0].bias.detach().numpy()
    hidden = np.where(hidden >= 0, 1, -1) @ np.where(second >= 0, 1, -1).T + model[2].bias.detach().numpy()
    expected = np.maximum(hidden, 0) @ model[4].weight.detach().numpy().T + model[4].bias.detach().numpy()
    np.testing.assert_allclose(model(torch.tensor(x)).detach().numpy(), expected)
