"""A bank is found again from the curve that it adds to the logits."""

from typing import Any

import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.kernels import Exp, KernelBank, fit_bank
from nadaraya.kernels.fitting import values_and_slopes

LAGS = torch.arange(128)
PLANTED = {"tau": [5.0, 22.0], "alpha": [0.5, 0.9], "sigma": [1.0, 0.5], "length": [3.0, 60.0]}
NAMES = {True: list(PLANTED), False: ["sigma", "length"], "cosine": ["tau", "sigma", "length"]}


@pytest.mark.parametrize(
    ("periodic", "added"), [(True, False), (False, False), (True, True), (False, True), ("cosine", True)]
)
def test_the_curve_of_a_bank_is_fitted_up_to_a_constant(periodic, added) -> None:
    def curve(init: dict[str, list[float]]) -> torch.Tensor:
        bank = KernelBank(1, len(init["sigma"]), periodic=periodic, init=init)
        return (Exp(bank) if added else bank).log(LAGS)[0].detach()

    planted = curve({name: PLANTED[name] for name in NAMES[periodic]})
    # Twice as many terms where there are periods to be found.
    terms = 4 if periodic else 2
    found = curve(fit_bank(planted + 3.0, terms, periodic=periodic, added=added))
    difference = found - planted
    # The planted curves fall by 0.8 to 4 logits.
    assert (difference - difference.mean()).abs().max() < 0.03


def test_the_start_can_be_written_to_a_file() -> None:
    start = fit_bank(-LAGS.sqrt(), 3)
    assert set(start) == set(PLANTED)
    assert all(len(v) == 3 and all(float(f"{x:.4g}") == x > 0 for x in v) for v in start.values())


def test_a_narrow_peak_is_found_where_no_term_starts() -> None:
    target = -4.0 * torch.arange(100).clamp(max=8) / 8  # no lag of a bank weighs more than lag 0
    target[[38, 39, 40, 78, 79, 80]] += 3.0
    curve = KernelBank(1, 3, init=fit_bank(target, 3)).lag_logits(100)[0].detach()
    assert curve[39] > curve[20:60].median() + 1.5


@pytest.mark.parametrize("logits", [torch.zeros(1), torch.zeros(4, 2), torch.tensor([0.0, float("nan")])])
def test_curves_that_are_none_are_refused(logits) -> None:
    with pytest.raises(InputError, match="logits must be at least two finite numbers"):
        fit_bank(logits, 2)


@pytest.mark.parametrize(
    ("periodic", "added"), [(True, False), (True, True), (False, False), (False, True), ("cosine", True)]
)
def test_derivatives_are_those_of_the_bank(periodic: bool | str, added: bool) -> None:
    bank = KernelBank(1, 3, periodic=periodic).double()
    lags = torch.arange(12, dtype=torch.float64)

    def value(*parameters: Any) -> torch.Tensor:
        named = dict(zip(dict(bank.named_parameters()), parameters, strict=True))
        found = torch.func.functional_call(bank, named, (lags,))[0]
        return found if added else found.log()

    by_name = dict(
        zip(
            [name.removeprefix("log_") for name, _ in bank.named_parameters()],
            torch.autograd.functional.jacobian(value, tuple(bank.parameters())),
            strict=True,
        )
    )
    names = ("sigma", "length", "tau", "alpha")[: len(by_name)]
    logs = torch.stack([bank.stored(name).detach() for name in names], 1)
    found, slopes = values_and_slopes(logs, lags, added)
    torch.testing.assert_close(found[0], value(*bank.parameters()))
    torch.testing.assert_close(slopes[0].T, torch.cat([by_name[name][:, 0] for name in names], 1))


def test_no_fit_of_a_cosine_is_multiplied() -> None:
    with pytest.raises(InputError, match="must be added"):
        fit_bank(-LAGS.sqrt(), 2, periodic="cosine")


def test_a_fit_is_a_start_that_banks_take() -> None:
    lags = torch.arange(256.0)
    start = fit_bank(-lags / 60 - (lags / 11).sin() ** 2, 3, periodic="cosine", added=True)
    assert KernelBank(2, 3, periodic="cosine", init=start).tau.isfinite().all()
