"""Banks in other forms: shared by heads, with other starts, other parameters and terms of either sign."""

import math
from typing import Any

import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.kernels import Exp, KernelBank
from nadaraya.kernels.bank import shared_by_layers

LAGS = torch.arange(120)
FORMS: list[dict[str, Any]] = [
    {"periodic": "cosine"},
    {"signed": True},
    {"signed": True, "periodic": "cosine"},
    {"signed": True, "periodic": False},
    {"parameterisation": "softplus"},
    {"parameterisation": "softplus", "signed": True},
    {"share": "heads"},
]


def moved(bank: KernelBank, size: float = 0.2) -> KernelBank:
    """The bank in float64 with every number off its start, amplitudes of either sign."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in bank.double().named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise if name == "amplitude" else parameter + size * noise)
    return bank


@pytest.mark.parametrize("periodic", [True, False])
def test_a_bank_that_heads_share_is_one_copied_to_each_and_its_gradient_the_sum_of_theirs(periodic) -> None:
    shared = moved(KernelBank(3, 4, periodic=periodic, share="heads"))
    copies = KernelBank(3, 4, periodic=periodic).double()
    numbers = dict(shared.named_parameters())
    with torch.no_grad():
        for name, parameter in copies.named_parameters():
            parameter.copy_(numbers[name].expand_as(parameter))
    by_head = torch.arange(1.0, 4.0, dtype=torch.float64)[:, None]
    for values in (KernelBank.log, KernelBank.forward):
        torch.testing.assert_close(values(shared, LAGS), values(copies, LAGS))
        of_shared = torch.autograd.grad((by_head * values(shared, LAGS)).sum(), list(shared.parameters()))
        of_copies = torch.autograd.grad((by_head * values(copies, LAGS)).sum(), list(copies.parameters()))
        for one, several in zip(of_shared, of_copies, strict=True):
            torch.testing.assert_close(one, several.sum(0, keepdim=True))
    torch.testing.assert_close(shared.terms(LAGS[:5]), copies.terms(LAGS[:5]))
    torch.testing.assert_close(shared.log_terms(1.5), copies.log_terms(1.5))
    assert sum(p.numel() for p in shared.parameters()) == sum(p.numel() for p in copies.parameters()) / 3


def test_terms_of_either_sign_and_cosines_are_those_of_their_definition() -> None:
    lags = LAGS.double()
    for periodic in (True, False, "cosine"):
        bank = moved(KernelBank(2, 3, periodic=periodic, signed=True))
        expected = bank.amplitude[..., None] * torch.exp(-lags / bank.length[..., None])
        if periodic is True:
            square = torch.sin(lags / bank.tau[..., None]) ** 2
            expected = expected * torch.exp(-2 * bank.alpha[..., None] ** 2 * square)
        if periodic == "cosine":
            expected = expected * torch.cos(2 * lags / bank.tau[..., None])
        torch.testing.assert_close(bank.terms(LAGS), expected)
        torch.testing.assert_close(bank(LAGS), expected.sum(1))
        assert bank.amplitude.min() < 0
    cosine, factor = KernelBank(2, 3, periodic="cosine").double(), KernelBank(2, 3).double()
    periods = math.pi * factor.tau[0, 1].item() * torch.arange(3).double()
    decay = torch.exp(-periods / cosine.length[0, 1])
    for bank in (cosine, factor):  # both are whole at every period
        torch.testing.assert_close(bank.terms(periods)[0, 1], bank.sigma[0, 1] ** 2 * decay)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_gradients_are_those_of_differences(options) -> None:
    bank = moved(KernelBank(2, 2, **options))
    names, values = zip(*bank.named_parameters(), strict=True)

    def added(*numbers: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, numbers, strict=True))
        return torch.func.functional_call(bank, given, (torch.tensor([0.0, 1.0, 7.5]),))

    numbers = tuple(value.detach().requires_grad_() for value in values)
    assert torch.autograd.gradcheck(added, numbers)


@pytest.mark.parametrize("options", FORMS[:4], ids=str)
def test_a_bank_that_can_be_negative_is_added_and_never_multiplied(options) -> None:
    bank = KernelBank(2, 3, **options)
    torch.testing.assert_close(Exp(bank).lag_logits(9), bank(LAGS[:9]))
    for refused in (bank.log, bank.log_terms, bank.lag_logits):
        with pytest.raises(InputError, match=r"must be added, as Exp\(bank\)"):
            refused(5)


def test_a_signed_bank_starts_as_the_positive_one() -> None:
    torch.testing.assert_close(KernelBank(2, 4, signed=True)(LAGS), KernelBank(2, 4)(LAGS))


def test_softplus_stores_the_same_numbers_otherwise() -> None:
    log, softplus = (
        KernelBank(2, 4, init="paper"),
        KernelBank(2, 4, init="paper", parameterisation="softplus"),
    )
    for name in ("alpha", "tau", "sigma", "length"):
        torch.testing.assert_close(getattr(softplus, name), getattr(log, name))
        raw = getattr(softplus, f"raw_{name}")
        torch.testing.assert_close(torch.nn.functional.softplus(raw), getattr(log, name))
    torch.testing.assert_close(softplus.log(LAGS), log.log(LAGS))
    softplus.length = 3.0
    torch.testing.assert_close(softplus.length, torch.full((2, 4), 3.0))
    with pytest.raises(InputError, match="length must be positive and finite"):
        softplus.length = -3.0


def test_softplus_is_finite_where_its_value_underflows() -> None:
    bank = KernelBank(1, 1, periodic=False, parameterisation="softplus")
    with torch.no_grad():
        bank.raw_sigma.fill_(-200.0)
    torch.testing.assert_close(bank.log(0.0), torch.tensor([-400.0]))
    bank.log(0.0).sum().backward()
    torch.testing.assert_close(bank.raw_sigma.grad, torch.tensor([[2.0]]))


def test_numbers_that_are_given_are_where_a_bank_starts() -> None:
    given = {"sigma": [0.5, 2.0], "length": [3.0, 40.0], "tau": [5.0, 22.0], "alpha": [0.1, 7.0]}
    for parameterisation in ("log", "softplus"):
        bank = KernelBank(3, 2, init=given, parameterisation=parameterisation)
        for name, values in given.items():
            torch.testing.assert_close(getattr(bank, name), torch.tensor(values).expand(3, 2))
    by_head = {**given, "length": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}
    torch.testing.assert_close(KernelBank(3, 2, init=by_head).length, torch.tensor(by_head["length"]))
    signed = {"amplitude": [-1.0, 0.0], "length": [3.0, 4.0]}
    bank = KernelBank(3, 2, periodic=False, signed=True, init=signed)
    assert torch.equal(bank.amplitude, torch.tensor([-1.0, 0.0]).expand(3, 2))


def test_periods_are_given_in_place_of_tau() -> None:
    given = {"sigma": [0.5, 2.0], "length": [3.0, 40.0], "alpha": [0.1, 7.0]}
    bank = KernelBank(3, 2, init={**given, "period": [7.0, 70.0]})
    torch.testing.assert_close(bank.period, torch.tensor([7.0, 70.0]).expand(3, 2))
    torch.testing.assert_close(bank.tau, bank.period / math.pi)
    with pytest.raises(InputError, match="init must be a start of period or of tau, not of both"):
        KernelBank(3, 2, init={**given, "tau": [1.0, 2.0], "period": [1.0, 2.0]})
    with pytest.raises(InputError, match="init of period must be positive finite numbers, got 'long'"):
        KernelBank(3, 2, init={**given, "period": "long"})


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ({"sigma": [1, 1]}, "init must be a start of each of sigma, length, got"),
        ({"sigma": [1, 1], "length": [1, -1]}, "init of length must be positive finite numbers"),
        ({"sigma": [1, 1], "length": "long"}, "init of length must be positive finite numbers, got 'long'"),
        ({"sigma": [1, 1], "length": [[1], [2, 3]]}, "init of length must be positive finite numbers"),
        ({"sigma": [1, 1], "length": [1]}, r"init of length must be of shape \(2,\), .* got \(1,\)"),
        ({"sigma": [1, 1], "lenght": [1, 1]}, "key of init must be .* did you mean 'length'"),
        ({"sigma": [1, 1], "length": [1, 1], "tau": [1, 1]}, "key of init must be one of 'length', 'sigma'"),
        (["geometric"], "init must be one of"),
    ],
)
def test_starts_that_are_not_complete_are_refused(init, message) -> None:
    with pytest.raises(InputError, match=message):
        KernelBank(3, 2, periodic=False, init=init)


def test_random_starts_differ_by_head_and_seed_and_stay_in_the_ranges_of_the_geometric() -> None:
    torch.manual_seed(5)
    bank = KernelBank(2, 500, init="random")
    torch.manual_seed(5)
    again = KernelBank(2, 500, init="random")
    assert torch.equal(bank.length, again.length)
    assert not torch.equal(bank.length, KernelBank(2, 500, init="random").length)
    geometric = KernelBank(2, 500)
    for name in ("length", "tau", "sigma"):
        values, ends = getattr(bank, name).log(), getattr(geometric, name).log()
        assert not torch.equal(values[0], values[1])
        assert ends.min() - 1e-5 <= values.min() < values.max() <= ends.max() + 1e-5
        # A log-uniform number has the mean of its ends, within four of its standard errors.
        width = (ends.max() - ends.min()).item()
        assert abs(values.mean() - ends.mean()) < 4 * width / math.sqrt(12 * values.numel())


def test_spread_starts_are_the_terms_of_one_long_geometric_bank_dealt_out_in_order() -> None:
    spread, long = KernelBank(4, 3, init="spread"), KernelBank(1, 12)
    for name in ("length", "tau"):
        torch.testing.assert_close(getattr(spread, name).flatten(), getattr(long, name)[0])
    torch.testing.assert_close(spread.sigma, torch.ones(4, 3))


@pytest.mark.parametrize("periodic", [True, False, "cosine"])
@pytest.mark.parametrize("terms", [1, 8, 64])
def test_unit_starts_are_1_at_lag_0_for_any_number_of_terms(terms, periodic) -> None:
    unit, geometric = (KernelBank(2, terms, periodic, init=init) for init in ("unit", "geometric"))
    torch.testing.assert_close(unit(torch.zeros(())), torch.ones(2))
    torch.testing.assert_close(unit.length, geometric.length)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": "head"}, "share must be .* did you mean 'heads'"),
        ({"parameterisation": "exp"}, "parameterisation must be one of 'log', 'softplus'"),
        ({"periodic": "sine"}, "periodic must be True, False or 'cosine', got 'sine'"),
    ],
)
def test_unknown_options_are_refused(options, message) -> None:
    with pytest.raises(InputError, match=message):
        KernelBank(2, 2, **options)


def test_text_shows_what_is_not_as_usual() -> None:
    assert "share" not in repr(KernelBank(2, 2))
    shown = repr(KernelBank(2, 2, share="all", parameterisation="softplus", signed=True))
    for part in ("share='all'", "parameterisation='softplus'", "signed=True", "amplitude=", "length="):
        assert part in shown


def test_only_banks_of_all_layers_are_named_as_such() -> None:
    assert list(shared_by_layers(KernelBank(2, 2, share="heads"))) == []
    names = list(shared_by_layers(Exp(KernelBank(2, 2, share="all", signed=True, periodic="cosine"))))
    assert names == ["kernel.log_tau", "kernel.amplitude", "kernel.log_length"]
