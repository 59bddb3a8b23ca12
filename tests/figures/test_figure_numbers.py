"""The numbers behind the pictures, against independent computation."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from fabricated_runs import fabricate, recipe
from safetensors.torch import load_file
from scipy import stats

from lrnets.comparison.results import Spread
from lrnets.figures import draws, entropy, kernels, pareto, preactivations, training, zero_probability
from lrnets.figures.pairs import decayed_pairs, no_decayed_pair, no_rivals
from lrnets.figures.sources import found_runs, open_sources, without_seeds


@pytest.fixture(scope="module")
def sources(house):
    found = open_sources(list(found_runs([house])), print)
    return {f"{source.label}/{source.recipe.seed}": source for source in found}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def ternary_probabilities(path, layer):
    """(3, weights) of -1, 0, +1 by the paper's two logits."""
    a, b = load_file(path)[f"{layer}.logits"].double().numpy().reshape(2, -1)
    zero = sigmoid(a)
    return np.stack([(1 - zero) * (1 - sigmoid(b)), zero, (1 - zero) * sigmoid(b)])


def start_zero(path, layer):
    """p(w = 0) at the start by eq. 6, from float weights."""
    weight = load_file(path)[f"{layer}.weight"].double().numpy().ravel()
    return np.clip(0.95 - 0.9 * np.abs(weight / weight.std()), 0.05, 0.95)


def test_entropy_ends_where_the_weights_are_and_begins_at_the_start(sources, house):
    figure = entropy.curves(sources["decay/0"])
    found = {(layer, epoch): bits for layer, epoch, bits in figure.rows}
    assert sorted({epoch for _, epoch in found}) == [0, 1, 2, 3]
    for layer in ("conv1", "conv2", "fc1"):
        p = ternary_probabilities(house / "decay/0/stochastic.safetensors", layer)
        assert found[layer, 3] == pytest.approx(-(p * np.log2(p)).sum(0).mean(), rel=1e-4)
        zero = start_zero(house / "decay/0/float.safetensors", layer)
        weight = load_file(house / "decay/0/float.safetensors")[f"{layer}.weight"].double().numpy().ravel()
        plus = np.clip(0.5 * (1 + weight / weight.std() / (1 - zero)), 0.05, 0.95)
        p = np.stack([(1 - zero) * (1 - plus), zero, (1 - zero) * plus])
        assert found[layer, 0] == pytest.approx(-(p * np.log2(p)).sum(0).mean(), rel=1e-4)
    assert entropy.heat_map(sources["decay/0"]).rows == figure.rows
    assert {row[0] for row in entropy.curves(sources["decay/0"], ["conv*"]).rows} == {"conv1", "conv2"}


def test_both_entropies_are_those_of_their_runs(sources):
    pair = entropy.with_and_without(sources["no-decay/0"], sources["decay/0"])
    kinds = {"without": "no-decay/0", "with probability decay 1e-11": "decay/0"}
    for kind, name in kinds.items():
        own = [(layer, epoch, bits) for layer, label, epoch, bits in pair.rows if label == kind]
        assert own == list(entropy.curves(sources[name]).rows)


def test_zero_probabilities_are_counted_at_start_and_end(sources, house):
    figure = zero_probability.histograms(sources["decay/0"])
    for layer in ("conv1", "fc1"):
        exact = {
            "at the start": start_zero(house / "decay/0/float.safetensors", layer),
            "after training": ternary_probabilities(house / "decay/0/stochastic.safetensors", layer)[1],
        }
        for when, p in exact.items():
            rows = [row for row in figure.rows if row[:2] == (layer, when)]
            shares = np.array([row[4] for row in rows])
            assert shares.sum() == pytest.approx(1)
            # 44 % of the start are p_min, on an edge: rounding may put them into either bin beside it.
            below = np.array([(p < row[3]).mean() for row in rows])
            beside = slice(3, -3) if when == "at the start" else slice(None)
            assert np.cumsum(shares)[beside] == pytest.approx(below[beside], abs=0.002)


def test_binary_weights_show_the_probability_of_one(sources, house):
    figure = zero_probability.histograms(sources["binary/0"], ["conv1"])
    assert "p(w = +1)" in figure.title
    p = sigmoid(load_file(house / "binary/0/stochastic.safetensors")["conv1.logits"].double().numpy())
    rows = [row for row in figure.rows if row[1] == "after training"]
    assert rows[20][4] == pytest.approx(((p >= 0.5) & (p < 0.525)).mean(), abs=0.003)


def test_kernels_are_the_stored_weights(sources, house):
    figure = kernels.of_run(sources["decay/0"])
    for title, file in (("float, the start", "float"), ("ternary, chosen", "drawn")):
        weight = load_file(house / f"decay/0/{file}.safetensors")["conv1.weight"]
        rows = [row[1:] for row in figure.rows if row[0] == title]
        assert len(rows) == 25 * 25
        assert all(weight[kernel, channel, y, x].item() == value for kernel, channel, y, x, value in rows)
    assert {np.sign(row[5]) for row in figure.rows if row[0] == "ternary, chosen"} == {-1, 0, 1}


def test_the_sheet_is_black_grey_and_white_for_minus_one_zero_and_one():
    weight = 0.3 * torch.tensor([[-1.0, 0.0], [1.0, 1.0]]).expand(3, 1, 2, 2)
    page = kernels.sheet(weight)
    assert page.shape == (7, 7, 3)  # two by two kernels of 2, gaps of 1 around
    assert page[1:3, 1:3, 0].tolist() == [[0, 0.5], [1, 1]]
    assert page[4:6, 1:3, 2].tolist() == [[0, 0.5], [1, 1]]
    assert (page[4:6, 4:6] == page[0, 0]).all()  # there is no fourth
    assert (kernels.sheet(torch.zeros(1, 1, 2, 2))[1:3, 1:3] == 0.5).all()


def test_three_sheets_of_binary_ternary_and_float(sources, house):
    (task,) = kernels.pair_tasks(list(sources.values()))
    figure = task.make()
    drawn = load_file(house / "binary/0/drawn.safetensors")["conv1.weight"][:25].flatten().tolist()
    assert [row[5] for row in figure.rows if row[0] == "binary"] == drawn
    assert list(dict.fromkeys(row[0] for row in figure.rows)) == ["binary", "ternary", "float"]


def test_the_neuron_shown_is_drawn_from_its_own_weights(sources, house):
    source = sources["no-decay/0"]
    fits = preactivations.fits_of(source.trained, "conv1", source.examples.inputs)
    assert len({fit.neuron[1] for fit in fits.fits}) == 32  # all channels
    image, channel, y, x = fits.shown.neuron
    h = source.examples.inputs[image, 0, y : y + 5, x : x + 5].double().numpy().ravel()
    saved = load_file(house / "no-decay/0/stochastic.safetensors")
    p = ternary_probabilities(house / "no-decay/0/stochastic.safetensors", "conv1").reshape(3, 32, 25)[:, channel]
    scale = saved["conv1.scale"].item()
    mean, second = p[2] - p[0], p[2] + p[0]
    assert fits.shown.mean == pytest.approx(scale * (mean * h).sum(), rel=1e-4)
    assert fits.shown.deviation == pytest.approx(scale * math.sqrt(((second - mean**2) * h**2).sum()), rel=1e-4)
    # The distance, with draws and a test of somebody else's.
    random = np.random.default_rng(0).random((4000, 25))
    weights = np.where(random < p[0], -1, np.where(random < p[0] + p[1], 0, 1))
    other = stats.kstest(scale * weights @ h, stats.norm(fits.shown.mean, fits.shown.deviation).cdf).statistic
    assert fits.shown.distance == pytest.approx(other, abs=4 * 0.87 / math.sqrt(2000))
    counts = Counter(tuple(fit.neuron[2:]) for fit in fits.fits if fit.neuron[0] == image)
    assert len(counts) == 1  # one place an image
    middle = sorted(fit.distance for fit in fits.fits)[len(fits.fits) // 2]
    assert [fit.distance for fit in fits.fits if fit.neuron == fits.shown.neuron] == [middle]


def test_figure_one_has_both_layers_at_both_times_and_shares_that_add_up(sources):
    figure = preactivations.first_and_last(sources["decay/0"])
    parts = {row[:2] for row in figure.rows}
    assert parts == set(itertools.product(("conv1", "fc1"), ("at the start", "after training")))
    for part in parts:
        for column in (4, 5):
            assert sum(row[column] for row in figure.rows if row[:2] == part) == pytest.approx(1, abs=1e-3)
    assert "25 inputs" in figure.caption
    assert {row[0] for row in preactivations.first_and_last(sources["decay/0"], ["conv*"]).rows} == {"conv1", "conv2"}


def test_figure_two_compares_the_same_neurons_and_tells_which_fits_better(sources):
    figure = preactivations.with_and_without(sources["no-decay/0"], sources["decay/0"])
    distances = {
        kind: [row[6] for row in figure.rows if row[1] == kind and row[6] != ""]
        for kind in ("without probability decay", "with probability decay 1e-11")
    }  # fmt: skip
    one, other = distances.values()
    assert len(one) == len(other) >= 32
    assert np.median(one) > np.median(other)  # as made: the run without decay is far more decided
    assert f"median {np.median(one):.3f} without, {np.median(other):.3f} with" in figure.caption
    assert "closer with decay" in figure.caption
    assert "not closer" not in figure.caption
    other_layer = preactivations.with_and_without(sources["no-decay/0"], sources["decay/0"], ["conv2"])
    assert {row[0] for row in other_layer.rows} == {"conv2"}
    swapped = preactivations.with_and_without(sources["decay/0"], sources["no-decay/0"])
    assert "not closer with decay" in swapped.caption


def test_the_first_convolution_of_cifar_has_27_inputs(tmp_path):
    made = recipe(data="cifar10", network="cifar10_vgg", width=0.05)
    (source,) = open_sources([fabricate(tmp_path / "run", made)], print)
    fits = preactivations.fits_of(source.trained, "conv11", source.examples.inputs)
    assert fits.shown.inputs == 27
    assert {row[2] for row in kernels.of_run(source).rows} == {0, 1, 2}


def test_pairs_differ_in_the_decay_alone(sources, tmp_path):
    everything = [group[0] for group in without_seeds(list(sources.values()))]
    assert [(a.label, b.label) for a, b, _ in decayed_pairs(everything)] == [("no-decay", "decay")]
    other = recipe(name="t-other", discrete={"probability_decay": 0.0, "lr": 0.5})
    one, changed = open_sources([sources["decay/0"].folder, fabricate(tmp_path / "run", other)], print)
    assert decayed_pairs([one, changed]) == []
    assert "discrete_stage.lr: 0.003 there, 0.5 asked for" in str(no_decayed_pair([one, changed]))
    assert "probability_decay=0 " in str(no_decayed_pair([one]))


def test_rivals_have_the_same_settings_and_the_start_is_looked_at(sources, tmp_path):
    everything = list(sources.values())
    (group,) = training.rivals([sources["gumbel/0"], sources["decay/0"], sources["no-decay/0"]])
    assert [source.label for source in group] == ["decay", "gumbel"]
    figure = training.lr_against_gumbel(group)
    assert "from the same float network" in figure.caption
    assert [row[4] for row in figure.rows if row[0] == "gumbel"] == pytest.approx([4.5, 2.25, 1.5])
    assert not training.same_start([sources["decay/0"], sources["decay/1"]])
    assert "method=gumbel" in str(no_rivals([everything[0]]))


def test_training_has_both_stages_in_a_row(sources):
    rows = training.of_run(sources["decay/0"]).rows
    assert [row[2:] for row in rows if row[:2] == ("float", "loss")] == [(1, 1.0), (2, 0.5)]
    drawn = [row[2:] for row in rows if row[:2] == ("stochastic", "valid_error_draw")]
    assert [epoch for epoch, _ in drawn] == [3, 4, 5]
    assert drawn[-1][1] == pytest.approx(3.5 * 0.7 / 3)


def test_error_against_bits_takes_the_mean_over_seeds(sources):
    said = []
    figure = pareto.error_against_bits(list(sources.values()), said.append)
    found = {row[0]: row for row in figure.rows}
    assert said == []
    assert found["decay"][4] == pytest.approx(0.8)
    assert found["decay"][5] == pytest.approx(math.sqrt(0.02))
    assert (found["decay"][6], found["float"][6]) == (2, 1)
    assert (found["decay"][2], found["binary"][2], found["float"][2]) == pytest.approx((1.6, 1, 32), abs=0.02)
    assert [name for name, row in found.items() if row[7]] == ["binary", "decay", "float"]


def test_the_front_is_what_none_beats():
    generator = np.random.default_rng(3)
    places = [
        (float(bits), float(error)) for bits, error in zip(generator.choice([1, 1.6, 2, 32], 30), generator.random(30))
    ]
    points = [pareto.Point(str(i), "lr", "ternary", False, b, 1, Spread((e,))) for i, (b, e) in enumerate(places)]
    found = {(point.bits, point.error.mean): point.front for point in pareto.marked_front(points)}
    for bits, error in places:
        # The front is the running minimum of the error over bits.
        least = min(e for b, e in places if b <= bits)
        first = not any(b < bits and e <= error for b, e in places)
        assert found[bits, error] == (error == least and first)


def test_labels_keep_their_distance_and_their_order():
    placed = pareto.spread_out([0.1, 0.11, 0.12, 0.5, 0.99, 1.0], 0.1, 0.0, 1.0)
    assert all(b - a >= 0.1 - 1e-9 for a, b in itertools.pairwise(placed))
    assert max(placed) <= 1
    assert placed[3] == pytest.approx(0.5)


def test_where_draws_disagree_is_counted(sources, house):
    source = sources["decay/0"]
    answers = source.examples.answers
    figure = draws.where(source)
    found = {row[:2]: row[2] for row in figure.rows}
    p = ternary_probabilities(house / "decay/0/stochastic.safetensors", "conv2")
    assert found["layer", "conv2"] == pytest.approx(100 * (1 - (p**2).sum(0)).mean(), rel=1e-4)
    for label in range(10):
        columns = [answers.valid[:, i].tolist() for i in range(80) if answers.valid_labels[i] == label]
        assert found["class", str(label)] == pytest.approx(100 * np.mean([len(set(c)) > 1 for c in columns]))
    pairs = [a != b for i in range(50) for a, b in itertools.combinations(answers.test[:, i].tolist(), 2)]
    assert f"{np.mean(pairs):.2%} of test answers" in figure.caption


def test_disputed_images_are_shown_with_all_votes(sources):
    source = sources["decay/0"]
    answers = source.examples.answers
    figure = draws.disputed(source)
    votes: dict[int, Counter] = {}
    for index, truth, answer, count in figure.rows:
        votes.setdefault(index, Counter())[int(answer)] = count
        assert int(truth) == answers.valid_labels[index]
    assert list(votes) == answers.disputed[: draws.SHOWN].tolist()
    for index, found in votes.items():
        assert found == Counter(answers.valid[:, index].tolist())
        assert len(found) > 1
