"""The figure of pruning shows every curve, and what counts within its axis."""

from typing import Any

import numpy as np
import pytest

from nadaraya.errors import InputError
from nadaraya.report.figures import pruning_curves


def curve(by: str, tune: int = 40, slope: float = 0.1) -> dict[str, Any]:
    points = [
        {"removed": k, "loss": 1.4 + slope * k, "loss_before_tuning": 1.4 + k**2, "parameters": 900 - k}
        for k in (3, 0, 1, 2)
    ]
    return {"by": by, "tune": tune, "points": points}


def test_every_order_has_a_line_after_tuning_and_one_before() -> None:
    (axes,) = pruning_curves([curve("loss"), curve("bank", slope=0.2), curve("random", 0)], limit=1.5).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    named = {label: line for label, line in lines.items() if label.startswith(("by ", "at "))}
    assert list(named) == ["by loss", "by bank", "at random"]
    np.testing.assert_allclose(named["by bank"].get_xydata(), [[k, 1.4 + 0.2 * k] for k in range(4)])
    assert len({line.get_color() for line in named.values()}) == 3
    before = [line for line in axes.get_lines() if list(line.get_ydata())[1:2] == [2.4]]
    assert [line.get_color() for line in before] == [named[f"by {by}"].get_color() for by in ("loss", "bank")]
    assert "before tuning dashed" in axes.get_title(loc="left")
    assert any(set(line.get_ydata()) == {1.5} for line in axes.get_lines())
    low, high = axes.get_ylim()
    assert 1.3 < low < 1.4
    assert 2.0 < high < 2.2  # the untuned losses, up to 10.4, go beyond it


def test_orders_of_several_seeds_are_named_once() -> None:
    (axes,) = pruning_curves([curve("random"), curve("random", slope=0.3)]).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["at random"]
    assert len({line.get_color() for line in axes.get_lines()}) == 1


def test_no_curves_have_no_figure() -> None:
    with pytest.raises(InputError, match="curves must be one or more of a run"):
        pruning_curves([])
