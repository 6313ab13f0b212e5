"""Trains the forms of attention on real images under one recipe and gathers what they reached.

    python experiments/vision.py experiments/vision-cpu.yaml --source IMAGES --seeds 0 1 --out RESULTS

Every form has the same blocks, batches, updates and optimiser; only the attention differs. Each run is an
ordinary run folder, so a study that was stopped goes on where it was. Writes results.json (curves, accuracy
of the averaged weights, parameters, FLOPs, speed, σ of every head), results.md (the table) and results.png.
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

from nadaraya.attention.content import GaussianContent
from nadaraya.evaluation.efficiency import image_model_cost
from nadaraya.study.queue import Job, run_queue
from nadaraya.training.recipe import load_recipe
from nadaraya.training.run import Run

# Keywords of the model by form; `deit` is timm's own attention, all others are kernel attention.
FORMS: dict[str, dict[str, Any]] = {
    "deit": {"pattern": "A"},
    "vlt": {"variant": "vlt"},
    "gka": {},
    "gka-channel": {"variant_options": {"per": "channel"}},
    "gka-loo": {"variant": "gka-loo"},
    "gka-grid": {"variant_options": {"grid_kernel": "bank"}},
    "gka-loo-grid": {"variant": "gka-loo", "variant_options": {"grid_kernel": "bank"}},
    "gka-loo-grid-channel": {
        "variant": "gka-loo",
        "variant_options": {"grid_kernel": "bank", "per": "channel"},
    },
    "gka-loo-grid-channel-shift": {
        "variant": "gka-loo",
        "variant_options": {"grid_kernel": "bank", "per": "channel", "shift": True},
    },
    "softmax-grid": {"variant": "softmax", "variant_options": {"grid_kernel": "bank"}},
    "hybrid": {"pattern": "GGGA"},
    "hybrid-loo-grid": {
        "variant": "gka-loo",
        "pattern": "GGGA",
        "variant_options": {"grid_kernel": "bank"},
    },
}
COLUMNS = ("form", "top-1 (EMA)", "± half range", "top-1 (raw)", "parameters", "MFLOP/image", "images/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "--source", required=True, help="images: a folder, shards, an .npz or torchvision:NAME"
    )
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS), metavar="FORM")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], metavar="SEED")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--set", dest="changes", nargs="+", default=[], metavar="KEY=VALUE", help="recipe keys to change"
    )
    options = parser.parse_args()
    jobs = [(form, seed) for seed in options.seeds for form in options.forms]
    results = gather(options.recipe, options.changes, jobs, train(options, jobs))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "results.md").write_text(table(results))
    draw(results).savefig(options.out / "results.png", dpi=110)
    print(table(results))


class RunFailed(Exception):
    """A run ended without its results."""


def train(options: argparse.Namespace, jobs: list[tuple[str, int]]) -> list[Run]:
    """Forms and seeds, trained by `train_apart`."""
    name = load_recipe(options.recipe, options.changes).name
    changes = {}
    for form, seed in jobs:
        keys = [f"model.options.{key}={json.dumps(value)}" for key, value in FORMS[form].items()]
        keys = [f"seed={seed}", f"data.source={options.source}", *keys, *options.changes]
        changes[options.runs / f"{name}-{form}-{seed}"] = keys
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


def gather(recipe: Path, changes: list[str], jobs: list[tuple[str, int]], runs: list[Run]) -> dict[str, Any]:
    """Curves and final figures by run; mean and half the range over seeds by form, best first."""
    rows = [
        {"form": form, "seed": seed, **_figures(run)} for (form, seed), run in zip(jobs, runs, strict=True)
    ]
    forms = sorted(dict.fromkeys(form for form, _ in jobs), key=lambda form: -_mean(rows, form, "ema_top1"))
    summary = {
        form: {
            **{key: _mean(rows, form, key) for key in ("ema_top1", "top1", "ema_loss", "images_per_second")},
            "half_range": _half_range([row["ema_top1"] for row in rows if row["form"] == form]),
            **{
                key: next(row[key] for row in rows if row["form"] == form)
                for key in ("parameters", "attention_parameters", "kernel_parameters", "flops_per_image")
            },
        }
        for form in forms
    }
    return {
        "recipe": recipe.read_text(),
        "changes": changes,
        "environment": {
            "device": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else f"{os.cpu_count()} CPU cores",
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "summary": summary,
        "runs": rows,
    }


def _figures(run: Run) -> dict[str, Any]:
    final = run.final or {}
    model = run.load_model()
    cost = image_model_cost(model)
    return {
        "validation": [[row["step"], round(row["ema_top1"], 5)] for row in run.series("validation")],
        **{key: final[key] for key in ("top1", "ema_top1", "top5", "ema_top5", "loss", "ema_loss")},
        "images_per_second": final["images_per_second"],
        "parameters": cost.parameters,
        "attention_parameters": cost.attention_parameters,
        "kernel_parameters": cost.kernel_parameters,
        "flops_per_image": cost.flops_per_image,
        "sigma": [_bandwidths(block.attn) for block in model.blocks],
    }


def _bandwidths(attention: Any) -> list[float] | None:
    """σ of every head, the geometric mean where each channel has its own; None without a Gaussian."""
    content = getattr(attention, "content", None)
    if not isinstance(content, GaussianContent):
        return None
    logs = content.bandwidth.detach().log()
    logs = logs.mean(-1) if logs.dim() == 2 else logs
    return [round(value, 3) for value in logs.exp().tolist()]


def _mean(rows: list[dict[str, Any]], form: str, key: str) -> float:
    return statistics.mean(row[key] for row in rows if row["form"] == form)


def _half_range(values: list[float]) -> float:
    return (max(values) - min(values)) / 2


def table(results: dict[str, Any]) -> str:
    """The summary as a Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for form, row in results["summary"].items():
        cells = (
            form,
            f"{row['ema_top1']:.2%}",
            f"{row['half_range']:.2%}",
            f"{row['top1']:.2%}",
            f"{row['parameters']:,}",
            f"{row['flops_per_image'] / 1e6:.1f}",
            f"{row['images_per_second']:,.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(results: dict[str, Any]) -> Figure:
    """Top-1 of the averaged weights by form, best at the top: one dot per seed, a bar at the mean."""
    names = list(results["summary"])
    figure = Figure(figsize=(7, 0.9 + 0.32 * len(names)), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(names):
        values = [100 * row["ema_top1"] for row in results["runs"] if row["form"] == name]
        colour = "tab:gray" if name == "deit" else "tab:blue"
        axes.plot(values, [place] * len(values), "o", color=colour, alpha=0.7)
        axes.plot([statistics.mean(values)], [place], "|", color=colour, markersize=16)
    labels = [f"{name} ({results['summary'][name]['parameters'] / 1e6:.2f} M)" for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("validation top-1 of the averaged weights (%), higher is better")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    try:
        main()
    except RunFailed as error:
        print(f"vision.py: {error}", file=sys.stderr)
        sys.exit(1)
