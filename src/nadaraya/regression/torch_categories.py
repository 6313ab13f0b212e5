"""The factors of categories, and which numbers are missing, pair by pair with PyTorch."""

import numpy as np
import torch
from torch import Tensor

from nadaraya.regression.categories import Factors, missing_numbers


class PairFactors:
    """Factors of categories for blocks of queries.

    Args:
        factors: of a request.
        num_numbers: its features that are numbers.
        like: a tensor of the type and on the device of the results.
    """

    def __init__(self, factors: Factors, num_numbers: int, like: Tensor) -> None:
        self._like, self._factors = like, factors
        self._query, self._points = (
            torch.tensor(codes, device=like.device) for codes in (factors.query, factors.points)
        )
        missing = [
            missing_numbers(factors.categories, codes, num_numbers)
            for codes in (factors.query, factors.points)
        ]
        self._query_known, self._known = (torch.tensor(~part, device=like.device) for part in missing)
        self.some_missing = any(part.any() for part in missing)

    def known(self, rows: slice, number: int) -> Tensor:
        """(b, n) pairs of which neither lacks a number."""
        return self._query_known[rows, number, None] & self._known[:, number]

    def log(self, rows: slice) -> Tensor:
        """(b, n) logarithms of the factors, relative to those of equal levels."""
        total = self._like.new_zeros(())
        for k, (category, scale) in enumerate(
            zip(self._factors.categories, self._factors.scales, strict=True)
        ):
            steps = self._steps(k, rows)
            by_steps = category.log_factor(np.arange(int(steps.max()) + 1), float(scale))
            total = total + torch.tensor(by_steps).to(self._like)[steps]
        return total

    def slopes(self, rows: slice) -> list[Tensor]:
        """(b, n) for each category: the derivatives by the logarithms of its scale; 0 at the ends."""
        scales = self._factors.scales
        per_step = np.divide(1.0, scales, out=np.zeros(len(scales)), where=(scales > 0) & (scales < np.inf))
        return [self._steps(k, rows).to(self._like) * float(slope) for k, slope in enumerate(per_step)]

    def _steps(self, k: int, rows: slice) -> Tensor:
        query, points = self._query[rows, k, None], self._points[:, k]
        differ = (query != points).long()
        if not self._factors.categories[k].ordered:
            return differ
        return torch.where((query >= 0) & (points >= 0), (query - points).abs(), differ)
