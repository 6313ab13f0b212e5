"""Kernel regression: time, accuracy and memory of ours against statsmodels, KeOps and chunked PyTorch.

    python benchmarks/regression.py [--out FILE] [--only CASE …] [--device cpu|cuda] [--quick]

Cases: selection, leave-one-out bandwidths of 1,000 points in two dimensions; prediction, 100,000 queries at
100,000 points in three dimensions; line, a million of both in one; memory, the peak of ours in processes of
their own. Contenders take turns in one process; figures are medians with quartiles. First calls, which
compile or load what earlier processes compiled, are timed apart. `--device cuda` runs one case, a million of
both in three dimensions. What cannot run is recorded with its reason. docs/results.md has
the targets.

--quick makes every size tiny: it shows that the script works and measures nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import regression_cases as cases
import torch
from regression_cases import OURS, Array, Predict, Sizes
from timing import alternate, as_json, as_table, environment, one_line, write_json

from nadaraya.regression import NadarayaWatson

_MEMORY_PROGRAM = """
import json, sys
from pathlib import Path
from regression_cases import Sizes, memory_cases
def peak():  # KiB, of this program alone: getrusage would count the process that started it
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
case = memory_cases(Sizes(**json.loads(sys.argv[2])))[sys.argv[1]]
imported = peak()
case()
print(imported, peak())
"""


def selection(sizes: Sizes, runs: int) -> dict[str, Any]:
    """Bandwidths by leave-one-out; statsmodels, which takes many times longer, runs once, after one warm-up
    of few points."""
    x, y, _ = cases.normal_points(sizes.selection, 2)
    first = _first_call(lambda: cases.select(x[:50], y[:50], 1))
    contenders: dict[str, Callable[[], Any]] = {
        f"{OURS}, {starts} start{'s' * (starts > 1)}": lambda starts=starts: cases.select(x, y, starts)
        for starts in (3, 1)
    }
    timings = alternate(contenders, max(runs, 5), warmup=1)
    found = {name: case().bandwidth_ for name, case in contenders.items()}
    failed = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own use of pandas
            cases.select_statsmodels(x[:20], y[:20])
            kept: list[Any] = []
            rival = {cases.STATSMODELS: lambda: kept.append(cases.select_statsmodels(x, y))}
            timings |= alternate(rival, runs=1, warmup=0)
        found[cases.STATSMODELS] = kept[0].bw
    except ImportError as error:
        failed[cases.STATSMODELS] = one_line(error)
    scores = {
        name: {
            "bandwidth": np.asarray(bandwidth).tolist(),
            "leave_one_out": NadarayaWatson(bandwidth=bandwidth).fit(x, y).loo_score(),
        }
        for name, bandwidth in found.items()
    }
    print(f"selection: n {len(x):,}, d 2, float64, bandwidths by leave-one-out; first call {first:.1f} s")
    print(as_table(timings, f"{OURS}, 3 starts"))
    for name, row in scores.items():
        h = ", ".join(f"{value:.5f}" for value in row["bandwidth"])
        print(f"{name}: leave-one-out error {row['leave_one_out']:.10f} at h = {h}")
    _print_failures(failed)
    return {"first_call_s": first, "time_ms": as_json(timings), "minimum": scores, "failed": failed}


def prediction(sizes: Sizes, runs: int, device: str = "cpu") -> dict[str, Any]:
    """Gaussian predictions in three dimensions, by precision and bandwidth, of every contender."""
    on_gpu = device != "cpu"
    queries, points = (sizes.gpu, sizes.gpu) if on_gpu else (sizes.queries, sizes.points)
    results: dict[str, Any] = {}
    for dtype in ("float32",) if on_gpu else ("float32", "float64"):
        x, y, q = cases.normal_points(points, 3, dtype, queries)
        for name, h in cases.three_dimensional_bandwidths(points).items():
            title = f"{queries:,} queries at {points:,} points, d 3, {dtype}, {name}"
            results[title] = _predictions(title, x, y, q, h, runs, sizes.checked, device)
    return results


def _predictions(
    title: str, x: Array, y: Array, q: Array, h: float, runs: int, checked: int, device: str
) -> dict[str, Any]:
    calls: dict[str, Predict] = {}
    first, failed = {}, {}
    for name, contender in cases.PREDICTORS.items():
        try:
            few = [np.ascontiguousarray(array[:500]) for array in (x, y, q)]
            first[name] = _first_call(contender(*few, h, device))
            calls[name] = contender(x, y, q, h, device)
        except Exception as error:  # a rival may fail to build in any way: that is its result
            if name == OURS:
                raise
            failed[name] = one_line(error)
    found: dict[str, Array] = {}
    timed = {name: _keeping(found, name, call) for name, call in calls.items()}
    timings = alternate(timed, runs, warmup=0)
    rows = np.random.default_rng(1).choice(len(q), min(checked, len(q)), replace=False)
    exact = cases.brute_force(x, y, q[rows], h)
    spread = float(y.std())
    agreement = {
        name: {
            "error": float(np.abs(values[rows] - exact).max()) / spread,
            "difference": float(np.abs(values.astype(np.float64) - found[OURS]).max()) / spread,
        }
        for name, values in found.items()
    }
    print(f"{title} (h = {h:.3f})")
    print(as_table(timings, OURS))
    for name, row in agreement.items():
        print(
            f"{name}: first call {first[name]:.2f} s; over the deviation of y, error {row['error']:.1e} on "
            f"{len(rows)} queries, difference to ours {row['difference']:.1e} on all"
        )
    _print_failures(failed)
    print(flush=True)
    return {
        "bandwidth": h,
        "first_call_s": first,
        "time_ms": as_json(timings),
        "agreement": agreement,
        "failed": failed,
    }


def line(sizes: Sizes, runs: int) -> dict[str, Any]:
    """Predictions and leave-one-out scores with their derivative, in one dimension."""
    x, y, q = cases.normal_points(sizes.line, 1, num_queries=sizes.line)
    h = cases.LINE_BANDWIDTH * float(x.std())
    rows = np.random.default_rng(1).choice(len(q), min(sizes.checked, len(q)), replace=False)
    first, errors, found = {}, {}, {}
    timed: dict[str, Callable[[], Any]] = {}
    for kernel in cases.LINE_KERNELS:
        few = [np.ascontiguousarray(array[:2000]) for array in (x, y, q)]
        first[kernel] = _first_call(lambda few=few, kernel=kernel: cases.predict_on_line(*few, kernel))
        first[kernel] += _first_call(
            lambda few=few, kernel=kernel: cases.score_on_line(few[0], few[1], kernel)
        )
        predict = _keeping(found, kernel, lambda kernel=kernel: cases.predict_on_line(x, y, q, kernel))
        timed[f"{kernel}, fit and prediction"] = predict
        timed[f"{kernel}, leave-one-out score"] = lambda kernel=kernel: cases.score_on_line(x, y, kernel)
    timings = alternate(timed, runs, warmup=1)
    for kernel in cases.LINE_KERNELS:
        exact = cases.brute_force(x, y, q[rows], h, kernel)
        errors[kernel] = float(np.abs(found[kernel][rows] - exact).max() / y.std())
    print(f"line: {len(q):,} queries at {len(x):,} points, d 1, float64, h = {h:.4f}")
    print(as_table(timings, f"{cases.LINE_KERNELS[0]}, fit and prediction"))
    for kernel in cases.LINE_KERNELS:
        print(
            f"{kernel}: first calls {first[kernel]:.2f} s; error on {len(rows)} queries "
            f"{errors[kernel]:.1e} of the deviation of y"
        )
    return {"bandwidth": h, "first_call_s": first, "time_ms": as_json(timings), "error": errors}


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


CASES = {"selection": selection, "prediction": prediction, "line": line, "memory": memory}


def main() -> None:
    options = _options()
    sizes = _sizes(options)
    gpu = options.device == "cuda"
    results: dict[str, Any] = {
        "environment": environment() | _versions("numba", "scikit-learn", "statsmodels", "pykeops"),
        "settings": {"device": options.device, "runs": options.runs, "sizes": asdict(sizes)},
    }
    for name in ["gpu"] if gpu else options.only:
        if gpu:
            results[name] = prediction(sizes, options.runs, "cuda")
        else:
            results[name] = CASES[name](sizes, options.runs)
        print(flush=True)
        if options.out:
            write_json(options.out, results)


def _first_call(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _keeping(found: dict[str, Array], name: str, call: Predict) -> Predict:
    """The call, its last result kept."""

    def keep() -> Array:
        found[name] = call()
        return found[name]

    return keep


def _print_failures(failed: dict[str, str]) -> None:
    for name, reason in failed.items():
        print(f"{name} left out: {reason}")


def _versions(*packages: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = cases.QUICK if options.quick else Sizes()
    given = {"queries": options.queries, "points": options.points, "line": options.line_points}
    return replace(sizes, **{name: value for name, value in given.items() if value is not None})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", "--json", type=Path, metavar="FILE", help="also write the figures here, after every case"
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, default=3, help="counted rounds; default 3")
    parser.add_argument("--queries", type=int, help="of the prediction; default 100,000")
    parser.add_argument("--points", type=int, help="of the prediction; default 100,000")
    parser.add_argument("--line-points", type=int, help="points and queries on the line; default 1,000,000")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see the script work")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("regression.py: no CUDA device here; --device cpu runs the other cases", file=sys.stderr)
        sys.exit(2)
    # KeOps says on standard output where it compiles and that it found no CUDA.
    os.environ.setdefault("PYKEOPS_VERBOSE", "0")
    return options


if __name__ == "__main__":
    main()
