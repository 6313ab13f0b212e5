"""How often the search for bandwidths finds the minimum, and in what time.

    python experiments/bandwidth_search.py [--seeds 6] [--out FILE]
    python experiments/bandwidth_search.py --sizes [--seeds 6] [--out FILE]

Every design is a function of few of its features, with noise. For both criteria the least value that
`NadarayaWatson` finds is compared with the least of 24 complete descents by L-BFGS-B: from twelve common
multiples of Scott's rule, best first, and from twelve random points. The first three of these descents, which
is what nadaraya 0.1.0 made of every fit, are the other contender. Both take turns in one process, on one
thread: with so few points a second would mostly wait, which counts as time of the processor.

--sizes measures instead what `selection_size` costs in accuracy: the mean squared error, to the true function
at 2,000 other points, of bandwidths chosen on some of 4,000 points over that of bandwidths chosen on all.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from nadaraya.files import write_file
from nadaraya.regression import NadarayaWatson
from nadaraya.regression.checks import fixed_kernel
from nadaraya.regression.criteria import SCORES, Criterion, regression_criterion
from nadaraya.regression.rules import rule_of_thumb
from nadaraya.regression.sample import Sample
from nadaraya.regression.smoother import Smoother

Array = NDArray[np.float64]

NEW, OLD = "NadarayaWatson", "three descents"
_CLOSE = 0.02
_SCAN = np.log(2.0) * np.arange(-8, 4)


def waves(x: Array) -> Array:
    """An interaction of two features and an effect of a third."""
    return np.sin(4 * x[:, 0]) * x[:, 1] + np.cos(6 * x[:, 2])


def friedman(x: Array) -> Array:
    """Friedman #1 (1991), five features."""
    curved = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    return curved + 10 * x[:, 3] + 5 * x[:, 4]


@dataclass(frozen=True)
class Design:
    """n points with d features, uniform from `low` to 1, or standard normal (low None), and noise."""

    function: Callable[[Array], Array]
    low: float | None
    d: int
    noise: float
    n: int

    def draw(self, seed: int) -> tuple[Array, Array]:
        """Points (n, d) and targets (n,)."""
        random = np.random.default_rng(seed)
        size = (self.n, self.d)
        x = random.normal(size=size) if self.low is None else random.uniform(self.low, 1, size)
        return x, self.function(x) + self.noise * random.normal(size=self.n)


DESIGNS = {
    "waves on [0, 1]^4, σ 0.5": Design(waves, 0, 4, 0.5, 200),
    "waves on [−1, 1]^4, σ 0.3": Design(waves, -1, 4, 0.3, 200),
    "waves on [−1, 1]^4, σ 0.5": Design(waves, -1, 4, 0.5, 200),
    "waves, normal, d 4, σ 0.3": Design(waves, None, 4, 0.3, 200),
    "waves on [−1, 1]^4, σ 0.3, n 100": Design(waves, -1, 4, 0.3, 100),
    "waves on [−1, 1]^6, σ 0.3, n 300": Design(waves, -1, 6, 0.3, 300),
    "Friedman #1, d 5": Design(friedman, 0, 5, 1.0, 200),
    "Friedman #1, d 10": Design(friedman, 0, 10, 1.0, 200),
    "Friedman #1, d 10, n 100": Design(friedman, 0, 10, 1.0, 100),
}


def descents(name: str, x: Array, y: Array, count: int) -> float:
    """The least value of so many descents, and of no search beside them."""
    weight, kernel = np.ones(len(x)), fixed_kernel("gaussian")
    sample = Sample.of(x, weight)
    first = rule_of_thumb("scott", sample.x, weight, kernel)
    criterion = regression_criterion(name, Smoother(sample, kernel, first), (y - y.mean())[:, None])
    with threadpool_limits(1, "blas"):
        return min(_descent(criterion, start, np.log(first)) for start in _starts(criterion, first, count))


def _starts(criterion: Criterion, first: Array, count: int) -> list[Array]:
    scores = np.array([criterion(np.log(first) + shift)[0] for shift in _SCAN])
    padded = np.concatenate([[np.inf], scores, [np.inf]])
    is_minimum = (scores <= padded[:-2]) & (scores <= padded[2:])
    starts = [np.log(first) + _SCAN[place] for place in np.lexsort([-_SCAN, scores, ~is_minimum])]
    random = np.random.RandomState(0)
    while len(starts) < count:
        starts.append(np.log(first) + 1.2 * random.standard_normal(len(first)))
    return starts[:count]


def _descent(criterion: Criterion, start: Array, middle: Array) -> float:
    bounds = np.stack([middle + np.log(1e-5), middle + np.log(1e4)], axis=1)
    options = {"maxfun": 150, "ftol": 1e-10}
    return float(minimize(criterion, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun)


def run(name: str, design: Design, seeds: int) -> list[dict[str, Any]]:
    """One record per seed: the least values and the seconds of both contenders, and the best of 24."""
    records = []
    for seed in range(1, seeds + 1):
        x, y = design.draw(seed)
        calls: dict[str, Callable[[], float]] = {
            NEW: lambda x=x, y=y: NadarayaWatson(bandwidth=name).fit(x, y).selection_.score,
            OLD: lambda x=x, y=y: descents(name, x, y, 3),
        }
        record: dict[str, Any] = {"seed": seed, "best of 24": descents(name, x, y, 24)}
        for contender, call in calls.items():
            # Time on the processor: other programs on the machine do not count.
            begin = time.process_time()
            score = call()
            record[contender] = {"score": score, "seconds": time.process_time() - begin}
        records.append(record)
    return records


def summary(records: list[dict[str, Any]], contender: str) -> dict[str, float]:
    """The share of designs within 0.02 of the best of 24 descents, and seconds."""
    behind = [record[contender]["score"] - record["best of 24"] for record in records]
    seconds = [record[contender]["seconds"] for record in records]
    quartiles = statistics.quantiles(seconds, n=4, method="inclusive")
    return {
        "within 0.02": float(np.mean(np.array(behind) <= _CLOSE)),
        "greatest excess": max(behind),
        "seconds": sum(seconds),
        "median s": quartiles[1],
        "low s": quartiles[0],
        "high s": quartiles[2],
    }


def sizes(name: str, seeds: int) -> dict[str, list[float]]:
    """By selection_size, the error over that of a selection on all points, one number per design and seed."""
    ratios: dict[str, list[float]] = {"500": [], "1000": [], "2000": []}
    for design in (Design(waves, -1, 3, 0.3, 4000), Design(friedman, 0, 5, 1.0, 4000)):
        for seed in range(1, seeds + 1):
            x, y = design.draw(seed)
            queries, _ = design.draw(1000 + seed)
            truth = design.function(queries[:2000])

            def error(size: int | None, x=x, y=y, queries=queries, truth=truth) -> float:  # type: ignore[no-untyped-def]
                model = NadarayaWatson(bandwidth=name, selection_size=size).fit(x, y)
                return float(np.mean((model.predict(queries[:2000]) - truth) ** 2))

            of_all = error(None)
            for size, ratio in ratios.items():
                ratio.append(error(int(size)) / of_all)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=6, help="samples of each design; default 6")
    parser.add_argument("--sizes", action="store_true", help="measure selection_size instead")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args()
    if options.sizes:
        excess = {name: sizes(name, options.seeds) for name in SCORES}
        for name, ratios in excess.items():
            for size, values in ratios.items():
                print(
                    f"{name}, {size} of 4000: error median {statistics.median(values):.3f}, "
                    f"most {max(values):.3f}"
                )
        if options.out:
            write_file(
                options.out, json.dumps({"seeds": options.seeds, "error_ratio": excess}, indent=1) + "\n"
            )
        return
    numba.set_num_threads(1)
    for name in SCORES:  # compiles, or loads what was compiled
        run(name, Design(waves, -1, 4, 0.3, 50), 1)
    results: dict[str, Any] = {"seeds": options.seeds, "time": "of the processor, one thread", "criteria": {}}
    print(f"{'':40}  within 0.02 of 24 descents    seconds, median (quartiles)")
    for name in SCORES:
        everything = {title: run(name, design, options.seeds) for title, design in DESIGNS.items()}
        everything["all"] = [record for records in everything.values() for record in records]
        rows = {
            title: {contender: summary(records, contender) for contender in (NEW, OLD)}
            for title, records in everything.items()
        }
        results["criteria"][name] = {"summary": rows, "runs": everything}
        for title, row in rows.items():
            for contender, figures in row.items():
                print(
                    f"{name}, {title:34} {contender:15} {figures['within 0.02']:.3f}   "
                    f"{figures['median s']:.3f} ({figures['low s']:.3f}–{figures['high s']:.3f}), "
                    f"sum {figures['seconds']:.1f}",
                    flush=True,
                )
    if options.out:
        write_file(options.out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
