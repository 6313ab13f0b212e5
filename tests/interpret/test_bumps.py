"""Bumps beside their null: a planted term is found with its width, chance is what the p-value says it is."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.interpret import bank_shapes, bump_figures
from nadaraya.interpret.banks import BankShape, bump_table, match_peaks
from nadaraya.kernels import ALiBi, Exp, KernelBank
from nadaraya.training import Run, load_recipe, train

LAGS = np.arange(128)


def planted(period: float, alpha: float, strength: float = 3.0) -> KernelBank:
    """One strong, slowly decaying periodic term beside one that decays at once."""
    bank = KernelBank(1, 2)
    with torch.no_grad():
        bank.sigma = torch.tensor([[strength, 1.0]])
        bank.tau = torch.tensor([[period / np.pi, 500.0]])
        bank.alpha = torch.tensor([[alpha, 0.1]])
        bank.length = torch.tensor([[5000.0, 2.0]])
    return bank


def shape_of(kernel: Any, num_lags: int = 128) -> BankShape:
    return bank_shapes(SimpleNamespace(lag_kernels=lambda: [(2, kernel)]), num_lags)[0]


def bump(centre: int, height: float) -> np.ndarray:
    return -LAGS / 20 + height * np.exp(-(((LAGS - centre) / 4) ** 2))


@pytest.mark.parametrize("period", [50, 70, 90])
@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_a_planted_term_is_the_bump_with_its_lag_and_width(period: int, alpha: float) -> None:
    rows = bump_table([shape_of(Exp(planted(period, alpha)))], peaks=[period]).rows()
    row = rows[0]
    assert (row["layer"], row["heads"]) == (2, [0])
    assert abs(row["lag"] - period) <= 1
    assert row["distance"] == abs(row["lag"] - period)
    # 9 exp(−2 α² sin²(r / τ)) is half way down where 2 α² sin² = log 2 (1 + exp(−2 α²)) nearly.
    floor = np.exp(-2 * alpha**2)
    half = period / np.pi * np.arcsin(np.sqrt(-np.log((1 + floor) / 2) / 2) / alpha)
    assert row["width"] == pytest.approx(2 * half, rel=0.1)
    assert row["height"] == pytest.approx(9 * (1 - floor), rel=0.1)


def test_every_bump_is_compared_with_those_of_the_start_and_of_the_null() -> None:
    initial, trained = np.stack([bump(40, 2.0), bump(90, 3.0)]), np.stack([bump(40, 2.5), bump(70, 5.0)])
    shape = BankShape(0, False, initial, trained)
    table = bump_table([shape], [71], [BankShape(0, False, None, np.stack([bump(71, 4.0), bump(20, 9.0)]))])
    first, second = table.rows()
    assert (first["at_start"], first["as_high_at_start"], first["as_high_in_null"]) == (False, 0, 1)
    assert (second["at_start"], second["as_high_at_start"], second["as_high_in_null"]) == (True, 1, 2)
    assert (first["nearest_peak"], second["nearest_peak"]) == (71, 71)
    matches = table.matches()
    assert {name: (m.bumps, m.matched) for name, m in matches.items()} == {
        "trained": (2, 1),
        "initial": (2, 0),
        "null": (2, 1),
    }
    assert [row["distance"] for row in bump_table([shape], []).rows()] == [None, None]
    unknown = bump_table([BankShape(0, True, None, trained)], [])
    assert set(unknown.matches()) == {"trained"}
    assert {row["as_high_at_start"] for row in unknown.rows()} == {None}


def test_a_bank_that_layers_share_counts_once() -> None:
    trained = bump(70, 5.0)[None]
    shared = [BankShape(layer, False, bump(20, 2.0)[None], trained) for layer in range(3)]
    others = [replace(shared[0], layer=layer, trained=bump(70 + layer, 5.0)[None]) for layer in range(3)]
    counts = [
        {name: match.bumps for name, match in bump_table(shapes, [71], shapes).matches().items()}
        for shapes in (shared, others)
    ]
    assert counts == [{"trained": 1, "initial": 1, "null": 1}, {"trained": 3, "initial": 3, "null": 3}]


def test_the_p_value_is_the_chance_of_uniform_bumps() -> None:
    random = np.random.default_rng(0)
    peaks, num_lags, tolerance, n = [70, 140], 256, 3, 12
    draws = [random.integers(1, num_lags - 1, n) for _ in range(4000)]
    found = [match_peaks(draw, peaks, num_lags, tolerance) for draw in draws]
    matched = np.array([match.matched for match in found])
    assert matched.mean() == pytest.approx(found[0].expected, rel=0.08)
    for match in found[:50]:
        assert match.p_value == pytest.approx((matched >= match.matched).mean(), abs=0.03)
    p_values = np.array([match.p_value for match in found])
    for level in (0.01, 0.05, 0.2, 0.5):
        assert (p_values <= level).mean() <= level + 0.02
    # A discrete p-value is uniform when the chance of the value itself is spread evenly.
    above = np.array([(matched > match.matched).mean() for match in found])
    spread = above + random.random(len(found)) * (p_values - above)
    assert np.abs(np.quantile(spread, [0.1, 0.3, 0.5, 0.7, 0.9]) - [0.1, 0.3, 0.5, 0.7, 0.9]).max() < 0.04


def test_no_bumps_and_no_peaks_say_nothing() -> None:
    assert match_peaks([], [70], 256).p_value == 1.0
    nothing = match_peaks([20, 30], [], 256)
    assert (nothing.matched, nothing.expected, nothing.p_value) == (0, 0.0, 1.0)
    assert match_peaks([70], [70], 256, tolerance=0).p_value == pytest.approx(1 / 254)
    assert bump_table([shape_of(ALiBi(4))], [70]).rows() == []
    assert match_peaks([], [70], num_lags=2).expected == 0.0


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="num_lags must be 1 or more"):
        match_peaks([1], [1], 0)
    with pytest.raises(InputError, match="tolerance must be 0 or more"):
        match_peaks([1], [1], 20, -1)
    with pytest.raises(InputError, match="shapes must be those of a model with a lag kernel"):
        bump_table([], [])


def test_the_figures_of_a_run_are_plain_and_those_of_its_text(finished_run: Run) -> None:
    figures = bump_figures(finished_run, finished_run, minimum=0.0, tolerance=2)
    assert json.loads(json.dumps(figures)) == figures
    assert figures["peaks"] == [24]
    assert figures["num_lags"] == 40
    assert set(figures["matches"]) == {"trained", "initial", "null"}
    assert figures["matches"]["null"] == figures["matches"]["trained"]
    assert all(row["as_high_in_null"] >= 1 for row in figures["bumps"])
    (layer,) = bank_shapes(finished_run, 40)
    assert [row["lag"] for row in figures["bumps"]] == [b.lag for b in layer.shared_bumps(minimum=0.0)]


def test_a_run_without_a_bank_is_refused(finished_run: Run, tmp_path: Any) -> None:
    recipe = load_recipe(finished_run.path, ["model.variant=rope", "model.variant_options={}", "name=rope"])
    rope = train(recipe, tmp_path / "rope", progress=False)
    for runs in ((rope,), (finished_run, rope)):
        with pytest.raises(InputError, match="rope must be a run with a lag kernel, got the variant rope"):
            bump_figures(*runs)
