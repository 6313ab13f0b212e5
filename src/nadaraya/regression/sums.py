"""Dispatch of requests for sums over pairs: the first way that can serve one."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from nadaraya.attention.functional import kernel_attention
from nadaraya.errors import InputError
from nadaraya.kernels import Gaussian, GaussianWithoutHalf, Kernel
from nadaraya.regression import mixed, torch_sums
from nadaraya.regression.requests import BandwidthGradients, LineGradients, Means, R, Request, Sums, joined

_LOG = logging.getLogger("nadaraya.regression")
# A compiled call uses all cores, and the simplest of numba's thread pools aborts if two threads enter it.
_ONE_AT_A_TIME = threading.Lock()
# Queries go in parts of so many pairs, some seconds each, where progress is reported.
_PAIRS_PER_REPORT = 5_000_000_000
# Work, in pairs times numbers held for each, that is sooner done by PyTorch than compiled code is loaded from
# the cache on disk (under a second), or is compiled (about 20 s): some tenths of a second, and some seconds.
_WORTH_LOADING = 3e7
_WORTH_COMPILING = 5e8
# Evaluations of a criterion that the first one announces.
_EVALUATIONS = 50


class _Work:
    """Work that PyTorch has done in the place of compiled code in this process."""

    done = 0.0


def warm_up() -> None:
    """Compiles the sums over pairs ahead of time: a minute or two, once per machine.

    Without it a process uses PyTorch until that has taken some seconds, or a fit announces as much, and then
    compiles what it needs, which it says in the log `nadaraya.regression`. What is compiled is kept on disk,
    in the package's folder or, where that cannot be written, in the user's cache folder; numba's environment
    variable NUMBA_CACHE_DIR names another, for the images of containers, say.

    Raises:
        InputError: numba is not installed.

    See Also:
        NadarayaWatson: whose sums these are.

    >>> from nadaraya.regression import warm_up
    >>> warm_up()  # doctest: +SKIP
    """
    if not _numba_is_installed():
        raise InputError("warm_up needs numba: pip install 'nadaraya[regression]'")
    from nadaraya.regression.compiled import dispatch

    with _ONE_AT_A_TIME:
        dispatch.compile_all()


def compute(request: Request[R], report: Callable[[str], None] | None = None) -> R:
    """The sums that a request asks for, in O(n + m) memory; `report` takes lines of progress.

    By the first of these that can: `kernel_attention`, on a GPU, for means with the Gaussian kernel;
    sorted sums, O(n log n), in one dimension, for kernels that are polynomials or polynomials times
    exponentials; on the CPU, Fourier transforms on a grid of at most 2²⁶ cells, where these are faster, for
    the Gaussian in two and three dimensions; compiled loops, which never visit pairs whose weight cannot
    count; blocks of queries in PyTorch, for every kernel and device. All agree to rounding, the transforms to
    1e-9 of the root mean square of the targets, 1e-5 in float32.

    As long as a process has asked for little, PyTorch also does what compiled loops could: loading them takes
    longer, and compiling them, where no earlier process has left them on disk, much longer.
    """
    request = request.representable()
    if request.quantity is Means and not is_attention(request):
        asked: Any = request
        sums: Sums = compute(replace(asked, quantity=Sums), report)
        means: Any = Means(sums.values[:, 1:] / sums.values[:, :1], sums.no_support)
        return means
    if request.factors is not None:
        return mixed.compute(request, lambda part: compute(part, report))
    m, rows = len(request.query), max(1, _PAIRS_PER_REPORT // len(request.points))
    if report is not None and m > rows and _numba_is_installed():
        from nadaraya.regression.compiled import dispatch

        rows = rows if dispatch.grid_of(request) is None else m  # by parts each would spread all points again
    if report is None or request.query is request.points or m <= rows:
        return _answer(request)
    parts = []
    for start in range(0, m, rows):
        parts.append(_answer(request.part(slice(start, start + rows))))
        report(f"{min(m, start + rows):,} of {m:,} queries")
    return joined(parts)


def _answer(request: Request[Any]) -> Any:
    if request.quantity is Means:
        return attention_means(request)
    compiled = _compiled_for(request)
    if compiled is None:
        return torch_sums.compute(request)
    with _ONE_AT_A_TIME:
        return compiled.compute(request)


def _compiled_for(request: Request[Any]) -> Any:
    """The module of compiled sums, if it can serve the request and is worth waiting for; None otherwise."""
    work = float(len(request.query)) * len(request.points) * torch_sums.numbers_per_pair(request)
    is_search = request.quantity in (BandwidthGradients, LineGradients)
    expected = max(_Work.done / 4, work * _EVALUATIONS if is_search else work)
    _Work.done += work
    if expected < _WORTH_LOADING or not _numba_is_installed():
        return None
    from nadaraya.regression.compiled import dispatch

    if not dispatch.can_serve(request):
        return None
    if dispatch.is_ready(request):
        return dispatch
    if expected < _WORTH_COMPILING:
        return None
    _LOG.warning(
        "compiling sums over pairs for this machine: up to a minute, once; "
        "nadaraya.regression.warm_up() does it ahead of time"
    )
    return dispatch


@cache
def _numba_is_installed() -> bool:
    return find_spec("numba") is not None


def is_attention(request: Request[Any]) -> bool:
    """Return whether these means are attention's: a Gaussian, one bandwidth for all queries, on a GPU."""
    on_gpu = request.device is not None and request.device.type == "cuda"
    plain = request.power == 1 and not request.exclude_self
    plain = plain and request.query_scale is None and request.factors is None
    return on_gpu and plain and _gaussian_bandwidth(request.kernel) is not None


def attention_means(request: Request[Means]) -> Means:
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
