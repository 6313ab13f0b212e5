"""The terms of banks: period, decay, strength, and what the loss is without them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import InputError, check_at_least
from nadaraya.interpret.heads import rank_correlation
from nadaraya.interpret.labels import head_label, head_numbers
from nadaraya.interpret.windows import Windows
from nadaraya.kernels import Kernel, KernelBank

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTForCausalLM

_ENDLESS = 1e30  # tokens: of a decay or a period that lasts for ever


@dataclass(frozen=True)
class Term:
    """One term σ² exp(−r / l) exp(−2 α² sin²(r / τ)) of a bank.

    Args:
        layer: index of the layer (0-based).
        head: number of the head (0-based), as before any was removed; None for a bank that all heads share.
        term: index of the term in its bank (0-based).
        strength: its value at lag 0, σ² or a signed amplitude.
        length: l, the lag at which its decay has reached 1/e, in tokens.
        period: π τ, in tokens, since the sine is squared; None without a periodic factor.
        oscillation: how far it rises again above its lowest value at shorter lags of the context, as a share
            of its strength: 0 for one that only decays, near 1 for one that returns to its start.
        divergence: how far its head's attention by lag alone, softmax over the past of the logits that the
            kernel adds, is from that without the term: the Kullback-Leibler divergence in nats, the mean over
            the queries of a window. A proxy of `loss_increase` that needs no model.
        loss_increase: what the loss gains without it, in nats/token; None where it was not measured.

    >>> from nadaraya.interpret.terms import Term
    >>> Term(0, 2, 5, strength=0.14, length=140.0, period=70.0, oscillation=0.4, divergence=0.001).label
    '0.2.5'
    """

    layer: int
    head: int | None
    term: int
    strength: float
    length: float
    period: float | None
    oscillation: float
    divergence: float
    loss_increase: float | None = None

    @property
    def label(self) -> str:
        """LAYER.HEAD.TERM."""
        return f"{head_label(self.layer, self.head)}.{self.term}"


@dataclass(frozen=True)
class TermReport:
    """The worth of the banks of a model and of their terms on some windows, in nats/token.

    Args:
        loss: of the whole model.
        tokens: predicted in the windows.
        without_bank: what the loss gains when all terms are constant over lags, which changes no weight of
            attention: there is no bank then.
        without_oscillation: what it gains when the periodic factor of every term is replaced by its mean over
            the lags of a window; None without periodic factors, or with cosines, whose mean may be negative,
            unless amplitudes are signed.
        layers: the same two by name, and "layer", its index, for the bank of one layer at a time.
        terms: the one with the largest `divergence` first.

    >>> from nadaraya.interpret.terms import TermReport
    >>> TermReport(1.5, 4096, 0.02, 0.001, layers=(), terms=()).rank_correlation() is None
    True
    """

    loss: float
    tokens: int
    without_bank: float
    without_oscillation: float | None
    layers: tuple[dict[str, Any], ...]
    terms: tuple[Term, ...]

    def rank_correlation(self) -> float | None:
        """Spearman's, of `divergence` with |`loss_increase`|; None with fewer than 3 that were measured."""
        gains = [(term.divergence, term.loss_increase) for term in self.terms]
        return rank_correlation([(change, abs(gain)) for change, gain in gains if gain is not None])


@torch.no_grad()
def bank_terms(run_or_model: Any, num_lags: int) -> list[Term]:
    """Every term of every `KernelBank` of a language model, read from the kernels alone.

    Args:
        run_or_model: a finished `Run`, or a model with `lag_kernels()`.
        num_lags: lags 0 to num_lags − 1 are those of a window: the lag r occurs num_lags − r times.

    Returns:
        The terms by layer, head and index; none where no kernel has a bank.

    Raises:
        InputError: num_lags is below 1.
    """
    check_at_least(1, num_lags=num_lags)
    return [term for *_, term in _located(run_or_model, _banks(run_or_model), num_lags)]


@torch.no_grad()
def term_report(model: "KernelGPTForCausalLM", windows: Windows, *, top: int | None = None) -> TermReport:
    """Measure the loss of a language model without its bank, without oscillation, and without single terms.

    Args:
        model: in eval mode; left as it is.
        windows: on which losses are measured, N tokens each.
        top: how many terms are left out, one at a time, those with the largest `divergence`; default all,
            each of which takes a pass over the windows. The only term of a bank becomes constant over lags.

    Returns:
        The report.

    Raises:
        InputError: no layer has a bank, or top is negative.

    >>> import torch
    >>> from nadaraya.interpret import term_report
    >>> from nadaraya.interpret.windows import Windows
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", variant="gpa-mul")).eval()
    >>> text = torch.arange(33)[None]
    >>> report = term_report(model, Windows(text[:, :-1], text[:, 1:]), top=2)
    >>> len(report.terms), sum(term.loss_increase is not None for term in report.terms)
    (128, 2)
    """
    check_at_least(0, top=top)
    banks = _banks(model)
    if not banks:
        raise InputError("the model must have a layer with a KernelBank, got none")
    num_lags = windows.inputs.shape[1]

    def loss() -> float:
        return windows.loss(model)

    def gains(chosen: list[KernelBank]) -> dict[str, float | None]:
        found: dict[str, float | None] = {"without_oscillation": None}
        with _restored(chosen):
            oscillating = [b for b in chosen if b.periodic is True or (b.periodic and b.signed)]
            if oscillating:
                for bank in oscillating:
                    _level(bank, num_lags)
                found["without_oscillation"] = loss() - whole
            for bank in chosen:
                _flatten(bank)
            return {"without_bank": loss() - whole, **found}

    whole = loss()
    located = sorted(_located(model, banks, num_lags), key=lambda one: -one[2].divergence)
    terms = [term for *_, term in located]
    for index, (bank, row, term) in enumerate(located[:top]):
        with _restored([bank]):
            _leave_out(bank, row, term.term)
            terms[index] = replace(term, loss_increase=loss() - whole)
    layers = {layer: [bank for index, _, bank in banks if index == layer] for layer, _, _ in banks}
    return TermReport(
        whole,
        windows.tokens,
        **gains([bank for _, _, bank in banks]),  # type: ignore[arg-type]
        layers=tuple({"layer": layer, **gains(chosen)} for layer, chosen in layers.items()),
        terms=tuple(terms),
    )


def _banks(run_or_model: Any) -> list[tuple[int, Kernel, KernelBank]]:
    """Layer, lag kernel and bank of every bank; one whose parameters layers share is in the first of them."""
    found = {
        bank.stored("length"): (layer, kernel, bank)
        for layer, kernel in reversed(run_or_model.lag_kernels())
        for bank in kernel.modules()
        if isinstance(bank, KernelBank)
    }
    return list(found.values())[::-1]


def _located(
    run_or_model: Any, banks: list[tuple[int, Kernel, KernelBank]], num_lags: int
) -> list[tuple[KernelBank, int, Term]]:
    """Every term with its bank and the row of it there."""
    found = []
    for layer, kernel, bank in banks:
        by_lag = bank.terms(torch.arange(num_lags, device=bank.device))
        shapes = (by_lag / by_lag[..., :1]).nan_to_num(0.0)  # (H, M, L), 1 at lag 0; none without strength
        tables = {
            "strength": bank.terms(0.0),
            "length": bank.length,
            "oscillation": (shapes - shapes.cummin(-1).values).amax(-1),
            "divergence": _divergences(kernel, bank, num_lags),
        }
        heads = head_numbers(run_or_model, layer, bank.num_heads)
        for row, index in np.ndindex(*bank.length.shape):
            head = heads[row] if len(bank.length) == bank.num_heads else None
            values = {name: float(table[row, index]) for name, table in tables.items()}
            period = float(bank.period[row, index]) if bank.periodic else None
            found.append((bank, row, Term(layer, head, index, period=period, **values)))
    return found


def _divergences(kernel: Kernel, bank: KernelBank, num_lags: int) -> Tensor:
    """(H, M) mean divergence of a head's attention by lag alone from that without each term."""
    whole, found = _lag_logits(kernel, num_lags), []
    for index in range(bank.num_terms):
        with _restored([bank]):
            _leave_out(bank, slice(None), index)
            without = _lag_logits(kernel, num_lags)
        # The query at position n sees the lags 0 … n: sums over the past are cumulative ones.
        change = torch.where(whole.isneginf(), 0.0, whole - without)
        weights = (whole - whole.amax(-1, keepdim=True)).exp()
        gained = (weights * change).cumsum(-1) / weights.cumsum(-1)
        found.append((gained + without.logcumsumexp(-1) - whole.logcumsumexp(-1)).mean(-1))
    return torch.stack(found, dim=1).expand(bank.num_heads, -1)


def _lag_logits(kernel: Kernel, num_lags: int) -> Tensor:
    """(H, L), in float64."""
    return torch.atleast_2d(kernel.lag_logits(num_lags, causal=True)).double()


@contextmanager
def _restored(banks: list[KernelBank]) -> Iterator[None]:
    """Parameters that are written while the context lasts are put back at its end."""
    kept = [(parameter, parameter.clone()) for bank in banks for parameter in bank.parameters()]
    try:
        yield
    finally:
        for parameter, value in kept:
            parameter.copy_(value)


def _leave_out(bank: KernelBank, head: int | slice, term: int) -> None:
    """Take a term away; the only one of a bank becomes constant, since no weight could be 0 at all lags."""
    if bank.num_terms == 1:
        _flatten(bank, head)
    elif bank.signed:
        bank.stored("amplitude")[head, term] = 0.0
    else:
        bank.stored("sigma")[head, term] = -torch.inf


def _flatten(
    bank: KernelBank, head: int | slice = slice(None), names: Sequence[str] = ("length", "tau")
) -> None:
    """Let decays and periods last for ever, which makes every term constant over lags."""
    for name in names:
        if name == "length" or bank.periodic:
            bank.stored(name)[head] = math.log(_ENDLESS) if bank.parameterisation == "log" else _ENDLESS


def _level(bank: KernelBank, num_lags: int) -> None:
    """Replace the periodic factor of every term by its mean over the lags."""
    turns = torch.arange(num_lags, device=bank.device) / bank.tau[..., None]
    if bank.periodic == "cosine":
        mean = torch.cos(2 * turns).mean(-1)
    else:
        mean = torch.exp(-2 * (bank.alpha[..., None] * torch.sin(turns)).square()).mean(-1)
    if bank.signed:
        bank.stored("amplitude").mul_(mean)
    elif bank.parameterisation == "log":
        bank.stored("sigma").add_(0.5 * mean.log())
    else:
        bank.sigma = (bank.sigma * mean.sqrt()).clamp(min=torch.finfo(mean.dtype).tiny)
    _flatten(bank, names=("tau",))
