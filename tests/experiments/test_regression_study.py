"""The study of kernel regression on real data: each part at work on a few made-up points."""

import json
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

pytest.importorskip("numba")

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SCRIPT = EXPERIMENTS / "regression.py"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder that holds lidar.csv alone, a noisy step."""
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(390, 720, 110))
    y = -0.5 * (x > 560) + 0.05 * generator.standard_normal(110)
    np.savetxt(
        tmp_path / "lidar.csv", np.stack([x, y], 1), delimiter=",", header="range,logratio", comments=""
    )
    return tmp_path


@pytest.mark.slow
def test_every_method_beats_the_mean_on_a_step_and_an_absent_table_is_left_out(tables: Path) -> None:
    options = ["--quick", "--markdown", "--workers", "1", "--only", "motorcycle", "lidar"]
    printed = run_script(SCRIPT, "--data", tables, "--out", tables, *options)
    results = json.loads((tables / "results.json").read_text())
    assert list(results["studies"]) == ["lidar"]
    assert "motorcycle left out" in printed
    for name, rows in results["studies"]["lidar"]["methods"].items():
        if "failed" in rows:
            assert "statsmodels" in name, rows
            assert "statsmodels" in rows["failed"], rows
        else:
            assert min(rows["r2"]) > 0.5, name
            assert f"| {name} |" in printed


def test_rows_without_bedrooms_are_dropped_and_counts_are_logarithms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    from regression_data import california_housing

    (tmp_path / "california_housing.csv").write_text(
        "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,"
        "median_income,median_house_value,ocean_proximity\n"
        "-122,38,41,880,129,322,126,8.3,452600,NEAR BAY\n"
        "-121,37,21,7099,,2401,1138,8.3,358500,INLAND\n"
    )
    table = california_housing(tmp_path)
    np.testing.assert_allclose(table.X, [[-122, 38, 41, 8.3, *np.log([880, 129, 322, 126])]])
    np.testing.assert_allclose(table.y, [4.526])
    assert "less 1 without a number of bedrooms" in table.note
