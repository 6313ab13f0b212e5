"""The summary of a run of gpu.py, from the results files that its folder has so far."""

import json
from pathlib import Path
from typing import Any

import tables
from targets import NOT_MEASURED
from vit_tables import vit_text


def summary_text(folder: Path, steps: list[dict[str, Any]], environment: dict[str, Any], quick: bool) -> str:
    """What was run, the targets, and every table, as Markdown.

    Args:
        folder: where the steps wrote NAME.json.
        steps: name, status and seconds of each, in order.
        environment: device and versions.
        quick: whether sizes were tiny, which the summary then says.

    Returns:
        The text.
    """
    parts = ["# GPU run"]
    if quick:
        parts.append("Tiny sizes on the CPU: the script works; nothing here is a measurement.")
    parts.append("\n".join(f"- {name}: {value}" for name, value in environment.items()))
    rows = [[step["name"], step["status"], f"{step['seconds']:.0f}"] for step in steps]
    parts.append("## Steps\n\n" + tables.markdown(["step", "status", "seconds"], rows))
    files = {step["name"]: _read(folder / f"{step['name']}.json") for step in steps}
    runs = [files[name] for name in ("attention-main", "attention-rest") if files.get(name)]
    if runs:
        parts.append(tables.targets_text(_best_known(runs)))
    if tests := files.get("tests"):
        counts = ", ".join(f"{tests[name]} {name}" for name in ("tests", "failures", "errors", "skipped"))
        parts.append("\n".join([f"## Tests\n\n{counts}", "", *(f"- {name}" for name in tests["failed"])]))
    parts += [tables.results_text(run) for run in runs]
    parts += [_vit_text(name, files[name]) for name in ("vit", "vit-eager") if files.get(name)]
    if model_steps := files.get("steps"):
        parts.append(_steps_text(model_steps))
    if loading := files.get("loading"):
        parts.append(_loading_text(loading))
    if dickens := files.get("dickens"):
        parts.append(_dickens_text(dickens))
    return "\n\n".join(parts) + "\n"


def _read(path: Path) -> dict[str, Any] | None:
    """A results file, or None where there is none or it was cut while it was written."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _best_known(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every target from the run that measured it."""
    by_target = zip(*(run["targets"] for run in runs), strict=True)
    return [next((row for row in rows if row["status"] != NOT_MEASURED), rows[0]) for rows in by_target]


def _vit_text(name: str, results: dict[str, Any]) -> str:
    sizes = [vit_text(size, part) for size, part in results["sizes"].items()]
    return "\n\n".join([f"## Image models: {name}", tables.targets_text(results["targets"]), *sizes])


def _steps_text(results: dict[str, Any]) -> str:
    parts = ["## Training steps"]
    for title, timings in results["step_ms"].items():
        base = next(iter(timings.values()))["median"] if timings else 1.0
        rows = [
            [
                name,
                f"{timing['median']:.2f}",
                f"{timing['low']:.2f}–{timing['high']:.2f}",
                f"{timing['host']:.2f}",
                f"{timing['median'] / base:.2f}×",
            ]
            for name, timing in timings.items()
        ]
        parts.append(tables.markdown([title, "median ms", "quartiles", "host ms", "of the first"], rows))
        parts += [f"{name}: {reason}" for name, reason in results["failed"][title].items()]
    return "\n\n".join(parts)


def _loading_text(results: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{row['images_per_second']:.0f}",
            f"{row['low']:.0f}–{row['high']:.0f}",
            f"{row['of_synthetic']:.3f}",
        ]
        for name, row in results["speeds"].items()
    ]
    header = ["batches", "images/s", "range", "of the model's own"]
    return f"## Loading images: {results['settings']['images']}\n\n" + tables.markdown(header, rows)


def _dickens_text(results: dict[str, Any]) -> str:
    rows = []
    for variant, run in results["runs"].items():
        if "failed" in run:
            rows.append([variant, run["failed"], "", ""])
        else:
            final = run["final"]
            loss, bits, milliseconds = final["loss"], final["bits_per_byte"], 1e3 * final["step_seconds"]
            rows.append([variant, f"{loss:.4f}", f"{bits:.4f}", f"{milliseconds:.1f}"])
    header = ["variant", "nats a character", "bits a byte", "ms a step"]
    return f"## Dickens, {results['steps']} updates\n\n" + tables.markdown(header, rows)
