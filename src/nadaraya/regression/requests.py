"""Requests for sums over pairs of queries and points, and their answers.

With weights s_j, values y_j and κ_ij = κ(‖(q_i − x_j) / h‖), Nadaraya-Watson regression is Σ κ s y / Σ κ s, a
density is Σ κ s, local linear regression solves with Σ κ s Δ Δᵀ, and their derivatives are sums as well.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from nadaraya.kernels import Kernel
from nadaraya.regression.categories import Factors

Array = NDArray[np.floating]
R = TypeVar("R", bound="Sums | Means")


class Lines(NamedTuple):
    """Local lines, whose derivatives are asked for: a (m, 1 + d) and β (m, 1 + d, c − 1) of `local`."""

    row: Array
    coefficients: Array


@dataclass(frozen=True)
class Request(Generic[R]):
    """Sums over all points for every query."""

    quantity: type[R]  # what is summed, the type of the answer
    query: Array  # (m, d), float32 or float64; with exclude_self the array `points` itself
    # (n, d), of the same type, their coordinates small in size against their differences (centred)
    points: Array
    # (c, n); columns[0] are the weights of the points, in [0, 1], and where they are zero so are the others
    columns: Array
    kernel: Kernel  # κ(r)
    bandwidth: Array  # (d,) h, in units of the features; inf for a feature that plays no part
    power: int = 1  # 2 for κ² in the place of κ, in Sums and Moments
    query_scale: Array | None = None  # (m,) the bandwidth of each query relative to h; None for 1
    exclude_self: bool = False  # leave-one-out: query i does not see point i
    lines: Lines | None = None  # of LineGradients
    device: torch.device | None = None  # where PyTorch computes; None for the fastest way on the CPU
    # of the categories beside these features, which then are numbers alone; None for none. Derivatives by
    # bandwidth have (m, d + K, c), those by the categories' scales at the end.
    factors: Factors | None = None

    def part(self, rows: slice) -> Self:
        """The request for some of the queries (not with exclude_self, nor with lines)."""
        scale = None if self.query_scale is None else self.query_scale[rows]
        factors = None if self.factors is None else replace(self.factors, query=self.factors.query[rows])
        return replace(self, query=self.query[rows], query_scale=scale, factors=factors)

    def representable(self) -> "Request[R]":
        """With bandwidths whose squared distances do not overflow: below, only the nearest point counts."""
        least = 1e-15 if self.points.dtype == np.float32 else 1e-150
        extent = np.abs(self.points).max(axis=0, initial=0.0)
        extent = np.maximum(extent, np.abs(self.query).max(axis=0, initial=0.0))
        return replace(self, bandwidth=np.maximum(self.bandwidth, least * extent.astype(np.float64)))


@dataclass(frozen=True)
class Sums:
    """Σ_j κ C_cj, float64; like all sums here to be multiplied by exp(log_scale)."""

    values: Array  # (m, c)
    # (m,) finite where a point has weight; −inf where every weight is exactly zero, and the sums are then
    # those of the nearest points alone, each with weight 1
    log_scale: Array

    @property
    def no_support(self) -> NDArray[np.bool_]:
        """(m,) where every weight is exactly zero."""
        return np.isneginf(self.log_scale)


@dataclass(frozen=True)
class Gradients(Sums):
    """Sums with gradients (m, d, c), each kind of which has a type."""

    gradients: Array


class BandwidthGradients(Gradients):
    """∂/∂log h_f."""


class PositionGradients(Gradients):
    """∂/∂q_f."""


class LineGradients(Gradients):
    """Σ_j ∂κ/∂log h_f (a · z) (C_cj − C_0j β_c · z), z = (1, x_j − q); the last is C_0j (a · z) for c = 0."""


@dataclass(frozen=True)
class Moments(Sums):
    """Sums with first (m, d, c), Σ_j κ (q_f − x_jf) C_cj, and second (m, d, d), Σ_j κ Δ_f Δ_g C_0j."""

    first: Array
    second: Array


@dataclass(frozen=True)
class Means:
    """Weighted means Σ_j κ C_cj / Σ_j κ C_0j: values (m, c − 1), and no_support (m,) as in `Sums`."""

    values: Array
    no_support: NDArray[np.bool_]


def joined(parts: list[R]) -> R:
    """The answer for all queries from those for some of them, in order."""
    names = [field.name for field in fields(parts[0])]
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return type(parts[0])(**arrays)
