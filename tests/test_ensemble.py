"""Averages and doubts of ensembles, against NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

import lrnets


class Fixed(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.register_buffer("logits", torch.tensor(logits))

    def forward(self, x):
        return self.logits.expand(len(x), *self.logits.shape)


def softmax(logits):
    e = np.exp(np.asarray(logits, dtype=np.float64))
    return e / e.sum()


def bits(p):
    return -sum(q * np.log2(q) for q in p if q > 0)


LOGITS = [[2.0, 0.0, -1.0], [-1.0, 0.5, 3.0], [0.0, 0.0, 0.0]]


def test_probabilities_or_logits_are_averaged():
    nets = [Fixed(row) for row in LOGITS]
    x = torch.zeros(2, 1)
    p = np.mean([softmax(row) for row in LOGITS], 0)
    np.testing.assert_allclose(lrnets.Ensemble(nets)(x)[1], p, rtol=1e-6)
    np.testing.assert_allclose(lrnets.Ensemble(nets, average="logits")(x)[1], np.mean(LOGITS, 0), rtol=1e-6)


def test_uncertainty_splits_into_predictive_entropy_and_mutual_information():
    result = lrnets.Ensemble(Fixed(row) for row in LOGITS).uncertainty(torch.zeros(2, 1))
    ps = [softmax(row) for row in LOGITS]
    predictive = bits(np.mean(ps, 0))
    np.testing.assert_allclose(result.predictive_entropy, [predictive] * 2, rtol=1e-5)
    np.testing.assert_allclose(result.mutual_information, [predictive - np.mean([bits(p) for p in ps])] * 2, rtol=1e-4)


def test_networks_that_agree_share_no_information_even_where_they_are_unsure():
    result = lrnets.Ensemble([Fixed([0.0, 0.0])] * 3).uncertainty(torch.zeros(1, 1))
    assert result.predictive_entropy.item() == pytest.approx(1.0)
    assert result.mutual_information.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("class_dim", [1, -3])
def test_classes_may_stand_in_any_dimension(class_dim):
    nets = [nn.Conv2d(2, 3, 1) for _ in range(2)]
    ensemble = lrnets.Ensemble(nets, class_dim=class_dim)
    x = torch.randn(2, 2, 4, 4)
    torch.testing.assert_close(ensemble(x).sum(1), torch.ones(2, 4, 4))
    assert ensemble.uncertainty(x).mutual_information.shape == (2, 4, 4)


def test_drawn_networks_make_an_ensemble_that_moves_and_saves_like_any_module():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    lrnets.convert_(model)
    ensemble = lrnets.Ensemble([lrnets.discretize(model) for _ in range(3)]).double()
    assert len(ensemble.state_dict()) == 12
    assert ensemble(torch.randn(5, 4).double()).shape == (5, 3)


def test_an_empty_ensemble_and_an_unknown_average_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        lrnets.Ensemble([])
    with pytest.raises(TypeError, match="got one Sequential; pass a list of networks"):
        lrnets.Ensemble(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
    assert len(lrnets.Ensemble(nn.ModuleList([nn.Linear(1, 1)])).nets) == 1
    with pytest.raises(ValueError, match="'median'"):
        lrnets.Ensemble([nn.Linear(1, 1)], average="median")
