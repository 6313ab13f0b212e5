"""From what the user says of the bandwidth to numbers: given, by a rule of thumb, or selected."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nadaraya.errors import check_name, must_be
from nadaraya.kernels import Kernel
from nadaraya.regression.categories import Category, numeric_columns
from nadaraya.regression.checks import given_bandwidth, numbers, positive_numbers
from nadaraya.regression.criteria import SCORES, Criterion, DifferentiableCriterion, regression_criterion
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import RULES, rule_of_thumb
from nadaraya.regression.sample import Sample
from nadaraya.regression.selection import Search, Selection, Stage, select
from nadaraya.regression.smoother import Smoother

# AIC_c divides by n − 2 − tr L, and the trace is at least 1.
_LEAST_FOR_AIC = 3
# Points of the first stage of a search, by feature and at most; how many times as many a later stage has.
_POINTS_BY_FEATURE, _FIRST_STAGE, _GROWTH = 125, 500, 5

Selected = tuple[Smoother, Selection | None]


def first_bandwidth(
    bandwidth: Any, sample: Sample, kernel: Kernel, criteria: tuple[str, ...]
) -> NDArray[np.float64]:
    """(d + K,) h and scales b of the K categories, λ̃ = exp(−1 / b), as given or by a rule of thumb.

    The rule is Scott's where a criterion is yet to choose; for categories λ̃ = n^(−2 / (d + 4)), as h² (Li and
    Racine 2003).
    """
    if not isinstance(bandwidth, str):
        return _given(bandwidth, sample)
    check_name("bandwidth, if it is no number,", bandwidth, (*criteria, *RULES))
    rule = bandwidth if bandwidth in RULES else "scott"
    x = np.where(sample.missing, np.nan, sample.x) if sample.categories else sample.x
    return np.append(rule_of_thumb(rule, x, sample.counts, kernel), _first_scales(sample))


def for_users(bandwidth: Array, sample: Sample) -> NDArray[np.float64]:
    """One entry per feature, h or λ, from h and scales; then λ of missing or not for numbers that may be."""
    f = sample.x.shape[1]
    smoothing = [
        category.smoothing(float(scale))
        for category, scale in zip(sample.categories, bandwidth[f:], strict=True)
    ]
    result = np.empty(len(bandwidth))
    result[_places(sample.categories, f)] = [*bandwidth[:f], *smoothing]
    return result


def select_bandwidth(name: str, criterion: Criterion, smoother: Smoother, search: Search) -> Selected:
    """The smoother with the best bandwidths, and how they were found; as it is if no feature varies."""
    return _selected(name, [Stage(criterion, len(smoother.sample.x))], smoother, search)


def select_in_stages(
    name: str, smoother: Smoother, targets: Array, search: Search, one_unit: bool = False
) -> Selected:
    """As `select_bandwidth` by a criterion of regressions of targets (n, p): on ever more points."""
    d, counted = int(np.isfinite(smoother.bandwidth).sum()), np.flatnonzero(smoother.sample.counts > 0)
    sizes = _sizes(len(counted), d, search.size)
    order = search.generator.permutation(counted) if sizes[0] < len(counted) else counted
    stages = []
    for size in sizes:
        part, of_part = smoother, targets
        if size < len(counted):
            part, of_part = _part(smoother, order[:size]), targets[order[:size]]
            of_part = of_part - np.average(of_part, axis=0, weights=part.sample.counts)
        if smoother.degree > 1:
            criterion: Criterion = DifferentiableCriterion(name, part, of_part, trains_kernel=False)
        else:
            criterion = regression_criterion(name, part, of_part, one_unit)
        stages.append(Stage(criterion, size, (len(counted) / size) ** (1.0 / (d + 4.0))))
    return _selected(name, stages, smoother, search)


def select_for_regression(
    bandwidth: Any, smoother: Smoother, targets: Array, fit_kernel: bool, search: Search
) -> Selected:
    """The smoother of a regression with the bandwidths and the kernel that the user wants selected."""
    selects = isinstance(bandwidth, str) and bandwidth in SCORES
    if not (selects or fit_kernel):
        return smoother, None
    name = bandwidth if selects else "loo"
    if name == "aic" and (smoother.sample.counts > 0).sum() <= _LEAST_FOR_AIC:
        return smoother, None
    if fit_kernel:
        return _select_with_kernel(name, smoother, targets, selects, search)
    return select_in_stages(name, smoother, targets, search)


def _select_with_kernel(
    name: str, smoother: Smoother, targets: Array, selects_bandwidth: bool, search: Search
) -> Selected:
    """Selects the kernel's parameters, and with them the bandwidths if wanted."""
    varies, kernel = np.isfinite(smoother.bandwidth), smoother.kernel
    if not varies.any():
        return smoother, None
    logs = nn.utils.parameters_to_vector(kernel.parameters()).detach().numpy()
    values = np.append(smoother.bandwidth, np.exp(logs))
    moves = np.append(varies & selects_bandwidth, np.ones(len(logs), bool))
    criterion = _restricted(
        DifferentiableCriterion(name, smoother, targets, selects_bandwidth), values, moves
    )
    stage = Stage(criterion, len(smoother.sample.x))
    selection = select(name, [stage], values[moves], replace(search, keep_first=True))
    values[moves] = selection.starts[0].end
    bandwidth, parameters = np.split(values, [len(varies)])
    nn.utils.vector_to_parameters(torch.tensor(np.log(parameters)), kernel.parameters())
    return replace(smoother, bandwidth=bandwidth), selection


def _sizes(n: int, d: int, greatest: int | None) -> list[int]:
    """Numbers of points of the stages, ascending; the last is n, or the greatest that is wanted.

    On a line there is one stage: little is searched, and some of the points do not show a short period.
    """
    last = n if greatest is None else min(n, greatest)
    if d <= 1:
        return [last]
    sizes, size = [], min(_POINTS_BY_FEATURE * d, _FIRST_STAGE)
    while 2 * size <= last:
        sizes.append(size)
        size *= _GROWTH
    return [*sizes, last]


def _part(smoother: Smoother, rows: NDArray[np.int64]) -> Smoother:
    """The smoother of some of the points."""
    sample, neighbours = smoother.sample, copy.copy(smoother.neighbours)
    counts = sample.counts[rows]
    counts = counts * (len(rows) / counts.sum())
    part = replace(sample, x=sample.x[rows], codes=sample.codes[rows], counts=counts)
    if neighbours is not None:
        neighbours.of_points = neighbours.of_points[rows]
    return replace(smoother, sample=part, neighbours=neighbours)


def _selected(name: str, stages: list[Stage], smoother: Smoother, search: Search) -> Selected:
    bandwidth = smoother.bandwidth.copy()
    varies = np.isfinite(bandwidth)
    if not varies.any():
        return smoother, None
    stages = [replace(stage, criterion=_restricted(stage.criterion, bandwidth, varies)) for stage in stages]
    selection = select(name, stages, bandwidth[varies], search)
    bandwidth[varies] = selection.starts[0].end
    return replace(smoother, bandwidth=bandwidth), selection


def _restricted(criterion: Criterion, values: Array, moves: NDArray[np.bool_]) -> Criterion:
    """The criterion as a function of the logarithms of some of these values, the others as they are."""
    at = np.log(values)

    def restricted(arguments: Array, with_gradient: bool = True, /) -> tuple[float, Array]:
        full = at.copy()
        full[moves] = arguments
        value, gradient = criterion(full, with_gradient)
        return value, gradient[moves]

    return restricted


def _given(bandwidth: Any, sample: Sample) -> NDArray[np.float64]:
    if not sample.categories:
        return given_bandwidth(bandwidth, sample.x.shape[1])
    values, categories = numbers("bandwidth", bandwidth), sample.categories
    f = sample.x.shape[1]
    num_features, size = f + sum(category.number is None for category in categories), f + len(categories)
    if values.shape in ((), (1,)) and f in (0, num_features):
        values = np.broadcast_to(values, (num_features,))
    if values.shape not in ((num_features,), (size,)):
        shapes = f"({num_features},)" if num_features == size else f"({num_features},) or ({size},)"
        raise must_be("shape of bandwidth", f"{shapes}, one per feature: a λ for each category", values.shape)
    place = _places(categories, f)
    result = np.append(np.zeros(f), _first_scales(sample))
    result[:f] = positive_numbers("bandwidth", values[place[:f]])
    for k, category in enumerate(categories):
        if place[f + k] < len(values):
            result[f + k] = category.scale(float(values[place[f + k]]))
    return result


def _places(categories: Sequence[Category], num_numbers: int) -> NDArray[np.intp]:
    """Indices of the user's bandwidths for the entries of a smoother."""
    d = num_numbers + sum(category.number is None for category in categories)
    numeric = numeric_columns(categories, d)
    others = [category.column if category.number is None else d + category.number for category in categories]
    return np.array([*numeric, *others], np.intp)


def _first_scales(sample: Sample) -> NDArray[np.float64]:
    """(K,) those of the rule of thumb; inf for features of one level."""
    n = max(2.0, float(sample.counts.sum()))
    first = (sample.x.shape[1] + 4) / (2 * np.log(n))
    return np.array([first if category.num_levels > 1 else np.inf for category in sample.categories])
