"""Kernel regression: time, accuracy and memory of ours against statsmodels, KeOps and chunked PyTorch.

    python benchmarks/regression.py [--json FILE] [--only CASE …] [--device cpu|cuda] [--quick]

Cases: selection, leave-one-out bandwidths of 1,000 points in two dimensions; large, bandwidths by corrected
AIC of 16,000 points in three, and by leave-one-out of 2,000 in twenty; prediction, 100,000 queries at
100,000 points in three dimensions; line, a million of both in one; memory, the peak of ours in processes of
its own; first, the first fit of a process where nothing is compiled. Contenders take turns in one process;
figures are medians with quartiles. What ours compiles, or loads if earlier processes have compiled it,
comes before and is timed apart, as are first calls of the others, on few points. `--device cuda` runs one
case, a million of both in three dimensions. What cannot run is recorded with its reason.
docs/development/targets.md has the targets.

--quick makes every size tiny: it shows that the script works and measures nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import regression_cases as cases
import torch
from regression_cases import OURS, Call, Data, Sizes
from timing import alternate, as_json, as_table, environment, one_line, write_json

from nadaraya.regression import NadarayaWatson, warm_up

_MEMORY_PROGRAM = """
import json, sys
from peak_memory import peak_kib
from regression_cases import Sizes, memory_cases
case = memory_cases(Sizes(**json.loads(sys.argv[2])))[sys.argv[1]]
imported = peak_kib()
case()
print(imported, peak_kib())
"""

# NumPy and scikit-learn are imported by whoever has data; Numba, where it is needed, is counted.
_FIRST_PROGRAM = """
import sys, time
from regression_cases import normal
from nadaraya.regression import NadarayaWatson
data = normal(int(sys.argv[1]), int(sys.argv[2]))
start = time.perf_counter()
NadarayaWatson().fit(data.x, data.y).predict(data.x)
print(time.perf_counter() - start)
"""


def compare(
    title: str, contenders: dict[str, Callable[[Data], Call]], data: Data, runs: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Times what contenders make of the data, in turn; a rival that fails is left out.

    Returns:
        A record of first calls, times and failures, and what each contender found.
    """
    calls, found, first, failed = {}, {}, {}, {}
    few = data.first(2000 if data.x.shape[1] == 1 else 50)  # fewer on a line are not sorted
    for name, make in contenders.items():
        try:
            start = time.perf_counter()
            make(few)()
            first[name] = time.perf_counter() - start
            calls[name] = make(data)
        except Exception as error:  # a rival may fail to build in any way: that is its result
            if OURS in name:
                raise
            failed[name] = one_line(error)

    def keep(name: str) -> None:
        found[name] = calls[name]()

    timings = alternate({name: partial(keep, name) for name in calls}, runs, warmup=0)
    print(title)
    if timings:
        print(as_table(timings, next(iter(timings))))
    for name, seconds in first.items():
        print(f"{name}: first call {seconds:.2f} s")
    for name, reason in failed.items():
        print(f"{name} left out: {reason}")
    return {"first_call_s": first, "time_ms": as_json(timings), "failed": failed}, found


def selection(sizes: Sizes, runs: int) -> dict[str, Any]:
    """Bandwidths by leave-one-out; statsmodels, which takes many times longer, runs once."""
    data = cases.normal(sizes.selection, 2)
    title = f"selection: n {sizes.selection:,}, d 2, float64, bandwidths by leave-one-out"
    record, found = compare(
        title,
        {
            f"{OURS}, {starts} start{'s' * (starts > 1)}": lambda part, starts=starts: partial(
                cases.select, part, starts
            )
            for starts in (7, 1)
        },
        data,
        max(runs, sizes.selections),
    )
    rival = {cases.STATSMODELS: lambda part: partial(cases.select_statsmodels, part)}
    other, found_by_rival = compare("selection by the rival", rival, data, 1)
    minimum = {
        name: {
            "bandwidth": h.tolist(),
            "leave_one_out": NadarayaWatson(bandwidth=h).fit(data.x, data.y).loo_score(),
        }
        for name, h in (found | found_by_rival).items()
    }
    for name, row in minimum.items():
        print(f"{name}: leave-one-out error {row['leave_one_out']:.10f} at h = {row['bandwidth']}")
    return {key: record[key] | other[key] for key in record} | {"minimum": minimum}


def large(sizes: Sizes, runs: int) -> dict[str, Any]:
    """Bandwidths of many points, and of many features."""
    results: dict[str, Any] = {}
    for n, d, criterion in ((sizes.large, 3, "aic"), (sizes.wide, 20, "loo")):
        title = f"large: n {n:,}, d {d}, float64, bandwidths by {criterion}"
        makers = {OURS: lambda part, criterion=criterion: partial(cases.select, part, criterion=criterion)}
        record, found = compare(title, makers, cases.normal(n, d), runs)
        results[title] = record | {"bandwidth": found[OURS].tolist()}
    return results


def prediction(sizes: Sizes, runs: int, device: str = "cpu") -> dict[str, Any]:
    """Gaussian predictions in three dimensions, by precision and bandwidth, of every contender."""
    on_gpu = device != "cpu"
    queries, points = (sizes.gpu, sizes.gpu) if on_gpu else (sizes.queries, sizes.points)
    results: dict[str, Any] = {}
    for dtype in ("float32",) if on_gpu else ("float32", "float64"):
        data = cases.normal(points, 3, dtype, queries)
        for name, h in cases.three_dimensional_bandwidths(points).items():
            title = f"{queries:,} queries at {points:,} points, d 3, {dtype}, {name}"
            makers = {
                name: partial(make, bandwidth=h, device=device) for name, make in cases.PREDICTORS.items()
            }
            record, found = compare(f"{title} (h = {h:.3f})", makers, data, runs)
            rows = _rows(queries, sizes)
            exact, spread = cases.brute_force(data, rows, h, "gaussian"), float(data.y.std())
            agreement = {
                name: {
                    "error": float(np.abs(values[rows] - exact).max()) / spread,
                    "difference": float(np.abs(values.astype(np.float64) - found[OURS]).max()) / spread,
                }
                for name, values in found.items()
            }
            for name, row in agreement.items():
                print(
                    f"{name}: over the deviation of y, error {row['error']:.1e} on {len(rows)} queries, "
                    f"difference to ours {row['difference']:.1e} on all"
                )
            results[title] = {"bandwidth": h, "agreement": agreement} | record
    return results


def line(sizes: Sizes, runs: int) -> dict[str, Any]:
    """Predictions and leave-one-out scores with their derivative, in one dimension."""
    data = cases.normal(sizes.line, 1, num_queries=sizes.line)
    h = cases.LINE_BANDWIDTH * float(data.x.std())
    makers: dict[str, Callable[[Data], Call]] = {}
    for kernel in cases.KAPPA:
        for what, function in (
            ("fit and prediction", cases.predict_on_line),
            ("leave-one-out score", cases.score_on_line),
        ):
            makers[f"{OURS}, {kernel}, {what}"] = lambda part, function=function, kernel=kernel: partial(
                function, part, kernel
            )
    title = f"line: {sizes.line:,} queries at {sizes.line:,} points, d 1, float64, h = {h:.4f}"
    record, found = compare(title, makers, data, runs)
    rows, errors = _rows(sizes.line, sizes), {}
    for kernel in cases.KAPPA:
        exact = cases.brute_force(data, rows, h, kernel)
        values = found[f"{OURS}, {kernel}, fit and prediction"][rows]
        errors[kernel] = float(np.abs(values - exact).max() / data.y.std())
        print(f"{kernel}: error on {len(rows)} queries {errors[kernel]:.1e} of the deviation of y")
    return {"bandwidth": h, "error": errors} | record


def memory(sizes: Sizes, runs: int, only: Sequence[str] | None = None) -> dict[str, Any]:
    """MiB of resident memory: once all is imported, and the peak after each case (Linux)."""
    del runs  # a peak is that of one run
    warm_ups = cases.memory_cases(cases.QUICK)
    results = {}
    for name in only or warm_ups:
        warm_ups[name]()  # leaves compiled code on disk, so that the measured process compiles nothing
        command = [sys.executable, "-c", _MEMORY_PROGRAM, name, json.dumps(asdict(sizes))]
        folder = Path(__file__).parent
        output = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
        imported, peak = (int(number) / 1024 for number in output.split())
        results[name] = {"imported": imported, "peak": peak}
        print(f"memory: {name:40} {peak:6.0f} MiB, of which imports {imported:.0f} MiB", flush=True)
    return results


def first(sizes: Sizes, runs: int) -> dict[str, Any]:
    """Seconds of a process's first fit and prediction where nothing is compiled yet, imports apart."""
    results: dict[str, Any] = {}
    for n, d in sizes.first:
        seconds = []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-c", _FIRST_PROGRAM, str(n), str(d)]
                environment = os.environ | {"NUMBA_CACHE_DIR": folder}
                done = subprocess.run(
                    command, env=environment, cwd=Path(__file__).parent, capture_output=True
                )
                seconds.append(float(done.stdout))
        results[f"n {n:,}, d {d}"] = seconds
        print(
            f"first fit on a new machine, n {n:,}, d {d}: {', '.join(f'{s:.1f}' for s in seconds)} s",
            flush=True,
        )
    return results


def _rows(queries: int, sizes: Sizes) -> Any:
    """Which queries are checked."""
    return np.random.default_rng(1).choice(queries, min(sizes.checked, queries), replace=False)


CASES = {
    "selection": selection,
    "large": large,
    "prediction": prediction,
    "line": line,
    "memory": memory,
    "first": first,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures, after every case")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, default=3, help="counted rounds; default 3")
    parser.add_argument("--queries", type=int, help="of the prediction; default 100,000")
    parser.add_argument("--points", type=int, help="of the prediction; default 100,000")
    parser.add_argument("--line", type=int, help="points and queries on the line; default 1,000,000")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see the script work")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("regression.py: no CUDA device here; --device cpu runs the other cases", file=sys.stderr)
        sys.exit(2)
    # KeOps says on standard output where it compiles and that it found no CUDA.
    os.environ.setdefault("PYKEOPS_VERBOSE", "0")
    given = {name: getattr(options, name) for name in ("queries", "points", "line")}
    sizes = replace(
        cases.QUICK if options.quick else Sizes(),
        **{name: value for name, value in given.items() if value is not None},
    )
    packages = environment("numba", "scikit-learn", "statsmodels", "pykeops")
    settings = {"device": options.device, "runs": options.runs, "sizes": asdict(sizes)}
    results: dict[str, Any] = {"environment": packages, "settings": settings}
    start = time.perf_counter()
    warm_up()
    results["warm_up_s"] = time.perf_counter() - start
    for name in ["gpu"] if options.device == "cuda" else options.only:
        case = partial(prediction, device="cuda") if name == "gpu" else CASES[name]
        results[name] = case(sizes, options.runs)
        print(flush=True)
        if options.json:
            write_json(options.json, results)


if __name__ == "__main__":
    main()
