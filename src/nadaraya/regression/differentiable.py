"""The same criteria by automatic differentiation, for the kernel's own parameters.

Blocks of queries are computed twice, first without and then with gradients, so that memory stays O(n).
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nadaraya.regression.blocked import distances, rows_of_a_block
from nadaraya.regression.criteria import Regression, aic_of_fit, loo_of_errors, target_scale
from nadaraya.regression.local import pseudo_inverse

Array = NDArray[np.floating]


class DifferentiableCriterion:
    """A criterion as a function of the logarithms of the bandwidths and of the kernel's parameters.

    Args:
        criterion: "loo" or "aic".
        regression: what is fitted; its kernel is changed in place by every evaluation.
        bandwidth: (d,) where it is held fixed; None if the arguments begin with log bandwidths. They end with
            those parameters of the kernel that require gradients.
    """

    def __init__(self, criterion: str, regression: Regression, bandwidth: Array | None) -> None:
        sample = regression.sample
        device = sample.device or torch.device("cpu")

        def tensor(array: Array) -> Tensor:
            return torch.tensor(array, dtype=torch.float64, device=device)

        self._is_loo = criterion == "loo"
        self._x, self._y = tensor(sample.x), tensor(regression.targets)
        self._spread = tensor(sample.spread)
        self._log_weight = tensor(sample.weight).log()
        scale = regression.query_scale
        self._shrink = None if scale is None else tensor(1.0 / scale)
        self._weight, self._targets = regression.weight, regression.targets
        self._scale = target_scale(regression.targets, regression.weight)
        self._kernel, self._degree = regression.kernel.to(device), regression.degree
        self._fixed = None if bandwidth is None else tensor(bandwidth).log()
        self._trained = [parameter for parameter in self._kernel.parameters() if parameter.requires_grad]

    def __call__(self, arguments: Array) -> tuple[float, Array]:
        """The criterion and its gradient at (log h_1, …, log h_d, the kernel's parameters)."""
        vector = torch.tensor(arguments, dtype=torch.float64, device=self._x.device, requires_grad=True)
        d = self._x.shape[1]
        log_bandwidth = vector[:d] if self._fixed is None else self._fixed
        if self._trained:
            with torch.no_grad():
                nn.utils.vector_to_parameters(vector[-self._num_kernel_parameters :], self._trained)
        with torch.no_grad():
            parts = [self._smooth(rows, log_bandwidth) for rows in self._blocks()]
        mean, leverage = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
        errors = (self._targets - mean) ** 2
        by_trace = 0.0
        if self._is_loo:
            score, by_error = loo_of_errors(errors, self._weight, self._scale)
        else:
            score, by_error, by_trace = aic_of_fit(errors, float(leverage.sum()), self._weight, self._scale)
        by_mean = torch.tensor(-2.0 * by_error * (self._targets - mean), device=self._x.device)
        inputs = ([vector] if self._fixed is None else []) + self._trained
        totals = [torch.zeros_like(item) for item in inputs]
        for rows in self._blocks():
            mean_rows, leverage_rows = self._smooth(rows, log_bandwidth)
            surrogate = (by_mean[rows] * mean_rows).sum() + by_trace * leverage_rows.sum()
            gradients = torch.autograd.grad(surrogate, inputs, allow_unused=True)
            for total, gradient in zip(totals, gradients, strict=True):
                if gradient is not None:
                    total += gradient
        slopes = np.zeros(len(arguments))
        if self._fixed is None:
            slopes[: len(totals[0])] += totals.pop(0).cpu().numpy()
        if totals:
            slopes[-self._num_kernel_parameters :] += nn.utils.parameters_to_vector(totals).cpu().numpy()
        return score, slopes

    @property
    def _num_kernel_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._trained)

    def _blocks(self) -> Iterator[slice]:
        n = len(self._x)
        rows = rows_of_a_block(n, 6 + (self._x.shape[1] + 2) * self._degree, self._x.device)
        return (slice(start, min(n, start + rows)) for start in range(0, n, rows))

    def _smooth(self, rows: slice, log_bandwidth: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions (b, p) of the points in `rows`, and their leverages (b,); leave-one-out for "loo"."""
        inverse = torch.exp(-log_bandwidth)
        z, points = self._x[rows] * inverse, self._x * inverse
        r = distances(z, points)
        if self._shrink is not None:
            r = r * self._shrink[rows, None]
        own = torch.arange(rows.start, rows.stop, device=r.device)
        logits = self._kernel.log(r) + self._log_weight
        hidden = torch.isneginf(self._log_weight).expand_as(r)
        if self._is_loo:
            hidden = hidden.clone()
            hidden[own - rows.start, own] = True
            logits = logits.masked_fill(hidden, -torch.inf)
        empty = torch.isneginf(logits.amax(dim=1))
        if empty.any():
            reach = r.detach().masked_fill(hidden, torch.inf)
            nearest = reach <= reach.amin(dim=1, keepdim=True)
            logits = torch.where(
                empty[:, None], torch.zeros_like(r).masked_fill(~nearest, -torch.inf), logits
            )
        weights = logits.softmax(dim=1)
        if self._degree:
            weights = _line_weights(weights, (self._x - self._x[rows, None]) / self._spread)
        return weights @ self._y, weights[own - rows.start, own]


def _line_weights(weights: Tensor, offsets: Tensor) -> Tensor:
    """Weights (b, n) of a local mean as those of a local line's value at the query; offsets (b, n, d).

    In units of the spread, as in `local_fit`, where a line that points do not determine is the flattest.
    """
    centre = weights[:, None] @ offsets  # (b, 1, d)
    about_centre = offsets - centre
    covariance = (weights[..., None] * about_centre).transpose(1, 2) @ about_centre
    squares = (weights[..., None] * offsets.square()).sum(dim=(1, 2))
    known = torch.from_numpy(
        pseudo_inverse(covariance.detach().cpu().numpy(), squares.detach().cpu().numpy())
    )
    known = known.to(covariance.device)
    # One Newton step leaves the inverse as it is and gives it its derivative −S⁺ dS S⁺.
    inverse = 2 * known - known @ covariance @ known
    return weights * (1 - about_centre @ inverse @ centre.transpose(1, 2))[..., 0]
