"""Banks fitted to curves: planted ones come back, and what oscillates needs a term that does."""

import numpy as np
import pytest
import torch

from nadaraya import InputError
from nadaraya.interpret.bank_fits import BankFit, fit_banks
from nadaraya.kernels import Exp, Kernel, KernelBank

LAGS = np.arange(60)
PAIRS = 60 - LAGS


def planted(added: bool, **parameters: list[list[float]]) -> tuple[KernelBank, np.ndarray]:
    """A bank of two heads and its curves, each with a constant of its own."""
    values = {name: torch.tensor(value, dtype=torch.float64) for name, value in parameters.items()}
    bank = KernelBank(*values["sigma"].shape, periodic="tau" in values).double()
    with torch.no_grad():
        for name, parameter in bank.named_parameters():
            parameter.copy_(values[name.removeprefix("log_")].log())
    kernel: Kernel = Exp(bank) if added else bank
    return bank, kernel.lag_logits(60).detach().numpy() + np.array([[3.0], [-1.0]])


@pytest.mark.parametrize("added", [False, True])
def test_one_planted_term_comes_back(added: bool) -> None:
    terms = {
        "alpha": [[0.6], [1.1]],
        "tau": [[2.0], [7.0]],
        "sigma": [[1.5], [0.8]],
        "length": [[20.0], [5.0]],
    }
    bank, curves = planted(added, **terms)
    fit = fit_banks(curves, PAIRS, num_terms=1, added=added)
    for name in ("alpha", "tau", "length") + (("sigma",) if added else ()):  # a factor of G is a constant
        torch.testing.assert_close(getattr(fit.bank, name), getattr(bank, name), rtol=1e-4, atol=0)
    np.testing.assert_allclose(fit.curve(60), curves, atol=1e-5)
    np.testing.assert_allclose(fit.r2, 1, atol=1e-9)


@pytest.mark.parametrize("added", [False, True])
def test_a_planted_bank_of_two_terms_is_fitted(added: bool) -> None:
    terms = {
        "alpha": [[0.9, 0.3], [0.5, 0.5]], "tau": [[3.0, 9.0], [4.0, 2.0]],
        "sigma": [[2.0, 0.7], [1.0, 1.5]], "length": [[4.0, 60.0], [30.0, 3.0]],
    }  # fmt: skip
    _, curves = planted(added, **terms)
    fit = fit_banks(curves, PAIRS, num_terms=2, added=added)
    np.testing.assert_allclose(fit.curve(60), curves, atol=0.15)
    assert fit.r2.min() > 0.995  # there are other minima, a little higher
    assert fit.r2.max() > 1 - 1e-9


def test_only_what_oscillates_needs_an_oscillating_term() -> None:
    _, smooth = planted(False, sigma=[[2.0, 0.3], [1.0, 1.0]], length=[[3.0, 40.0], [8.0, 30.0]])
    decay = fit_banks(smooth, PAIRS, num_terms=2, periodic=False)
    assert decay.r2.min() > 0.99999
    waves = smooth - 2 * np.sin(LAGS / 3) ** 2
    assert fit_banks(waves, PAIRS, num_terms=4, periodic=False).r2.max() < 0.95
    assert fit_banks(waves, PAIRS, num_terms=2).r2.min() > 0.99


def r2_of(fit: BankFit, curves: np.ndarray) -> np.ndarray:
    rest = curves - fit.curve(curves.shape[1])
    centred = curves - np.average(curves, 1, PAIRS)[:, None]
    return np.asarray(1 - (PAIRS * rest**2).sum(1) / (PAIRS * centred**2).sum(1))


def test_r2_is_that_of_the_curve_that_it_gives() -> None:
    curves = np.random.default_rng(0).normal(size=(2, 60)) - 0.05 * LAGS
    for options in ({}, {"added": True}, {"periodic": False}):
        fit = fit_banks(curves, PAIRS, num_terms=1, **options)
        np.testing.assert_allclose(fit.r2, r2_of(fit, curves), atol=1e-9)
        assert (fit.r2 > 0).all()
        assert (fit.r2 < 1).all()
        assert fit.num_parameters == (2 if "periodic" in options else 4)


def test_on_other_curves_a_fit_explains_none_of_the_noise_that_it_was_fitted_to() -> None:
    random = np.random.default_rng(0)
    smooth = -2 * np.exp(-LAGS / 8) - 0.5 * np.exp(-LAGS / 60)
    first, second = smooth + 0.3 * random.normal(size=(2, 12, 60))
    bank, decay = fit_banks(first, PAIRS, 4), fit_banks(first, PAIRS, 8, periodic=False)
    assert (bank.r2 - decay.r2).mean() > 0.005
    elsewhere = bank.on(second, PAIRS)
    assert (elsewhere.r2 - decay.on(second, PAIRS).r2).mean() < 0
    np.testing.assert_allclose(elsewhere.r2, r2_of(elsewhere, second), atol=1e-9)
    same = bank.on(first, PAIRS)
    np.testing.assert_allclose(same.r2, bank.r2, atol=1e-9)
    np.testing.assert_allclose(same.offset, bank.offset, atol=1e-9)


def test_the_same_curve_has_the_same_fit_whatever_its_level_and_lags_without_it() -> None:
    _, curves = planted(False, sigma=[[2.0, 0.3], [1.0, 1.0]], length=[[3.0, 40.0], [8.0, 30.0]])
    options = {"num_terms": 2, "periodic": False}
    one = fit_banks(curves, PAIRS, **options)
    np.testing.assert_array_equal(fit_banks(curves, PAIRS, **options).curve(60), one.curve(60))
    higher = fit_banks(curves + 5, PAIRS, **options)
    np.testing.assert_allclose(higher.curve(60), one.curve(60) + 5, atol=1e-3)
    holed = curves.copy()
    holed[:, 0] = np.nan
    np.testing.assert_allclose(fit_banks(holed, PAIRS, **options).curve(60)[:, 1:], curves[:, 1:], atol=1e-3)


def test_a_curve_of_one_lag_is_refused() -> None:
    with pytest.raises(InputError, match="curves must be known at two lags or more, got 1"):
        fit_banks(np.array([[0.0, np.nan]]), np.ones(2))
    with pytest.raises(InputError, match="num_terms must be"):
        fit_banks(np.zeros((1, 4)), np.ones(4), num_terms=0)


@pytest.mark.parametrize("added", [False, True])
def test_curves_of_any_height_are_fitted_alike(added: bool) -> None:
    curve = (np.exp(-LAGS / 6) * np.cos(LAGS / 2))[None]
    for periodic in (False, True):
        found = [
            fit_banks(height * curve, PAIRS, num_terms=2, periodic=periodic, added=added).r2[0]
            for height in (1e-4, 1.0)
        ]
        assert found[0] == pytest.approx(found[1], abs=0.05)
        assert min(found) > (0.85 if periodic else 0.1)


def test_a_constant_is_the_least_that_a_fit_can_be() -> None:
    noise = 1e-3 * np.random.default_rng(1).normal(size=(2, 60))
    for options in ({}, {"added": True}):
        assert fit_banks(noise, PAIRS, num_terms=1, **options).r2.min() > -1e-3
