"""Terms are what their formula says, and the loss without one is that of a model that lacks it."""

import json
import math
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy, spearmanr
from torch import Tensor

from nadaraya.errors import InputError
from nadaraya.evaluation.language import total_nats
from nadaraya.interpret import term_report
from nadaraya.interpret.terms import bank_terms
from nadaraya.interpret.windows import Windows, validation_windows
from nadaraya.kernels import ALiBi, Exp, Kernel, KernelBank
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
from nadaraya.training import Run


def kernels(*given: Kernel) -> Any:
    return SimpleNamespace(lag_kernels=lambda: list(enumerate(given)))


def drawn(num_heads: int = 2, num_terms: int = 3, periodic: bool = True) -> KernelBank:
    bank = KernelBank(num_heads, num_terms, periodic)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return bank


@pytest.fixture
def model(finished_run: Run) -> Any:
    """The trained model with a bank that is not its trained one, so that its terms matter."""
    model = finished_run.load_model()
    ((_, kernel),) = model.lag_kernels()
    with torch.no_grad():
        for name, parameter in drawn(2, 4).named_parameters():
            kernel.get_parameter(name).copy_(parameter)
    return model


@pytest.fixture
def windows(finished_run: Run) -> Windows:
    return validation_windows(finished_run, 3)


def loss_of(model: Any, windows: Windows) -> float:
    return total_nats(model, *windows) / windows.tokens


def test_terms_have_their_parameters_in_natural_units() -> None:
    bank = drawn().requires_grad_(False)
    terms = bank_terms(kernels(ALiBi(2), bank), 50)
    assert [(term.layer, term.head, term.term) for term in terms] == [
        (1, head, term) for head in range(2) for term in range(3)
    ]
    for term in terms:
        place = term.head, term.term
        assert term.strength == pytest.approx(float(bank.terms(0.0)[place]), rel=1e-5)
        assert term.length == pytest.approx(float(bank.length[place]))
        decay = math.exp(-term.period / term.length)
        at_period = float(bank.terms(torch.tensor(term.period))[place])
        assert at_period == pytest.approx(term.strength * decay, rel=1e-4)
    assert [term.period for term in bank_terms(kernels(drawn(periodic=False)), 50)] == [None] * 6


@pytest.mark.parametrize(
    ("alpha", "period", "length", "low", "high"),
    [
        (3.0, 20.0, 1e6, 0.99, 1.0),  # returns to its start
        (0.01, 20.0, 1e6, 0.0, 1e-3),  # hardly varies
        (3.0, 20.0, 2.0, 0.0, 1e-3),  # has decayed when the period is over
        (3.0, 400.0, 1e6, 0.0, 0.0),  # its period is longer than the window
        (3.0, 20.0, 20.0, 0.3, 0.4),  # exp(−1) after a period
    ],
)
def test_oscillation_is_what_comes_back(
    alpha: float, period: float, length: float, low: float, high: float
) -> None:
    bank = KernelBank(1, 1)
    with torch.no_grad():
        bank.alpha, bank.tau, bank.length, bank.sigma = alpha, period / math.pi, length, 7.0
    (term,) = bank_terms(kernels(bank), 100)
    assert low <= term.oscillation <= high


@pytest.mark.parametrize("added", [False, True], ids=["multiplied", "added"])
def test_the_divergence_is_that_of_attention_by_lag_without_the_term(added: bool) -> None:
    bank, num_lags = drawn(), 40
    values = bank.terms(torch.arange(num_lags)).detach().double()
    for term in bank_terms(kernels(Exp(bank) if added else bank), num_lags):
        whole = values[term.head].sum(0)
        without = whole - values[term.head, term.term]
        p, q = ([(v.exp() if added else v)[: n + 1] for n in range(num_lags)] for v in (whole, without))
        each = [entropy(of_p.numpy(), of_q.numpy()) for of_p, of_q in zip(p, q, strict=True)]
        assert term.divergence == pytest.approx(np.mean(each), rel=1e-3, abs=1e-9)


def test_a_term_left_out_is_the_loss_of_a_bank_that_never_had_it(model: Any, windows: Windows) -> None:
    report = term_report(model, windows)
    assert report.loss == pytest.approx(loss_of(model, windows))
    assert report.tokens == 3 * 40
    ((_, bank),) = model.lag_kernels()
    before = {name: value.clone() for name, value in bank.named_parameters()}
    for term in report.terms[:3]:
        attention = model.model.blocks[0].attention
        kept = [index for index in range(4) if index != term.term]
        attention.position = _Without(bank, term.head, kept)
        assert loss_of(model, windows) - report.loss == pytest.approx(term.loss_increase, abs=1e-6)
        attention.position = bank
    assert len({term.loss_increase for term in report.terms}) > 4
    for name, value in bank.named_parameters():
        assert torch.equal(value, before[name])
    changes = [term.divergence for term in report.terms]
    assert changes == sorted(changes, reverse=True)


class _Without(Kernel):
    """A bank in which one head has some of its terms."""

    def __init__(self, bank: KernelBank, head: int, kept: list[int]) -> None:
        super().__init__()
        self.bank, self.head, self.kept, self.batch_shape = bank, head, kept, bank.batch_shape

    def log(self, r: Tensor | float) -> Tensor:
        logs = list(self.bank.log_terms(r))
        logs[self.head] = logs[self.head][self.kept]
        return torch.stack([head.logsumexp(0) for head in logs])


def test_a_term_without_strength_changes_nothing(model: Any, windows: Windows) -> None:
    ((_, bank),) = model.lag_kernels()
    with torch.no_grad():
        bank.log_sigma[1, 2] = -200.0
        bank.log_sigma[0, 1] = -torch.inf
    silent = [t for t in term_report(model, windows).terms if (t.head, t.term) in ((1, 2), (0, 1))]
    assert [(term.loss_increase, term.divergence, term.strength) for term in silent] == [(0.0, 0.0, 0.0)] * 2


def test_without_its_bank_a_model_is_one_with_a_kernel_that_is_constant(model: Any, windows: Windows) -> None:
    report = term_report(model, windows, top=0)
    ((_, bank),) = model.lag_kernels()
    levelled, flat = KernelBank(2, 4, periodic=False), ALiBi(2)
    with torch.no_grad():
        lags = torch.arange(40)
        phase = lags / bank.tau[..., None]
        mean = torch.exp(-2 * bank.alpha[..., None] ** 2 * torch.sin(phase) ** 2).mean(-1)
        levelled.sigma, levelled.length = bank.sigma * mean.sqrt(), bank.length
        for parameter in flat.parameters():
            parameter.fill_(-torch.inf)
    attention = model.model.blocks[0].attention
    attention.position = levelled
    assert loss_of(model, windows) - report.loss == pytest.approx(report.without_oscillation, abs=1e-6)
    assert report.without_oscillation != 0.0
    attention.position = None
    assert loss_of(model, windows) - report.loss == pytest.approx(report.without_bank, abs=1e-6)
    gains = {name: getattr(report, name) for name in ("without_bank", "without_oscillation")}
    assert report.layers == ({"layer": 0, **gains},)
    assert all(term.loss_increase is None for term in report.terms)
    assert report.rank_correlation() is None
    assert json.loads(json.dumps(asdict(report)))["loss"] == report.loss


def test_added_banks_decays_and_single_terms_have_figures(model: Any, windows: Windows) -> None:
    attention = model.model.blocks[0].attention
    single = drawn(num_terms=1)
    for bank, position in (
        *((bank, bank) for bank in (drawn(periodic=False), single)),
        *((bank, Exp(bank)) for bank in (drawn(), single)),
    ):
        attention.position = position
        report = term_report(model, windows)
        figures = [report.without_bank, *(term.loss_increase for term in report.terms)]
        assert all(isinstance(figure, float) and math.isfinite(figure) for figure in figures)
        assert (report.without_oscillation is None) == (not bank.periodic)
        assert len(report.terms) == 2 * bank.num_terms


@pytest.mark.parametrize("form", [{"parameterisation": "softplus"}, {"signed": True}, {"share": "heads"}])
def test_banks_that_store_the_same_terms_otherwise_have_the_same_report(
    model: Any, windows: Windows, form: dict[str, Any]
) -> None:
    attention = model.model.blocks[0].attention
    numbers = {name: getattr(drawn(), name)[0].tolist() for name in ("alpha", "tau", "sigma", "length")}
    plain = KernelBank(2, len(numbers["tau"]), init=numbers)
    if "signed" in form:
        numbers["amplitude"] = [sigma**2 for sigma in numbers.pop("sigma")]
    other = KernelBank(2, len(numbers["tau"]), init=numbers, **form)
    reports = []
    for bank in (plain, other):
        attention.position = Exp(bank).requires_grad_(False)
        reports.append(term_report(model, windows))
    expected, found = reports
    assert found.without_bank == pytest.approx(expected.without_bank, abs=1e-5)
    assert found.without_oscillation == pytest.approx(expected.without_oscillation, abs=1e-5)
    read = [
        {(t.head, t.term): (t.strength, t.length, t.period, t.oscillation) for t in report.terms}
        for report in reports
    ]
    for (head, term), values in read[1].items():
        assert values == pytest.approx(read[0][head or 0, term], rel=1e-4)
    if "share" in form:  # a term that both heads have is left out of both
        assert {term.label for term in found.terms} == {f"0.*.{term}" for _, term in read[1]}
    else:
        for one, two in zip(found.terms, expected.terms, strict=True):
            assert one.loss_increase == pytest.approx(two.loss_increase, abs=1e-5)


def test_a_bank_that_layers_share_is_measured_once_and_cosines_have_no_mean_to_be_replaced_by(
    model: Any, windows: Windows
) -> None:
    options = {"share": "layers", "periodic": "cosine", "num_terms": 3}
    config = KernelGPTConfig(**{**model.config.to_dict(), "variant": "gpa", "variant_options": options})
    shared = KernelGPTForCausalLM(config).eval()
    report = term_report(shared, windows)
    assert len(report.terms) == 2 * 3
    assert report.without_oscillation is None
    assert all(term.loss_increase is not None for term in report.terms)


def test_the_proxy_agrees_with_the_loss_about_a_term_that_is_most_of_its_bank(
    model: Any, windows: Windows
) -> None:
    ((_, bank),) = model.lag_kernels()
    with torch.no_grad():
        bank.log_sigma[:] = torch.tensor([1.5, -1.0, -3.5, -6.0])
    report = term_report(model, windows)
    correlation = report.rank_correlation()
    assert correlation is not None
    sizes = [abs(term.loss_increase or 0.0) for term in report.terms]
    expected = spearmanr([term.divergence for term in report.terms], sizes).statistic
    assert correlation == pytest.approx(expected)
    assert correlation > 0.7


def test_bad_input_is_refused(model: Any, windows: Windows) -> None:
    with pytest.raises(InputError, match="num_lags must be 1 or more"):
        bank_terms(kernels(drawn()), 0)
    with pytest.raises(InputError, match="top must be 0 or more"):
        term_report(model, windows, top=-1)
    model.model.blocks[0].attention.position = ALiBi(2)
    with pytest.raises(InputError, match="must have a layer with a KernelBank"):
        term_report(model, windows)
