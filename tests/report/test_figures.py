"""The figures for documents show what the data says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nadaraya.errors import InputError
from nadaraya.interpret.banks import BankShape
from nadaraya.interpret.lags import lag_histogram
from nadaraya.report import bank_curves, loss_curves
from nadaraya.report.by_lag import (
    aligned,
    compressed,
    draw_histogram,
    draw_kernel,
    kernel_title,
    lag_histograms,
    longest_shown,
    relative,
)
from nadaraya.report.palette import variant_styles
from nadaraya.report.runs import labelled
from nadaraya.report.style import charts


def test_loss_curves_end_where_the_runs_do(make_run: Callable[..., Any]) -> None:
    figure = loss_curves([make_run("rope", loss=1.3), make_run("gpa-mul", loss=1.2)])
    steps, seconds = figure.axes
    labelled = {line.get_label(): line for line in steps.get_lines() if not line.get_label().startswith("_")}
    assert labelled.keys() == {"rope", "gpa-mul"}
    assert labelled["rope"].get_xydata()[-1] == pytest.approx([600, 1.3 + 50 / 600])
    assert labelled["gpa-mul"].get_color() == variant_styles(["gpa-mul"])[0].hex
    assert max(line.get_xdata()[-1] for line in seconds.get_lines()) == pytest.approx(60)


def test_a_panel_a_layer_and_a_line_a_head(make_run: Callable[..., Any]) -> None:
    figure = bank_curves(make_run("gpa-mul").banks)
    assert len(figure.axes) == 2
    for layer, axes in enumerate(figure.axes):
        heads = [line.get_label() for line in axes.get_lines() if not line.get_label().startswith("_")]
        assert heads == [f"{layer}.{head}" for head in range(4)]
    assert "70" in [text.get_text() for text in figure.axes[0].texts]


def test_a_model_without_lag_kernels_has_no_figure(make_run: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="a model with a lag kernel"):
        bank_curves([])


def test_multiplied_kernels_are_drawn_up_to_a_constant() -> None:
    logits = np.array([[1.0, 0.5, -np.inf], [3.0, 2.5, 2.0]])
    drawn = aligned(logits, False)
    np.testing.assert_array_equal(drawn, [[0, -0.5, np.nan], [0, -0.5, -1]])
    np.testing.assert_array_equal(aligned(logits, True), logits)
    np.testing.assert_allclose(relative(logits), np.exp([[0, -0.5, -np.inf], [0, -0.5, -1]]))
    titles = [kernel_title(BankShape(0, False, None, table)) for table in (logits, logits[:, ::-1])]
    assert titles == ["layer 0: κ(lag) / κ(0)", "layer 0: κ(lag) / largest κ"]


def test_equal_starts_are_drawn_once() -> None:
    same = np.tile(np.exp(-np.arange(64) / 9), (3, 1))
    for initial, count in ((None, 3), (same, 4), (same * [[1], [2], [3]], 6)):
        with charts(300, 200) as (_, axes):
            draw_kernel(axes[0, 0], BankShape(0, True, initial, same))
        assert len(axes[0, 0].get_lines()) == count


def test_histograms_name_the_line_length_on_both_sides() -> None:
    corpus = lag_histogram(("x" * 69 + "\n\n") * 50)
    figure = lag_histograms({"corpus": corpus, "written": lag_histogram(("x" * 67 + "\n\n") * 50)})
    named = [{text.get_text() for text in axes.texts} for axes in figure.axes]
    assert named == [{"1", "70"}, {"1", "68"}]


def test_bars_are_shares_of_all_separations() -> None:
    histogram = lag_histogram("x\n" * 31 + "xx\n" * 10 + "x" * 99 + "\n", max_lag=4)
    with charts(300, 200) as (_, axes):
        draw_histogram(axes[0, 0], histogram, "blue", [2])
    values, edges, _ = axes[0, 0].patches[0].get_data()
    np.testing.assert_allclose(values, [0, 100 * 30 / 41, 100 * 10 / 41, 0])
    np.testing.assert_array_equal(edges, [0.5, 1.5, 2.5, 3.5, 4.5])
    assert [text.get_text() for text in axes[0, 0].texts] == ["2"]


def test_losses_are_drawn_against_the_time_of_training(make_run: Callable[..., Any]) -> None:
    (run,) = labelled([make_run("rope")])
    np.testing.assert_allclose(run.by("seconds", run.validation)[:, 0], run.validation[:, 0] / 10)
    assert make_run("rope").label == ""
    assert run.style == variant_styles(["rope"])[0]


def test_the_steep_start_is_cut_off(make_run: Callable[..., Any]) -> None:
    axes = loss_curves([make_run("rope", loss=1.3), make_run("gpa", loss=1.0)]).axes[0]
    low, high = axes.get_ylim()
    assert 0.95 < low < 1.0 + 50 / 600
    assert 1.3 + 50 / 100 < high <= 1.3 + 50 / 50 + 0.1


def test_a_comparison_in_outline_fits_the_axis() -> None:
    few, many = lag_histogram(("x" * 9 + "\n\n") * 50), lag_histogram(("x" * 9 + "\n") * 50)
    with charts(300, 200) as (_, axes):
        draw_histogram(axes[0, 0], few, "blue", [], behind=many)
    assert axes[0, 0].get_ylim()[1] > 100


def test_the_lag_axis_covers_what_matters() -> None:
    text = ("x" * 69 + "\n") * 500 + "x" * 200 + "\n"
    assert 70 < longest_shown([lag_histogram(text)]) < 150
    assert longest_shown([lag_histogram("", max_lag=64)]) <= 64


def test_a_lag_that_dwarfs_the_rest_leaves_room_for_it() -> None:
    text = "\n" * 4000 + (("x" * 69 + "\n") * 6 + ("x" * 39 + "\n") * 4) * 10
    with charts(300, 200) as (_, axes):
        draw_histogram(axes[0, 0], lag_histogram(text), "blue", [1, 70])
    heights = (
        axes[0, 0]
        .transAxes.inverted()
        .transform(axes[0, 0].transData.transform([(70, 100 * 59 / 4099), (1, 100 * 3999 / 4099)]))[:, 1]
    )
    assert heights[0] > 0.35  # linear, it would be 0.01
    assert heights[1] > 0.9
    assert "compressed" in axes[0, 0].get_title(loc="left")


def test_the_compressed_scale_and_its_inverse_undo_each_other() -> None:
    forward, inverse = compressed(2.0, 90.0)
    values = np.array([0, 1, 2, 3, 50, 90.0])
    np.testing.assert_allclose(inverse(forward(values)), values)
    assert forward(np.array(90.0)) == pytest.approx(3)
