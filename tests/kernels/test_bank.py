"""The bank against its definition written with single kernels, and its initialisations."""

import math

import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.kernels import ALiBi, ExponentialDecay, KernelBank, Periodic
from nadaraya.kernels.base import Sum

LAGS = torch.arange(300)


def shuffled(bank: KernelBank) -> KernelBank:
    """The bank in float64 with every term moved off its start."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in bank.double().parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return bank


@pytest.mark.parametrize("num_terms", [1, 2, 5])
@pytest.mark.parametrize("periodic", [True, False])
def test_is_the_sum_of_its_terms(num_terms, periodic):
    bank = shuffled(KernelBank(3, num_terms, periodic=periodic))
    terms = []
    for m in range(num_terms):
        term = ExponentialDecay(bank.length[:, m], bank.sigma[:, m])
        terms.append(term * Periodic(bank.alpha[:, m], bank.tau[:, m]) if periodic else term)
    by_hand = Sum(*terms)
    torch.testing.assert_close(bank(LAGS), by_hand(LAGS), rtol=1e-10, atol=0)
    torch.testing.assert_close(bank.log(LAGS), by_hand.log(LAGS), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(bank.terms(LAGS).sum(dim=1), bank(LAGS))
    torch.testing.assert_close(bank.terms(LAGS)[:, 0], terms[0](LAGS))
    logs = torch.stack([term.log(LAGS) for term in terms], dim=1)
    torch.testing.assert_close(bank.log_terms(LAGS), logs, rtol=1e-10, atol=1e-12)


def test_any_shape_of_lags():
    bank = KernelBank(2, 3)
    grid = LAGS[:6, None] - LAGS[None, :4]
    assert bank(grid).shape == bank.log(grid).shape == (2, 6, 4)
    assert bank.terms(grid).shape == (2, 3, 6, 4)
    assert bank.log_terms(grid).shape == (2, 3, 6, 4)
    assert bank.terms(1.5).shape == bank.log_terms(1.5).shape == (2, 3)
    torch.testing.assert_close(bank(grid)[:, 5, 1], bank(4.0))


def test_one_decaying_term_is_alibi_up_to_a_constant():
    alibi = ALiBi(8).double()
    bank = KernelBank(8, 1, periodic=False).double()
    bank.length = 1 / alibi.slopes[:, None]
    bank.sigma = 3.0
    difference = bank.log(LAGS) - alibi.log(LAGS)
    torch.testing.assert_close(difference, torch.full_like(difference, 2 * math.log(3.0)))


def test_log_is_exact_where_the_value_underflows():
    bank = KernelBank(1, 1, periodic=False)
    bank.length = 1.5
    lags = torch.tensor([0.0, 1e3, 1e5])
    assert bank(lags)[0, -1] == 0
    torch.testing.assert_close(bank.log(lags)[0], 2 * bank.log_sigma[0, 0] - lags / 1.5)
    assert torch.equal(bank.log_terms(lags)[0, 0], bank.log(lags)[0])
    bank.log(lags).sum().backward()
    assert torch.isfinite(bank.log_length.grad).all()


def test_number_of_parameters():
    assert sum(p.numel() for p in KernelBank(4, 64).parameters()) == 4 * 4 * 64
    assert sum(p.numel() for p in KernelBank(4, 64, periodic=False).parameters()) == 2 * 4 * 64
    assert not hasattr(KernelBank(4, 64, periodic=False), "alpha")


def test_the_papers_start():
    bank = KernelBank(4, 64, init="paper")
    torch.testing.assert_close(bank.tau, torch.linspace(4, 192, 64).expand(4, 64))
    for values, expected in ((bank.alpha, 1.0), (bank.sigma, 1.0), (bank.length, 150.0)):
        torch.testing.assert_close(values, torch.full((4, 64), expected))


@pytest.mark.parametrize(
    ("init", "length", "tau", "log_sigma"),
    [("geometric", (1.5, 200.0), (2.0, 64.0), 2), ("grid", (1.0, 32.0), (2.0, 16.0), 1)],
)
def test_starts_in_equal_ratios(init, length, tau, log_sigma):
    bank = KernelBank(2, 8, init=init)
    for values, ends in ((bank.length, length), (bank.tau, tau)):
        torch.testing.assert_close(values[:, [0, -1]], torch.tensor([ends] * 2))
        ratios = values[:, 1:] / values[:, :-1]
        torch.testing.assert_close(ratios, ratios[:, :1].expand_as(ratios))
    torch.testing.assert_close(bank.log_sigma, torch.linspace(log_sigma, -log_sigma, 8).expand(2, 8))
    torch.testing.assert_close(bank.alpha, torch.full((2, 8), 0.7))


@pytest.mark.parametrize("init", ["geometric", "paper"])
def test_a_single_term_starts_in_the_middle(init):
    bank = KernelBank(2, 1, init=init)
    expected = {"geometric": (math.sqrt(2 * 64), 1.0), "paper": (98.0, 1.0)}[init]
    torch.testing.assert_close(bank.tau, torch.full((2, 1), expected[0]))
    torch.testing.assert_close(bank.sigma, torch.full((2, 1), expected[1]))


def test_reset_brings_the_start_back():
    bank = KernelBank(2, 4, init="paper")
    start = bank(LAGS)
    shuffled(bank)
    bank.float().reset_parameters()
    torch.testing.assert_close(bank(LAGS), start)


def test_bad_requests():
    with pytest.raises(InputError, match="num_terms must be a whole number of at least 1, got 0"):
        KernelBank(2, 0)
    with pytest.raises(InputError, match=r"num_heads must be .* got 2\.0"):
        KernelBank(2.0, 4)
    with pytest.raises(InputError, match="did you mean 'geometric'"):
        KernelBank(2, 4, init="geometrc")


@pytest.mark.parametrize("log", [False, True])
def test_terms_that_are_computed_again_have_the_same_gradients(
    log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, lags = KernelBank(2, 3).double(), torch.arange(40)

    def value_and_gradients() -> list[torch.Tensor]:
        values = bank.log(lags) if log else bank(lags)
        return [values.detach(), *torch.autograd.grad(values.sin().sum(), list(bank.parameters()))]

    kept = value_and_gradients()
    monkeypatch.setattr("nadaraya.kernels.bank._KEPT", 0)
    for again, first in zip(value_and_gradients(), kept, strict=True):
        torch.testing.assert_close(again, first)
