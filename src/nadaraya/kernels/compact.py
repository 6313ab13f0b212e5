"""Kernels of compact support: exactly zero beyond the bandwidth.

They are scaled to κ(0) = 1 instead of to unit integral; the constant cancels in every weighted mean. None of
them is positive definite, in any dimension.
"""

import torch
from torch import Tensor

from nadaraya.kernels.stationary import BandwidthKernel


class Epanechnikov(BandwidthKernel):
    """κ(r) = 1 − (r / h)² for |r| ≤ h, otherwise 0 (Epanechnikov 1969).

    Args:
        bandwidth: h, the support, in units of r; a number, or (H,).

    Raises:
        InputError: the bandwidth is not positive and finite.

    >>> from nadaraya.kernels import Epanechnikov
    >>> Epanechnikov(bandwidth=2.0)(1.0)
    tensor(0.7500, grad_fn=<ReluBackward0>)
    """

    def log(self, r: Tensor | float) -> Tensor:
        return _log_of_complement(self._relative(r).square())

    def forward(self, r: Tensor | float) -> Tensor:
        return torch.relu(1 - self._relative(r).square())


class Tricube(BandwidthKernel):
    """κ(r) = (1 − |r / h|³)³ for |r| ≤ h, otherwise 0 (Cleveland 1979).

    Args:
        bandwidth: h, the support, in units of r; a number, or (H,).

    Raises:
        InputError: the bandwidth is not positive and finite.

    >>> from nadaraya.kernels import Tricube
    >>> Tricube(bandwidth=2.0)(1.0)
    tensor(0.6699, grad_fn=<PowBackward0>)
    """

    def log(self, r: Tensor | float) -> Tensor:
        return 3 * _log_of_complement(self._relative(r).pow(3))

    def forward(self, r: Tensor | float) -> Tensor:
        return torch.relu(1 - self._relative(r).pow(3)).pow(3)


class Boxcar(BandwidthKernel):
    """κ(r) = 1 for |r| ≤ h, otherwise 0: the plain moving average.

    Its derivative with respect to the bandwidth is zero (and is reported as zero), so gradient descent
    does not move it.

    Args:
        bandwidth: h, the support, in units of r; a number, or (H,).

    Raises:
        InputError: the bandwidth is not positive and finite.

    >>> from nadaraya.kernels import Boxcar
    >>> Boxcar(bandwidth=2.0)(1.0)
    tensor(1., grad_fn=<MaskedFillBackward0>)
    """

    def log(self, r: Tensor | float) -> Tensor:
        u = self._relative(r)
        return (0 * u).masked_fill(u > 1, -torch.inf)

    def forward(self, r: Tensor | float) -> Tensor:
        u = self._relative(r)
        return (0 * u + 1).masked_fill(u > 1, 0.0)

    def _relative(self, r: Tensor | float) -> Tensor:
        u = super()._relative(r)
        # exp(log h) may fall a rounding short of h; a lag of exactly h belongs to the support.
        return u * (1 - 8 * torch.finfo(u.dtype).eps)


def _log_of_complement(power: Tensor) -> Tensor:
    outside = power >= 1
    # The inner fill keeps log1p away from where its derivative is infinite: 0 · ∞ would be NaN.
    return torch.log1p(-power.masked_fill(outside, 0.0)).masked_fill(outside, -torch.inf)
