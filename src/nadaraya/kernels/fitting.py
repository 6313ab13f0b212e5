"""Banks fitted to curves by lag: least squares by the method of Levenberg and Marquardt (Marquardt 1963)."""

import math

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import must_be
from nadaraya.kernels.bank import KernelBank

#: parameters of a term: the rows of the (K, P, M) logs of K banks of M terms. P is 2 for terms that only
#: decay, 3 for those with a cosine, which are added, and 4 for the others.
NAMES = ("sigma", "length", "tau", "alpha")
_UPDATES = 300
# Logits² per log²: keeps a term that the curve does not need from wandering to where training cannot move it.
_RIDGE = 1e-5


def fit_bank(
    logits: Tensor | np.ndarray, num_terms: int, *, periodic: bool | str = True, added: bool = False
) -> dict[str, list[float]]:
    """The terms of a bank that adds a given curve to the logits, up to a constant.

    Least squares from the geometric start; a lag r counts 1 / (r + 1), so that short lags count as
    much as the many long ones. The constant, which attention does not see, is free. No lag of a bank weighs
    more than lag 0.

    Args:
        logits: (L,) what the bank is to add to the logits at lags 0 … L − 1, finite.
        num_terms: M.
        periodic: as for `KernelBank`; "cosine" with `added` only. Default True.
        added: whether the bank itself is added, `Exp(bank)`, and not its logarithm. Default False.

    Returns:
        M numbers for each of "sigma", "length" and, where there is a periodic factor, "tau" and "alpha", to
        four digits: the `init` of a `KernelBank`.

    Raises:
        InputError: fewer than two lags, numbers that are not finite, or arguments that a bank refuses.

    >>> import torch
    >>> from nadaraya.kernels import KernelBank, fit_bank
    >>> start = fit_bank(-torch.arange(64) / 20, num_terms=1, periodic=False)
    >>> start["length"]
    [20.0]
    >>> KernelBank(4, num_terms=1, periodic=False, init=start).length.shape
    torch.Size([4, 1])
    """
    accepted = "at least two finite numbers, one for each lag"
    try:
        target = torch.as_tensor(logits).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise must_be("logits", accepted, logits) from error
    if target.ndim != 1 or len(target) < 2 or target.is_complex() or not bool(target.isfinite().all()):
        raise must_be("logits", accepted, target.tolist())
    target = target.to("cpu", torch.float64)
    bank = KernelBank(1, num_terms, periodic=periodic)
    if periodic == "cosine" and not added:
        bank.log(0.0)  # which says that it has none
    names = NAMES[: len(list(bank.parameters()))]
    start = torch.stack([bank.stored(name).detach() for name in names], 1).double()
    lags = torch.arange(len(target), dtype=torch.float64)
    weights = (1 / (lags + 1)) / (1 / (lags + 1)).sum()
    logs, _ = least_squares(start, lags, weights, target[None], added=added, updates=_UPDATES, ridge=_RIDGE)
    return {
        name: [float(f"{value:.4g}") for value in values.tolist()]
        for name, values in zip(names, logs[0].exp(), strict=True)
    }


@torch.no_grad()
def least_squares(
    start: Tensor,
    lags: Tensor,
    weights: Tensor,
    target: Tensor,
    *,
    added: bool,
    updates: int,
    ridge: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Fit banks side by side to curves (K, L), each up to a constant, with weights (L,) that sum to 1.

    They start from logs (K, P, M), as `NAMES` has them; all is float64. `added`: by G, and not by log G. The
    ridge is what the square of the distance of a log from its start counts. The result are the logs, and the
    mean square that is left of each curve, (K,), with what the ridge adds.
    """
    limits = [(-20.0, 20.0), (math.log(0.1), math.log(1e8 * len(lags)))]
    # Periods of 2 tokens and more.
    limits += [(math.log(2 / math.pi), math.log(4 * len(lags))), (math.log(1e-4), math.log(10.0))]
    low, high = torch.tensor(limits, dtype=torch.float64)[: start.shape[1], None].unbind(-1)

    def normal_equations(logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean square, JᵀWr and JᵀWJ, the mean over lags taken out: (K,), (K, PM) and (K, PM, PM)."""
        value, slopes = values_and_slopes(logs, lags, added)
        slopes = slopes - (slopes @ weights)[..., None]
        rest = target - value
        rest = rest - (rest @ weights)[:, None]
        weighted, moved = slopes * weights, (logs - start).flatten(1)
        curvature = weighted @ slopes.mT + ridge * torch.eye(moved.shape[1], dtype=moved.dtype)
        error = rest.square() @ weights + ridge * moved.square().sum(1)
        return error, (weighted @ rest[..., None])[..., 0] - ridge * moved, curvature

    damping = torch.full((len(target),), 1e-2, dtype=torch.float64)
    state: tuple[Tensor, ...] = (start, *normal_equations(start))
    for _ in range(updates):
        logs, error, gradient, curvature = state
        scale = curvature.diagonal(dim1=1, dim2=2)
        damped = damping[:, None] * scale + 1e-12 * scale.amax(1, keepdim=True) + 1e-30
        step = torch.linalg.solve(curvature + damped.diag_embed(), gradient)
        tried = (logs + step.view_as(logs)).clamp(low, high)
        new = (tried, *normal_equations(tried))
        better = new[1] < error
        gain = torch.where(better, error - new[1], 0.0) / error.clamp(min=1e-300)
        state = tuple(
            torch.where(better.view(-1, *[1] * (after.dim() - 1)), after, before)
            for after, before in zip(new, state, strict=True)
        )
        damping = torch.where(better, damping / 5, damping * 4).clamp(min=1e-12)
        if ((damping > 1e8) | (better & (gain < 1e-9)) | (state[1] < 1e-24)).all():
            break
    return state[0], state[1]


def values_and_slopes(logs: Tensor, lags: Tensor, added: bool) -> tuple[Tensor, Tensor]:
    """log G, or G where it is added, and its derivatives by the logs: (K, L) and (K, P M, L)."""
    length = logs[:, 1, :, None].exp()
    decay = lags / length  # (K, M, L)
    terms, rising = 2 * logs[:, 0, :, None] - decay, [torch.full_like(decay, 2.0), decay]
    if logs.shape[1] > 2:
        phase = lags / logs[:, 2, :, None].exp()
    if logs.shape[1] == 3:
        envelopes, waves = terms.exp(), (2 * phase).cos()
        slopes = [envelopes * waves * by for by in rising]
        slopes.append(envelopes * 2 * phase * (2 * phase).sin())
        return (envelopes * waves).sum(1), torch.cat(slopes, 1)
    if logs.shape[1] == 4:
        depth = 2 * (2 * logs[:, 3, :, None]).exp()
        terms = terms - depth * phase.sin().square()
        rising += [depth * phase * (2 * phase).sin(), -2 * depth * phase.sin().square()]
    total = terms.logsumexp(1, keepdim=True)
    weights = terms.exp() if added else (terms - total).exp()
    return (total.exp() if added else total)[:, 0], torch.cat([weights * by for by in rising], 1)
