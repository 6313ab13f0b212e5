"""Drawings and comparison of a reproduction: what was measured, drawn as and beside what the papers say."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import mean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from nadaraya.files import reading, write_file
from nadaraya.interpret.banks import BankShape
from nadaraya.report import write_figure
from nadaraya.report.by_lag import draw_bank, draw_histograms
from nadaraya.report.figures import draw_losses
from nadaraya.report.runs import RunData, labelled
from nadaraya.report.style import charts
from nadaraya.reproduce.catalogue import Figure, figure_names, load_figure
from nadaraya.reproduce.claims import Checked
from nadaraya.study import Findings, Study
from nadaraya.study.probes import stored_histogram, stored_shapes
from nadaraya.study.results import RESULTS_FILE, Row, read_results
from nadaraya.study.statistics import signed
from nadaraya.study.summary import render
from nadaraya.training.recipe import read_mapping


def write_comparison(study: str, plan: Study, folder: Path) -> dict[str, list[Checked]]:
    """Write drawings and comparison.md of every figure that a folder's runs serve, from results.json alone.

    `study` is the name of the study that figures rest on, `plan` that study at its scale. Files of the folder
    are replaced. It returns what was found of the claims of each figure, in their order, by its name.
    """
    results = read_results(folder)
    found, figures, checked = Findings(plan, results), [], {}
    pictures: dict[str, Drawing] = {}
    with reading(folder / RESULTS_FILE, "the results of a study"):
        recipe = read_mapping(results["recipe"])
        for figure in map(load_figure, figure_names()):
            if figure.study == study and any(found.sizes(variant) for variant in figure.trained):
                drawings = draw_figure(figure, found)
                pictures |= drawings
                checked[figure.name] = [claim.check(found) for claim in figure.claims]
                answers = list(zip(figure.claims, checked[figure.name], strict=True))
                figures.append((figure, list(drawings), answers, _horizons(figure, found)))
    for name, drawing in pictures.items():
        write_figure(drawing, folder / f"{name}.png")
    steps = [f"{count:,}" for count in sorted({row["steps"] for row in results["runs"] if "loss" in row})]
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


def draw_figure(figure: Figure, found: Findings) -> dict[str, Drawing]:
    """The drawings of a figure by its name, or by that and a variant where each variant has its own.

    Variants without the runs that a drawing takes are left out.
    """
    if figure.drawing == "losses":
        drawing = _losses(figure, found)
        return {figure.name: drawing} if drawing else {}
    probes = {"banks": ["banks"], "newlines": ["banks", "newlines"]}[figure.drawing]
    drawings = {}
    for variant in figure.variants:
        rows = list(chain(*found.sizes(variant, *probes).values()))
        if not rows:
            continue
        row = max(rows, key=lambda row: (row["steps"], -row["seed"]))
        shapes = stored_shapes(row["probes"]["banks"])
        where = f"{variant}, {row['steps']:,} updates, seed {row['seed']}"
        if figure.drawing == "newlines":
            drawings[f"{figure.name}-{variant}"] = _newlines(shapes, row["probes"]["newlines"], where)
        elif shapes:
            drawings[f"{figure.name}-{variant}"] = _banks(shapes, where)
    return drawings


def _losses(figure: Figure, found: Findings) -> Drawing | None:
    """Validation loss against updates: at the most updates that all variants have, and at the most of any."""
    curves = {variant: found.sizes(variant) for variant in figure.variants}
    curves = {variant: sizes for variant, sizes in curves.items() if sizes}
    if not curves:
        return None
    counts = {size: sum(size in sizes for sizes in curves.values()) for size in found.study.sizes}
    shared = [size for size, count in counts.items() if count == len(curves)]
    longest = [size for size, count in counts.items() if count]
    panels = list(dict.fromkeys([*shared[-1:], *longest[-1:]]))
    with charts(460, 330, columns=len(panels)) as (drawing, (axes,)):
        for chart, size in zip(axes, panels, strict=True):
            _draw_losses(chart, {name: sizes[size] for name, sizes in curves.items() if size in sizes})
        axes[0].legend(fontsize=9)
    return drawing


def _draw_losses(axes: Axes, runs: Mapping[str, list[Row]]) -> None:
    """The mean over seeds as a line, their range as a band."""
    means, ranges = [], []
    for variant, rows in runs.items():
        curves = [dict(row["validation"]) for row in rows]
        steps = sorted(set.intersection(*map(set, curves)))  # seeds may have been validated at others too
        losses = np.array([[curve[step] for step in steps] for curve in curves])
        records = [
            {"kind": "validation", "step": step, "loss": loss}
            for step, loss in zip(steps, losses.mean(axis=0), strict=True)
        ]
        means.append(RunData(variant, variant, variant, records))
        ranges.append((steps, losses.min(axis=0), losses.max(axis=0)))
    lines = labelled(means)
    draw_losses(axes, lines)
    for line, (steps, low, high) in zip(lines, ranges, strict=True):
        axes.fill_between(steps, low, high, color=line.style.hex, alpha=0.2, linewidth=0)
    counts = sorted({len(rows) for rows in runs.values()})
    seeds = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    shown = "1 seed" if seeds == "1" else f"mean and range of {seeds} seeds"
    axes.set_title(f"validation loss, nats/token: {shown}")
    axes.set_xlabel("updates")


def _banks(shapes: list[BankShape], where: str) -> Drawing:
    """The start of the first layer's bank, with which all start, then the trained banks layer by layer."""
    first = shapes[0]
    with charts(280, 230, columns=1 + len(shapes)) as (drawing, (axes,)):
        if first.initial is not None:
            draw_bank(axes[0], replace(first, initial=None, trained=first.initial))
        axes[0].set_title("before training")
        for chart, shape in zip(axes[1:], shapes, strict=True):
            draw_bank(chart, replace(shape, initial=None))
        axes[1].legend(ncols=2, fontsize=9, loc="upper right", handlelength=1.2, columnspacing=1.0)
        drawing.suptitle(where, x=0.01, ha="left", fontsize=9)
    return drawing


def _newlines(shapes: list[BankShape], probed: dict[str, object], where: str) -> Drawing:
    """The trained banks of the first layer, and the histograms of the corpus and of generated text."""
    histograms = {text: stored_histogram(probed, text) for text in ("corpus", "generated")}
    with charts(400, 260, columns=3 if shapes else 2) as (drawing, (axes,)):
        if shapes:
            draw_bank(axes[0], replace(shapes[0], initial=None))
        draw_histograms(axes[-2:], histograms)
        drawing.suptitle(where, x=0.01, ha="left", fontsize=9)
    return drawing
