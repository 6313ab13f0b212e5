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
from nadaraya.regression.criteria import Criterion, corrected_aic, loo_error
from nadaraya.regression.differentiable import DifferentiableCriterion
from nadaraya.regression.rules import RULES, check_rule, rule_of_thumb
from nadaraya.regression.sample import Sample
from nadaraya.regression.selection import Selection, select

Array = NDArray[np.floating]

# AIC_c divides by n − 2 − tr L, and the trace is at least 1.
_LEAST_FOR_AIC = 3


@dataclass(frozen=True)
class Choice:
    """What the choice of a bandwidth depends on.

    Attributes:
        sample: the points.
        weight: (n,) their weights, in number of observations.
        targets: (n, p) less their mean.
        kernel: κ, float64; its parameters are set in place if `fit_kernel`.
        degree: 0 or 1.
        query_scale: (n,) bandwidths of the points relative to the common one, or None.
        fit_kernel: whether the kernel's parameters are chosen too.
        n_starts: runs of the optimiser.
        generator: of starts beyond the third.
        report: takes a line of progress.
    """

    sample: Sample
    weight: Array
    targets: Array
    kernel: Kernel
    degree: int
    query_scale: Array | None
    fit_kernel: bool
    n_starts: int
    generator: np.random.RandomState
    report: Callable[[str], None]


def choose_bandwidth(bandwidth: Any, choice: Choice) -> tuple[NDArray[np.float64], Selection | None]:
    """The bandwidths (d,) and how they were selected, None where they were not.

    Raises:
        InputError: the bandwidth is neither positive nor a known name, or the weights do not allow the choice.
    """
    sample, weight = choice.sample, choice.weight
    rule = "scott"
    if isinstance(bandwidth, str):
        check_rule(bandwidth, ("loo", "aic", *RULES))
        if bandwidth in RULES:
            rule = bandwidth
        numbers = None
    else:
        numbers = given_bandwidth(bandwidth, sample.x.shape[1])
    by_rule = rule_of_thumb(rule, sample.x, weight, choice.kernel) if numbers is None else numbers
    selected = isinstance(bandwidth, str) and bandwidth not in RULES
    if not selected and not choice.fit_kernel:
        return by_rule, None
    criterion = str(bandwidth) if selected else "loo"
    varies = np.isfinite(by_rule)
    if not varies.any():
        return by_rule, None
    if criterion == "aic" and weight.sum() <= _LEAST_FOR_AIC:
        if (weight > 0).sum() > _LEAST_FOR_AIC:
            raise InputError(
                f"sample_weight sums to {weight.sum():g}: bandwidth='aic' counts observations by their weights; "
                "scale them to sum to the number of observations, or use bandwidth='loo'"
            )
        return by_rule, None
    if choice.fit_kernel or choice.degree:
        return _select_differentiating(criterion, choice, by_rule, selected)
    make = loo_error if criterion == "loo" else corrected_aic
    function = make(sample, weight, choice.targets, choice.kernel, choice.query_scale)
    selection = select(
        criterion,
        _of_varying(function, varies),
        by_rule[varies],
        choice.n_starts,
        choice.generator,
        choice.report,
    )
    return _with_inf(selection.starts[0].end, varies), selection


def _select_differentiating(
    criterion: str, choice: Choice, first: Array, select_bandwidth: bool
) -> tuple[NDArray[np.float64], Selection]:
    """Selects the bandwidths, the kernel's parameters, or both."""
    varies = np.isfinite(first)
    kernel = choice.kernel.requires_grad_(choice.fit_kernel)
    logs = nn.utils.parameters_to_vector(kernel.parameters()).detach().numpy() if choice.fit_kernel else np.zeros(0)
    function: Criterion = DifferentiableCriterion(
        criterion,
        choice.sample,
        choice.weight,
        choice.targets,
        kernel,
        choice.degree,
        choice.query_scale,
        None if select_bandwidth else first,
        choice.fit_kernel,
    )
    start = np.exp(logs)
    if select_bandwidth:
        function = _of_varying(function, varies, len(logs))
        start = np.concatenate([first[varies], start])
    selection = select(criterion, function, start, choice.n_starts, choice.generator, choice.report)
    best = selection.starts[0].end
    kernel.cpu().requires_grad_(False)
    if choice.fit_kernel:
        tail = torch.tensor(np.log(best[len(best) - len(logs) :]))
        nn.utils.vector_to_parameters(tail, kernel.parameters())
    return (_with_inf(best[: int(varies.sum())], varies) if select_bandwidth else first), selection


def _of_varying(criterion: Criterion, varies: NDArray[np.bool_], others: int = 0) -> Criterion:
    """The criterion as a function of the features that vary (and `others` after them); the rest have h = ∞."""
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
