"""Bunks et al. (2025) and Gaussian Process Attention (anonymous) on Dickens, all variants trained and drawn.

    nadaraya data dickens
    python experiments/dickens.py experiments/dickens-cpu.yaml --out experiments/results/dickens-cpu

Writes results.json (validation curves, final figures, bumps of every bank, peaks of the newline histograms of
the corpus and of each model's own text) and one PNG per figure.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from sweep import gather, train

from nadaraya.interpret.banks import bank_shapes
from nadaraya.interpret.lags import LagHistogram, lag_histogram
from nadaraya.report import RunData, bank_curves, lag_histograms, loss_curves
from nadaraya.training.run import Run

VARIANTS = ["rope", "gpa-rope", "gpa-mul", "gpa", "decay", "learned-rope"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--variants", nargs="+", default=VARIANTS, metavar="VARIANT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time")
    options = parser.parse_args()
    jobs = [(variant, options.seed) for variant in options.variants]
    runs = train(options, jobs)
    options.out.mkdir(parents=True, exist_ok=True)
    corpus = lag_histogram(runs[0].corpus().text)
    written = {run.recipe.model.variant: lag_histogram(run.sample or "") for run in runs}
    results = gather(options.recipe, jobs, runs)
    results["bumps"] = {
        run.recipe.model.variant: bumps(run) for run in runs if run.load_model().lag_kernels()
    }
    results["newline_peaks"] = {"corpus": peaks(corpus)}
    results["newline_peaks"].update({variant: peaks(histogram) for variant, histogram in written.items()})
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    curves = [RunData(run.name, run.path.name, run.recipe.label, run.metrics) for run in runs]
    loss_curves(curves).savefig(options.out / "curves.png", dpi=90)
    for run in runs:
        variant = run.recipe.model.variant
        if variant in results["bumps"]:
            shapes = bank_shapes(run, run.recipe.data.context)
            bank_curves(shapes).savefig(options.out / f"banks-{variant}.png", dpi=90)
    best = next(iter(results["summary"]))
    histograms = {"corpus": corpus, "generated": written[best]}
    lag_histograms(histograms).savefig(options.out / "newlines.png", dpi=90)
    for variant, row in results["summary"].items():
        print(f"{variant:14} {row['mean']:.4f}")


def bumps(run: Run) -> list[dict[str, Any]]:
    """Lag, layer (from 1) and heads of every bump, with its height above its surroundings in logits."""
    return [
        {
            "layer": shape.layer + 1,
            "lag": bump.lag,
            "heads": [head + 1 for head in bump.heads],
            "prominence": round(bump.prominence, 3),
            "at_start": bump.at_start,
        }
        for shape in bank_shapes(run, run.recipe.data.context)
        for bump in shape.shared_bumps()
    ]


def peaks(histogram: LagHistogram) -> list[dict[str, Any]]:
    """The named peaks of a histogram of newline separations."""
    return [
        {"lag": peak.lag, "name": peak.name, "count": peak.count, "share": round(peak.share, 4)}
        for peak in histogram.peaks()
    ]


if __name__ == "__main__":
    main()
