import pytest

from lrnets.words import counted


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 epochs"), (1, "1 epoch"), (2, "2 epochs"), (12_000, "12,000 epochs")]
)
def test_one_is_not_many(count, said):
    assert counted(count, "epoch") == said


def test_nouns_that_take_more_than_an_s():
    assert [counted(n, "class", "classes") for n in (1, 2)] == ["1 class", "2 classes"]
