"""Figures by lag show what the data says."""

import numpy as np
import pytest

from nadaraya.errors import InputError
from nadaraya.interpret.bank_fits import fit_banks
from nadaraya.interpret.implied import ImpliedKernel
from nadaraya.report.by_lag import implied_curves


def kernel(layer: int) -> ImpliedKernel:
    curve = np.stack([-np.arange(12) / 4.0, np.cos(np.arange(12))])
    curve[:, 0] = np.nan
    return ImpliedKernel(layer, curve, 12 - np.arange(12), np.array([0.91, np.nan]), np.array([1.0, 0.0]))


def test_a_chart_per_layer_a_line_per_head_and_its_fit() -> None:
    kernels = [kernel(0), kernel(1)]
    fits = [fit_banks(each.curve, each.pairs, num_terms=1, periodic=False) for each in kernels]
    figure = implied_curves(kernels, fits)
    assert [axes.get_title(loc="left")[:7] for axes in figure.axes] == ["layer 0", "layer 1"]
    lines = figure.axes[1].get_lines()
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == [
        "1.0, R² 0.91",
        "1.1",
    ]
    np.testing.assert_array_equal(lines[0].get_ydata(), kernels[1].curve[0])
    assert np.isnan(lines[1].get_ydata()[0])
    np.testing.assert_array_equal(lines[1].get_ydata()[1:], fits[1].curve(12)[0, 1:])
    assert len(implied_curves(kernels).axes[0].get_lines()) == 2
    with pytest.raises(InputError, match="kernels must be those of at least one layer"):
        implied_curves([])
