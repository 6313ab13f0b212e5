"""From what the user says of the bandwidth to numbers: given, by a rule of thumb, or selected."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nadaraya.errors import InputError
from nadaraya.kernels import Kernel
from nadaraya.regression.checks import given_bandwidth
from nadaraya.regression.criteria import Criterion, Regression, corrected_aic, loo_error
from nadaraya.regression.differentiable import DifferentiableCriterion
from nadaraya.regression.rules import RULES, check_rule, rule_of_thumb
from nadaraya.regression.sample import Sample
from nadaraya.regression.selection import Selection, select

Array = NDArray[np.floating]

# AIC_c divides by n − 2 − tr L, and the trace is at least 1.
_LEAST_FOR_AIC = 3

_CRITERIA = {"loo": loo_error, "aic": corrected_aic}


@dataclass(frozen=True)
class Search:
    """How the optimiser goes about it: runs, generator of starts beyond the third, who hears of progress."""

    n_starts: int
    generator: np.random.RandomState
    report: Callable[[str], None]


def choose_bandwidth(
    bandwidth: Any, regression: Regression, fit_kernel: bool, search: Search
) -> tuple[NDArray[np.float64], Selection | None]:
    """The bandwidths (d,) of a regression and how they were selected, None where they were not.

    With `fit_kernel` the parameters of the regression's kernel are chosen too, and set in place.

    Raises:
        InputError: the bandwidth is neither positive nor a known name, or the weights do not allow the
            choice.
    """
    sample, weight, kernel = regression.sample, regression.weight, regression.kernel
    selects = isinstance(bandwidth, str) and bandwidth in _CRITERIA
    if selects and bandwidth == "aic":
        _check_weights_for_aic(weight)
    first = _given_or_by_rule(bandwidth, tuple(_CRITERIA), sample, weight, kernel)
    criterion = str(bandwidth) if selects else "loo"
    too_few = criterion == "aic" and weight.sum() <= _LEAST_FOR_AIC
    if too_few or not (selects or fit_kernel) or not np.isfinite(first).any():
        return first, None
    if fit_kernel:
        return _select_with_kernel(criterion, regression, first, selects, search)
    return _select(criterion, _CRITERIA[criterion](regression), first, search)


def select_or_rule(
    bandwidth: Any,
    name: str,
    criterion: Callable[[], Criterion],
    sample: Sample,
    weight: Array,
    kernel: Kernel,
    search: Search,
) -> tuple[NDArray[np.float64], Selection | None]:
    """The bandwidths (d,), selected by a criterion if it is asked for by name, else given or by a rule.

    Raises:
        InputError: the bandwidth is neither positive nor a known name.
    """
    first = _given_or_by_rule(bandwidth, (name,), sample, weight, kernel)
    if not isinstance(bandwidth, str) or bandwidth != name or not np.isfinite(first).any():
        return first, None
    return _select(name, criterion(), first, search)


def _given_or_by_rule(
    bandwidth: Any, criteria: tuple[str, ...], sample: Sample, weight: Array, kernel: Kernel
) -> NDArray[np.float64]:
    """Numbers as they are; by a rule of thumb, Scott's where a criterion is yet to choose."""
    if not isinstance(bandwidth, str):
        return given_bandwidth(bandwidth, sample.x.shape[1])
    check_rule(bandwidth, (*criteria, *RULES))
    return rule_of_thumb(bandwidth if bandwidth in RULES else "scott", sample.x, weight, kernel)


def _check_weights_for_aic(weight: Array) -> None:
    if weight.sum() <= _LEAST_FOR_AIC < (weight > 0).sum():
        raise InputError(
            f"sample_weight sums to {weight.sum():g}: bandwidth='aic' counts observations by their weights; "
            "scale them to sum to the number of observations, or use bandwidth='loo'"
        )


def _select(
    name: str, criterion: Criterion, first: Array, search: Search
) -> tuple[NDArray[np.float64], Selection]:
    varies = np.isfinite(first)
    selection = select(
        name,
        _of_varying(criterion, varies),
        first[varies],
        search.n_starts,
        search.generator,
        search.report,
    )
    return _with_inf(selection.starts[0].end, varies), selection


def _select_with_kernel(
    criterion: str,
    regression: Regression,
    first: NDArray[np.float64],
    select_bandwidth: bool,
    search: Search,
) -> tuple[NDArray[np.float64], Selection]:
    """Selects the kernel's parameters, and with them the bandwidths if wanted."""
    varies = np.isfinite(first)
    kernel = regression.kernel.requires_grad_()
    logs = nn.utils.parameters_to_vector(kernel.parameters()).detach().numpy()
    function: Criterion = DifferentiableCriterion(criterion, regression, None if select_bandwidth else first)
    start = np.exp(logs)
    if select_bandwidth:
        function = _of_varying(function, varies, len(logs))
        start = np.concatenate([first[varies], start])
    selection = select(
        criterion, function, start, search.n_starts, search.generator, search.report, keep_first=True
    )
    best = selection.starts[0].end
    kernel.cpu().requires_grad_(False)
    tail = torch.tensor(np.log(best[len(best) - len(logs) :]))
    nn.utils.vector_to_parameters(tail, kernel.parameters())
    if not select_bandwidth:
        return first, selection
    return _with_inf(best[: int(varies.sum())], varies), selection


def _of_varying(criterion: Criterion, varies: NDArray[np.bool_], others: int = 0) -> Criterion:
    """The criterion of the features that vary (and `others` after them); the rest have h = ∞."""
    moves = np.append(varies, np.ones(others, bool))

    def restricted(arguments: Array) -> tuple[float, Array]:
        full = np.full(len(moves), np.inf)
        full[moves] = arguments
        value, gradient = criterion(full)
        return value, gradient[moves]

    return restricted


def _with_inf(bandwidth: Array, varies: NDArray[np.bool_]) -> NDArray[np.float64]:
    full = np.full(len(varies), np.inf)
    full[varies] = bandwidth
    return full
