"""What the regression benchmark computes: the data, ours, the rivals, and brute force to check them by.

Rivals are imported where they are called, so that a process that only runs ours holds nothing of theirs.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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
Call = Callable[[], Any]

OURS = "nadaraya"
STATSMODELS = "statsmodels KernelReg, cv_ls"
# Entries of a block of chunked PyTorch; four times more or fewer change its time by less than a tenth.
_BLOCK = 2**21
# Bandwidth of the sums in one dimension, in standard deviations of x.
LINE_BANDWIDTH = 0.01
# κ(r), written once more for the check.
KAPPA: dict[str, Callable[[Array], Array]] = {
    "gaussian": lambda r: np.exp(-0.5 * r**2),
    "exponential": lambda r: np.exp(-r),
    "matern32": lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    "epanechnikov": lambda r: np.maximum(1 - r**2, 0),
    "tricube": lambda r: np.maximum(1 - r**3, 0) ** 3,
    "boxcar": lambda r: (r <= 1).astype(float),
}


@dataclass(frozen=True)
class Sizes:
    """Numbers of points and of queries.

    Of bandwidth selection in two (and its rounds at least), three and twenty dimensions, of queries and
    points in three, of both on the line and on a GPU; and how many queries are checked by brute force.
    """

    selection: int = 1_000
    selections: int = 5
    large: int = 16_000
    wide: int = 2_000
    queries: int = 100_000
    points: int = 100_000
    line: int = 1_000_000
    gpu: int = 1_000_000
    checked: int = 200
    first: tuple[tuple[int, int], ...] = ((300, 2), (1_000, 1), (1_000, 2), (4_000, 2))


QUICK = Sizes(
    first=((40, 1),),
    selection=60,
    selections=1,
    large=80,
    wide=60,
    queries=200,
    points=300,
    line=2_000,
    gpu=2_000,
    checked=20,
)


class Data(NamedTuple):
    """Points (n, d), targets (n,) and queries (m, d)."""

    x: Array
    y: Array
    queries: Array

    def first(self, count: int) -> "Data":
        """A few of all."""
        return Data(*(np.ascontiguousarray(array[:count]) for array in self))

    def tensors(self, device: str) -> list[Tensor]:
        """The same on a device."""
        return [torch.from_numpy(array).to(device) for array in self]


def normal(n: int, d: int, dtype: str = "float64", num_queries: int = 0) -> Data:
    """Points and queries standard normal, targets a curve and noise."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((n, d))
    y = np.sin(2 * x[:, 0]) + 0.5 * (x[:, 1:] ** 2).sum(axis=1) + 0.3 * generator.standard_normal(n)
    queries = generator.standard_normal((num_queries, d))
    return Data(x.astype(dtype), y.astype(dtype), queries.astype(dtype))


def three_dimensional_bandwidths(points: int) -> dict[str, float]:
    """Scott's rule for points of unit variance, and a bandwidth at which every pair of points counts."""
    return {"Scott's rule": points ** (-1 / 7), "1 standard deviation": 1.0}


def brute_force(data: Data, rows: NDArray[np.int64], bandwidth: float, kernel: str) -> Array:
    """f(queries[rows]) in float64, one by one; the nearest point's target where no point has weight."""
    x, y, queries = (array.astype(np.float64) for array in data)
    result = np.empty(len(rows))
    for place, query in enumerate(queries[rows]):
        r = np.sqrt(((query - x) ** 2).sum(axis=1)) / bandwidth
        weights = KAPPA[kernel](r)
        total = weights.sum()
        result[place] = weights @ y / total if total > 0 else y[r.argmin()]
    return result


def select(data: Data, n_starts: int = 7, criterion: str = "loo") -> Array:
    """Our bandwidth for every feature by the leave-one-out error or corrected AIC ("aic")."""
    return NadarayaWatson(bandwidth=criterion, n_starts=n_starts).fit(data.x, data.y).bandwidth_


def select_statsmodels(data: Data) -> Array:
    """The same model and criterion by statsmodels."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own use of pandas
        return KernelReg(data.y, data.x, var_type="c" * data.x.shape[1], reg_type="lc", bw="cv_ls").bw


def ours(data: Data, bandwidth: float, device: str = "cpu") -> Call:
    """Prediction of a fitted NadarayaWatson with a Gaussian."""
    model = NadarayaWatson(bandwidth=bandwidth, device=None if device == "cpu" else device)
    model.fit(data.x, data.y)
    return lambda: model.predict(data.queries)


def chunked_products(data: Data, bandwidth: float, device: str = "cpu") -> Call:
    """PyTorch in blocks of queries: −r²/2 is one product of lengthened vectors, exp and sums go in place."""
    points, targets, q = data.tensors(device)

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


def chunked_cdist(data: Data, bandwidth: float, device: str = "cpu") -> Call:
    """PyTorch in blocks of queries, from distances by direct differences."""
    points, targets, q = data.tensors(device)
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


def keops(data: Data, bandwidth: float, device: str = "cpu") -> Call:
    """KeOps, whose compiled reduction visits every pair."""
    from pykeops.torch import LazyTensor

    points, targets, q = data.tensors(device)
    length = 2**0.5 * bandwidth  # κ is exp(−‖Δ / length‖²), without a further product per pair
    points_j = LazyTensor((points / length)[None].contiguous())
    values = torch.stack([torch.ones_like(targets), targets], 1)

    def predict() -> Array:
        difference = LazyTensor((q / length)[:, None].contiguous()) - points_j
        sums = (-(difference**2).sum(-1)).exp() @ values
        return (sums[:, 1] / sums[:, 0]).cpu().numpy()

    return predict


PREDICTORS = {
    OURS: ours,
    "PyTorch, matrix products": chunked_products,
    "PyTorch, cdist": chunked_cdist,
    "KeOps": keops,
}


def predict_on_line(data: Data, kernel: str) -> Array:
    """Ours in one dimension, fit and prediction."""
    return (
        NadarayaWatson(kernel, LINE_BANDWIDTH * float(data.x.std())).fit(data.x, data.y).predict(data.queries)
    )


def score_on_line(data: Data, kernel: str) -> tuple[float, Array]:
    """One evaluation of what `bandwidth='loo'` minimises, with its derivative."""
    smoother = Smoother(Sample.of(data.x, np.ones(len(data.x))), fixed_kernel(kernel), np.ones(1))
    bandwidth = np.array([LINE_BANDWIDTH * data.x.std()])
    return regression_criterion("loo", smoother, data.y[:, None])(np.log(bandwidth))


def memory_cases(sizes: Sizes) -> dict[str, Call]:
    """Every use of ours whose memory is measured, by name; data are made inside, and count."""

    def prediction(dtype: str) -> Array:
        data = normal(sizes.points, 3, dtype, sizes.queries)
        return ours(data, three_dimensional_bandwidths(sizes.points)["Scott's rule"])()

    cases: dict[str, Call] = {"selection": lambda: select(normal(sizes.selection, 2), n_starts=7)}
    for dtype in ("float32", "float64"):
        cases[f"prediction, {dtype}"] = partial(prediction, dtype)
    for kernel in KAPPA:
        cases[f"line, {kernel}, prediction"] = lambda kernel=kernel: predict_on_line(
            normal(sizes.line, 1, num_queries=sizes.line), kernel
        )
        cases[f"line, {kernel}, leave-one-out score"] = lambda kernel=kernel: score_on_line(
            normal(sizes.line, 1), kernel
        )
    return cases
