"""Gaps over horizons agree with scipy's paired tests, and verdicts say what the intervals say."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import linregress, ttest_1samp, ttest_rel

from nadaraya.study import Findings, Study, summarise
from nadaraya.study.draw import draw_gaps
from nadaraya.study.statistics import Gaps

SIZES = {"u300": 300, "u1000": 1000, "u3000": 3000, "u10000": 10_000}
SEEDS = {"u300": [0, 1, 2], "u1000": [0, 1, 2], "u3000": [0, 1, 2], "u10000": [0]}


def study(**keys: Any) -> Study:
    given: dict[str, Any] = {"recipe": "demo", "baseline": "rope", "match": "tokens", "seeds": [0, 1, 2]}
    given |= {"sizes": {size: {"training.steps": steps} for size, steps in SIZES.items()}}
    given |= {"variants": {"rope": {}, "bank": {}}, "learning_rates": [1e-3], "seeds_at": {"u10000": [0]}}
    return Study(**{**given, **keys})


def results(slope: float, noise: float = 0.002, sizes: tuple[str, ...] = tuple(SIZES)) -> dict[str, Any]:
    """Runs whose gap is −0.1 at 300 updates and changes by `slope` per tenfold, with noise of its own."""
    generator = np.random.default_rng(0)
    cells, runs = [], []
    for size in sizes:
        steps = SIZES[size]
        cells += [{"size": size, "variant": name, "learning_rate": 1e-3} for name in ("rope", "bank")]
        for seed in SEEDS[size]:
            common = {"size": size, "seed": seed, "learning_rate": 1e-3, "steps": steps, "flops": 10 * steps}
            common |= {"parameters": 5, "bits_per_byte": 1.0}
            rope = 2.0 - 0.2 * np.log10(steps) + generator.normal(0, 0.05)  # shared by both of a seed
            gap = -0.1 + slope * np.log10(steps / 300) + generator.normal(0, noise)
            for name, loss in (("rope", rope), ("bank", rope + gap)):
                curve = [[step, loss + 10 / step] for step in (50, 100, steps)]
                runs.append({**common, "variant": name, "loss": float(loss), "validation": curve})
    return {"cells": cells, "runs": runs}


def losses(found: dict[str, Any], variant: str, size: str) -> list[float]:
    return [row["loss"] for row in found["runs"] if (row["variant"], row["size"]) == (variant, size)]


def gaps(found: dict[str, Any], **keys: Any) -> Gaps:
    gaps = Findings(study(**keys), found).gaps("bank")
    assert gaps is not None
    return gaps


def test_a_gap_and_its_interval_are_those_of_the_paired_t_test() -> None:
    found = results(0.03)
    for size in gaps(found).sizes[:3]:
        pair = [losses(found, variant, size.size) for variant in ("bank", "rope")]
        low, high = ttest_rel(*pair).confidence_interval(0.95)
        assert (size.gap.low, size.gap.high) == pytest.approx((low, high))
        assert size.gap.value == pytest.approx(np.subtract(*pair).mean())
        assert size.updates == SIZES[size.size]
    alone = gaps(found).sizes[3]
    assert (alone.size, alone.seeds, alone.gap.low) == ("u10000", [0], None)
    assert gaps(found).longest.size == "u3000"


def test_the_trend_is_the_mean_slope_of_the_seeds_over_the_horizons_that_they_share() -> None:
    found = results(0.03)
    sizes = ["u300", "u1000", "u3000"]
    differences = np.array([np.subtract(losses(found, "bank", s), losses(found, "rope", s)) for s in sizes])
    slopes = [linregress(np.log10([300, 1000, 3000]), column).slope for column in differences.T]
    trend = gaps(found).trend
    assert trend is not None
    assert trend.value == pytest.approx(np.mean(slopes))
    assert (trend.low, trend.high) == pytest.approx(tuple(ttest_1samp(slopes, 0).confidence_interval(0.95)))
    assert gaps(found).trend_sizes == sizes
    single = gaps(found, seeds=[1], seeds_at={})
    assert single.trend is not None
    assert single.trend.value == pytest.approx(slopes[1])
    assert single.trend.low is None


def test_runs_are_paired_by_seed_and_those_without_a_partner_are_left_out() -> None:
    found = results(0.0, noise=0.0)
    found["runs"] = [
        row for row in found["runs"] if (row["variant"], row["seed"], row["size"]) != ("bank", 1, "u300")
    ]
    first = gaps(found).sizes[0]
    assert first.seeds == [0, 2]
    assert first.gap.value == pytest.approx(-0.1)  # not moved by what the seeds of rope differ in
    assert Findings(study(), {"cells": found["cells"], "runs": found["runs"][:1]}).gaps("bank") is None


def test_curves_are_those_of_the_longest_horizon_and_of_the_longest_with_several_seeds() -> None:
    found = results(0.03)
    several, alone = gaps(found).curves
    assert (several.size, several.seeds, alone.size, alone.seeds) == ("u3000", [0, 1, 2], "u10000", [0])
    assert several.updates == [50, 100, 3000]
    pair = [losses(found, variant, "u3000") for variant in ("bank", "rope")]
    low, high = ttest_rel(*pair).confidence_interval(0.95)  # both curves fall alike, so the gap stays
    assert [(gap.low, gap.high) for gap in several.gaps] == [pytest.approx((low, high))] * 3
    assert all(gap.low is None for gap in alone.gaps)


@pytest.mark.parametrize(
    ("slope", "noise", "words"),
    [
        (0.05, 0.001, "that gap shrinks: it changes by +0.04"),
        (-0.05, 0.001, "that gap grows: it changes by -0.05"),
        (0.0, 0.01, "that gap shows no trend: it changes by "),
    ],
)
def test_verdicts_say_whether_the_gap_shrinks(slope: float, noise: float, words: str) -> None:
    summary = summarise(study(), results(slope, noise))
    verdict = summary.verdict("bank")
    assert verdict.startswith("`bank` is better than `rope` after 3,000 updates (3 seeds): its loss differs")
    assert "From 300 to 3,000 updates" in verdict
    assert words in verdict
    lines = summary.markdown().splitlines()
    (row,) = [line for line in lines if line.startswith("| bank | -")]
    assert row.count(" to ") == 4  # three horizons and the trend
    assert any("u10000: 10,000 updates | per tenfold updates |" in line for line in lines)


def test_a_horizon_of_one_seed_does_not_take_the_other_intervals_away() -> None:
    summary = summarise(study(), results(0.03))
    assert summary.shared("bank") == ["u300", "u1000", "u3000"]
    assert summary.comparisons["bank"].seeds == 3
    assert [cell.size for cell in summary.cells["bank"]] == list(SIZES)


def test_the_figure_has_every_horizon_and_a_band_where_there_are_seeds() -> None:
    summary = summarise(study(), results(0.03))
    ends, inside = draw_gaps(summary).axes
    dots = [line for line in ends.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert [line.get_xdata()[0] for line in dots] == [size.gap.value for size in summary.gaps["bank"].sizes]
    assert [label.get_text() for label in ends.get_yticklabels()] == ["bank"]
    assert len(inside.collections) == 1
    assert sum(len(line.get_xdata()) == 3 for line in inside.lines) == 2


def test_sizes_that_are_other_models_are_no_horizons() -> None:
    assert study().horizons
    assert not study(match="flops").horizons
    wider = {"u300": {"training.steps": 300}, "u1000": {"training.steps": 1000, "model.hidden_size": 64}}
    assert not study(sizes=wider, seeds_at={}).horizons
    found = results(0.03, sizes=("u300", "u1000"))
    assert summarise(study(sizes=wider, seeds_at={}), found).gaps == {}
