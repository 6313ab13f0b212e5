"""Bandwidths of numbers and λ of categories, as the user knows them, and as one vector of positive numbers.

The vector has one entry per feature, then one for each feature of numbers if these may be missing. Entries of
categories are λ for the user and the scale b, λ̃ = exp(−1 / b), inside.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadaraya.errors import must_be
from nadaraya.kernels import Kernel
from nadaraya.regression.categories import Category
from nadaraya.regression.checks import numbers, positive_numbers
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import rule_of_thumb
from nadaraya.regression.sample import Sample
from nadaraya.regression.selection import Selection

Categories = tuple[Category, ...]


def given(bandwidth: Any, sample: Sample) -> NDArray[np.float64]:
    """What the user gives, (d,) or (d + k,), as bandwidths and scales (d + k,).

    Raises:
        InputError: it has another shape, or bandwidths that are not positive, or λ out of their range.
    """
    values, size = numbers("bandwidth", bandwidth), _size(sample)
    d, f = sample.x.shape[1], len(sample.numeric)
    if values.shape in ((), (1,)) and f in (0, size):
        values = np.broadcast_to(values, (size,))
    if values.shape not in ((d,), (size,)):
        shapes = f"({d},)" if d == size else f"({d},) or ({size},)"
        raise must_be("shape of bandwidth", f"{shapes}, one per feature: a λ for each category", values.shape)
    result = _first_scales(sample)
    result[sample.numeric] = positive_numbers("bandwidth", values[sample.numeric])
    for category in sample.categories:
        if category.place < len(values):
            result[category.place] = category.scale(float(values[category.place]))
    return result


def of_rule(rule: str, sample: Sample, kernel: Kernel) -> NDArray[np.float64]:
    """A rule of thumb for numbers; for categories λ̃ = n^(−2 / (f + 4)), as h² (Li and Racine 2003)."""
    result = _first_scales(sample)
    result[sample.numeric] = rule_of_thumb(rule, sample.x[:, sample.numeric], sample.counts, kernel)
    return result


def for_users(bandwidth: Array, categories: Categories) -> NDArray[np.float64]:
    """Bandwidths and λ from bandwidths and scales."""
    result = np.array(bandwidth, np.float64)
    for category in categories:
        result[category.place] = category.smoothing(float(result[category.place]))
    return result


def selection_for_users(selection: Selection, varies: NDArray[np.bool_], categories: Categories) -> Selection:
    """A selection with λ where it has scales; `varies` says which of the vector's entries were selected."""

    def shown(values: Array) -> NDArray[np.float64]:
        vector = np.full(len(varies), np.inf)
        vector[varies] = values
        return for_users(vector, categories)[varies]

    starts = tuple(replace(run, start=shown(run.start), end=shown(run.end)) for run in selection.starts)
    return replace(selection, starts=starts)


def _size(sample: Sample) -> int:
    return sample.x.shape[1] + sum(category.of_missing for category in sample.categories)


def _first_scales(sample: Sample) -> NDArray[np.float64]:
    """The vector with the scales of a rule of thumb; inf for numbers and features of one level."""
    result = np.full(_size(sample), np.inf)
    for category in sample.categories:
        if category.num_levels > 1:
            n = max(2.0, float(sample.counts.sum()))
            result[category.place] = (len(sample.numeric) + 4) / (2 * np.log(n))
    return result
