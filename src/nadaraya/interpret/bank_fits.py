"""Banks fitted to curves of logits by lag: what kernel a curve is, and whether it oscillates."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import must_be
from nadaraya.kernels import Exp, Kernel, KernelBank
from nadaraya.kernels.fitting import NAMES, least_squares

_FITS = 24  # of each curve
_PEAKS = 6  # of its spectrum, where these look for periods
# Updates of Levenberg and Marquardt at most, and how many of the initial values then remain.
_STAGES = ((60, 3), (300, 1))


@dataclass(frozen=True)
class BankFit:
    """A bank for each head of a layer, fitted to curves of logits by lag.

    Attributes:
        kernel: a `KernelBank`, whose log is the curve up to a constant, or `Exp` of one, which is itself.
        offset: (H,) that constant.
        r2: (H,) share of the variance of the curve over pairs that the fit explains; NaN for a flat curve.

    >>> import numpy as np
    >>> from nadaraya.interpret.bank_fits import fit_banks
    >>> fit_banks(-0.1 * np.arange(20)[None], np.ones(20), num_terms=1, periodic=False).curve(20).shape
    (1, 20)
    """

    kernel: Kernel
    offset: np.ndarray
    r2: np.ndarray

    @property
    def bank(self) -> KernelBank:
        """The bank, float64."""
        found: Any = self.kernel.kernel if isinstance(self.kernel, Exp) else self.kernel
        return found

    @property
    def num_parameters(self) -> int:
        """Numbers per head."""
        return sum(parameter.shape[1] for parameter in self.bank.parameters())

    def curve(self, num_lags: int) -> np.ndarray:
        """(H, L) fitted logits for lags 0 … L − 1."""
        logits = self.kernel.lag_logits(num_lags).detach().numpy()
        return np.asarray(logits + self.offset[:, None])

    def on(self, curves: np.ndarray, weights: np.ndarray) -> "BankFit":
        """The same bank with the offset and the R² of other curves, (H, L), and weights, (L,).

        On the curves that it was fitted to, a bank explains some of their noise too, and more the more freely
        its terms bend. R² of other curves can be negative.
        """
        return _scored(self.kernel, curves, weights)

    def plain(self, head: int) -> dict[str, Any]:
        """R², offset and terms of one head, for JSON."""
        terms = {
            name.removeprefix("log_"): parameter[head].exp().tolist()
            for name, parameter in self.bank.named_parameters()
        }
        r2 = float(self.r2[head])
        return {"r2": None if math.isnan(r2) else r2, "offset": float(self.offset[head]), **terms}


@torch.no_grad()
def fit_banks(
    curves: np.ndarray,
    weights: np.ndarray,
    num_terms: int = 4,
    *,
    periodic: bool = True,
    added: bool = False,
) -> BankFit:
    """Fit a bank to each of some curves of logits by lag, by weighted least squares.

    With G the bank and f = log G (Bunks et al. 2025, eq. 6), or f = G where it is `added` (Gaussian Process
    Attention, anonymous, eq. 6), and an offset that costs nothing, since logits have none,

        minimise  Σ_r w_r (y_r − f(r) − offset)²

    by the method of Levenberg and Marquardt (Marquardt 1963) from several initial values; the best is kept.
    The result is the same every time. Sums of exponentials are ill-conditioned: other terms may fit as well.

    Args:
        curves: y, (H, L) logits for lags 0 … L − 1; lags with NaN are left out.
        weights: w ≥ 0, (L,), such as the number of pairs.
        num_terms: M, terms for each curve. Default 4.
        periodic: whether terms have the periodic factor: 4 numbers per term, else 2. Default True.
        added: whether f is G. Default False.
    """
    used = np.isfinite(curves).all(0) & (weights > 0)
    if used.sum() < 2:
        raise must_be("curves", "known at two lags or more", int(used.sum()))
    lags = torch.arange(curves.shape[1], dtype=torch.float64)[torch.from_numpy(used)]
    share = torch.from_numpy(weights[used] / weights[used].sum())
    target = torch.from_numpy(curves[:, used]).double()
    target = target - (target @ share)[:, None]

    num_heads = len(curves)
    logs = _initial_logs(target, lags, share, num_terms, periodic)
    log_height = (target.amax(1) - target.amin(1)).clamp(min=1e-6).log().repeat(_FITS)[:, None]
    if added:  # as high as the curve
        logs[:, 0] += 0.5 * (log_height - (2 * logs[:, 0]).logsumexp(1, keepdim=True))
    else:  # as flat as the curve, where that is flat
        logs[:, 1] -= log_height.clamp(max=0.0)
        if periodic:
            logs[:, 3] += 0.5 * log_height.clamp(max=0.0)
    for updates, remain in _STAGES:
        fits = len(logs) // num_heads
        logs, error = least_squares(logs, lags, share, target.repeat(fits, 1), added=added, updates=updates)
        best = error.view(fits, num_heads).topk(remain, dim=0, largest=False).indices
        logs = logs[(best * num_heads + torch.arange(num_heads)).flatten()]
    bank = KernelBank(num_heads, num_terms, periodic=periodic).double()
    for name, values in zip(NAMES, logs.unbind(1), strict=False):
        bank.stored(name).copy_(values)
    return _scored(Exp(bank) if added else bank, curves, weights)


@torch.no_grad()
def _scored(kernel: Kernel, curves: np.ndarray, weights: np.ndarray) -> BankFit:
    """A kernel with the offset that suits some curves best, and the share of their variance it explains."""
    used = np.isfinite(curves).all(0) & (weights > 0)
    target, share = curves[:, used], weights[used] / weights[used].sum()
    rest = target - kernel.lag_logits(curves.shape[1]).numpy()[:, used]
    offset = rest @ share
    left = np.square(rest - offset[:, None]) @ share
    variance = np.square(target - (target @ share)[:, None]) @ share
    with np.errstate(divide="ignore", invalid="ignore"):
        return BankFit(kernel, offset, np.where(variance > 0, 1 - left / variance, np.nan))


def _initial_logs(target: Tensor, lags: Tensor, share: Tensor, num_terms: int, periodic: bool) -> Tensor:
    """The initial logs of every fit of every curve, (fits · H, 2 or 4, M).

    The first is the library's own. The others are at random, but for the periods of half of them: a fit finds
    one only from near it, so these are where the spectrum of the curve has its peaks.
    """
    num_heads = len(target)
    generator = torch.Generator().manual_seed(0)
    ranges = [(-1.5, 1.5), (0.0, math.log(2 * len(lags)))]
    if periodic:
        ranges += [(math.log(2 / math.pi), math.log(len(lags))), (math.log(0.2), math.log(1.5))]
    known = KernelBank(1, num_terms, periodic=periodic)
    initial = torch.empty(_FITS, num_heads, len(ranges), num_terms, dtype=torch.float64)
    for row in (0, 1, 3, 2)[: 4 if periodic else 2]:  # the order of the draws
        low, high = ranges[row]
        drawn = torch.rand(_FITS, 1, num_terms, generator=generator, dtype=torch.float64)
        initial[:, :, row] = low + (high - low) * drawn
        initial[0, :, row] = known.stored(NAMES[row])
    if periodic:
        half = _FITS // 2
        periods, power = _spectrum(target, lags, share)
        drawn = torch.multinomial(power, half * num_terms, replacement=True, generator=generator)
        drawn = drawn.view(num_heads, half, num_terms)
        drawn[:, :, 0] = torch.arange(half) % periods.shape[1]  # each of the peaks at least once
        chosen = periods.gather(1, drawn.flatten(1)).view_as(drawn).transpose(0, 1)
        initial[half:, :, 2] = (chosen / math.pi).log()
    return initial.flatten(0, 1)


def _spectrum(target: Tensor, lags: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Periods and heights of the highest peaks of each curve's spectrum without its trend, (H, peaks)."""
    trend = torch.stack((torch.ones_like(lags), lags, torch.log1p(lags))) * share.sqrt()
    weighted = target * share.sqrt()
    rest = weighted - torch.linalg.lstsq(trend.T, weighted.T).solution.T @ trend
    power = torch.fft.rfft(rest, 4 * len(lags)).abs().square()[:, 1:]
    is_peak = torch.nn.functional.max_pool1d(power[:, None], 3, 1, 1)[:, 0] == power
    heights, frequencies = (power * is_peak).topk(min(_PEAKS, power.shape[1]), dim=1)
    return 4 * len(lags) / (frequencies + 1.0), heights + 1e-30  # of a flat curve none is higher
