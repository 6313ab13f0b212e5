"""A fitted model as a small table: what a statistician asks of it first."""

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nadaraya.regression.categories import numeric_columns
from nadaraya.regression.requests import Array
from nadaraya.regression.smoother import Smoother

# Less than this part of the observations left as degrees of freedom is rounding.
_LEAST_FREEDOM = 1e-6


@dataclass(frozen=True)
class GoodnessOfFit:
    """Goodness of fit of a regression, each (p,) per target but the trace.

    All are weighted by the observations' weights, scaled to mean 1, times what `robust_iterations` left.

    Attributes:
        trace: tr L, the effective degrees of freedom: the sum of what each target contributes to its own
            prediction.
        residual_std: √(Σ w (y − f)² / (n − 2 tr L + tr L Lᵀ)), in units of the target, at average weight
            (Hastie and Tibshirani 1990); NaN if nothing is left of n.
        r_squared: 1 − Σ w (y − f)² / Σ w (y − ȳ)², what `score` gives on the data of the fit with these
            weights, but for `adaptive` fits, where a point is no neighbour of its own; NaN for constant
            targets.
        r_squared_loo: the same of leave-one-out predictions.
        squared_correlation: of y and f about ȳ (Hayfield and Racine 2008), R² in R's np; in
            statsmodels too if f has the mean ȳ, since `KernelReg.r_squared` centres both at the mean of f.

    See Also:
        NadarayaWatson.summary: computes it.

    >>> from nadaraya.regression import NadarayaWatson
    >>> model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 4.0, 3.0])
    >>> round(model.summary().fit.trace, 3), model.summary().fit.r_squared.round(3).tolist()
    (1.993, [0.752])
    """

    trace: float
    residual_std: Array
    r_squared: Array
    r_squared_loo: Array
    squared_correlation: Array

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Names and numbers for a table."""
        yield "effective degrees of freedom, tr L", f"{self.trace:.4g}"
        unknown = "nothing is left to judge it by" if np.isnan(self.residual_std).all() else ""
        yield "residual standard deviation", unknown or _numbers(self.residual_std)
        if np.isnan(self.r_squared).all():
            yield "R²", "none: the targets are constant"
            return
        yield "R²", _numbers(self.r_squared)
        yield "R², leave-one-out", _numbers(self.r_squared_loo)
        yield "squared correlation of targets and fit", _numbers(self.squared_correlation)


@dataclass(frozen=True)
class Summary:
    """A fitted model in numbers; `print` shows it as text, a notebook as a table.

    Attributes:
        model: what it is.
        n: observations of weight above zero.
        kernel: its name or formula.
        bandwidths: by feature, in units of the feature.
        relative: the same over the feature's standard deviation; a feature with a large one plays no part.
            Without categories, whose `bandwidths` are λ.
        chosen_by: what chose the bandwidths.
        score: the criterion at them (`Selection`); None if no criterion chose.
        fit: how well a regression fits (`GoodnessOfFit`); None for other models.

    See Also:
        NadarayaWatson.summary: makes it.

    >>> from nadaraya.regression import NadarayaWatsonDensity
    >>> print(NadarayaWatsonDensity(bandwidth=1.0).fit([[0.0], [1.0]]).summary())
    NadarayaWatsonDensity
    observations           2
    features               1
    kernel                 gaussian
    bandwidths chosen by   the user
    <BLANKLINE>
    feature   bandwidth   in standard deviations
    x0        1           2
    """

    model: str
    n: int
    kernel: str
    bandwidths: dict[str, float]
    relative: dict[str, float]
    chosen_by: str
    score: float | None
    fit: GoodnessOfFit | None

    def __str__(self) -> str:
        return "\n".join([self.model, *_aligned([*self._rows()]), "", *_aligned([*self._features()])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = (_table(self._rows()), _table(self._features(), header=True))
        return f"<div><strong>{html.escape(self.model)}</strong>{''.join(tables)}</div>"

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "observations", f"{self.n:,}"
        yield "features", str(len(self.bandwidths))
        yield "kernel", self.kernel
        yield "bandwidths chosen by", self.chosen_by
        if self.score is not None:
            yield "  its value", f"{self.score:.5g}"
        if self.fit is not None:
            yield from self.fit._rows()

    def _features(self) -> Iterator[tuple[str, ...]]:
        yield "feature", "bandwidth", "in standard deviations"
        for name, width in self.bandwidths.items():
            relative = f"{self.relative[name]:.3g}" if name in self.relative else "category"
            yield name, f"{width:.4g}", relative


def goodness_of_fit(smoother: Smoother, targets: Array, unit: Array) -> GoodnessOfFit:
    """Of a regression of targets (n, p) in units (p,); three passes over pairs."""
    targets = targets - np.average(targets, axis=0, weights=smoother.sample.counts)
    weighted = smoother.sample.counts > 0
    weight = smoother.sample.counts * (weighted.sum() / smoother.sample.counts.sum())
    fit, others = smoother.fit(None, targets.T), smoother.fit(None, targets.T, exclude_self=True)
    left_out = np.where(np.isnan(others.mean), 0.0, others.mean)  # the only point has no others
    trace = float(smoother.leverage(fit).sum())
    inverse = np.divide(1.0, weight, out=np.zeros_like(weight), where=weighted)
    freedom = weighted.sum() - 2 * trace + weight @ smoother.combined_variance(fit, None, inverse)
    total, errors, squares = weight @ targets**2, weight @ (targets - fit.mean) ** 2, weight @ fit.mean**2
    if freedom <= _LEAST_FREEDOM * weighted.sum():
        freedom = np.nan
    total = np.where(total > 0, total, np.nan)
    squares = np.where(squares > 0, squares, np.nan)
    return GoodnessOfFit(
        trace,
        np.sqrt(errors / freedom) * unit,
        1.0 - errors / total,
        1.0 - weight @ (targets - left_out) ** 2 / total,
        (weight @ (targets * fit.mean)) ** 2 / (total * squares),
    )


def summary_of(model: str, estimator: Any, fit: GoodnessOfFit | None = None) -> Summary:
    """Of a fitted estimator, called `model`."""
    sample, bandwidth, selection = estimator._smoother.sample, estimator.bandwidth_, estimator.selection_
    if selection is not None:
        chosen_by = selection.criterion
    else:
        chosen_by = estimator.bandwidth if isinstance(estimator.bandwidth, str) else "the user"
        chosen_by = "scott" if chosen_by in estimator._criteria else chosen_by  # where little varies
    names = getattr(estimator, "feature_names_in_", [f"x{f}" for f in range(len(bandwidth))])
    numbers = [str(names[column]) for column in numeric_columns(sample.categories, len(bandwidth))]
    relative = estimator._smoother.bandwidth[: len(numbers)] / sample.spread
    return Summary(
        model,
        int((np.asarray(estimator.sample_weight_) > 0).sum()),
        estimator.kernel if isinstance(estimator.kernel, str) else str(estimator.kernel_),
        dict(zip(map(str, names), bandwidth.tolist(), strict=True)),
        dict(zip(numbers, relative.tolist(), strict=True)),
        chosen_by,
        None if selection is None else float(selection.score),
        fit,
    )


def _numbers(values: Array) -> str:
    return ", ".join(f"{value:.4g}" for value in np.asarray(values).tolist())


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _table(rows: Iterator[tuple[str, ...]], header: bool = False) -> str:
    lines = []
    for place, row in enumerate(rows):
        cell = "th" if header and place == 0 else "td"
        lines.append("".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
