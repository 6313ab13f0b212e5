"""Bandwidths of numbers and λ of categories, as the user knows them and as a smoother does.

For the user there is one entry per feature, h or λ, and then λ of missing or not for each feature of numbers
if these may be missing. A smoother has the h, and then the scales b of all categories, λ̃ = exp(−1 / b).
"""

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

Categories = tuple[Category, ...]


def given(bandwidth: Any, sample: Sample) -> NDArray[np.float64]:
    """What the user gives as bandwidths and scales.

    Raises:
        InputError: it has another shape, or bandwidths that are not positive, or λ out of their range.
    """
    values, categories = numbers("bandwidth", bandwidth), sample.categories
    f, num_features = sample.x.shape[1], _num_features(sample)
    size = f + len(categories)
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


def of_rule(rule: str, sample: Sample, kernel: Kernel) -> NDArray[np.float64]:
    """A rule of thumb for numbers; for categories λ̃ = n^(−2 / (d + 4)), as h² (Li and Racine 2003)."""
    x = np.where(sample.missing, np.nan, sample.x) if sample.categories else sample.x
    return np.append(rule_of_thumb(rule, x, sample.counts, kernel), _first_scales(sample))


def for_users(bandwidth: Array, sample: Sample) -> NDArray[np.float64]:
    """h and λ from bandwidths and scales."""
    f = sample.x.shape[1]
    smoothing = [
        category.smoothing(float(scale))
        for category, scale in zip(sample.categories, bandwidth[f:], strict=True)
    ]
    result = np.empty(len(bandwidth))
    result[_places(sample.categories, f)] = [*bandwidth[:f], *smoothing]
    return result


def _num_features(sample: Sample) -> int:
    return sample.x.shape[1] + sum(category.number is None for category in sample.categories)


def _places(categories: Categories, num_numbers: int) -> NDArray[np.intp]:
    """Where the user has the entries of a smoother."""
    columns = [category.column for category in categories if category.number is None]
    d = num_numbers + len(columns)
    numeric = np.setdiff1d(np.arange(d), columns)
    missing = [d + category.number for category in categories if category.number is not None]
    return np.array([*numeric, *columns, *missing], np.intp)


def _first_scales(sample: Sample) -> NDArray[np.float64]:
    """(K,) those of the rule of thumb; inf for features of one level."""
    n = max(2.0, float(sample.counts.sum()))
    first = (sample.x.shape[1] + 4) / (2 * np.log(n))
    return np.array([first if category.num_levels > 1 else np.inf for category in sample.categories])
