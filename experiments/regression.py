"""Accuracy of kernel regression on five real data sets, ours and others', by repeated cross-validation.

    python experiments/regression.py [--data FOLDER] [--out FOLDER] [--markdown] [--only STUDY …] [--quick]

Small sets: five folds, repeated with new shuffles. House prices: random training points, as the Gaussian
process and ridge regression grow with n³ and statsmodels' search takes minutes from some hundred points in
eight dimensions on; 200 of them, where statsmodels takes part, 2,000, and four fifths of all for the methods
that can. Every method chooses its settings within the training points (regression_methods.py). Splits go to
worker processes of one thread each, so seconds are those of one core; a single split has all cores. Writes
results.json after every method: scores and seconds of each split; studies that --only leaves out stay in it.

--quick takes few points and folds: it shows that the script works.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray
from regression_data import LOADERS, Table
from regression_methods import (
    DEFAULT,
    FOR_MANY_POINTS,
    GENERAL,
    METHODS,
    PERIODIC,
    STATSMODELS,
    quiet,
    warm_up,
)
from sklearn.base import BaseEstimator
from sklearn.metrics import r2_score, root_mean_squared_error
from sklearn.model_selection import RepeatedKFold, ShuffleSplit

_PACKAGES = ("nadaraya", "numpy", "scipy", "scikit-learn", "numba", "torch", "statsmodels")
_DATA = Path(__file__).parents[2] / "shared" / "data" / "regression"
_OUT = Path(__file__).parent / "results" / "regression"
_QUICK_POINTS = 100

Split = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Study:
    """One table of results.

    Attributes:
        data: name of the data set.
        methods: who takes part.
        repeats: how often the five folds are drawn, or how often training points are.
        train: number or share of training points drawn; None for five folds.
        test: number or share of test points; None for five folds.
    """

    data: str
    methods: Sequence[str]
    repeats: int
    train: int | float | None = None
    test: int | float | None = None

    def splits(self, n: int, quick: bool) -> Iterator[Split]:
        """Indices of training and test points."""
        if quick or self.train is None:
            repeated = RepeatedKFold(n_splits=5, n_repeats=self.repeats, random_state=0)
            yield from list(repeated.split(np.zeros(n)))[: 2 if quick else None]
        else:
            draws = ShuffleSplit(self.repeats, train_size=self.train, test_size=self.test, random_state=0)
            yield from draws.split(np.zeros(n))


STUDIES = {
    "motorcycle": Study("motorcycle", (*GENERAL, *STATSMODELS), repeats=4),
    "lidar": Study("lidar", (*GENERAL, *STATSMODELS), repeats=4),
    "geyser": Study("geyser", (*GENERAL, *STATSMODELS), repeats=4),
    "co2": Study("co2", (*GENERAL, *STATSMODELS, *PERIODIC), repeats=2),
    "housing-200": Study("housing", (*GENERAL, *STATSMODELS), repeats=3, train=200, test=2000),
    "housing-2000": Study("housing", GENERAL, repeats=3, train=2000, test=2000),
    "housing-all": Study("housing", FOR_MANY_POINTS, repeats=1, train=0.8, test=0.2),
}


def score(name: str, table: Table, splits: Sequence[Split], workers: int) -> dict[str, Any]:
    """One method over all splits.

    Returns:
        rmse, r2 and fit_s, one number per split; undefined, predictions that the method did not give; or
        failed.
    """
    jobs = [(name, table.X, table.y, split, seed) for seed, split in enumerate(splits)]
    try:
        if workers == 1 or len(jobs) == 1:
            rows = [score_split(*job) for job in jobs]
        else:
            with parallel_config("loky", n_jobs=workers, inner_max_num_threads=1):
                rows = Parallel()(delayed(score_split)(*job) for job in jobs)
    except Exception as error:  # a method that fails on a split has that as its result
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    result = {key: [row[key] for row in rows] for key in ("rmse", "r2", "fit_s")}
    return {**result, "undefined": sum(row["undefined"] for row in rows)}


def score_split(
    name: str, X: NDArray[np.float64], y: NDArray[np.float64], split: Split, seed: int
) -> dict[str, Any]:
    """One method on one split: rmse, r2, fit_s and undefined."""
    quiet()
    warm_up()
    train, test = split
    model = METHODS[name](X.shape[1], seed)
    start = time.perf_counter()
    model.fit(X[train], y[train])
    seconds = time.perf_counter() - start
    predicted = model.predict(X[test])
    return {
        "rmse": root_mean_squared_error(y[test], predicted),
        "r2": r2_score(y[test], predicted),
        "fit_s": seconds,
        "undefined": _undefined(model),
    }


def _undefined(model: BaseEstimator) -> int:
    return getattr(model.regressor_[-1], "undefined_", 0)


def run(name: str, study: Study, table: Table, quick: bool, workers: int) -> Iterator[dict[str, Any]]:
    """A study's results so far, after each method."""
    X, y = table.X, table.y
    if quick:
        rows = np.random.default_rng(0).permutation(len(y))[:_QUICK_POINTS]
        X, y = X[rows], y[rows]
    table = Table(X, y, table.target, table.note)
    splits = list(study.splits(len(y), quick))
    results: dict[str, Any] = {
        "data": study.data,
        "target": table.target,
        "note": table.note,
        "n": len(y),
        "d": X.shape[1],
        "train": len(splits[0][0]),
        "test": len(splits[0][1]),
        "splits": len(splits),
        "deviation_of_target": float(y.std()),
        "methods": {},
    }
    for method in study.methods:
        results["methods"][method] = score(method, table, splits, workers)
        print(f"{name}: {method}: {' | '.join(_cells(results['methods'][method]))}", flush=True)
        yield results


def _cells(rows: dict[str, Any]) -> list[str]:
    if "failed" in rows:
        return [rows["failed"], "", ""]
    left_out = f", {rows['undefined']} undefined" if rows["undefined"] else ""
    spread = [f"{np.mean(rows[key]):.4g} ± {np.std(rows[key]):.2g}" for key in ("rmse", "r2")]
    return [spread[0], spread[1] + left_out, f"{np.mean(rows['fit_s']):.2f}"]


def markdown(results: dict[str, Any]) -> str:
    """Every study as a table, the least error first."""
    parts = []
    for name, study in results["studies"].items():
        ranked = sorted(study["methods"].items(), key=lambda item: np.mean(item[1].get("rmse", np.inf)))
        lines = [
            f"### {name}",
            "",
            f"{study['train']:,} training and {study['test']:,} test points, d {study['d']}, "
            f"{study['splits']} splits; target: {study['target']} (deviation "
            f"{study['deviation_of_target']:.4g}); {study['note']}.",
            "",
            "| method | RMSE | R² | seconds per fit, search included |",
            "|:---|---:|---:|---:|",
            *(f"| {method} | {' | '.join(_cells(rows))} |" for method, rows in ranked),
            "",
            _verdict(study["methods"]),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _verdict(methods: dict[str, Any]) -> str:
    """Where the default settings stand, by errors on the same splits: mean ± standard deviation."""
    default = np.array(methods[DEFAULT]["rmse"])
    others = {name: np.array(m["rmse"]) for name, m in methods.items() if name != DEFAULT and "rmse" in m}
    behind = {name: (default / rmse - 1) for name, rmse in others.items()}
    best = max(behind, key=lambda name: behind[name].mean())
    worst = min(behind, key=lambda name: behind[name].mean())
    place = 1 + sum(excess.mean() > 0 for excess in behind.values())
    against = (
        f"{name} {100 * behind[name].mean():+.1f} ± {100 * behind[name].std():.1f} %"
        for name in (best, worst)
    )
    return f"Default settings: place {place} of {len(methods)}; error against {', against '.join(against)}."


def main() -> None:
    options = _options()
    file = options.out / "results.json"
    before = json.loads(file.read_text()) if file.is_file() else {"quick": options.quick}
    if before["quick"] != options.quick:
        other = "with" if before["quick"] else "without"
        print(f"regression.py: --out must be another folder: {file} is {other} --quick", file=sys.stderr)
        sys.exit(2)
    results: dict[str, Any] = {
        "environment": _environment(),
        "quick": options.quick,
        "workers": options.workers,
        "spread": "±: standard deviation over splits",
        "plan": before.get("plan", {}) | {name: asdict(STUDIES[name]) for name in options.only},
        "studies": before.get("studies", {}),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    for name in options.only:
        study = STUDIES[name]
        try:
            table = LOADERS[study.data](options.data)
        except OSError as error:
            print(f"{name} left out: {error}", flush=True)
            continue
        for so_far in run(name, study, table, options.quick, options.workers):
            results["studies"][name] = so_far
            results["seconds"] = time.perf_counter() - start
            _write(file, results)
    if options.markdown:
        print("\n" + markdown(results))


def _write(path: Path, results: dict[str, Any]) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(results, indent=1) + "\n")
    unfinished.replace(path)


def _environment() -> dict[str, Any]:
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {"python": platform.python_version(), "cores": os.cpu_count(), "versions": versions}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = Path(os.environ.get("NADARAYA_DATA", _DATA))
    parser.add_argument(
        "--data", type=Path, default=folder, help="folder of the tables; default $NADARAYA_DATA"
    )
    parser.add_argument("--out", type=Path, default=_OUT, help="folder of results.json")
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES), metavar="STUDY")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="splits at a time")
    parser.add_argument("--markdown", action="store_true", help="print the tables at the end")
    parser.add_argument("--quick", action="store_true", help="100 points and two splits of each set")
    return parser.parse_args()


if __name__ == "__main__":
    main()
