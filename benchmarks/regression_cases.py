"""What the regression benchmark computes: the data, ours, the rivals, and brute force to check them by.

Rivals are imported where they are called, so that a process that only runs ours holds nothing of theirs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nadaraya.regression import NadarayaWatson
from nadaraya.regression.checks import fixed_kernel
from nadaraya.regression.criteria import regression_criterion
from nadaraya.regression.sample import Sample
from nadaraya.regression.smoother import Smoother

Array = NDArray[np.floating]
Predict = Callable[[], Array]

OURS = "nadaraya"
PRODUCT, CDIST, KEOPS = "PyTorch, matrix products", "PyTorch, cdist", "KeOps"
STATSMODELS = "statsmodels KernelReg, cv_ls"
# Entries of a block of chunked PyTorch; four times more or fewer change its time by less than a tenth.
_BLOCK = 2**21
# Bandwidth of the sums in one dimension, in standard deviations of x.
LINE_BANDWIDTH = 0.01
LINE_KERNELS = ("gaussian", "exponential", "matern32", "epanechnikov", "tricube", "boxcar")
# κ(r), written once more for the check.
_KAPPA: dict[str, Callable[[Array], Array]] = {
    "gaussian": lambda r: np.exp(-0.5 * r**2),
    "exponential": lambda r: np.exp(-r),
    "matern32": lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    "epanechnikov": lambda r: np.maximum(1 - r**2, 0),
    "tricube": lambda r: np.maximum(1 - r**3, 0) ** 3,
    "boxcar": lambda r: (r <= 1).astype(float),
}


@dataclass(frozen=True)
class Sizes:
    """Numbers of points: of bandwidth selection, of queries and points in three dimensions, of both on the
    line and on a GPU; and how many queries are checked by brute force."""

    selection: int = 1_000
    queries: int = 100_000
    points: int = 100_000
    line: int = 1_000_000
    gpu: int = 1_000_000
    checked: int = 200


QUICK = Sizes(selection=60, queries=200, points=300, line=2_000, gpu=2_000, checked=20)


def normal_points(n: int, d: int, dtype: str = "float64", num_queries: int = 0) -> tuple[Array, Array, Array]:
    """Points (n, d) and queries (num_queries, d), standard normal, and targets (n,): a curve and noise."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((n, d))
    y = np.sin(2 * x[:, 0]) + 0.5 * (x[:, 1:] ** 2).sum(axis=1) + 0.3 * generator.standard_normal(n)
    queries = generator.standard_normal((num_queries, d))
    return x.astype(dtype), y.astype(dtype), queries.astype(dtype)


def three_dimensional_bandwidths(points: int) -> dict[str, float]:
    """Scott's rule for points of unit variance, and a bandwidth at which every pair of points counts."""
    return {"Scott's rule": points ** (-1 / 7), "1 standard deviation": 1.0}


def brute_force(x: Array, y: Array, queries: Array, bandwidth: float, kernel: str = "gaussian") -> Array:
    """f(queries) in float64, a query at a time; the nearest point's target where no point has weight."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    result = np.empty(len(queries))
    for place, query in enumerate(queries.astype(np.float64)):
        r = np.sqrt(((query - x) ** 2).sum(axis=1)) / bandwidth
        weights = _KAPPA[kernel](r)
        total = weights.sum()
        result[place] = weights @ y / total if total > 0 else y[r.argmin()]
    return result


def select(x: Array, y: Array, n_starts: int) -> NadarayaWatson:
    """Ours with a bandwidth a feature by the leave-one-out error."""
    return NadarayaWatson(bandwidth="loo", n_starts=n_starts).fit(x, y)


def select_statsmodels(x: Array, y: Array) -> Any:
    """The same model and criterion by statsmodels."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    return KernelReg(y, x, var_type="c" * x.shape[1], reg_type="lc", bw="cv_ls")


def ours(x: Array, y: Array, queries: Array, bandwidth: float, device: str = "cpu") -> Predict:
    """Prediction of a fitted NadarayaWatson with a Gaussian."""
    model = NadarayaWatson(bandwidth=bandwidth, device=None if device == "cpu" else device).fit(x, y)
    return lambda: model.predict(queries)


def chunked_products(x: Array, y: Array, queries: Array, bandwidth: float, device: str = "cpu") -> Predict:
    """PyTorch in blocks of queries: −r²/2 is one product of lengthened vectors, exp and sums go in place."""
    points, targets, q = (torch.from_numpy(array).to(device) for array in (x, y, queries))

    def lengthened(z: Tensor, square_at: int) -> Tensor:
        extra = [torch.ones_like(z[:, :1])] * 2
        extra[square_at] = -0.5 * z.square().sum(1, keepdim=True)
        return torch.cat([z, *extra], 1)

    keys = lengthened(points / bandwidth, 0).T.contiguous()
    values = torch.stack([torch.ones_like(targets), targets], 1)
    rows, least = max(1, _BLOCK // len(points)), _least_exponent(q)

    def predict() -> Array:
        lengthened_queries = lengthened(q / bandwidth, 1)
        buffer, sums = q.new_empty(rows, len(points)), q.new_empty(len(q), 2)
        for block, result in zip(lengthened_queries.split(rows), sums.split(rows), strict=True):
            weights = buffer[: len(block)]
            torch.mm(block, keys, out=weights)
            torch.mm(weights.clamp_(min=least).exp_(), values, out=result)
        return (sums[:, 1] / sums[:, 0]).cpu().numpy()

    return predict


def chunked_cdist(x: Array, y: Array, queries: Array, bandwidth: float, device: str = "cpu") -> Predict:
    """PyTorch in blocks of queries, from distances by direct differences."""
    points, targets, q = (torch.from_numpy(array).to(device) for array in (x, y, queries))
    scaled = points / bandwidth
    values = torch.stack([torch.ones_like(targets), targets], 1)
    rows, least = max(1, _BLOCK // len(points)), _least_exponent(q)

    def predict() -> Array:
        sums = q.new_empty(len(q), 2)
        for block, result in zip((q / bandwidth).split(rows), sums.split(rows), strict=True):
            r = torch.cdist(block, scaled, compute_mode="donot_use_mm_for_euclid_dist")
            torch.mm(r.square_().mul_(-0.5).clamp_(min=least).exp_(), values, out=result)
        return (sums[:, 1] / sums[:, 0]).cpu().numpy()

    return predict


def _least_exponent(like: Tensor) -> float:
    """Below exp of this, weights times targets can be denormal numbers, which slow a CPU several times."""
    return math.log(torch.finfo(like.dtype).tiny * 2**24)


def keops(x: Array, y: Array, queries: Array, bandwidth: float, device: str = "cpu") -> Predict:
    """KeOps, whose compiled reduction visits every pair."""
    from pykeops.torch import LazyTensor

    points, targets, q = (torch.from_numpy(array).to(device) for array in (x, y, queries))
    length = 2**0.5 * bandwidth  # κ is exp(−‖Δ / length‖²), without a further product a pair
    points_j = LazyTensor((points / length)[None].contiguous())
    values = torch.stack([torch.ones_like(targets), targets], 1)

    def predict() -> Array:
        difference = LazyTensor((q / length)[:, None].contiguous()) - points_j
        sums = (-(difference**2).sum(-1)).exp() @ values
        return (sums[:, 1] / sums[:, 0]).cpu().numpy()

    return predict


PREDICTORS = {OURS: ours, PRODUCT: chunked_products, CDIST: chunked_cdist, KEOPS: keops}


def predict_on_line(x: Array, y: Array, queries: Array, kernel: str) -> Array:
    """Ours in one dimension, fit and prediction."""
    return NadarayaWatson(kernel, LINE_BANDWIDTH * float(x.std())).fit(x, y).predict(queries)


def score_on_line(x: Array, y: Array, kernel: str) -> tuple[float, Array]:
    """One evaluation of what `bandwidth='loo'` minimises, with its derivative."""
    bandwidth = np.array([LINE_BANDWIDTH * x.std()])
    smoother = Smoother(Sample.of(x, np.ones(len(x))), fixed_kernel(kernel), np.ones(x.shape[1]))
    return regression_criterion("loo", smoother, y[:, None])(np.log(bandwidth))


def memory_cases(sizes: Sizes) -> dict[str, Callable[[], object]]:
    """Every use of ours whose memory is measured, by name; data are made inside, and count."""

    def selection() -> object:
        x, y, _ = normal_points(sizes.selection, 2)
        return select(x, y, n_starts=3)

    def prediction(dtype: str) -> object:
        x, y, queries = normal_points(sizes.points, 3, dtype, sizes.queries)
        return ours(x, y, queries, three_dimensional_bandwidths(sizes.points)["Scott's rule"])()

    def line(kernel: str) -> object:
        x, y, queries = normal_points(sizes.line, 1, num_queries=sizes.line)
        return predict_on_line(x, y, queries, kernel)

    def line_score(kernel: str) -> object:
        x, y, _ = normal_points(sizes.line, 1)
        return score_on_line(x, y, kernel)

    cases: dict[str, Callable[[], object]] = {"selection": selection}
    for dtype in ("float32", "float64"):
        cases[f"prediction, {dtype}"] = lambda dtype=dtype: prediction(dtype)
    for kernel in LINE_KERNELS:
        cases[f"line, {kernel}, prediction"] = lambda kernel=kernel: line(kernel)
        cases[f"line, {kernel}, leave-one-out score"] = lambda kernel=kernel: line_score(kernel)
    return cases
