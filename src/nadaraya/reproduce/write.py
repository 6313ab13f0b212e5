"""Drawings and comparison of a reproduction: what was measured beside what the papers say."""

from pathlib import Path
from statistics import mean

from nadaraya.files import reading, write_file
from nadaraya.report import write_figure
from nadaraya.reproduce.catalogue import Figure, figure_names, load_figure
from nadaraya.reproduce.claims import Checked
from nadaraya.reproduce.draw import draw_figure
from nadaraya.study import Findings, Study
from nadaraya.study.results import RESULTS_FILE, Results, read_results
from nadaraya.study.statistics import signed
from nadaraya.study.summary import render
from nadaraya.training.recipe import read_mapping


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
    results: Results = read_results(folder)
    found, figures, checked = Findings(plan, results), [], {}
    for figure in map(load_figure, figure_names()):
        if figure.study == study and any(found.sizes(variant) for variant in figure.trained):
            drawings = draw_figure(figure, found)
            for name, drawing in drawings.items():
                write_figure(drawing, folder / f"{name}.png")
            checked[figure.name] = [claim.check(found) for claim in figure.claims]
            answers = list(zip(figure.claims, checked[figure.name], strict=True))
            figures.append((figure, list(drawings), answers, _horizons(figure, found)))
    steps = [f"{count:,}" for count in sorted({row["steps"] for row in results["runs"] if "loss" in row})]
    with reading(folder / RESULTS_FILE, "the results of a study"):
        recipe = read_mapping(results["recipe"])
    text = render("reproduce/comparison.md.jinja", study=study, recipe=recipe, steps=steps, figures=figures)
    write_file(folder / "comparison.md", text)
    return checked


def _horizons(figure: Figure, found: Findings) -> list[list[str]]:
    """The order of the mean losses after every number of updates, and what the gaps say of the claims."""
    gaps = [found.gaps(claim.variant, claim.other) for claim in figure.on_losses]
    horizons = []
    for size in found.study.sizes:
        runs = {name: rows for name in figure.variants if (rows := found.rows.get((name, size)))}
        means = {name: mean(row["loss"] for row in rows) for name, rows in runs.items()}
        order = " < ".join(f"{name} {means[name]:.4f}" for name in sorted(means, key=means.__getitem__))
        cells = []
        for claim, gap in zip(figure.on_losses, gaps, strict=True):
            at = next((at.gap for at in gap.sizes if at.size == size), None) if gap else None
            cells.append(f"{signed(at)}: {claim.agreement(at)}" if at else "")
        if runs:
            horizons.append([f"{next(iter(runs.values()))[0]['steps']:,}", order, *cells])
    return horizons
