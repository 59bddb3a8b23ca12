"""What a run keeps of its data: which images draws disagree on, the file, and what is said without it."""

import itertools

import pytest
import torch

from lrnets.data import Split
from lrnets.data.augment import scale
from lrnets.training.examples import DISPUTED, EXAMPLES, FILE, answers_of, disagreement, load_examples, save_examples
from lrnets.training.run_folder import RunFolder


def split_of(n: int) -> Split:
    generator = torch.Generator().manual_seed(n)
    return Split(torch.randint(256, (n, 1, 4, 4), generator=generator, dtype=torch.uint8), torch.arange(n) % 10)


def answers_with(draws: int, valid: Split, test: Split):
    generator = torch.Generator().manual_seed(1)
    named = [[torch.rand(len(part), 10, generator=generator) for _ in range(draws)] for part in (valid, test)]
    classes = [[p.argmax(1) for p in part] for part in named]
    return answers_of(classes[0], valid, classes[1], test.labels), named


def test_disagreement_counts_pairs_of_draws():
    answers = torch.tensor([[1, 1, 3], [1, 2, 4], [1, 1, 5], [1, 7, 3]])
    for image in range(3):
        pairs = list(itertools.combinations(answers[:, image].tolist(), 2))
        assert disagreement(answers)[image] == pytest.approx(sum(a != b for a, b in pairs) / len(pairs))
    assert disagreement(answers[:1]).tolist() == [0, 0, 0]


def test_the_file_gives_back_images_inputs_labels_and_answers(tmp_path):
    valid, test = split_of(90), split_of(30)
    answers, named = answers_with(3, valid, test)
    save_examples(RunFolder(tmp_path), valid, scale, answers)
    found = load_examples(RunFolder(tmp_path))
    assert torch.equal(found.images, valid.images[:EXAMPLES])
    assert torch.equal(found.inputs, valid.images[:EXAMPLES].float() / 255)
    assert torch.equal(found.labels, valid.labels[:EXAMPLES])
    assert found.answers is not None
    for draw, p in enumerate(named[0]):
        assert found.answers.valid[draw].tolist() == [max(range(10), key=row.__getitem__) for row in p.tolist()]
    assert torch.equal(found.answers.test, torch.stack([p.argmax(1) for p in named[1]]))
    differ = disagreement(found.answers.valid)
    most = found.answers.disputed
    assert len(most) == DISPUTED
    assert differ[most].tolist() == sorted(differ.tolist(), reverse=True)[:DISPUTED]
    assert torch.equal(found.answers.disputed_images, valid.images[most])
    assert [path.name for path in tmp_path.iterdir()] == [FILE]  # nothing temporary


def test_images_on_which_all_agree_are_not_disputed(tmp_path):
    valid = split_of(20)
    p = [torch.eye(10)[valid.labels] for _ in range(3)]
    p[2] = p[2].clone()
    p[2][7] = torch.eye(10)[0]
    named = [part.argmax(1) for part in p]
    answers = answers_of(named, valid, named, valid.labels)
    assert answers.disputed.tolist() == [7]


def test_a_run_that_draws_nothing_has_no_answers(tmp_path):
    save_examples(RunFolder(tmp_path), split_of(10), scale)
    assert load_examples(RunFolder(tmp_path)).answers is None


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_without_the_file_the_remedy_is_named(tmp_path, damage):
    folder = RunFolder(tmp_path)
    save_examples(folder, split_of(10), scale)
    path = tmp_path / FILE
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    else:
        folder.save_tensors(FILE, {"images": torch.zeros(1)})
    with pytest.raises((OSError, ValueError), match=FILE) as caught:
        load_examples(folder)
    assert "--resume" in str(caught.value)
