"""Sums for regression in two and three dimensions: Fourier transforms against the loop over pairs.

    python benchmarks/fourier_sums.py [--points N …] [--bandwidths H …] [--rounds R] [--json FILE] [--quick]

Points are uniform in a unit cube, and queries too; both ways take turns with each bandwidth. The loop over
pairs takes time in proportion to the queries: where these are too many it is timed on random runs of near
ones, and its time scaled to all. Errors are differences of predictions over the targets' root mean square.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from timing import environment, write_json

from nadaraya.kernels import Gaussian
from nadaraya.regression.compiled import dispatch, fourier
from nadaraya.regression.compiled.profiles import profile_of
from nadaraya.regression.requests import Request, Sums

# Near queries that are taken together, the fewest runs of them, and about how many pairs are visited.
_RUN, _RUNS, _PAIRS = 1024, 16, 1e9


def case(n: int, d: int, h: float, rounds: int) -> dict[str, Any]:
    """Seconds of both in every round, their difference, and which of them is chosen."""
    generator = np.random.default_rng(0)
    x = generator.random((n, d)) - 0.5
    y = np.sin(6 * x).sum(axis=1) + generator.normal(size=n)
    request = Request(Sums, x, x, np.stack([np.ones(n), y]), Gaussian(1.0), np.full(d, h))
    profile, row = profile_of(request.kernel), {"n": n, "d": d, "bandwidth": h}
    assert profile is not None
    grid, pairs = fourier.Grid.of(request, profile), partial(dispatch._over_tiles, request, profile)
    if grid is None:
        return row | {"chosen": "pairs", "cells": None}
    order = dispatch.spatial_order(np.ascontiguousarray(x.T), _RUN // 4)
    distance = np.linalg.norm(x[:200, None] - x[:2000], axis=2)
    near = n * float(np.mean(distance < grid.reach * h))
    starts = generator.permutation(-(-n // _RUN))[: max(_RUNS, int(_PAIRS / near / _RUN))] * _RUN
    sampled = np.concatenate([order[start : start + _RUN] for start in starts])
    seconds: dict[str, list[float]] = {"transforms": [], "pairs": []}
    for _ in range(rounds):
        start = time.perf_counter()
        found = fourier.compute(request, grid, 0.0, pairs).values
        seconds["transforms"].append(time.perf_counter() - start)
        start = time.perf_counter()
        pairs(sampled[:1])  # what does not grow with the queries
        once = time.perf_counter() - start
        start = time.perf_counter()
        exact = pairs(sampled).values
        growing = max(0.0, time.perf_counter() - start - once)
        seconds["pairs"].append(once + growing * n / len(sampled))
    means = found[sampled, 1] / found[sampled, 0] - exact[:, 1] / exact[:, 0]
    return row | {
        "chosen": "pairs" if dispatch.grid_of(request) is None else "transforms",
        "cells": int(np.prod(grid.shape)),
        "queries_of_pairs": len(sampled),
        "seconds": seconds,
        "error": float(np.abs(means).max() / np.sqrt(np.mean(y**2))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N")
    parser.add_argument("--bandwidths", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.3], metavar="H")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures, after every case")
    parser.add_argument("--quick", action="store_true", help="few points: to see the script work")
    options = parser.parse_args()
    points = [3_000] if options.quick else options.points
    case(2_000, 2, 0.3, 1), case(2_000, 3, 0.3, 1)  # compiled before anything counts
    rows: list[dict[str, Any]] = []
    print("median seconds (least–most)")
    for n, d, h in [(n, d, h) for n in points for d in (2, 3) for h in options.bandwidths]:
        rows.append(case(n, d, h, options.rounds))
        times = [
            f"{name} {np.median(each):.3g} ({min(each):.3g}–{max(each):.3g})"
            for name, each in rows[-1].get("seconds", {}).items()
        ]
        error = f"error {rows[-1]['error']:.0e}" if times else "no grid"
        print(f"n {n:,}, d {d}, h {h}:", *times, error, f"chosen: {rows[-1]['chosen']}", flush=True)
        if options.json:
            facts = environment("numba", "scipy")
            write_json(options.json, {"environment": facts, "rounds": options.rounds, "rows": rows})


if __name__ == "__main__":
    main()
