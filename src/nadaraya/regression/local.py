"""From sums to local fits: a weighted mean (degree 0) or a weighted line (degree 1) at every query.

Either way the prediction is linear in the targets, f(x) = Σ_j L_j(x) y_j with the equivalent kernel
L_j(x) = s_j κ(x, x_j) / Z(x) · (a_0 + a · (x_j − x)), Z(x) = Σ_j s_j κ(x, x_j); (a_0, a) is Z times the first
row of the inverse of the moment matrix Σ_j s_j κ z zᵀ, z = (1, x_j − x), and (1,) for degree 0.

Where the points near a query hardly determine a line (in the gap beside an outlier one point outweighs all
others, and the line through it and the next would be drawn over many times their distance), the inverse of
the covariance matrix of the x_j is damped: see `damped_inverse`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nadaraya.errors import InputError
from nadaraya.regression.requests import Array, Moments, Sums

# A line levels off where the variance of its points falls below this part of their mean squared offset from
# the query: where it would be drawn over a hundred of their standard deviations.
LEVEL = 1e-4
# Squares and higher powers of points that determine them vary far less: those of a quartic about the edge of
# even points by 2e-5.
LEVEL_OF_POLYNOMIALS = 1e-8
EMPTY = ("nearest", "mean", "nan", "raise")  # predictions where every weight is exactly zero
# Mean squares that are no unit of length: all weight lies on points that coincide with the query.
TINY = 1e-200


@dataclass(frozen=True)
class LocalFit:
    """Fits at m queries."""

    mean: Array  # (m, p) predictions; the mean of the nearest points where every weight is zero
    slope: Array | None  # (m, d, p) slopes of the lines; None for degree 0
    row: Array  # (m, 1) or (m, 1 + d): a_0 and a
    mass: Array  # (m,) Z, relative to exp of the sums' log_scale
    log_mass: Array  # (m,) log Z; −inf where every weight is exactly zero

    @property
    def no_support(self) -> NDArray[np.bool_]:
        """(m,) where every weight is exactly zero."""
        return np.isneginf(self.log_mass)

    def combine(self, sums: Sums) -> Array:
        """Σ_j L_j C_j, (m, c), from the sums of other columns for the same queries, kernel and bandwidth."""
        combined = self.row[:, :1] * sums.values
        if isinstance(sums, Moments):
            combined = combined - np.einsum("md,mdc->mc", self.row[:, 1:], sums.first)
        return combined / self.mass[:, None]

    def combine_squares(self, sums: Sums) -> Array:
        """Σ_j L_j² v_j, (m,), from sums of power 2 whose first column holds s² v; 0 where no weight is."""
        total: Array = self.row[:, 0] ** 2 * sums.values[:, 0]
        if isinstance(sums, Moments):
            a = self.row[:, 1:]
            total = total - 2 * self.row[:, 0] * np.einsum("md,md->m", a, sums.first[:, :, 0])
            total = total + np.einsum("md,mde,me->m", a, sums.second, a)
        known = ~self.no_support
        log_factor = np.full(len(known), -np.inf)
        log_factor[known] = sums.log_scale[known] - 2 * self.log_mass[known]
        root = np.exp(0.25 * log_factor)  # the factor itself may overflow
        return total * root * root * root * root


def local_fit(sums: Sums) -> LocalFit:
    """Fits at every query, from sums or moments of s, s y_1, …; NaN where no point has any weight."""
    mass = sums.values[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        constant = sums.values[:, 1:] / mass[:, None]
        log_mass = sums.log_scale + np.log(mass)
    if not isinstance(sums, Moments):
        return LocalFit(constant, None, np.ones((len(mass), 1)), mass, log_mass)
    mean, slope, row = (part.numpy() for part in _line(*_moments(sums)))
    slope[sums.no_support] = 0.0
    row[sums.no_support] = np.eye(1, row.shape[1])
    return LocalFit(np.where(sums.no_support[:, None], constant, mean), slope, row, mass, log_mass)


def filled(mean: Array, no_support: NDArray[np.bool_], empty: str, of_all: Array) -> Array:
    """Predictions (m, p), with what `empty` asks for where every weight is zero; `of_all` (p,) are means."""
    unknown = np.isnan(mean).any(axis=1)  # no point has any weight: leave-one-out of the only one
    mean[unknown] = of_all
    no_support = no_support | unknown
    if no_support.any() and empty == "raise":
        raise InputError(
            f"{int(no_support.sum())} of {len(mean)} queries have no point within the kernel's support: "
            "give a larger bandwidth, a kernel without compact support, or empty='nearest', 'mean', 'nan'"
        )
    if empty in ("mean", "nan"):
        mean[no_support] = of_all if empty == "mean" else np.nan
    return mean


def is_damped(sums: Moments) -> NDArray[np.bool_]:
    """(m,) where the damping of the inverse counts, so that the line is not that of least squares."""
    least = torch.linalg.eigvalsh(_about_query(*_moments(sums))[2])[:, 0].numpy()
    return (least < 6.0 * LEVEL) & ~sums.no_support


def damped_gradients(sums: Moments, of_moments: Array, of_squares: Array) -> Array:
    """Result of `Smoother.fit_with_gradients`, (m, e, 1 + p), times the mass; exact where damped, too.

    From derivatives of Σ_j κ C z, (m, e, 1 + d, 1 + p), and of Σ_j κ s Δ Δᵀ, (m, e, d, d).
    """
    mass = sums.values[:, :1, None]
    changes = [torch.from_numpy(array / mass[..., None]) for array in (of_moments, of_squares)]
    moments = [part.requires_grad_() for part in _moments(sums)]
    mean, _, row = _line(*moments)
    leverage = row[:, :1].detach() * (moments[0][:, 0, :1] / row[:, :1]).log()
    gradients = []
    for output in torch.cat([leverage, mean], dim=1).T:
        slopes = torch.autograd.grad(output.sum(), moments, retain_graph=True)
        parts = [torch.einsum("mab,meab->me", *each) for each in zip(slopes, changes, strict=True)]
        gradients.append(parts[0] + parts[1])
    return torch.stack(gradients, dim=2).numpy() * mass


def _moments(sums: Moments) -> tuple[Tensor, Tensor]:
    """Σ_j κ C z, (m, 1 + d, 1 + p), and Σ_j κ s Δ Δᵀ, (m, d, d), over the mass."""
    mass = np.where(sums.values[:, 0] > 0, sums.values[:, 0], 1.0)[:, None, None]  # its inverse may overflow
    moments = np.concatenate([sums.values[:, None], -sums.first], axis=1) / mass
    moments[:, 0, 0] = 1.0
    return torch.from_numpy(moments), torch.from_numpy(sums.second / mass)


def _about_query(moments: Tensor, squares: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means of offsets (m, d, 1) and of their products with targets (m, d, p), covariances, and 1 / units."""
    mass = moments[:, :1, :1]
    size = squares.diagonal(dim1=1, dim2=2)[..., None] / mass
    per_unit = torch.where(size > TINY, size, 1.0).rsqrt()  # (m, d, 1)
    offsets = moments[:, 1:] / mass * per_unit
    centre = offsets[..., :1]
    return centre, offsets[..., 1:], squares / mass * per_unit * per_unit.mT - centre * centre.mT, per_unit


def _line(moments: Tensor, squares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, the slope and the row of `LocalFit`."""
    centre, with_targets, covariance, per_unit = _about_query(moments, squares)
    constant = moments[:, :1, 1:] / moments[:, :1, :1]
    inverse = damped_inverse(covariance)
    slope, tilt = inverse @ (with_targets - centre * constant), inverse @ centre
    row = torch.cat([1.0 + centre.mT @ tilt, -tilt * per_unit], dim=1)
    return (constant - centre.mT @ slope)[:, 0], slope * per_unit, row[..., 0]


def damped_inverse(covariance: Tensor, level: float = LEVEL) -> Tensor:
    r"""Inverses of covariance matrices (m, d, d), damped along directions of next to no variance.

    With eigenvalues λ in place of 1 / λ they have

        g(λ) = (1 − exp(−(λ / ε)²)) / λ,  ε = level,

    a filter of the exponential kind (Engl, Hanke and Neubauer 1996, section 4.1): continuous, zero at λ = 0,
    and within 10⁻¹⁰ of 1 / λ from λ = 4.8 ε on. Matrices are in units in which the mean square of every
    feature about the query is 1.
    """
    found = torch.linalg.eigh(covariance.detach().cpu())
    variances, directions = found[0].to(covariance).clamp_min(0.0), found[1].to(covariance)
    ratio = (variances / level).clamp_max(1e3)  # beyond it exp(−ratio²) is zero
    damped = torch.where(variances > 0, -torch.expm1(-(ratio**2)) / variances, 0.0)
    inverse = (directions * damped[:, None]) @ directions.mT
    if not covariance.requires_grad:
        return inverse
    # (g(λ_a) − g(λ_b)) / (λ_a − λ_b), g'(λ) on the diagonal (Daleckii and Krein 1965).
    a, b = variances[:, :, None], variances[:, None]
    middle = (a + b) / (2.0 * level)
    square = middle.clamp_min(1e-3) ** 2
    # Below 1e-3 the difference of the two terms would cancel.
    slopes = 2.0 * torch.exp(-square) + torch.expm1(-square) / square
    slopes = torch.where(middle < 1e-3, 1.0 - 1.5 * middle**2, slopes) / level**2
    near = (a - b).abs() <= 1e-6 * torch.maximum(a, b).clamp_min(level)
    slopes = torch.where(near, slopes, (damped[:, :, None] - damped[:, None]) / (a - b))
    # Adds zero, with the derivative of the inverse.
    change = directions.mT @ (covariance - covariance.detach()) @ directions
    return inverse + directions @ (slopes * change) @ directions.mT
