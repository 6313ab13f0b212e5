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
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from nadaraya import variants
from nadaraya.report.palette import variant_styles
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
    with ThreadPoolExecutor(options.workers) as pool:
        runs = list(pool.map(lambda job: train(options, *job), jobs))
    results = gather(options.recipe, jobs, runs)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results).savefig(options.out / "results.png", dpi=110)
    for variant, row in results["summary"].items():
        print(f"{variant:14} {row['mean']:.4f} ± {row['spread']:.4f}")


class RunFailed(Exception):
    """A run ended without its results."""


def train(options: argparse.Namespace, variant: str, seed: int) -> Run:
    """One run of a sweep, as `train_apart` makes it."""
    name, *changes = variant.split(",")
    folder = options.runs / f"{load_recipe(options.recipe).name}-{variant}-{seed}"
    changes = [f"model.variant={name}", *changes, f"seed={seed}"]
    run = train_apart(options.recipe, changes, folder, options.workers)
    print(f"{variant} seed {seed}: {(run.final or {})['loss']:.4f}", flush=True)
    return run


def train_apart(recipe: Path, changes: list[str], folder: Path, workers: int) -> Run:
    """One run in a process of its own, whose output goes to a log beside the folder.

    Args:
        recipe: the recipe file.
        changes: its keys to change, as KEY=VALUE.
        folder: of the run; one that was stopped goes on.
        workers: runs at a time, among which the cores are shared out.

    Raises:
        RunFailed: it ended with an error; names the log.
    """
    command = [sys.executable, "-m", "nadaraya.cli", "train", str(recipe), *changes, "--run", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    with log.open("a") as stream:
        status = subprocess.run(
            command, env=environment, check=False, stdout=stream, stderr=stream
        ).returncode
    if status != 0:
        raise RunFailed(f"{folder.name} ended with status {status}: see {log}")
    return Run(folder)


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
