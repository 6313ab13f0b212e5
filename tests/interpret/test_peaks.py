"""Peaks are the local maxima, ranked by topographic prominence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nadaraya.errors import InputError
from nadaraya.interpret.lags import prominent_peaks

curves = arrays(np.float64, st.integers(0, 40), elements=st.integers(-5, 5).map(float))


def prominence(curve: np.ndarray, top: int) -> float:
    """Height above the higher of the two lowest points on the way to higher ground, by walking there."""
    valleys = []
    for side in (curve[:top][::-1], curve[top + 1 :]):
        higher = np.flatnonzero(side > curve[top])
        valleys.append(side[: higher[0] if higher.size else None].min())
    return float(curve[top] - max(valleys))


@given(curves)
def test_peaks_are_the_local_maxima_by_topographic_prominence(curve: np.ndarray) -> None:
    found = prominent_peaks(curve)
    assert found == sorted(found, key=lambda peak: (-peak.prominence, peak.index))
    for peak in found:
        assert peak.height == curve[peak.index]
        assert peak.prominence == prominence(curve, peak.index) > 0
    tops = {
        (start + end) // 2
        for start in range(1, len(curve))
        for end in range(start, len(curve) - 1)
        if len({*curve[start : end + 1]}) == 1 and max(curve[start - 1], curve[end + 1]) < curve[start]
    }
    assert {peak.index for peak in found} == tops


@given(curves, st.integers(0, 5), st.floats(0, 8))
def test_k_and_minimum_only_drop_the_least_prominent(curve: np.ndarray, k: int, minimum: float) -> None:
    everything = prominent_peaks(curve)
    assert prominent_peaks(curve, k) == everything[:k]
    kept = [peak for peak in everything if peak.prominence >= minimum]
    assert prominent_peaks(curve, minimum=minimum) == kept


@given(curves)
def test_order_of_prominence_does_not_depend_on_offset_scale_or_direction(curve: np.ndarray) -> None:
    here = prominent_peaks(curve)
    assert [p.index for p in prominent_peaks(4 * curve - 8)] == [p.index for p in here]
    mirrored = sorted(p.prominence for p in prominent_peaks(curve[::-1]))
    assert mirrored == sorted(p.prominence for p in here)


@pytest.mark.parametrize("width", [4.0, 9.0, 20.0])
def test_the_width_is_that_at_half_height(width: float) -> None:
    lags = np.arange(200)
    (peak,) = prominent_peaks(np.exp(-np.log(2) * (2 * (lags - 90) / width) ** 2))
    assert peak.width == pytest.approx(width, abs=0.2)


def test_a_decaying_kernel_has_no_peak() -> None:
    assert prominent_peaks(np.exp(-np.arange(50) / 10)) == []


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ([[1.0, 2.0]], {}),
        ([1.0, np.nan, 2.0], {}),
        ([1.0, 2.0, 1.0], {"k": -1}),
    ],
)
def test_bad_input_is_refused(values: object, options: dict) -> None:
    with pytest.raises(InputError):
        prominent_peaks(values, **options)
