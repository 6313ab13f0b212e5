"""How far regression from means over cells is from that of all points; prints the table of the guide.

    python experiments/regression_cells.py

Made data: 20,000 points, bandwidths 0.2 (one feature) and 0.3 (two), local constants and lines.
"""

import numpy as np

from nadaraya.regression import ChunkedNadarayaWatson, NadarayaWatson

_POINTS, _QUERIES, _CHUNK = 20_000, 300, 3000
_SIDES = {1 / 2: "1/2", 1 / 4: "1/4", 1 / 8: "1/8", 1 / 16: "1/16"}


def main() -> None:
    print("| features | degree | `cell_side` | cells | curve | `return_std` |\n|---|---|---|---|---|---|")
    for d, bandwidth in ((1, 0.2), (2, 0.3)):
        random = np.random.default_rng(0)
        X, queries = (random.uniform(0, 3, (n, d)) for n in (_POINTS, _QUERIES))
        y = np.sin(3 * X[:, 0]) + 0.3 * X[:, -1] + (0.1 + 0.1 * X[:, 0]) * random.normal(size=_POINTS)
        for degree in (0, 1):
            full = NadarayaWatson(bandwidth=bandwidth, degree=degree).fit(X, y)
            mean, scatter = full.predict(queries, return_std=True)
            lower, upper = full.band(queries)
            for side, name in _SIDES.items():
                model = ChunkedNadarayaWatson(bandwidth, degree=degree, cell_side=side)
                for start in range(0, _POINTS, _CHUNK):
                    model.partial_fit(X[start : start + _CHUNK], y[start : start + _CHUNK])
                ours, spread = model.predict(queries, return_std=True)
                curve = np.abs(ours - mean)
                of_band = (curve / ((upper - lower) / 2)).max()
                noise = np.abs(spread / scatter - 1).max()
                print(
                    f"| {d} | {degree} | {name} | {model.n_cells_:,} "
                    f"| {curve.max() / y.std():.1e} ({of_band:.2f}) | {noise:.1e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
