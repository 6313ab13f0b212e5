"""Kernels of categories: how much an observation counts that differs in a feature without numbers.

A product kernel multiplies κ(‖(x − x_j) / h‖) of the numbers by one factor per category. Relative to that of
equal levels it is λ̃^s, where s counts the steps between two levels: 1 if they differ, and between the levels
of an ordered feature the difference of their ranks. λ̃ goes from 0, where other levels do not count, to 1,
where levels play no part: as a bandwidth goes from 0 to inf. Fits know it as a positive number like these,
the scale b of exp(−s / b), so that λ̃ = exp(−1 / b).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nadaraya.errors import must_be

CATEGORY_KERNELS = ("li-racine", "probability")
# Codes of what no level of the training data is: these have no rank.
UNSEEN, MISSING = -1, -2


@dataclass(frozen=True)
class Category:
    r"""One feature whose values are levels, and its kernel.

    | kernel | unordered | ordered |
    |---|---|---|
    | "li-racine" (Li and Racine 2007, chapter 4) | 1 or λ | λ^s |
    | "probability" | 1 − λ or λ / (c − 1) (Aitchison and Aitken 1976) | 1 − λ or (1 − λ) λ^s / 2 (Wang and
    van Ryzin 1981) |

    c is the number of levels. All reach from λ = 0, where other levels do not count, to `greatest`, where
    levels play no part; only Wang and van Ryzin's still weighs equal levels twice as much there.

    Attributes:
        column: of tables (n, d), where the codes of the levels are: ranks from 0, `UNSEEN`, `MISSING`.
        ordered: whether levels have ranks.
        num_levels: c.
        kernel: of `CATEGORY_KERNELS`.
        number: the levels, 0 and 1, are whether the number in `column` is missing, which is this one of the
            features that are numbers; None for codes.
    """

    column: int
    ordered: bool = False
    num_levels: int = 2
    kernel: str = "li-racine"
    number: int | None = None

    @property
    def greatest(self) -> float:
        """The λ where levels play no part (almost, with Wang and van Ryzin's)."""
        if self._is_aitchison_aitken and self.num_levels > 1:
            return (self.num_levels - 1) / self.num_levels
        return 1.0

    def codes(self, table: NDArray[np.floating]) -> NDArray[np.int64]:
        """(n,) codes of the levels in a table (n, d)."""
        column = table[:, self.column]
        return (column if self.number is None else np.isnan(column)).astype(np.int64)

    def steps(self, code: int, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) steps from one level to others; those without a rank are one step from all but themselves."""
        differ = (codes != code).astype(np.int64)
        if not self.ordered or code < 0:
            return differ
        return np.where(codes >= 0, np.abs(codes - code), differ)

    def log_factor(self, steps: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
        """(n,) log of the kernel over its value for equal levels; −inf where that is 0."""
        log = np.full(len(steps), -np.inf)
        moved = steps > 0
        log[~moved] = 0.0
        if scale > 0:
            log[moved] = -steps[moved] / scale - self._halving
        return log

    def smoothing(self, scale: float) -> float:
        """λ of a scale b."""
        if self.num_levels < 2 or np.isinf(scale):
            return self.greatest
        relative = float(np.exp(-1.0 / scale)) if scale > 0 else 0.0
        if not self._is_aitchison_aitken:
            return relative
        odds = (self.num_levels - 1) * relative
        return odds / (1.0 + odds)

    def scale(self, smoothing: float) -> float:
        """The scale b of a λ; inf for a feature of one level, which plays no part.

        Raises:
            InputError: λ is not between 0 and `greatest`.
        """
        if not 0 <= smoothing <= self.greatest:
            raise must_be("bandwidth of a category", f"between 0 and {self.greatest:.6g}", smoothing)
        if self.num_levels < 2 or smoothing == self.greatest:
            return float(np.inf)
        if smoothing == 0:
            return 0.0
        if self._is_aitchison_aitken:
            smoothing = smoothing / ((self.num_levels - 1) * (1.0 - smoothing))
        # Rounding can take the ratio to 1.
        return float(-1.0 / np.log(smoothing)) if smoothing < 1 else float(np.inf)

    @property
    def _is_aitchison_aitken(self) -> bool:
        return self.kernel == "probability" and not self.ordered

    @property
    def _halving(self) -> float:
        return float(np.log(2.0)) if self.kernel == "probability" and self.ordered else 0.0


def numeric_columns(categories: Sequence[Category], num_features: int) -> NDArray[np.intp]:
    """(f,) the columns, of d, that hold numbers."""
    coded = [category.column for category in categories if category.number is None]
    return np.setdiff1d(np.arange(num_features), coded)


def codes_of(categories: Sequence[Category], table: NDArray[np.floating]) -> NDArray[np.int64]:
    """(n, K) codes of the levels in a table (n, d)."""
    columns = [category.codes(table) for category in categories]
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 0), np.int64)


def numbers_of(
    categories: Sequence[Category], table: NDArray[np.floating]
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """The numbers (n, f) of a table (n, d), 0 for those missing, and which these are."""
    if not categories:
        return table, np.zeros(table.shape, bool)
    numbers = np.ascontiguousarray(table[:, numeric_columns(categories, table.shape[1])])
    missing = np.isnan(numbers)
    return np.where(missing, numbers.dtype.type(0), numbers), missing


@dataclass(frozen=True)
class Factors:
    """What categories multiply the weights of pairs by.

    Attributes:
        categories: the K kernels.
        scales: (K,) their b.
        query: (m, K) codes of the queries.
        points: (n, K) codes of the points.
    """

    categories: tuple[Category, ...]
    scales: NDArray[np.floating]
    query: NDArray[np.int64]
    points: NDArray[np.int64]

    def part(self, rows: slice) -> "Factors":
        """Those for some of the queries."""
        return replace(self, query=self.query[rows])


def missing_numbers(
    categories: Sequence[Category], codes: NDArray[np.int64], num_numbers: int
) -> NDArray[np.bool_]:
    """(n, f) which numbers are missing, from codes (n, K)."""
    missing = np.zeros((len(codes), num_numbers), bool)
    for category, column in zip(categories, codes.T, strict=True):
        if category.number is not None:
            missing[:, category.number] = column == 1
    return missing
