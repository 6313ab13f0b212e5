"""The figure of the guide to kernel regression: what `plot` draws of three models.

    python experiments/regression_displays.py [--out FILE]

Made data: a curve, two half-moons and their classes. Writes docs/figures/regression-displays.webp.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from sklearn.datasets import make_moons

from nadaraya.regression import NadarayaWatson, NadarayaWatsonClassifier, NadarayaWatsonDensity

_OUT = Path(__file__).parents[1] / "docs" / "figures" / "regression-displays.webp"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=_OUT, help="the file. Default: %(default)s")
    out = parser.parse_args().out
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    random = np.random.default_rng(0)
    x = random.uniform(0, 10, size=(150, 1))
    y = np.sin(x[:, 0]) + (0.1 + 0.03 * x[:, 0]) * random.normal(size=150)
    moons, label = make_moons(300, noise=0.2, random_state=0)
    plt.style.use(Path(__file__).parents[1] / "docs" / "tutorial" / "tutorial.mplstyle")
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 2.9), dpi=110)
    NadarayaWatson(random_state=0).fit(x, y).plot(method="simultaneous", ax=axes[0])
    NadarayaWatsonDensity(bandwidth="loo").fit(moons).plot(ax=axes[1])
    NadarayaWatsonClassifier(bandwidth="loo").fit(moons, label).plot(ax=axes[2])
    for ax, name in zip(
        axes, ("NadarayaWatson", "NadarayaWatsonDensity", "NadarayaWatsonClassifier"), strict=True
    ):
        ax.set_title(name)
        ax.grid(visible=False)
    figure.savefig(out, pil_kwargs={"quality": 75, "method": 6})


if __name__ == "__main__":
    main()
