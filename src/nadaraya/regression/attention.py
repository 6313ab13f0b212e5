"""Weighted means as attention: the Gaussian kernel on a GPU goes through `kernel_attention`."""

from typing import Any

import numpy as np
import torch

from nadaraya.attention.functional import kernel_attention
from nadaraya.kernels import Gaussian, GaussianWithoutHalf, Kernel
from nadaraya.regression.requests import Means, Request


def can_serve(request: Request[Any]) -> bool:
    """Whether these means are attention's: a Gaussian, one bandwidth for all queries, on a GPU."""
    on_gpu = request.device is not None and request.device.type == "cuda"
    plain = request.power == 1 and request.query_scale is None and not request.exclude_self
    return on_gpu and plain and _gaussian_bandwidth(request.kernel) is not None


def means(request: Request[Means]) -> Means:
    """Σ κ C / Σ κ C_0: queries are attention's queries, points its keys, columns its values."""
    # A query whose near points have no weight takes the far ones'; with them in, its sums would underflow.
    counted = request.columns[0] > 0
    dtype = torch.float32 if request.points.dtype == np.float32 else torch.float64
    sigma = _gaussian_bandwidth(request.kernel)
    assert sigma is not None
    scale = sigma * request.bandwidth  # taken out here: a kernel stores the logarithm of its σ in float32
    query, key, value = (
        torch.tensor(array, dtype=dtype, device=request.device)[None, None]
        for array in (request.query / scale, request.points[counted] / scale, request.columns[:, counted].T)
    )
    with torch.no_grad():
        out = kernel_attention(query, key, value, content=Gaussian(1.0))[0, 0]
    values = out.double().cpu().numpy()
    return Means(values[:, 1:] / values[:, :1], np.zeros(len(values), bool))


def _gaussian_bandwidth(kernel: Kernel) -> float | None:
    """σ of a kernel exp(−r² / (2σ²)); None for another kernel."""
    if type(kernel) is Gaussian:
        return float(kernel.bandwidth.detach())
    if type(kernel) is GaussianWithoutHalf:
        return float(kernel.bandwidth.detach()) / 2**0.5
    return None
