"""A bank whose terms fit a curve by lag, as a start for training."""

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import must_be
from nadaraya.kernels.bank import KernelBank
from nadaraya.kernels.base import Exp

_UPDATES = 300
# Logits² per log²: keeps a term that the curve does not need from wandering to where training cannot move it.
_RIDGE = 1e-5


def fit_bank(
    logits: Tensor | np.ndarray, num_terms: int, *, periodic: bool | str = True, added: bool = False
) -> dict[str, list[float]]:
    """The terms of a bank that adds a given curve to the logits, up to a constant.

    Least squares by L-BFGS from the geometric start; a lag r counts 1 / (r + 1), so that short lags count as
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
    target = torch.as_tensor(logits).detach().to("cpu", torch.float64)
    if target.ndim != 1 or len(target) < 2 or not bool(torch.isfinite(target).all()):
        raise must_be("logits", "at least two finite numbers, one for each lag", target.tolist())
    bank = KernelBank(1, num_terms, periodic=periodic).double()
    kernel = Exp(bank) if added else bank
    start = [parameter.detach().clone() for parameter in bank.parameters()]
    lags = torch.arange(len(target), dtype=torch.float64)
    weights = (1 / (lags + 1)) / (1 / (lags + 1)).sum()
    optimizer = torch.optim.LBFGS(bank.parameters(), max_iter=_UPDATES, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        difference = kernel.log(lags)[0] - target
        squares = (weights * (difference - (weights * difference).sum()) ** 2).sum()
        moved = zip(bank.parameters(), start, strict=True)
        value: Tensor = squares + _RIDGE * sum(((now - before) ** 2).sum() for now, before in moved)
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    names = (name.removeprefix("log_") for name, _ in bank.named_parameters())
    return {name: [float(f"{value:.4g}") for value in getattr(bank, name)[0].tolist()] for name in names}
