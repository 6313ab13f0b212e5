"""From what the user says of the bandwidth to numbers: given, by a rule of thumb, or selected."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nadaraya.errors import unknown_name
from nadaraya.kernels import Kernel
from nadaraya.regression import mixed_bandwidth
from nadaraya.regression.checks import given_bandwidth
from nadaraya.regression.criteria import SCORES, Criterion, regression_criterion
from nadaraya.regression.differentiable import DifferentiableCriterion
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import RULES
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
    """The bandwidths (d,) as given or by a rule of thumb, Scott's where a criterion is yet to choose.

    Raises:
        InputError: the bandwidth is neither positive nor the name of a rule or of one of the criteria.
    """
    if not isinstance(bandwidth, str):
        if sample.categories:
            return mixed_bandwidth.given(bandwidth, sample)
        return given_bandwidth(bandwidth, sample.x.shape[1])
    if bandwidth not in (*criteria, *RULES):
        raise unknown_name("bandwidth, if it is no number,", bandwidth, (*criteria, *RULES))
    return mixed_bandwidth.of_rule(bandwidth if bandwidth in RULES else "scott", sample, kernel)


def select_bandwidth(name: str, criterion: Criterion, smoother: Smoother, search: Search) -> Selected:
    """The smoother with the best bandwidths, and how they were found; as it is if no feature varies."""
    varies = np.isfinite(smoother.bandwidth)
    if not varies.any():
        return smoother, None
    stage = Stage(_of_varying(criterion, varies), len(smoother.sample.x))
    return _selected(name, [stage], smoother, search)


def select_in_stages(name: str, smoother: Smoother, targets: Array, search: Search) -> Selected:
    """As `select_bandwidth` by a criterion of regressions: first on some of the points, then on more.

    Args:
        name: of the criterion.
        smoother: with the first bandwidths.
        targets: (n, p), less their means.
        search: how the optimiser goes about it.
    """
    varies = np.isfinite(smoother.bandwidth)
    if not varies.any():
        return smoother, None
    counted = np.flatnonzero(smoother.sample.counts > 0)
    sizes = _sizes(len(counted), int(varies.sum()), search.size)
    order = search.generator.permutation(counted) if sizes[0] < len(counted) else counted
    stages = []
    for size in sizes:
        rows = order[:size]
        part = smoother if size == len(counted) else _part(smoother, rows)
        part_targets = targets if part is smoother else _less_their_means(targets[rows], part.sample.counts)
        if smoother.degree > 1:
            whole: Criterion = DifferentiableCriterion(name, part, part_targets, True, trains_kernel=False)
        else:
            whole = regression_criterion(name, part, part_targets)
        criterion = _of_varying(whole, varies)
        widening = (len(counted) / size) ** (1.0 / (varies.sum() + 4.0))
        stages.append(Stage(criterion, size, widening))
    return _selected(name, stages, smoother, search)


def _sizes(n: int, d: int, greatest: int | None) -> list[int]:
    """Numbers of points of the stages, ascending; the last is n, or the greatest that is wanted.

    On a line there is one stage: little is searched, and some of the points do not show a short period.
    """
    last = n if greatest is None else min(n, greatest)
    if d == 1:
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


def _less_their_means(targets: Array, weight: Array) -> Array:
    return targets - np.average(targets, axis=0, weights=weight)


def select_for_regression(
    bandwidth: Any, smoother: Smoother, targets: Array, fit_kernel: bool, search: Search
) -> Selected:
    """The smoother of a regression with the bandwidths and the kernel that the user wants selected.

    Args:
        bandwidth: the user's, which may be the name of a criterion.
        smoother: with the first bandwidths.
        targets: (n, p), less their means.
        fit_kernel: whether to choose the kernel's parameters too.
        search: how the optimiser goes about it.
    """
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
    varies = np.isfinite(smoother.bandwidth)
    if not varies.any():
        return smoother, None
    kernel = smoother.kernel
    logs = nn.utils.parameters_to_vector(kernel.parameters()).detach().numpy()
    criterion: Criterion = DifferentiableCriterion(name, smoother, targets, selects_bandwidth)
    start = np.exp(logs)
    if selects_bandwidth:
        criterion = _of_varying(criterion, varies, len(logs))
        start = np.concatenate([smoother.bandwidth[varies], start])
    stage = Stage(criterion, len(smoother.sample.x))
    selection = select(name, [stage], start, replace(search, keep_first=True))
    best = selection.starts[0].end
    nn.utils.vector_to_parameters(torch.tensor(np.log(best[len(best) - len(logs) :])), kernel.parameters())
    if not selects_bandwidth:
        return smoother, selection
    return _with_bandwidth(smoother, best[: int(varies.sum())]), selection


def _of_varying(criterion: Criterion, varies: NDArray[np.bool_], others: int = 0) -> Criterion:
    """The criterion of the features that vary (and `others` after them); the rest have h = ∞."""
    moves = np.append(varies, np.ones(others, bool))

    def restricted(arguments: Array, with_gradient: bool = True, /) -> tuple[float, Array]:
        full = np.full(len(moves), np.inf)
        full[moves] = arguments
        value, gradient = criterion(full, with_gradient)
        return value, gradient[moves]

    return restricted


def _selected(name: str, stages: list[Stage], smoother: Smoother, search: Search) -> Selected:
    selection = select(name, stages, smoother.bandwidth[np.isfinite(smoother.bandwidth)], search)
    return _with_bandwidth(smoother, selection.starts[0].end), selection


def _with_bandwidth(smoother: Smoother, of_varying: Array) -> Smoother:
    bandwidth = smoother.bandwidth.copy()
    bandwidth[np.isfinite(bandwidth)] = of_varying
    return replace(smoother, bandwidth=bandwidth)
