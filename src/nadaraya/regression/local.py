"""From sums to local fits: a weighted mean (degree 0) or a weighted line (degree 1) at every query.

Either way the prediction is linear in the targets, f(x) = Σ_j L_j(x) y_j with the equivalent kernel
L_j(x) = s_j κ(x, x_j) / Z(x) · (a_0 + a · (x_j − x)), Z(x) = Σ_j s_j κ(x, x_j); (a_0, a) is Z times the first
row of the inverse of the moment matrix Σ_j s_j κ z zᵀ, z = (1, x_j − x), and (1,) for degree 0.

Where the points near a query hardly determine a line (in the gap beside an outlier one point outweighs all
others, and the line through it and the next would be drawn over many times their distance), the inverse of
the covariance matrix of the x_j is damped: see `DampedInverse`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    centre, with_targets, squares, per_unit = _about_query(sums)
    inverse = DampedInverse.of(squares - centre[:, :, None] * centre[:, None]).inverse
    inverse[sums.no_support] = 0.0
    slope = inverse @ (with_targets - centre[:, :, None] * constant[:, None])
    tilt = np.einsum("mde,me->md", inverse, centre)
    row = np.concatenate([1.0 + np.einsum("md,md->m", tilt, centre)[:, None], -tilt * per_unit], axis=1)
    mean = constant - np.einsum("md,mdp->mp", centre, slope)
    mean = np.where(sums.no_support[:, None], constant, mean)
    return LocalFit(mean, slope * per_unit[:, :, None], row, mass, log_mass)


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
    centre, _, squares, _ = _about_query(sums)
    least = np.linalg.eigvalsh(squares - centre[:, :, None] * centre[:, None])[:, 0]
    return (least < 6.0 * LEVEL) & ~sums.no_support


def damped_gradients(sums: Moments, of_targets: Array, of_weights: Array) -> Array:
    """Result of `Smoother.fit_with_gradients`, (m, e, 1 + p), times the mass; exact where damped, too.

    From derivatives of Σ_j κ s y z, (m, e, 1 + d, p), and of Σ_j κ s z zᵀ, (m, e, 1 + d, 1 + d).
    """
    mass = sums.values[:, :1]
    constant = sums.values[:, 1:] / mass
    centre, with_targets, squares, per_unit = _about_query(sums)
    covariance = squares - centre[:, :, None] * centre[:, None]
    with_targets_about = with_targets - centre[:, :, None] * constant[:, None]
    damped = DampedInverse.of(covariance)
    # Derivatives have an axis for the bandwidths before those of what they are of.
    of_targets, of_weights = of_targets / mass[:, :, None, None], of_weights / mass[:, :, None, None]
    d_log_mass = of_weights[:, :, 0, 0, None]
    d_constant = of_targets[:, :, 0] - constant[:, None] * d_log_mass
    d_squares = of_weights[:, :, 1:, 1:] * per_unit[:, None, :, None] * per_unit[:, None, None]
    d_squares -= squares[:, None] * d_log_mass[..., None]
    d_log_unit = -0.5 * np.einsum("medd->med", d_squares)
    d_squares += squares[:, None] * (d_log_unit[..., None] + d_log_unit[:, :, None])
    growth = d_log_unit - d_log_mass
    d_centre = of_weights[:, :, 0, 1:] * per_unit[:, None] + centre[:, None] * growth
    d_with = of_targets[:, :, 1:] * per_unit[:, None, :, None] + with_targets[:, None] * growth[..., None]
    d_with -= d_centre[..., None] * constant[:, None, None]
    d_with -= centre[:, None, :, None] * d_constant[:, :, None]
    outer = d_centre[..., None] * centre[:, None, None]
    d_inverse = damped.derivative(d_squares - outer - outer.swapaxes(-1, -2))
    slope, tilt = damped.inverse @ with_targets_about, np.einsum("mde,me->md", damped.inverse, centre)
    d_tilt = np.einsum("mefg,mg->mef", d_inverse, centre)
    d_mean = d_constant - np.einsum("med,mdp->mep", d_centre, slope)
    d_mean -= np.einsum("med,mdp->mep", d_tilt, with_targets_about) + np.einsum("md,medp->mep", tilt, d_with)
    row = 1.0 + np.einsum("md,md->m", tilt, centre)[:, None]
    d_row = 2.0 * np.einsum("med,md->me", d_centre, tilt) + np.einsum("med,md->me", d_tilt, centre)
    of_leverage = row * d_log_mass[..., 0] - d_row
    return np.concatenate([of_leverage[..., None], d_mean], axis=2) * mass[..., None]


def _about_query(sums: Moments) -> tuple[Array, Array, Array, Array]:
    """Means of offsets (m, d), of their products with the targets (m, d, p) and each other, and 1 / units."""
    mass = np.where(sums.values[:, 0] > 0, sums.values[:, 0], 1.0)  # whose reciprocal may overflow
    size = np.einsum("mdd->md", sums.second) / mass[:, None]
    per_unit = 1.0 / np.sqrt(np.where(size > TINY, size, 1.0))
    offsets = -sums.first / mass[:, None, None] * per_unit[:, :, None]
    squares = sums.second / mass[:, None, None] * per_unit[:, :, None] * per_unit[:, None]
    return offsets[:, :, 0], offsets[:, :, 1:], squares, per_unit


@dataclass(frozen=True)
class DampedInverse:
    r"""Inverses of covariance matrices, damped along directions of next to no variance.

    With eigenvalues λ in place of 1 / λ it has

        g(λ) = (1 − exp(−(λ / ε)²)) / λ,  ε = 10⁻⁴ for lines,

    a filter of the exponential kind (Engl, Hanke and Neubauer 1996, section 4.1): continuous, zero at λ = 0,
    and within 10⁻¹⁰ of 1 / λ from λ = 4.8 ε on. Matrices are in units in which the mean square of every
    feature about the query is 1.

    Attributes:
        inverse: (m, d, d).
        variances: (m, d) λ, ascending.
        directions: (m, d, d) eigenvectors, in columns.
        level: ε.
    """

    inverse: Array
    variances: Array
    directions: Array
    level: float

    @classmethod
    def of(cls, covariance: Array, level: float = LEVEL) -> "DampedInverse":
        """From matrices (m, d, d)."""
        variances, directions = np.linalg.eigh(covariance)
        variances = np.maximum(variances, 0.0)
        inverse = (directions * _damped(variances, level)[:, None, :]) @ directions.transpose(0, 2, 1)
        return cls(inverse, variances, directions, level)

    def derivative(self, change: Array) -> Array:
        """Derivatives (m, e, d, d) of the inverses, from those of the matrices (Daleckii and Krein 1965)."""
        into, back = self.directions[:, None], self.directions.transpose(0, 2, 1)[:, None]
        return into @ (self.slopes()[:, None] * (back @ change @ into)) @ back

    def slopes(self) -> Array:
        """(m, d, d) divided differences (g(λ_a) − g(λ_b)) / (λ_a − λ_b), g'(λ) on the diagonal."""
        a, b = self.variances[:, :, None], self.variances[:, None, :]
        near = np.abs(a - b) <= 1e-6 * np.maximum(np.maximum(a, b), self.level)
        middle = (a + b) / (2.0 * self.level)
        inner = np.maximum(middle, 1e-3)
        # Below 1e-3 the difference of the two terms would cancel.
        derivative = 2.0 * np.exp(-(inner**2)) + np.expm1(-(inner**2)) / inner**2
        derivative = np.where(middle < 1e-3, 1.0 - 1.5 * middle**2, derivative) / self.level**2
        difference = np.where(near, 1.0, a - b)
        return np.where(near, derivative, (_damped(a, self.level) - _damped(b, self.level)) / difference)


def _damped(variances: Array, level: float) -> Array:
    ratio = np.minimum(variances / level, 1e3)  # beyond it exp(−ratio²) is zero
    return np.divide(-np.expm1(-(ratio**2)), variances, out=np.zeros_like(variances), where=variances > 0)
