"""What a reproduction leaves in its folder: drawings, and what was measured beside what the papers say."""

from pathlib import Path
from typing import Any

from nadaraya.files import reading, write_file
from nadaraya.report import write_figure
from nadaraya.reproduce.catalogue import Figure, figure_names, load_figure
from nadaraya.reproduce.claims import Checked, LossClaim
from nadaraya.reproduce.draw import draw_figure
from nadaraya.reproduce.findings import Findings
from nadaraya.study import Study
from nadaraya.study.gaps import signed
from nadaraya.study.runs import RESULTS_FILE
from nadaraya.study.summary import read_results

COMPARISON_FILE = "comparison.md"


def write_comparison(study: str, plan: Study, folder: Path) -> dict[str, list[Checked]]:
    """Write drawings and comparison.md of every figure that a folder's runs serve, from results.json alone.

    Args:
        study: name of the study that figures rest on.
        plan: that study, at its scale.
        folder: that has its results.json; files there are replaced.

    Returns:
        What was found of the claims of each figure, in their order, by the figure's name.

    Raises:
        InputError: the folder has no results, or they are not those of a study.

    >>> from pathlib import Path
    >>> from nadaraya.files import write_file
    >>> from nadaraya.reproduce import load_experiment, write_comparison
    >>> write_file(Path("papers-smoke/results.json"), '{"cells": [], "runs": [], "recipe": {}}')
    >>> write_comparison("papers", load_experiment("papers", "smoke").study, Path("papers-smoke"))
    {}
    """
    results = read_results(folder)
    found, sections, checked = Findings(plan, results), [], {}
    for figure in map(load_figure, figure_names()):
        if figure.study == study and any(found.sizes(variant) for variant in figure.trained):
            drawings = draw_figure(figure, found)
            for name, drawing in drawings.items():
                write_figure(drawing, folder / f"{name}.png")
            checked[figure.name] = [claim.check(found) for claim in figure.claims]
            sections.append(_section(figure, found, checked[figure.name], list(drawings)))
    with reading(folder / RESULTS_FILE, "the results of a study"):
        heading = f"# Figures that rest on the study `{study}`\n\n{_setting(results)}\n"
    write_file(folder / COMPARISON_FILE, "\n".join([heading, *sections]))
    return checked


def _setting(results: Any) -> str:
    """Of the papers and here."""
    line = (
        "The papers train 4 layers of width 512 with 4 heads on 200,000 updates of 256 windows of 256 "
        "characters, one run of each"
    )
    if not results["runs"]:
        return f"{line}. No run is finished here."
    model, data, training = (results["recipe"][name] for name in ("model", "data", "training"))
    steps = sorted({row["steps"] for row in results["runs"] if "loss" in row})
    return (
        f"{line}; here {model['num_hidden_layers']} layers of width {model['hidden_size']} with "
        f"{model['num_attention_heads']} heads on {_listed(steps)} updates of {training['batch_size']} "
        f"windows of {data['context']} tokens.\n\nA claim on losses is judged at the longest runs that have "
        "several seeds, by the interval of 95 % (Student's t over seeds, paired): yes or no where all of it "
        "says so. A claim on single models is judged by the runs: yes where all say so, no where none does."
    )


def _section(figure: Figure, found: Findings, checked: list[Checked], drawings: list[str]) -> str:
    lines = [f"## {figure.name}: {figure.document}, {figure.figure}", "", f"{figure.shows}.", ""]
    lines += [f"![{name}]({name}.png)" for name in drawings]
    if figure.claims:
        lines += ["", "| claim | paper | here | agrees |", "|---|---|---|---|"]
        lines += [
            f"| {claim.says} | {claim.paper} | {answer.ours} | {answer.agrees} |"
            for claim, answer in zip(figure.claims, checked, strict=True)
        ]
    horizons = _horizons(figure, found)
    if figure.order and horizons:
        lines += ["", f"The paper's order, best first: {figure.order}.", "", *horizons]
    return "\n".join([*lines, ""])


def _horizons(figure: Figure, found: Findings) -> list[str]:
    """The order of the mean losses after every number of updates, and what the gaps say of the claims."""
    rows = {variant: found.sizes(variant) for variant in figure.variants}
    claims = [claim for claim in figure.claims if isinstance(claim, LossClaim)]
    gaps = [found.gaps(claim.variant, claim.other) for claim in claims]
    heads = [f"`{claim.variant}` − `{claim.other}`" for claim in claims]
    lines = [f"| {' | '.join(['updates', 'mean losses here, best first', *heads])} |"]
    lines += [f"|---:|---|{'---|' * len(heads)}"]
    for size in found.study.sizes:
        there = {variant: sizes[size] for variant, sizes in rows.items() if size in sizes}
        if not there:
            continue
        means = {name: sum(row["loss"] for row in runs) / len(runs) for name, runs in there.items()}
        order = " < ".join(f"{name} {means[name]:.4f}" for name in sorted(means, key=means.__getitem__))
        cells = []
        for claim, gap in zip(claims, gaps, strict=True):
            at = next((at for at in gap.sizes if at.size == size), None) if gap else None
            cells.append(f"{signed(at.gap)}: {claim.agreement(at.gap)}" if at else "")
        updates = next(iter(there.values()))[0]["steps"]
        lines.append(f"| {' | '.join([f'{updates:,}', order, *cells])} |")
    return lines if len(lines) > 2 else []


def _listed(numbers: list[int]) -> str:
    words = [f"{number:,}" for number in numbers]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
