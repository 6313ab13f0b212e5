"""Sums over pairs of queries and points, which every estimator here is made of, and who computes them.

With weights s_j, values y_j and κ_ij = κ(‖(q_i − x_j) / h‖), Nadaraya-Watson regression is Σ κ s y / Σ κ s, a
density is Σ κ s, local linear regression solves with Σ κ s Δ Δᵀ, and their derivatives are sums as well.
"""

import threading
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nadaraya.kernels import Kernel

Array = NDArray[np.floating]

# A compiled call uses all cores, and the simplest of numba's thread pools aborts if two threads enter it.
_ONE_AT_A_TIME = threading.Lock()


class PairSums(NamedTuple):
    """Sums over the points for every query, float64; each is to be multiplied by exp(log_scale).

    Attributes:
        values: (m, c) Σ_j κ C_cj.
        by_feature: (m, d, c) for "bandwidth" ∂/∂log h_f of the same, for "position" ∂/∂q_f of the same, for
            "moments" Σ_j κ (q_f − x_jf) C_cj, for "lines" Σ_j ∂κ/∂log h_f (a · z) (C_cj − C_0j β_c · z) with
            z = (1, x_j − q), or (a · z) C_0j in the place of that bracket for c = 0; empty for "values".
        second: (m, d, d) for "moments" Σ_j κ (q_f − x_jf) (q_g − x_jg) C_0j; empty otherwise.
        log_scale: (m,) finite where a point has weight; −inf where every weight is exactly zero, and the sums
            are then those of the nearest points alone, each with weight 1.
    """

    values: Array
    by_feature: Array
    second: Array
    log_scale: Array


def pair_sums(
    query: Array,
    points: Array,
    columns: Array,
    kernel: Kernel,
    bandwidth: Array,
    *,
    what: str = "values",
    power: int = 1,
    query_scale: Array | None = None,
    exclude_self: bool = False,
    ratios: bool = False,
    lines: tuple[Array, Array] | None = None,
    device: torch.device | None = None,
) -> PairSums:
    """Sums over all pairs; O(n + m) memory.

    Computed by the first of these that can: `kernel_attention`, on a GPU, for ratios of sums with the
    Gaussian kernel; sorted sums, O(n log n), in one dimension, for kernels that are polynomials or
    polynomials times exponentials; compiled loops on the CPU, which never visit pairs whose
    weight cannot count; blocks of queries in PyTorch, for every kernel and device. All agree to rounding.

    Args:
        query: (m, d), float32 or float64; with exclude_self the array `points` itself.
        points: (n, d), of the same type, their coordinates small in size against their differences (centred).
        columns: (c, n); columns[0] are the weights of the points, in [0, 1], and where they are zero so are
            the others.
        kernel: κ(r).
        bandwidth: (d,) h, in units of the features; inf for a feature that plays no part.
        what: "values"; "bandwidth" or "position", with derivatives; "moments", for local lines; "lines", for
            the derivatives of local lines.
        power: 2 for κ² in the place of κ (not with derivatives).
        query_scale: (m,) the bandwidth of each query relative to h; default 1.
        exclude_self: leave-one-out: query i does not see point i.
        ratios: only ratios of a query's sums matter; log_scale then says no more than where it is −inf.
        lines: for "lines" a (m, 1 + d) and β (m, 1 + d, c − 1).
        device: where PyTorch computes; default the CPU.

    Returns:
        The sums.
    """
    from nadaraya.regression import attention, blocked

    bandwidth = _representable(bandwidth, query, points)
    sigma = attention.gaussian_bandwidth(kernel)
    plain = what == "values" and power == 1 and query_scale is None and not exclude_self
    if device is not None and device.type == "cuda" and ratios and plain and sigma is not None:
        return attention.ratio_sums(query, points, columns, sigma, bandwidth, device)
    if device is None or device.type == "cpu":
        try:
            from nadaraya.regression.compiled import dispatch
        except ImportError:  # numba is not installed: PyTorch's blocks give the same sums
            pass
        else:
            with _ONE_AT_A_TIME:
                sums = dispatch.pair_sums(
                    query, points, columns, kernel, bandwidth, what, power, query_scale, exclude_self, lines
                )
            if sums is not None:
                return sums
    return blocked.pair_sums(
        query,
        points,
        columns,
        kernel,
        bandwidth,
        what=what,
        power=power,
        query_scale=query_scale,
        exclude_self=exclude_self,
        lines=lines,
        device=device or torch.device("cpu"),
    )


def _representable(bandwidth: Array, query: Array, points: Array) -> Array:
    """Bandwidths under which squared distances do not overflow; smaller ones see the nearest point alone."""
    least = 1e-15 if points.dtype == np.float32 else 1e-150
    extent = np.abs(points).max(axis=0, initial=0.0)
    extent = np.maximum(extent, np.abs(query).max(axis=0, initial=0.0))
    return np.maximum(bandwidth, least * extent.astype(np.float64))
