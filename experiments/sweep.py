"""Trains variants × seeds under one recipe and gathers what they reached.

    python experiments/sweep.py experiments/variants.yaml --seeds 0 1 2 --out experiments/results/variants

A variant may carry recipe keys to change, as gka,model.variant_options.values=rotated: an ablation. Each run
is an ordinary run folder, so a sweep that was stopped goes on where it was. Writes results.json (every
validation curve and the final figures) and results.png (final validation loss, one dot per seed).
"""

import argparse
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from nadaraya import variants
from nadaraya.report.palette import variant_styles
from nadaraya.study import Job, run_queue
from nadaraya.training.recipe import load_recipe
from nadaraya.training.run import Run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--variants", nargs="+", default=variants.names(), metavar="VARIANT")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED")
    parser.add_argument("--out", type=Path, required=True, help="folder of results.json and results.png")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time")
    options = parser.parse_args()
    jobs = [(variant, seed) for seed in options.seeds for variant in options.variants]
    results = gather(options.recipe, jobs, train(options, jobs))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results).savefig(options.out / "results.png", dpi=110)
    for variant, row in results["summary"].items():
        print(f"{variant:14} {row['mean']:.4f} ± {row['spread']:.4f}")


class RunFailed(Exception):
    """A run ended without its results."""


def train(options: argparse.Namespace, jobs: list[tuple[str, int]]) -> list[Run]:
    """Variants and seeds, trained by `train_apart`; a variant may carry recipe keys to change."""
    changes = {}
    for variant, seed in jobs:
        name, *keys = variant.split(",")
        folder = options.runs / f"{load_recipe(options.recipe).name}-{variant}-{seed}"
        changes[folder] = [f"model.variant={name}", *keys, f"seed={seed}"]
    return train_apart(options.recipe, changes, options.workers)


def train_apart(recipe: Path, changes: dict[Path, list[str]], workers: int) -> list[Run]:
    """Runs in processes of their own, whose output goes to logs beside their folders.

    Args:
        recipe: the recipe file.
        changes: its keys to change, as KEY=VALUE, by the folder of the run; one that was stopped goes on.
        workers: runs at a time, among which the cores are shared out.

    Raises:
        RunFailed: one ended with an error, named with its log, or all were stopped.
    """
    command = [sys.executable, "-m", "nadaraya.cli", "train", str(recipe)]
    jobs = [
        Job(
            folder.name,
            [*command, *keys, "--run", str(folder)],
            folder.with_name(f"{folder.name}.log"),
            place,
        )
        for place, (folder, keys) in enumerate(changes.items())
    ]
    ended = run_queue(lambda: jobs, workers=workers, say=lambda line: print(line, flush=True))
    for name, how in ended.failed.items():
        raise RunFailed(f"{name} failed with {how}")
    if ended.stopped:
        raise RunFailed("stopped; the same command goes on")
    return [Run(folder) for folder in changes]


def gather(recipe: Path, jobs: list[tuple[str, int]], runs: list[Run]) -> dict[str, Any]:
    """Curves and final figures by run, mean and spread by variant, best first."""
    rows = [
        {
            "variant": variant,
            "seed": run.recipe.seed,
            "validation": [[record["step"], round(record["loss"], 5)] for record in run.series("validation")],
            **{
                name: (run.final or {})[name]
                for name in ("loss", "bits_per_byte", "parameters", "kernel_parameters")
            },
        }
        for (variant, _), run in zip(jobs, runs, strict=True)
    ]
    losses: dict[str, list[float]] = {}
    for row in rows:
        losses.setdefault(row["variant"], []).append(row["loss"])
    ranked = sorted(losses.items(), key=lambda item: statistics.mean(item[1]))
    summary = {
        variant: {
            "mean": statistics.mean(values),
            "spread": (max(values) - min(values)) / 2,
            "seeds": len(values),
        }
        for variant, values in ranked
    }
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"recipe": recipe.read_text(), "versions": versions, "summary": summary, "runs": rows}


def draw(results: dict[str, Any]) -> Figure:
    """Final validation loss by variant, best at the top: one dot per seed, a bar at the mean."""
    names = list(results["summary"])
    figure = Figure(figsize=(7, 0.8 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots()
    styles = variant_styles(name.split(",")[0] for name in names)
    for place, (name, style) in enumerate(zip(names, styles, strict=True)):
        values = [row["loss"] for row in results["runs"] if row["variant"] == name]
        axes.plot(values, [place] * len(values), "o", color=style.hex, alpha=0.7)
        axes.plot([results["summary"][name]["mean"]], [place], "|", color=style.hex, markersize=16)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("validation cross-entropy (nats/token), lower is better")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    try:
        main()
    except RunFailed as error:
        print(f"sweep.py: {error}", file=sys.stderr)
        sys.exit(1)
