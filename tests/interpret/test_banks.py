"""Bank shapes are the kernels' own logits, and their bumps are where the period says."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.interpret.banks import BankShape, bank_shapes
from nadaraya.kernels import ALiBi, Epanechnikov, Exp, Kernel, KernelBank


def model(*kernels: tuple[int, Any]) -> Any:
    return SimpleNamespace(lag_kernels=lambda: list(kernels))


def bump(centre: int, height: float, length: int = 200) -> np.ndarray:
    lags = np.arange(length)
    return -lags / 20 + height * np.exp(-(((lags - centre) / 4) ** 2))


def test_shapes_are_what_is_added_to_the_logits() -> None:
    bank = KernelBank(3, 4)
    lags = torch.arange(50)
    added, multiplied = bank_shapes(model((1, Exp(bank)), (3, bank)), 50)
    assert (added.layer, multiplied.layer) == (1, 3)
    assert (added.added, multiplied.added) == (True, False)
    np.testing.assert_allclose(added.trained, bank(lags).detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(multiplied.trained, bank.log(lags).detach().numpy(), rtol=1e-6)
    assert added.initial is None


def test_a_run_gives_start_and_end() -> None:
    def lag_kernels(initial: bool = False) -> list[tuple[int, Kernel]]:
        kernel = KernelBank(2, 1)
        with torch.no_grad():
            kernel.log_sigma += 0.0 if initial else 1.0
        return [(0, kernel)]

    (shape,) = bank_shapes(SimpleNamespace(lag_kernels=lag_kernels, load_model=None), 20)
    assert shape.initial is not None
    np.testing.assert_allclose(shape.trained - shape.initial, 2.0, rtol=1e-5)


def test_kernels_without_heads_or_with_zeros_have_shapes_and_no_bump() -> None:
    alibi, compact = bank_shapes(model((0, ALiBi(4)), (1, Epanechnikov(8.0))), 32)
    assert alibi.trained.shape == (4, 32)
    assert compact.trained.shape == (1, 32)
    assert np.isneginf(compact.trained[0, 9:]).all()
    assert alibi.peaks() == [[], [], [], []]
    assert compact.peaks() == [[]]


@pytest.mark.parametrize("period", [40, 70])
def test_a_sharply_periodic_term_shows_its_period(period: int) -> None:
    bank = KernelBank(1, 1)
    with torch.no_grad():
        bank.log_tau.fill_(float(np.log(period / np.pi)))
        bank.log_alpha.fill_(1.5)
    (shape,) = bank_shapes(model((0, bank)), 256)
    (peaks,) = shape.peaks(k=None)
    lags = sorted(peak.index for peak in peaks)
    assert lags
    assert all(abs(lag - round(lag / period) * period) <= 2 for lag in lags)


def test_bumps_are_shared_between_heads_and_ranked() -> None:
    trained = np.stack([bump(70, 3.0), bump(72, 2.0), bump(120, 4.0), bump(70, 0.0)])
    shape = BankShape(0, False, None, trained)
    first, second = shape.shared_bumps()
    assert (first.heads, second.heads) == ((0, 1), (2,))
    assert abs(first.lag - 70) <= 2
    assert abs(second.lag - 120) <= 2
    assert not first.at_start
    assert shape.peaks(k=0) == [[], [], [], []]


def test_a_bump_of_the_start_is_known_as_such() -> None:
    initial = np.stack([bump(70, 2.5), bump(70, 0.0)])
    grown = BankShape(0, True, initial, np.stack([bump(70, 3.0), bump(150, 3.0)]))
    assert {abs(b.lag - 70) <= 2: b.at_start for b in grown.shared_bumps()} == {True: True, False: False}


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="num_lags must be 1 or more, got 0"):
        bank_shapes(model(), 0)
    assert bank_shapes(model(), 8) == []
