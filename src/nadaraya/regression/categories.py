"""Kernels of categories: how much an observation counts that differs in a feature without numbers.

A product kernel multiplies κ(‖(x − x_j) / h‖) of the numbers by one factor per category. Relative to that of
equal levels it is λ̃^s, where s counts the steps between two levels: 1 if they differ, and between the levels
of an ordered feature the difference of their ranks. λ̃ goes from 0, where other levels do not count, to 1,
where levels play no part: as a bandwidth goes from 0 to inf. Fits know it as a positive number like these,
the scale b of exp(−s / b), so that λ̃ = exp(−1 / b).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from nadaraya.errors import InputError, check_name, must_be
from nadaraya.regression.checks import one_of

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
    """

    column: int  # of tables (n, d), where the codes of the levels are: ranks from 0, `UNSEEN`, `MISSING`
    ordered: bool = False  # whether levels have ranks
    num_levels: int = 2  # c
    kernel: str = "li-racine"  # of `CATEGORY_KERNELS`
    # the levels, 0 and 1, are whether the number in `column` is missing, which is this one of the features
    # that are numbers; None for codes
    number: int | None = None
    name: Any = None  # of the feature, or its column
    # the levels but that of missing values, in order if `ordered`; all that their type declares
    known: tuple[Any, ...] = ()

    @property
    def greatest(self) -> float:
        """The λ where levels play no part (almost, with Wang and van Ryzin's)."""
        if self._is_aitchison_aitken and self.num_levels > 1:
            return (self.num_levels - 1) / self.num_levels
        return 1.0

    def ranks(self, values: Any) -> NDArray[np.float64]:
        """(n,) ranks of values; `MISSING` or `UNSEEN` for those that are no known level."""
        rank = {level: place for place, level in enumerate(self.known)}
        try:
            objects = np.asarray(values, dtype=object)
            codes = [MISSING if _is_missing(value) else rank.get(value, UNSEEN) for value in objects]
        except TypeError as error:
            raise InputError(f"feature {self.name!r} has levels that cannot be compared: {error}") from error
        return np.array(codes, np.float64)

    def codes(self, table: NDArray[np.floating]) -> NDArray[np.int64]:
        """(n,) codes of the levels in a table (n, d)."""
        column = table[:, self.column]
        return (column if self.number is None else np.isnan(column)).astype(np.int64)

    def steps(self, code: Any, codes: Any) -> Any:
        """Steps from levels to others; those without a rank are one step from all but themselves.

        Of codes as arrays or as tensors, whose shapes are broadcast.
        """
        differ = codes != code
        if not self.ordered:
            return differ * 1
        return abs(codes - code) * ((codes >= 0) & (code >= 0)) + differ * ((codes < 0) | (code < 0))

    def log_factor(self, steps: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
        """(n,) log of the kernel over its value for equal levels; −inf where that is 0."""
        log = np.full(len(steps), -np.inf)
        moved = steps > 0
        log[~moved] = 0.0
        if scale > 0:
            halves = self.kernel == "probability" and self.ordered
            log[moved] = -steps[moved] / scale - (np.log(2.0) if halves else 0.0)
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
        """The scale b of a λ; inf for a feature of one level, which plays no part."""
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
    """Factors by which categories multiply the weights of pairs."""

    categories: tuple[Category, ...]  # the K kernels
    scales: NDArray[np.floating]  # (K,) their b
    query: NDArray[np.int64]  # (m, K) codes of the queries
    points: NDArray[np.int64]  # (n, K) codes of the points

    def missing(self, num_numbers: int) -> list[NDArray[np.bool_]]:
        """Masks of the numbers that are missing, (m, f) of the queries and (n, f) of the points."""
        return [missing_numbers(self.categories, codes, num_numbers) for codes in (self.query, self.points)]


def missing_numbers(
    categories: Sequence[Category], codes: NDArray[np.int64], num_numbers: int
) -> NDArray[np.bool_]:
    """(n, f) which numbers are missing, from codes (n, K)."""
    missing = np.zeros((len(codes), num_numbers), bool)
    for category, column in zip(categories, codes.T, strict=True):
        if category.number is not None:
            missing[:, category.number] = column == 1
    return missing


@dataclass(frozen=True)
class Coding:
    """Encoding of the columns of tables as numbers and codes."""

    levels: tuple[Category, ...]  # the categorical features
    num_features: int  # d
    allows_missing: bool  # whether values may be missing
    kernel: str  # of the categories, one of `CATEGORY_KERNELS`

    @classmethod
    def of(
        cls,
        X: ArrayLike,
        categorical: Any = "from_dtype",
        ordered: Any = None,
        missing: str = "raise",
        kernel: str = "li-racine",
    ) -> "Coding | None":
        """The coding of a table (n, d); None for one of numbers without any missing."""
        one_of("missing", missing, ("raise", "category"))
        one_of("category_kernel", kernel, CATEGORY_KERNELS)
        if isinstance(categorical, str) and categorical != "from_dtype":
            raise must_be("categorical", "'from_dtype', None or a list of columns or names", categorical)
        by_type = isinstance(categorical, str)
        frame = is_frame(X)
        nothing_said = (by_type and not frame) or categorical is None
        if issparse(X) or (nothing_said and ordered is None and missing == "raise"):
            return None
        columns = _columns_of(X)
        if columns is None:
            return None
        d, names = len(columns), [str(name) for name in X.columns] if frame else None  # type: ignore[union-attr]
        chosen = set() if by_type else _columns("categorical", categorical, names, d)
        if by_type and frame:
            chosen = {column for column in range(d) if _looks_categorical(columns[column])}
        in_order = _columns("ordered", ordered, names, d)
        levels = tuple(
            _category_of(columns[column], column, names, column in in_order, kernel)
            for column in sorted(chosen | in_order)
        )
        if not levels and missing == "raise":
            return None
        return cls(levels, d, missing == "category", kernel)

    def by_name(self) -> dict[Any, list[Any]]:
        """The levels of each category, by the name of the feature or its column."""
        return {of_one.name: list(of_one.known) for of_one in self.levels}

    @property
    def finite(self) -> bool | str:
        """scikit-learn's `ensure_all_finite` for coded tables."""
        return "allow-nan" if self.allows_missing else True

    def code(self, X: ArrayLike) -> Any:
        """The table with codes in the place of levels, of the same kind (array or data frame)."""
        if not self.levels or issparse(X):
            return X
        if np.ma.is_masked(X):
            raise must_be("X", "without masked values", X)
        columns = _columns_of(X)
        if columns is None:
            return X
        if len(columns) != self.num_features:
            raise must_be("number of features of X", f"{self.num_features}, as in fit", len(columns))
        names = list(X.columns) if is_frame(X) else range(self.num_features)  # type: ignore[union-attr]
        levels = {of_one.column: of_one for of_one in self.levels}
        dtype = np.float32 if getattr(X, "dtype", None) == np.float32 else np.float64
        coded = np.empty((len(X), len(columns)), dtype)  # type: ignore[arg-type]
        for column, (values, name) in enumerate(zip(columns, names, strict=True)):
            if column in levels:
                coded[:, column] = levels[column].ranks(values)
                if not self.allows_missing and (coded[:, column] == MISSING).any():
                    raise InputError(
                        f"feature {name!r} has missing values: missing='category' makes them a level"
                    )
            else:
                coded[:, column] = _as_numbers(values, name)
        return type(X)(coded, columns=X.columns, index=X.index) if is_frame(X) else coded  # type: ignore

    def categories(self, points: NDArray[np.floating]) -> tuple[Category, ...]:
        """Kernels for coded points (n, d): of the categorical features, then of the numbers that may miss."""
        coded = [of_one.column for of_one in self.levels]
        columns = np.arange(self.num_features if self.allows_missing else 0)
        numeric = np.setdiff1d(columns, coded)
        missing = np.isnan(points)
        varies = missing.any(axis=0) & ~missing.all(axis=0)
        of_numbers = (
            Category(int(column), num_levels=1 + int(varies[column]), kernel=self.kernel, number=number)
            for number, column in enumerate(numeric)
        )
        return (*self.levels, *of_numbers)


def is_frame(X: Any) -> bool:
    """Return whether it is a data frame as pandas has it."""
    return all(hasattr(X, name) for name in ("iloc", "columns", "dtypes"))


def _columns_of(X: Any) -> list[Any] | None:
    """The columns of a table; None for what is none."""
    if is_frame(X):
        return [X.iloc[:, column] for column in range(X.shape[1])]
    # Lists of numbers and strings would become strings.
    table = X if isinstance(X, np.ndarray) else np.array(X, dtype=object)
    return list(table.T) if table.ndim == 2 else None


def _is_missing(value: Any) -> bool:
    """None, NaN, and what pandas has for them."""
    if isinstance(value, (float, np.floating)):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _looks_categorical(column: Any) -> bool:
    kind = str(column.dtype)
    if kind == "object":
        values = [value for value in column if not _is_missing(value)]
        return bool(values) and all(isinstance(value, str) for value in values)
    return kind == "category" or kind.startswith("str")


def _columns(argument: str, given: Any, names: list[str] | None, d: int) -> set[int]:
    """Columns from what the user gives: columns, names or a mask."""
    if given is None:
        return set()
    accepted = f"a list of columns from 0 to {d - 1}, of names of features, or a mask of {d}"
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise must_be(argument, accepted, given)
    entries = list(given)
    if entries and all(isinstance(entry, (bool, np.bool_)) for entry in entries):
        if len(entries) != d:
            raise must_be(argument, accepted, given)
        return set(np.flatnonzero(entries).tolist())
    columns = set()
    for entry in entries:
        if isinstance(entry, str):
            if names is None:
                raise must_be(argument, "a list of columns or a mask where X has no names", given)
            check_name(f"names in {argument}", entry, names)
            columns.add(names.index(entry))
        elif isinstance(entry, (int, np.integer)) and not isinstance(entry, bool) and 0 <= entry < d:
            columns.add(int(entry))
        else:
            raise must_be(argument, accepted, given)
    return columns


def _category_of(values: Any, column: int, names: list[str] | None, ordered: bool, kernel: str) -> Category:
    name = column if names is None else names[column]
    objects = np.asarray(values, dtype=object)
    declared = getattr(getattr(values, "dtype", None), "categories", None)
    with_missing = any(_is_missing(value) for value in objects)
    if declared is not None:
        ordered = ordered or bool(values.dtype.ordered)
        return Category(column, ordered, len(declared) + with_missing, kernel, None, name, tuple(declared))
    try:
        found = {value for value in objects if not _is_missing(value)}
    except TypeError as error:
        raise InputError(f"feature {name!r} has levels that cannot be compared: {error}") from error
    if ordered and any(isinstance(value, str) for value in found):
        raise InputError(
            f"the order of the levels of feature {name!r} is not known: give numbers, or a column of type "
            "pandas.CategoricalDtype(levels, ordered=True)"
        )
    try:
        known = sorted(found)
    except TypeError:  # of several types; any order will do
        known = sorted(found, key=lambda value: (type(value).__name__, repr(value)))
    return Category(column, ordered, len(known) + with_missing, kernel, None, name, tuple(known))


def _as_numbers(values: Any, name: Any) -> NDArray[np.float64]:
    """(n,) numbers, NaN for those missing."""
    array = np.asarray(values)
    if array.dtype.kind in "iufb":
        with np.errstate(over="ignore"):  # of longer types: infinite, which is refused
            return array.astype(np.float64)
    numbers = np.empty(len(array))
    for row, value in enumerate(array if array.dtype.kind in "mM" else array.astype(object)):
        try:
            if isinstance(value, (str, bytes, np.datetime64, np.timedelta64)):
                raise TypeError("it is no number")
            numbers[row] = np.nan if _is_missing(value) else float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise must_be(
                f"feature {name!r}", "numbers, unless it is listed in categorical", value
            ) from error
    return numbers
