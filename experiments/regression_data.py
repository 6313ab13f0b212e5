"""The real data of the regression study: three curves, decades of carbon dioxide, and house prices.

Tables are CSV files with a header in one folder: mcycle.csv (times in ms, accel in g), lidar.csv (range in m,
logratio), faithful.csv (eruptions and waiting in minutes), co2_mauna_loa_monthly.csv (decimal_date in years,
co2_ppm), california_housing.csv. scikit-learn downloads the last where it is absent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import fetch_california_housing

Array = NDArray[np.float64]

_COUNTS = ("total_rooms", "total_bedrooms", "population", "households")
_PLAIN = ("longitude", "latitude", "housing_median_age", "median_income")
_HOUSE_VALUE = "median_house_value"


@dataclass(frozen=True)
class Table:
    """X (n, d), y (n,), and in words what y is and what was done to the table."""

    X: Array
    y: Array
    target: str
    note: str


def motorcycle(folder: Path) -> Table:
    """Acceleration of a helmet after an impact (Silverman 1985), scatter far from constant."""
    table = _read(folder / "mcycle.csv")
    return Table(table["times"][:, None], table["accel"], "head acceleration, g", "as it is")


def lidar(folder: Path) -> Table:
    """Light returned from two lasers over distance (Sigrist 1994), scatter grows with distance."""
    table = _read(folder / "lidar.csv")
    return Table(table["range"][:, None], table["logratio"], "log ratio of returned light", "as it is")


def geyser(folder: Path) -> Table:
    """Minutes to Old Faithful's next eruption over the length of the last (Azzalini and Bowman 1990)."""
    table = _read(folder / "faithful.csv")
    return Table(table["eruptions"][:, None], table["waiting"], "waiting time, min", "as it is")


def carbon_dioxide(folder: Path) -> Table:
    """Monthly carbon dioxide at Mauna Loa since 1958."""
    table = _read(folder / "co2_mauna_loa_monthly.csv")
    note = (
        "random months are held out: interpolation. Beyond the last month a local mean stays at its level, "
        "and a local linear fit at its slope; neither is a forecast"
    )
    return Table(table["decimal_date"][:, None], table["co2_ppm"], "carbon dioxide, ppm", note)


def california_housing(folder: Path) -> Table:
    """Median house values of California's census blocks in 1990 by eight numbers, counts as logarithms."""
    path = folder / "california_housing.csv"
    columns = _read(path) if path.exists() else _downloaded_housing()
    X = np.stack([columns[name] for name in _PLAIN] + [np.log(columns[name]) for name in _COUNTS], axis=1)
    complete = np.isfinite(X).all(axis=1)
    missing = int((~complete).sum())
    note = (
        f"{len(X):,} blocks, less {missing} without a number of bedrooms; "
        f"logarithms of {', '.join(_COUNTS)}; ocean_proximity left out; values end at 500,000"
    )
    return Table(X[complete], columns[_HOUSE_VALUE][complete] / 1e5, "house value, 100,000 dollars", note)


LOADERS: dict[str, Callable[[Path], Table]] = {
    "motorcycle": motorcycle,
    "lidar": lidar,
    "geyser": geyser,
    "co2": carbon_dioxide,
    "housing": california_housing,
}


def _read(path: Path) -> dict[str, Array]:
    """Numerical columns by name; empty cells and words are nan."""
    table = np.genfromtxt(path, delimiter=",", names=True, dtype=float)
    return {name: table[name] for name in table.dtype.names}


def _downloaded_housing() -> dict[str, Array]:
    """scikit-learn's table, whose averages a household are turned into the counts that they come from."""
    bunch = fetch_california_housing()
    columns = dict(zip(bunch.feature_names, bunch.data.T, strict=True))
    households = columns["Population"] / columns["AveOccup"]
    return {
        "longitude": columns["Longitude"],
        "latitude": columns["Latitude"],
        "housing_median_age": columns["HouseAge"],
        "median_income": columns["MedInc"],
        "total_rooms": columns["AveRooms"] * households,
        "total_bedrooms": columns["AveBedrms"] * households,
        "population": columns["Population"],
        "households": households,
        _HOUSE_VALUE: bunch.target * 1e5,
    }
