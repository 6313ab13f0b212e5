"""Laws, shares of compute and their intervals on losses whose answer is known."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_ind

from nadaraya.study.statistics import Deviation, Estimate, compare, exponent_of, fit_power_law

COMPUTE = [1e12, 3e12, 1e13, 3e13, 1e14, 3e14]


def law(compute: float, floor: float = 0.0) -> float:
    return floor + 40.0 * compute**-0.08


def seeds(loss: float, noise: float, number: int, count: int = 3) -> list[float]:
    return list(loss + noise * np.random.default_rng(number).normal(size=count))


def test_a_power_law_is_found_again() -> None:
    found = fit_power_law(COMPUTE[:3], [law(c) for c in COMPUTE[:3]])
    assert (found.scale, found.exponent, found.floor) == pytest.approx((40.0, 0.08, 0.0))


def test_a_floor_is_found_from_five_sizes_on_and_not_before() -> None:
    losses = [law(c, floor=1.7) for c in COMPUTE]
    found = fit_power_law(COMPUTE, losses)
    assert (found.scale, found.exponent, found.floor) == pytest.approx((40.0, 0.08, 1.7), rel=1e-3)
    assert [found(c) for c in COMPUTE] == pytest.approx(losses, rel=1e-6)
    assert fit_power_law(COMPUTE[:4], losses[:4]).floor == 0.0
    steep = [10.0**power for power in range(7)]  # the last loss is 0.15 % above the floor
    found = fit_power_law(steep, [1.7 + 2.5 * compute**-0.5 for compute in steep])
    assert (found.scale, found.exponent, found.floor) == pytest.approx((2.5, 0.5, 1.7), rel=1e-4)


@pytest.mark.parametrize(("sizes", "floor"), [(2, 0.0), (3, 0.0), (6, 0.0), (6, 1.7)])
def test_a_variant_with_the_loss_of_more_compute_has_that_share(sizes: int, floor: float) -> None:
    compute = COMPUTE[:sizes]
    rope = compute, [[law(c, floor)] for c in compute]
    ours = compute, [[law(c / 0.8, floor)] for c in compute]
    found = compare(rope, ours)
    assert found.share is not None
    assert found.mean_share is not None
    assert found.trend is not None
    assert [each.value for each in found.share] == pytest.approx([0.8] * sizes, rel=2e-3)
    assert found.mean_share.value == pytest.approx(0.8, rel=2e-3)
    assert found.trend.value == pytest.approx(1.0, abs=5e-3)
    assert found.mean_share.low is None  # one seed tells of no spread
    assert found.side == 0


def test_compute_that_differs_a_little_is_taken_into_account() -> None:
    rope = COMPUTE[:3], [[law(c)] for c in COMPUTE[:3]]
    more = [1.1 * c for c in COMPUTE[:3]]
    found = compare(rope, (more, [[law(c / 0.8)] for c in more]))
    assert found.mean_share is not None
    assert found.mean_share.value == pytest.approx(0.8)


def test_the_trend_is_the_factor_of_the_share_at_ten_times_the_compute() -> None:
    compute = [1e12, 1e13, 1e14]
    rope = compute, [[law(c)] for c in compute]
    ours = compute, [[law(c / share)] for c, share in zip(compute, (0.5, 0.6, 0.72), strict=True)]
    found = compare(rope, ours)
    assert found.trend is not None
    assert found.trend.value == pytest.approx(1.2)


def test_a_gain_is_told_from_noise_and_noise_is_not_told_from_nothing() -> None:
    compute = COMPUTE[:3]
    rope = compute, [seeds(law(c), 0.004, number) for number, c in enumerate(compute)]
    same = compute, [seeds(law(c), 0.004, number) for number, c in enumerate(compute, 10)]
    better = compute, [seeds(law(c / 0.7), 0.004, number) for number, c in enumerate(compute, 20)]
    assert compare(rope, better).side == -1
    assert compare(better, rope).side == 1
    assert compare(rope, same).side == 0
    interval = compare(rope, better).mean_share
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < 0.7 < interval.high


@pytest.mark.parametrize("count", [2, 3, 5])
def test_intervals_hold_the_truth_about_as_often_as_they_say(count: int) -> None:
    generator, compute, times = np.random.default_rng(0), COMPUTE[:3], 300
    truth = {"difference": law(compute[0] / 0.8) - law(compute[0]), "last": 0.8, "mean": 0.8, "trend": 1.0}
    hits = dict.fromkeys(truth, 0)
    for _ in range(times):
        sides = [
            (compute, [law(c / share) + 0.02 * generator.normal(size=count) for c in compute])
            for share in (1.0, 0.8)
        ]
        found = compare(*sides)
        assert found.share is not None
        shown = zip(truth, (found.difference[0], found.share[-1], found.mean_share, found.trend), strict=True)
        for name, estimate in shown:
            assert estimate is not None
            assert estimate.low is not None
            assert estimate.high is not None
            hits[name] += estimate.low <= truth[name] <= estimate.high
    for hit in hits.values():
        assert 0.92 <= hit / times < 1  # with few seeds more than they say: degrees of freedom are estimated


def test_intervals_of_gaps_hold_the_truth_about_as_often_as_they_say_and_none_is_short_by_luck() -> None:
    """Eight variants and a baseline of three seeds each, runs of equal deviation."""
    generator, hits, shortest = np.random.default_rng(0), 0, np.inf
    for _ in range(400):
        runs = generator.normal(size=(9, 3))
        gaps = (runs[1:] - runs[0]).tolist()
        common = Deviation.of(gaps)
        assert common is not None
        low, high = common.around(gaps[0]).interval or (np.nan, np.nan)
        hits += low <= 0 <= high
        shortest = min(shortest, high - low)
    assert 0.93 <= hits / 400 <= 0.99
    assert shortest > 0.8  # each seed for itself: 0.1 and less


def test_a_deviation_of_one_variant_gives_students_interval_and_one_seed_none() -> None:
    gap = seeds(-0.02, 0.004, 0)
    common = Deviation.of([gap, [0.3]])
    assert common is not None
    expected = ttest_1samp(gap, 0.0).confidence_interval(0.95)
    assert common.around(gap).interval == pytest.approx((expected.low, expected.high))
    assert common.around([0.3]).interval is None
    assert Deviation.of([[0.1], [0.3]]) is None


def test_the_interval_of_a_difference_is_that_of_welch() -> None:
    base, ours = seeds(3.0, 0.02, 0), seeds(2.9, 0.05, 1, 4)
    (found,) = compare(([1e12], [base]), ([1e12], [ours])).difference
    expected = ttest_ind(ours, base, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_without_a_law_of_the_baseline_losses_are_compared() -> None:
    found = compare(([1e12], [[3.0, 3.01, 2.99]]), ([1e12], [[2.8, 2.81, 2.79]]))
    assert (found.share, found.mean_share, found.trend, found.side) == (None, None, None, -1)
    assert found.difference[0].value == pytest.approx(-0.2)
    worsening = compare(([1e12, 1e13], [[2.0], [3.0]]), ([1e12, 1e13], [[2.0], [3.0]]))
    assert worsening.share is None


def test_a_baseline_that_hardly_becomes_better_leaves_shares_without_end() -> None:
    flat = [1e12, 1e13], [[2.0, 2.0], [2.0 - 1e-6, 2.0 - 1e-6]]
    found = compare(flat, ([1e12, 1e13], [[3.0, 3.1], [3.0, 3.1]]))
    assert found.mean_share is not None
    assert found.mean_share.value == np.inf


def test_sizes_that_only_the_baseline_has_belong_to_its_law() -> None:
    bent = [law(1e12), law(1e13) * 1.02, law(1e14)]  # no law goes through all three
    both = [1e12, 1e13], [[bent[0]], [bent[1]]]
    ours = [1e12, 1e13], [[law(1e12 / 0.8)], [law(1e13 / 0.8)]]
    whole = [1e12, 1e13, 1e14], [[each] for each in bent]
    alone, together = compare(both, ours), compare(both, ours, reference=whole)
    assert alone.share is not None
    assert together.share is not None
    assert together.share[0].value == pytest.approx(0.8, rel=1e-2)
    assert abs(np.log(alone.share[0].value / 0.8)) > abs(np.log(together.share[0].value / 0.8))


def test_an_exponent_has_an_interval_that_holds_it() -> None:
    cells = [seeds(law(c), 0.01, number, 5) for number, c in enumerate(COMPUTE[:4])]
    found = exponent_of(COMPUTE[:4], cells)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.08 < found.high


def test_an_estimate_says_on_which_side_it_is() -> None:
    assert [Estimate(0.9, 0.8, high).side_of(1.0) for high in (0.99, 1.01)] == [-1, 0]
    assert Estimate(1.2, 1.1, 1.3).side_of(1.0) == 1
    assert Estimate(0.5).side_of(1.0) == 0
    assert Estimate(0.5).text(1, "×") == "0.5×"


def test_sizes_of_one_compute_have_no_law_and_no_share() -> None:
    base, ours = [[2.0, 2.1], [1.8, 1.9]], [[1.9, 2.0], [1.7, 1.8]]
    found = compare(([5.0, 5.0], base), ([5.0, 5.0], ours))
    assert (found.share, found.mean_share, found.trend) == (None, None, None)
    assert [each.value for each in found.difference] == pytest.approx([-0.1, -0.1])
    near = [5.0, 5.001, 5.0, 5.0, 5.002]
    assert np.isnan(exponent_of(near, 5 * [[2.0, 2.1]]).value)
    assert compare((near, 5 * [[2.0, 2.1]]), (near, 5 * [[1.9, 2.0]])).share is None
    one = compare(([5.0, 6.0], base), ([5.5, 5.5], ours))
    assert one.mean_share is not None
    assert one.trend is None
