"""Who answers a request for sums over pairs: the first that can."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from nadaraya.regression import attention, mixed, torch_sums
from nadaraya.regression.requests import Array, Means, R, Request, Sums, joined

try:
    from nadaraya.regression.compiled import dispatch as compiled
except ImportError:  # numba is not installed: PyTorch gives the same sums
    compiled = None  # type: ignore[assignment]

# A compiled call uses all cores, and the simplest of numba's thread pools aborts if two threads enter it.
_ONE_AT_A_TIME = threading.Lock()
# Queries go in parts of so many pairs, some seconds each, where progress is reported.
_PAIRS_PER_REPORT = 5_000_000_000


def compute(request: Request[R], report: Callable[[str], None] | None = None) -> R:
    """The sums that a request asks for; O(n + m) memory.

    Computed by the first of these that can: `kernel_attention`, on a GPU, for means with the Gaussian kernel;
    sorted sums, O(n log n), in one dimension, for kernels that are polynomials or polynomials times
    exponentials; compiled loops on the CPU, which never visit pairs whose weight cannot count; blocks of
    queries in PyTorch, for every kernel and device. All agree to rounding.

    Args:
        request: what to sum.
        report: takes a line of progress now and then, if the queries are many.

    Returns:
        The answer, of the type `request.quantity`.
    """
    if request.factors is not None:
        return mixed.compute(request, lambda numbers: compute(numbers, report))
    request = replace(request, bandwidth=_representable(request))
    m, rows = len(request.query), max(1, _PAIRS_PER_REPORT // len(request.points))
    if report is None or request.query is request.points or m <= rows:
        return _answer(request)
    parts = []
    for start in range(0, m, rows):
        parts.append(_answer(request.part(slice(start, start + rows))))
        report(f"{min(m, start + rows):,} of {m:,} queries")
    return joined(parts)


def _answer(request: Request[Any]) -> Any:
    if request.quantity is Means:
        if attention.can_serve(request):
            return attention.means(request)
        sums = _answer(replace(request, quantity=Sums))
        return Means(sums.values[:, 1:] / sums.values[:, :1], sums.no_support)
    if compiled is not None and compiled.can_serve(request):
        with _ONE_AT_A_TIME:
            return compiled.compute(request)
    return torch_sums.compute(request)


def _representable(request: Request[Any]) -> Array:
    """Bandwidths under which squared distances do not overflow; smaller ones see the nearest point alone."""
    least = 1e-15 if request.points.dtype == np.float32 else 1e-150
    extent = np.abs(request.points).max(axis=0, initial=0.0)
    extent = np.maximum(extent, np.abs(request.query).max(axis=0, initial=0.0))
    return np.maximum(request.bandwidth, least * extent.astype(np.float64))
