"""Ratios of sums as attention: the Gaussian kernel on a GPU goes through `kernel_attention`."""

import numpy as np
import torch
from numpy.typing import NDArray

from nadaraya.attention.functional import kernel_attention
from nadaraya.kernels import Gaussian, GaussianWithoutHalf, Kernel
from nadaraya.regression.sums import PairSums

Array = NDArray[np.floating]


def gaussian_bandwidth(kernel: Kernel) -> float | None:
    """σ of a kernel exp(−r² / (2σ²)); None for another kernel."""
    if type(kernel) is Gaussian:
        return float(kernel.bandwidth.detach())
    if type(kernel) is GaussianWithoutHalf:
        return float(kernel.bandwidth.detach()) / 2**0.5
    return None


def ratio_sums(
    query: Array, points: Array, columns: Array, sigma: float, bandwidth: Array, device: torch.device
) -> PairSums:
    """Σ_j κ C_cj up to a factor of each query's own, which ratios of sums do not see.

    Queries are attention's queries, points its keys, columns its values: out = Σ κ C / Σ κ.

    Args:
        query: (m, d).
        points: (n, d).
        columns: (c, n).
        sigma: of the Gaussian.
        bandwidth: (d,) h.
        device: where to compute.

    Returns:
        Values, with log_scale 0.
    """
    scale = 1.0 / bandwidth
    # A query whose near points have no weight takes the far ones'; with them in, its sums would underflow.
    counted = columns[0] > 0
    q, x, value = (
        torch.tensor(
            array, dtype=torch.float32 if points.dtype == np.float32 else torch.float64, device=device
        )[None, None]
        for array in (query * scale, points[counted] * scale, columns[:, counted].T)
    )
    with torch.no_grad():
        out = kernel_attention(q, x, value, similarity="gaussian", bandwidth=sigma)[0, 0]
    d, c = points.shape[1], len(columns)
    return PairSums(
        out.double().cpu().numpy(), np.zeros((0, d, c)), np.zeros((0, d, d)), np.zeros(len(query))
    )
