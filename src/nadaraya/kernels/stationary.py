"""Smooth stationary kernels of a lag or a distance."""

import math
from typing import cast

import torch
from torch import Tensor

from nadaraya.errors import InputError, must_be, shown
from nadaraya.kernels.base import Kernel
from nadaraya.kernels.modal import Modes, harmonics
from nadaraya.kernels.parameters import Positive, describe, log_of_positive


class BandwidthKernel(Kernel):
    """A kernel whose one parameter is a bandwidth."""

    bandwidth = Positive()

    def __init__(self, bandwidth: float | Tensor) -> None:
        super().__init__(bandwidth=bandwidth)

    def _relative(self, r: Tensor | float) -> Tensor:
        """Lags in units of the bandwidth."""
        r = self.lags(r)
        return r / self.natural("bandwidth", r)


class Gaussian(BandwidthKernel):
    """κ(r) = exp(−r² / (2σ²)), the kernel of Gaussian kernel attention (Kundu et al. (2026), eq. 3).

    Positive definite in every dimension.

    Args:
        bandwidth: σ, in units of r; a number, or (H,).

    Raises:
        InputError: the bandwidth is not positive and finite.

    >>> from nadaraya.kernels import Gaussian
    >>> Gaussian(bandwidth=2.0)(2.0)
    tensor(0.6065, grad_fn=<ExpBackward0>)
    """

    def log(self, r: Tensor | float) -> Tensor:
        return -0.5 * self._relative(r).square()


class GaussianWithoutHalf(Gaussian):
    """κ(r) = exp(−(r / ℓ)²), the convention of Czyż (2024): the Gaussian of bandwidth σ = ℓ / √2.

    Positive definite in every dimension.

    Args:
        bandwidth: ℓ, in units of r; a number, or (H,).

    Raises:
        InputError: the bandwidth is not positive and finite.

    >>> from nadaraya.kernels import GaussianWithoutHalf
    >>> GaussianWithoutHalf(bandwidth=2.0)(2.0)
    tensor(0.3679, grad_fn=<ExpBackward0>)
    """

    def log(self, r: Tensor | float) -> Tensor:
        return 2 * super().log(r)


class ExponentialDecay(Kernel):
    """κ(r) = σ² exp(−|r| / l) (Bunks et al. (2025), eq. 4).

    Positive definite in every dimension.

    Args:
        length: l, in units of r; a number, or (H,).
        sigma: σ, a number, or (H,); κ(0) = σ². Default 1.

    Raises:
        InputError: length or sigma is not positive and finite, or they differ in the number of heads.

    >>> from nadaraya.kernels import ExponentialDecay
    >>> ExponentialDecay(length=10.0).log(5)
    tensor(-0.5000, grad_fn=<SubBackward0>)
    """

    length = Positive()
    sigma = Positive()

    def __init__(self, length: float | Tensor, sigma: float | Tensor = 1.0) -> None:
        super().__init__(length=length, sigma=sigma)

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        return 2 * self.aligned("log_sigma", r) - r / self.natural("length", r)

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        height = self._number("sigma", dtype).square()[:, None, None]
        return Modes(height, 1 / self._number("length", dtype)[:, None])


class Periodic(Kernel):
    """κ(r) = exp(−2 α² sin²(r / τ)), of period p = π τ (Bunks et al. (2025), eq. 3).

    Positive definite on the line (d = 1) only.

    Args:
        alpha: α, how far κ falls between its peaks (to exp(−2 α²)); a number, or (H,).
        tau: τ, the period divided by π, in units of r; a number, or (H,).
        period: p, in units of r (tokens, for lags), in place of tau; a number, or (H,).

    Raises:
        InputError: both tau and period are given, or neither; one is not positive and finite, or alpha has
            another number of heads.

    >>> from nadaraya.kernels import Periodic
    >>> Periodic(alpha=1.0, period=70.0)(140)
    tensor(1., grad_fn=<ExpBackward0>)
    >>> Periodic(alpha=1.0, tau=22.3)
    Periodic(alpha=1, period=70.06)
    """

    alpha = Positive()
    tau = Positive()

    def __init__(
        self,
        alpha: float | Tensor,
        tau: float | Tensor | None = None,
        *,
        period: float | Tensor | None = None,
    ) -> None:
        if (tau is None) == (period is None):
            given = f"tau={shown(tau)} and period={shown(period)}"
            raise InputError(f"Periodic needs either period or tau (the period divided by π), got {given}")
        if period is not None:
            log_of_positive("period", period)
            tau = torch.as_tensor(period) / math.pi
        super().__init__(alpha=alpha, tau=cast("Tensor", tau))

    @property
    def period(self) -> Tensor:
        """π τ, in units of r: () or (H,)."""
        return math.pi * cast("Tensor", self.tau)

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        return -2 * (self.natural("alpha", r) * torch.sin(r / self.natural("tau", r))).square()

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        alpha, tau = torch.broadcast_tensors(self._number("alpha", dtype), self._number("tau", dtype))
        if (found := harmonics(alpha, tau, tolerance)) is None:
            return None
        weights, frequency = found
        return Modes(weights[..., None], torch.zeros_like(frequency), frequency)

    def extra_repr(self) -> str:
        return f"alpha={describe(self.alpha)}, period={describe(self.period)}"


class RationalQuadratic(Kernel):
    """κ(r) = (1 + r² / (2 α l²))^(−α) (Rasmussen and Williams 2006, eq. 4.19).

    A mixture of Gaussians of many bandwidths; tends to the Gaussian of bandwidth l as α grows.
    Positive definite in every dimension.

    Args:
        length: l, in units of r; a number, or (H,).
        alpha: α, the smaller the heavier the tail; a number, or (H,).

    Raises:
        InputError: length or alpha is not positive and finite, or they differ in the number of heads.

    >>> from nadaraya.kernels import RationalQuadratic
    >>> RationalQuadratic(length=1.0, alpha=1.0)(1.0)
    tensor(0.6667, grad_fn=<ExpBackward0>)
    """

    length = Positive()
    alpha = Positive()

    def __init__(self, length: float | Tensor, alpha: float | Tensor) -> None:
        super().__init__(length=length, alpha=alpha)

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        alpha = self.natural("alpha", r)
        return -alpha * torch.log1p((r / self.natural("length", r)).square() / (2 * alpha))


class Matern(Kernel):
    """The Matérn kernel of smoothness ν = 1/2, 3/2 or 5/2 (Rasmussen and Williams 2006, eq. 4.17).

    With u = √(2ν) |r| / l: exp(−u), (1 + u) exp(−u) and (1 + u + u²/3) exp(−u).
    Positive definite in every dimension.

    Args:
        length: l, in units of r; a number, or (H,).
        nu: ν, 0.5, 1.5 or 2.5. Default 1.5.

    Raises:
        InputError: the length is not positive and finite, or nu is another number.

    >>> from nadaraya.kernels import Matern
    >>> Matern(length=2.0, nu=1.5)(1.0)
    tensor(0.7849, grad_fn=<ExpBackward0>)
    """

    settings = ("nu",)
    length = Positive()

    def __init__(self, length: float | Tensor, nu: float = 1.5) -> None:
        super().__init__(length=length)
        if nu not in (0.5, 1.5, 2.5):
            raise must_be("nu", "0.5, 1.5 or 2.5", nu)
        self.nu = nu

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        u = math.sqrt(2 * self.nu) * r / self.natural("length", r)
        if self.nu == 0.5:
            return -u
        polynomial = u if self.nu == 1.5 else u + u.square() / 3
        return torch.log1p(polynomial) - u

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        rate = math.sqrt(2 * self.nu) / self._number("length", dtype)[:, None]
        powers = [1.0, 1.0, 1 / 3][: round(self.nu + 0.5)]
        return Modes(torch.stack([c * rate**k for k, c in enumerate(powers)], -1), rate)
