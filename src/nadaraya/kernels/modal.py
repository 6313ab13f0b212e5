"""Kernels of a lag that are finite sums of damped modes, which a recurrence of constant state computes."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_SAMPLES = 128  # of one period; harmonics up to half as many


@dataclass(frozen=True)
class Modes:
    """G(r) = Σ_p (Σ_k c_pk r^k) exp(−δ_p r) cos(ω_p r) for lags r ≥ 0.

    Sums of such kernels are sums of modes, and products of two modes are one or two modes.
    """

    coefficients: Tensor  # c, (H or 1, P, K)
    rate: Tensor  # δ ≥ 0 in 1/token, (H or 1, P)
    frequency: Tensor | None = None  # ω in radians/token, of the same shape; None where no mode oscillates

    @property
    def num_states(self) -> int:
        """Numbers that a recurrence keeps in place of all earlier tokens, for each feature and channel."""
        _, modes, powers = self.coefficients.shape
        return modes * powers * (1 if self.frequency is None else 2)

    @property
    def _waves(self) -> Tensor:
        """The frequencies, 0 where no mode oscillates."""
        return torch.zeros_like(self.rate) if self.frequency is None else self.frequency

    def at(self, r: Tensor) -> Tensor:
        """G at lags r ≥ 0 (L,), (H or 1, L)."""
        powers = r[:, None] ** torch.arange(self.coefficients.shape[2], device=r.device)
        waves = torch.exp(-self.rate[..., None] * r)
        if self.frequency is not None:
            waves = waves * torch.cos(self.frequency[..., None] * r)
        return torch.einsum("hpk,lk,hpl->hl", self.coefficients, powers, waves)

    def __add__(self, other: "Modes") -> "Modes":
        both = (self, other)
        heads = max(len(modes.rate) for modes in both)
        powers = max(modes.coefficients.shape[2] for modes in both)
        padded = [F.pad(each.coefficients, (0, powers - each.coefficients.shape[2])) for each in both]
        coefficients = torch.cat([each.expand(heads, -1, -1) for each in padded], 1)
        rate = torch.cat([each.rate.expand(heads, -1) for each in both], 1)
        if self.frequency is None and other.frequency is None:
            return Modes(coefficients, rate)
        return Modes(coefficients, rate, torch.cat([each._waves.expand(heads, -1) for each in both], 1))

    def __mul__(self, other: "Modes") -> "Modes":
        rate = (self.rate[:, :, None] + other.rate[:, None]).flatten(1)
        first, second = self.coefficients.shape[2], other.coefficients.shape[2]
        pairs = self.coefficients[:, :, None, :, None] * other.coefficients[:, None, :, None, :]
        pairs = pairs.flatten(1, 2)
        powers = [
            sum(pairs[:, :, k, total - k] for k in range(first) if 0 <= total - k < second)
            for total in range(first + second - 1)
        ]
        coefficients = torch.stack([torch.as_tensor(each) for each in powers], 2)
        if self.frequency is None and other.frequency is None:
            return Modes(coefficients, rate)
        higher = (self._waves[:, :, None] + other._waves[:, None]).flatten(1)
        if self.frequency is None or other.frequency is None:
            return Modes(coefficients, rate, higher)
        lower = (self._waves[:, :, None] - other._waves[:, None]).flatten(1)
        halves = torch.cat([coefficients / 2, coefficients / 2], 1)
        return Modes(halves, torch.cat([rate, rate], 1), torch.cat([higher, lower], 1))

    def scaled(self, factor: Tensor) -> "Modes":
        """The modes of c G for a factor c, (H or 1,)."""
        return Modes(self.coefficients * factor.reshape(-1, 1, 1), self.rate, self.frequency)

    def by_head(self, copies: int) -> "Modes":
        """The sum of every head's copies, where the batch is of H · copies kernels."""

        def merged(tensor: Tensor) -> Tensor:
            return tensor.unflatten(0, (-1, copies)).flatten(1, 2)

        frequency = None if self.frequency is None else merged(self.frequency)
        return Modes(merged(self.coefficients), merged(self.rate), frequency)


def harmonics(alpha: Tensor, tau: Tensor, tolerance: float) -> tuple[Tensor, Tensor] | None:
    """The cosines that a periodic kernel is the sum of: exp(−2 α² sin²(r / τ)) = Σ_n w_n cos(2 n r / τ).

    By Jacobi and Anger w_n = (2 − δ_n0) exp(−α²) I_n(α²), I_n the modified Bessel functions, which fall
    faster than any power of n; they are the Fourier coefficients of samples of one period. The harmonics
    left out sum up to `tolerance` at most.

    For α and τ (…,) these are w and 2 n / τ, (…, harmonics), as many as the largest α needs; None where that
    is more than can be had, or in a compiled call, where their number cannot be looked at.
    """
    if torch.compiler.is_compiling():
        return None
    angle = torch.arange(_SAMPLES, device=alpha.device, dtype=alpha.dtype) * (2 * math.pi / _SAMPLES)
    period = torch.exp(alpha[..., None].square() * (torch.cos(angle) - 1))
    weights = torch.fft.rfft(period).real / _SAMPLES
    weights = torch.cat([weights[..., :1], 2 * weights[..., 1:-1]], -1)
    beyond = weights.detach().abs().flatten(0, -2).flip(-1).cumsum(-1).flip(-1).amax(0)
    kept = int((beyond > max(tolerance, 8 * torch.finfo(alpha.dtype).eps)).sum())
    if kept == weights.shape[-1]:
        return None
    number = torch.arange(kept, device=tau.device, dtype=tau.dtype)
    return weights[..., :kept], 2 * number / tau[..., None]
