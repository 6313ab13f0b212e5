"""How many heads can go at half a per cent of loss: ordered by measured loss, by their banks, and at random.

    python experiments/pruning.py RUN... --out experiments/results/pruning

takes finished runs on text, several seeds of each variant, and leaves them as they are. For every run and
order the most heads that can go after tuning are found by bisection, and the smaller model is timed beside
the whole one, one at a time: keep the machine quiet. Writes results.json after each of them and skips what is
in there; at the end summary.md and a chart for every variant. --summarise makes these two anew.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nadaraya.files import write_file
from nadaraya.pruning import PruningPlan, most_heads, prune_run
from nadaraya.report import write_figure
from nadaraya.report.figures import pruning_curves
from nadaraya.training import Run

ORDERS = {"loss": "by measured loss", "bank": "by bank", "random": "at random"}


def plans(run: Run, arguments: argparse.Namespace) -> Iterator[PruningPlan]:
    """The orders that a run is pruned in; what has no bank has no order by bank."""
    banks = run.final is not None and run.final["kernel_parameters"] > 0
    shared = {"tune": arguments.tune, "tune_rate": arguments.tune_rate, "windows": arguments.windows}
    for by in ORDERS:
        if by != "bank" or banks:
            for seed in range(arguments.random if by == "random" else 1):
                yield PruningPlan(by=by, seed=seed, **shared)


def pruned(run: Run, budget: str, plan: PruningPlan) -> dict[str, Any]:
    """What can go in one order, and what both models score and cost."""
    found = most_heads(run, budget, plan, report=lambda line: print(f"  {line}", flush=True))
    with tempfile.TemporaryDirectory() as scratch:
        _, before, after = prune_run(
            run, found.heads, Path(scratch) / "smaller", tune=plan.tune, tune_rate=plan.tune_rate
        )
    figures = {key: value for key, value in found.figures.items() if key != "run"}
    recipe = run.text_recipe()
    trained = {"run_seed": recipe.seed, "steps": run.steps}
    return {**trained, **figures, "budget": budget, "before": asdict(before), "after": asdict(after)}


def settings_of(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What the runs of one row of the table, and the orders of one chart, have in common."""
    return tuple(entry[name] for name in ("variant", "steps", "budget", "tune", "tune_rate", "windows"))


def key_of(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What tells an entry from all others."""
    return (*settings_of(entry), *(entry[name] for name in ("run_seed", "by", "seed")))


def spread(values: list[float], form: str) -> str:
    """A mean with its standard deviation."""
    deviation = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{deviation}"


def summary(entries: list[dict[str, Any]]) -> str:
    """A table: what goes in each order, and what the smaller model has of the whole one's costs."""
    lines = [
        "| variant | updates | budget | tuned | order | runs | heads removed | of | loss + | parameters | "
        "training step | cache |",
        "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for settings in dict.fromkeys(map(settings_of, entries)):
        variant, steps, budget, tune, *_ = settings
        for by, name in ORDERS.items():
            own = [entry for entry in entries if (settings_of(entry), entry["by"]) == (settings, by)]
            if not own:
                continue
            shares = {
                cost: [entry["after"][cost] / entry["before"][cost] for entry in own]
                for cost in ("loss", "parameters", "step_seconds", "cache_bytes_per_token")
            }
            cells = [
                f"`{variant}`",
                f"{steps:,}",
                budget,
                f"{tune:,}",
                name,
                str(len(own)),
                spread([entry["removed"] for entry in own], ".1f"),
                str(len(own[0]["order"])),
                f"{spread([100 * (share - 1) for share in shares['loss']], '.2f')} %",
                *(
                    f"{statistics.mean(shares[cost]):.2f} ×"
                    for cost in ("parameters", "step_seconds", "cache_bytes_per_token")
                ),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def summarise(folder: Path, entries: list[dict[str, Any]]) -> None:
    """The table and a chart for every variant, of its first seed."""
    write_file(folder / "summary.md", summary(entries))
    for variant in dict.fromkeys(entry["variant"] for entry in entries):
        own = [entry for entry in entries if entry["variant"] == variant]
        alike = (settings_of(own[0]), own[0]["run_seed"])
        first = [entry for entry in own if (settings_of(entry), entry["run_seed"]) == alike]
        write_figure(pruning_curves(first, limit=first[0]["limit"]), folder / f"{variant}.png")


def main() -> None:
    """Prune every run in every order; write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, help="finished run folders")
    parser.add_argument("--budget", default="0.5%")
    parser.add_argument("--tune", type=int, default=300, help="updates after the removal")
    parser.add_argument("--tune-rate", type=float, default=0.1, help="share of the run's learning rate")
    parser.add_argument("--windows", type=int, default=128)
    parser.add_argument("--random", type=int, default=3, help="orders at random of each run")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "pruning")
    parser.add_argument("--summarise", action="store_true")
    arguments = parser.parse_args()
    results = arguments.out / "results.json"
    entries = json.loads(results.read_text(encoding="utf-8"))["pruned"] if results.exists() else []
    done = {key_of(entry) for entry in entries}
    for path in () if arguments.summarise else arguments.runs:
        run = Run(path)
        for plan in plans(run, arguments):
            wanted = {
                "variant": run.recipe.label,
                "run_seed": run.recipe.seed,
                "steps": run.steps,
                "budget": arguments.budget,
                **asdict(plan),
            }
            if key_of(wanted) in done:
                continue
            print(f"{path}: {ORDERS[plan.by]}", flush=True)
            entries.append(pruned(run, arguments.budget, plan))
            write_file(results, json.dumps({"pruned": entries}, indent=1) + "\n")
    summarise(arguments.out, entries)


if __name__ == "__main__":
    main()
