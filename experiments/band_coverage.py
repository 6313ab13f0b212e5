"""How often the bands of `NadarayaWatson` cover what they are for, by simulation.

    python experiments/band_coverage.py [--repeats N] [--points N …] [--bandwidth fixed aic]
        [--noise constant growing skewed] [--jobs N] [--seed N] [--quick] [--out FILE]

Points uniform on [0, 1], targets sin(2πx) + x/2 plus normal noise whose standard deviation is 0.35
("constant") or 0.1 + 0.5 x ("growing"), or exponential noise of standard deviation 0.35 ("skewed").
Bandwidths are the median of AIC's choice over 15 samples ("fixed"; each drawing of the points serves 20
samples of the targets), or AIC's choice in every sample ("aic", new points each time). Bands have the level
0.95 and 199 draws, at 25 places from 0.02 to 0.98; "smooth" is the fit to the targets without noise at the
sample's bandwidth.

Prints a row for each cell and, with --out, writes them as JSON after each: the shares of places ("pointwise",
"bootstrap") and of whole curves ("simultaneous") that were covered, how often the curve lies in the pointwise
band of the smooth, how often derivatives lie within 1.96 standard errors of `marginal_effects`, mean widths,
and Monte Carlo standard errors over drawings of the points.

--quick: two drawings of the points for each cell, to see that it works.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray

from nadaraya.regression import NadarayaWatson

Array = NDArray[np.float64]

_METHODS = ("pointwise", "bootstrap", "simultaneous")
_OF = ("smooth", "curve")
_OTHERS = ("curve in smooth", "slope of smooth", "slope of curve")
_LEVEL, _NORMAL_QUANTILE, _DRAWS = 0.95, 1.96, 199
_PLACES = np.linspace(0.02, 0.98, 25)[:, None]
_SAMPLES_FOR_BANDWIDTH = 15
# Samples of the same points, as so many targets of one model; AIC would choose one bandwidth for all.
_TOGETHER = {"fixed": 20, "aic": 1}
_POINTS = (50, 200, 1000)
_NOISE = ("constant", "growing", "skewed")


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    n: int
    noise: str
    degree: int
    bandwidth: str


def cells(points: list[int]) -> Iterator[Cell]:
    """Every cell of the table."""
    for n, noise, degree in product(points, ("constant", "growing"), (0, 1)):
        yield Cell(n, noise, degree, "fixed")
    for n, degree in product(points, (0, 1)):
        yield Cell(n, "growing", degree, "aic")
    for n in (n for n in points if n < 1000):
        yield Cell(n, "skewed", 1, "fixed")


def curve(x: Array) -> Array:
    """What is to be covered."""
    return np.sin(2 * np.pi * x) + 0.5 * x


def slope(x: Array) -> Array:
    """Its derivative."""
    return 2 * np.pi * np.cos(2 * np.pi * x) + 0.5


def sample(cell: Cell, count: int, seed: tuple[int, ...]) -> tuple[Array, Array]:
    """Points (n, 1) and targets (n, count)."""
    generator = np.random.default_rng(seed)
    x, size = generator.random((cell.n, 1)), (cell.n, count)
    if cell.noise == "skewed":
        return x, curve(x) + 0.35 * (generator.standard_exponential(size) - 1.0)
    deviation = 0.35 if cell.noise == "constant" else 0.1 + 0.5 * x
    return x, curve(x) + deviation * generator.standard_normal(size)


def chosen_bandwidth(cell: Cell, seed: tuple[int, ...]) -> float:
    """AIC's choice for one sample of a cell."""
    model = NadarayaWatson(degree=cell.degree).fit(*sample(cell, 1, seed))
    return float(model.bandwidth_[0])


def repetitions(cell: Cell, bandwidth: float | str, seed: tuple[int, ...]) -> dict[str, float]:
    """Shares covered and widths, for samples of the same points."""
    x, y = sample(cell, _TOGETHER[cell.bandwidth], seed)
    model = NadarayaWatson(bandwidth=bandwidth, degree=cell.degree, random_state=seed[-1]).fit(x, y)
    without_noise = NadarayaWatson(bandwidth=model.bandwidth_, degree=cell.degree).fit(x, curve(x))
    expected = {"smooth": without_noise.predict(_PLACES), "curve": curve(_PLACES)}
    result = {}
    for of, method in product(_OF, _METHODS):
        lower, upper = model.band(_PLACES, _LEVEL, method, _DRAWS, of=of)
        covered = (lower <= expected[of]) & (expected[of] <= upper)
        result[f"{of} {method}"] = (covered.all(axis=0) if method == "simultaneous" else covered).mean()
        result[f"{of} {method} width"] = (upper - lower).mean()
        if (of, method) == ("smooth", "pointwise"):
            inside = (lower <= expected["curve"]) & (expected["curve"] <= upper)
            result["curve in smooth"] = inside.mean()
    effects, deviation = model.marginal_effects(_PLACES, return_std=True)
    slopes = {"smooth": without_noise.marginal_effects(_PLACES), "curve": slope(_PLACES)[:, None]}
    for of, target in slopes.items():
        off = np.abs(effects - target)
        result[f"slope of {of}"] = (off <= _NORMAL_QUANTILE * deviation).mean()
    return {key: float(value) for key, value in result.items()}


def run(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """A cell's means over repetitions, and their standard errors."""
    start, place = time.perf_counter(), list(cells(list(_POINTS))).index(cell)
    designs = max(2, options.repeats // _TOGETHER[cell.bandwidth])
    parallel = Parallel(n_jobs=options.jobs)
    bandwidth: float | str = cell.bandwidth
    if bandwidth == "fixed":
        seeds = [(options.seed, place, 0, k) for k in range(_SAMPLES_FOR_BANDWIDTH)]
        bandwidth = float(np.median(parallel(delayed(chosen_bandwidth)(cell, seed) for seed in seeds)))
    seeds = [(options.seed, place, 1, k) for k in range(designs)]
    rows = parallel(delayed(repetitions)(cell, bandwidth, seed) for seed in seeds)
    table = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    return {
        **asdict(cell),
        "h": bandwidth,
        "designs": designs,
        "repeats": designs * _TOGETHER[cell.bandwidth],
        "seconds": round(time.perf_counter() - start, 1),
        "mean": {key: round(float(values.mean()), 4) for key, values in table.items()},
        "standard_error": {
            key: round(float(values.std(ddof=1) / designs**0.5), 4) for key, values in table.items()
        },
    }


def main() -> None:
    options = _options()
    results: dict[str, Any] = {"level": _LEVEL, "draws": _DRAWS, "seed": options.seed, "cells": []}
    columns = [*(f"{of} {method}" for of, method in product(_OF, _METHODS)), *_OTHERS]
    print(f"| n | noise | degree | h | {' | '.join(columns)} |\n|{'---|' * (4 + len(columns))}", flush=True)
    with parallel_config("loky", inner_max_num_threads=1):
        for cell in cells(options.points):
            if cell.bandwidth not in options.bandwidth or cell.noise not in options.noise:
                continue
            results["cells"].append(run(cell, options))
            row = results["cells"][-1]
            h = row["h"] if isinstance(row["h"], str) else f"{row['h']:.3g}"
            figures = " | ".join(f"{row['mean'][column]:.3f}" for column in columns)
            print(f"| {cell.n} | {cell.noise} | {cell.degree} | {h} | {figures} |", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(results, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=1000, help="samples of each cell")
    parser.add_argument("--points", type=int, nargs="+", choices=_POINTS, default=list(_POINTS), metavar="N")
    parser.add_argument("--bandwidth", nargs="+", choices=_TOGETHER, default=list(_TOGETHER), metavar="B")
    parser.add_argument("--noise", nargs="+", choices=_NOISE, default=list(_NOISE), metavar="NOISE")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="two drawings of the points")
    parser.add_argument("--out", type=Path, help="file for the results")
    options = parser.parse_args()
    if options.quick:
        options.repeats = 2
    return options


if __name__ == "__main__":
    main()
