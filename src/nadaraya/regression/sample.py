"""Weighted points with targets, ready for sums: what the estimators keep between `fit` and `predict`."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from nadaraya.kernels import Kernel
from nadaraya.regression.rules import standard_deviations
from nadaraya.regression.sums import PairSums, pair_sums

Array = NDArray[np.floating]

# Queries go in parts of so many pairs, some seconds each, where progress is reported.
_PAIRS_A_REPORT = 5_000_000_000


@dataclass(frozen=True)
class Sample:
    """Points and weights, centred so that coordinates are no larger than they need be.

    Attributes:
        x: (n, d) points less their mean, float32 or float64.
        centre: (d,) that mean, float64.
        weight: (n,) sample weights divided by the largest, float64.
        spread: (d,) weighted standard deviations of the features, 1 for those that do not vary.
        device: where PyTorch computes.
    """

    x: Array
    centre: NDArray[np.float64]
    weight: NDArray[np.float64]
    spread: NDArray[np.float64]
    device: torch.device | None

    @classmethod
    def of(cls, X: Array, sample_weight: Array | None, device: torch.device | None) -> "Sample":
        """Centres points (n, d) and scales their weights (n,), None for equal ones."""
        weight = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, np.float64)
        centre = X.mean(axis=0, dtype=np.float64)
        x = _less(X, centre)
        deviations = standard_deviations(x, weight)
        return cls(x, centre, weight / weight.max(), np.where(deviations > 0, deviations, 1.0), device)

    def sums(
        self,
        X: Array | None,
        columns: Array,
        kernel: Kernel,
        bandwidth: Array,
        *,
        what: str = "values",
        power: int = 1,
        weight: Array | None = None,
        query_scale: Array | None = None,
        exclude_self: bool = False,
        ratios: bool = False,
        lines: tuple[Array, Array] | None = None,
        report: Callable[[str], None] | None = None,
    ) -> PairSums:
        """Sums over the points, with their weights.

        Args:
            X: (m, d) queries as the user gave them; None for the points themselves.
            columns: (c, n) what to sum beside the weights.
            kernel, bandwidth, what, power, query_scale, exclude_self, ratios, lines: as `pair_sums` explains.
            weight: (n,) in the place of the sample's weights (of their squares with power 2).
            report: takes a line of progress now and then, if the queries are many.

        Returns:
            The sums of s, s C_1, s C_2, … (s² with power 2).
        """
        query = self.x if X is None else self.centred(X)
        if weight is None:
            weight = self.weight**power
        weighted = np.concatenate([weight[None], weight * columns])

        def part(rows: slice) -> PairSums:
            return pair_sums(
                query if rows == slice(None) else query[rows],
                self.x,
                weighted,
                kernel,
                bandwidth,
                what=what,
                power=power,
                query_scale=None if query_scale is None else query_scale[rows],
                exclude_self=exclude_self,
                ratios=ratios,
                lines=lines,
                device=self.device,
            )

        rows = max(1, _PAIRS_A_REPORT // len(self.x))
        if report is None or exclude_self or X is None or len(query) <= rows:
            return part(slice(None))
        parts = []
        for start in range(0, len(query), rows):
            parts.append(part(slice(start, start + rows)))
            report(f"{min(len(query), start + rows):,} of {len(query):,} queries")
        return PairSums(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def centred(self, X: Array) -> Array:
        """Points (m, d) as the user gave them, in the sample's type and less its centre."""
        return _less(X.astype(self.x.dtype, copy=False), self.centre)


def _less(X: Array, centre: Array) -> Array:
    # In float64, where the difference of float32 numbers is exact, and back.
    difference: Array = (X.astype(np.float64) - centre).astype(X.dtype)
    return np.ascontiguousarray(difference)
