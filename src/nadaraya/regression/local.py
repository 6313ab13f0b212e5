"""From sums to local fits: a weighted mean (degree 0) or a weighted line (degree 1) at every query.

Either way the prediction is linear in the targets, f(x) = Σ_j L_j(x) y_j with the equivalent kernel
L_j(x) = s_j κ(x, x_j) / Z(x) · (a_0 + a · (x_j − x)), Z(x) = Σ_j s_j κ(x, x_j); (a_0, a) is Z times the first
row of the inverse of the moment matrix Σ_j s_j κ z zᵀ, z = (1, x_j − x), and (1,) for degree 0.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.requests import Array, Moments, Sums

# A line is level in directions in which its points vary less than this, relative to their squared offsets.
_SINGULAR = 1e-12
_UNDERFLOW = 1e-290  # a variance that has no reciprocal


@dataclass(frozen=True)
class LocalFit:
    """Fits at m queries.

    Attributes:
        mean: (m, p) predictions; the mean of the nearest points where every weight is zero.
        slope: (m, d, p) slopes of the lines; None for degree 0.
        row: (m, 1) or (m, 1 + d): a_0 and a.
        mass: (m,) Z, relative to exp of the sums' log_scale.
        log_mass: (m,) log Z; −inf where every weight is exactly zero.
    """

    mean: Array
    slope: Array | None
    row: Array
    mass: Array
    log_mass: Array

    @property
    def no_support(self) -> NDArray[np.bool_]:
        """(m,) where every weight is exactly zero."""
        result: NDArray[np.bool_] = np.isneginf(self.log_mass)
        return result

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
        return total * np.exp(log_factor)


def local_fit(sums: Sums, unit: Array) -> LocalFit:
    """Solves for every query; where no point has any weight at all, the mean is NaN.

    Args:
        sums: of s, s y_1, …, s y_p; their moments for local linear fits.
        unit: (d,) for each feature the difference that counts as one; lines that the points do not determine
            are the flattest in these units.
    """
    mass = sums.values[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        constant = sums.values[:, 1:] / mass[:, None]
        log_mass = sums.log_scale + np.log(mass)
    if not isinstance(sums, Moments):
        return LocalFit(constant, None, np.ones((len(mass), 1)), mass, log_mass)
    # Sums are of x − x_j; a line has offsets x_j − x, here about their local mean.
    share = 1.0 / np.where(mass > 0, mass, 1.0)
    offsets = -sums.first * share[:, None, None] / unit[:, None]
    centre, with_targets = offsets[:, :, 0], offsets[:, :, 1:]
    squares = sums.second * share[:, None, None] / (unit[:, None] * unit)
    inverse = pseudo_inverse(
        squares - centre[:, :, None] * centre[:, None], np.trace(squares, axis1=1, axis2=2)
    )
    inverse[sums.no_support] = 0.0
    slope = inverse @ (with_targets - centre[:, :, None] * constant[:, None])
    tilt = np.einsum("mde,me->md", inverse, centre)
    row = np.concatenate([1.0 + np.einsum("md,md->m", tilt, centre)[:, None], -tilt / unit], axis=1)
    mean = constant - np.einsum("md,mdp->mp", centre, slope)
    mean = np.where(sums.no_support[:, None], constant, mean)
    return LocalFit(mean, slope / unit[:, None], row, mass, log_mass)


def pseudo_inverse(covariance: Array, scale: Array) -> Array:
    """Inverses (m, d, d), zero along directions whose variance is rounding beside `scale` (m,)."""
    variances, directions = np.linalg.eigh(covariance)
    kept = variances > np.maximum(_SINGULAR * scale, _UNDERFLOW)[:, None]
    inverse = np.where(kept, 1.0 / np.where(kept, variances, 1.0), 0.0)
    result: Array = (directions * inverse[:, None, :]) @ directions.transpose(0, 2, 1)
    return result
