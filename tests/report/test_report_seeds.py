"""A folder of seeds: mean and deviation on top, a row a seed."""

import json
import shutil
import statistics

import pytest
from report_page import read_page

from lrnets.report import write_report

pytestmark = pytest.mark.usefixtures("without_figures")
ERRORS = (1.5, 1.9, 2.3)


@pytest.fixture
def seeds(ternary, tmp_path):
    """Three finished runs and one that is not, with the same recipe apart from the seed."""
    path = tmp_path / "recipe"
    for seed in range(4):
        shutil.copytree(ternary.path, path / str(seed))
        recipe = path / str(seed) / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace("seed: 0", f"seed: {seed}"))
    for seed, error in enumerate(ERRORS):
        results = json.loads((path / str(seed) / "results.json").read_text())
        results["test_error"] |= {"chosen": error, "float": 1.0}
        (path / str(seed) / "results.json").write_text(json.dumps(results))
    (path / "3/results.json").unlink()
    (path / "recipe.yaml").write_text("as `lrnets table` leaves it")
    return path


def test_mean_and_deviation_over_the_finished_seeds(seeds):
    page = read_page(write_report(seeds, say=lambda text: None))
    told = f"{statistics.fmean(ERRORS):.2f} ± {statistics.stdev(ERRORS):.2f} %"
    assert f"The chosen network is wrong on {told} of the test images, mean over 3 seeds" in page.words
    rows = {row[0]: row for row in page.tables["Seeds"][1:]}
    assert [rows[str(seed)][3] for seed in range(3)] == [f"{error:.2f} %" for error in ERRORS]
    assert rows["3"][1] == "choosing"
    assert "Seed 3: The run is not finished" in page.words
    assert (seeds / "report.html").exists()


def test_runs_of_different_settings_have_no_mean(seeds):
    recipe = seeds / "2/recipe.yaml"
    recipe.write_text(recipe.read_text().replace("draws: 3", "draws: 9"))
    with pytest.raises(ValueError, match=r"draws: 3 there, 9 asked for.*make a report of each"):
        write_report(seeds, say=lambda text: None)
