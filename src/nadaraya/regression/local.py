"""From sums to local fits: a weighted mean (degree 0) or a weighted line (degree 1) at every query.

Either way the prediction is linear in the targets, f(x) = Σ_j L_j(x) y_j with
L_j(x) = s_j κ(x, x_j) / Z(x) · (a_0 + a · (x_j − x)), Z(x) = Σ_j s_j κ(x, x_j); (a_0, a) is Z times the first
row of the inverse of the moment matrix Σ_j s_j κ z zᵀ, z = (1, x_j − x), and (1,) for degree 0.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.sums import PairSums

Array = NDArray[np.floating]

# Directions in which the points near a query spread less than this, relative to the widest, get slope 0.
_SINGULAR = 1e-12


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
    def empty(self) -> NDArray[np.bool_]:
        """(m,) where every weight is exactly zero."""
        empty: NDArray[np.bool_] = np.isneginf(self.log_mass)
        return empty

    def combine(self, sums: PairSums) -> Array:
        """Σ_j L_j C_j, (m, c), from the sums of other columns for the same queries, kernel and bandwidth."""
        combined = self.row[:, :1] * sums.values
        if self.slope is not None:
            combined = combined - np.einsum("md,mdc->mc", self.row[:, 1:], sums.by_feature)
        return combined / self.mass[:, None]

    def combine_squares(self, sums: PairSums) -> Array:
        """Σ_j L_j² v_j, (m,), from sums of power 2 whose first column holds s² v; 0 where no weight is."""
        total: Array = self.row[:, 0] ** 2 * sums.values[:, 0]
        if self.slope is not None:
            a = self.row[:, 1:]
            total = total - 2 * self.row[:, 0] * np.einsum("md,md->m", a, sums.by_feature[:, :, 0])
            total = total + np.einsum("md,mde,me->m", a, sums.second, a)
        return total * np.exp(np.where(self.empty, -np.inf, sums.log_scale - 2 * self.log_mass))


def what_to_sum(degree: int) -> str:
    """The sums that a fit of this degree is made from."""
    return "moments" if degree else "values"


def local_fit(sums: PairSums, degree: int, bandwidth: Array) -> LocalFit:
    """Solves for every query.

    Args:
        sums: of s, s y_1, …, s y_p; "moments" for degree 1.
        degree: 0 or 1.
        bandwidth: (d,) h, to solve in units in which the moments compare.

    Returns:
        The fits; where no point has any weight at all, a mean of NaN.
    """
    empty = np.isneginf(sums.log_scale)
    mass = sums.values[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        constant = sums.values[:, 1:] / mass[:, None]
        log_mass = sums.log_scale + np.log(mass)
    if degree == 0:
        return LocalFit(constant, None, np.ones((len(mass), 1)), mass, log_mass)
    m, d = sums.by_feature.shape[:2]
    unit = np.where(np.isfinite(bandwidth), bandwidth, 1.0)
    offset = -sums.by_feature / unit[:, None]  # x_j − x, where the sums have x − x_j
    moments = np.empty((m, d + 1, d + 1))
    moments[:, 0, 0] = mass
    moments[:, 0, 1:] = moments[:, 1:, 0] = offset[:, :, 0]
    moments[:, 1:, 1:] = sums.second / (unit[:, None] * unit)
    moments[empty] = 0.0
    inverse = np.linalg.pinv(moments, rcond=_SINGULAR, hermitian=True)
    right = np.concatenate([sums.values[:, None, 1:], offset[:, :, 1:]], axis=1)
    solution = inverse @ right
    mean = np.where(empty[:, None], constant, solution[:, 0])
    row = inverse[:, 0] * mass[:, None]
    row[:, 1:] /= unit
    return LocalFit(mean, solution[:, 1:] / unit[:, None], row, mass, log_mass)
