"""The part of a report on runs on images: table, curves, bandwidths, grid kernels, where the models look."""

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.colors import Normalize

from nadaraya.report import figures
from nadaraya.report.image_runs import ImageRunData
from nadaraya.report.maps_matrices import bandwidth_lines
from nadaraya.report.page import inline_svg, render_part
from nadaraya.report.palette import head_style
from nadaraya.report.runs import labelled, leading, shown
from nadaraya.report.style import charts, limits, number
from nadaraya.report.tiles import over, photograph, pixels, side_by_side


def image_part(given: Sequence[ImageRunData]) -> Markup:
    """The sections on runs on images."""
    runs = labelled(given)
    ranked = sorted(
        runs, key=lambda run: (not run.finished, -math.inf if run.accuracy is None else -run.accuracy)
    )
    alike, first = shown(runs), ranked[0]
    known = first.finished and first.accuracy is not None
    return render_part(
        "image_runs.html.jinja",
        **alike,
        ranked=ranked,
        best=first if alike["comparable"] and known else None,
        leading=leading(runs, ("parameters", "loss"), ("top1", "ema_top1", "images_per_second")),
        curves=_curves(runs),
        bandwidths=[_bandwidths(run, place) for place, run in enumerate(runs) if run.sigma is not None],
        without_bandwidths=[run.label for run in runs if run.finished and run.sigma is None],
        grids=[(run, _grids(run)) for run in runs if run.grids],
        examples=[_examples(run) for run in runs if run.examples],
        without_examples=[(run, run.problem or "none was read") for run in runs if not run.examples],
    )


def _curves(runs: Sequence[ImageRunData]) -> list[Markup]:
    drawn = []
    for what, draw in (("loss", figures.draw_losses), ("top-1", figures.draw_accuracies)):
        for against, x_axis in (("step", "updates"), ("seconds", "training time")):
            options: dict[str, Any] = {"unit": "nats/image"} if what == "loss" else {}
            with charts(460, 300) as (figure, axes):
                draw(axes[0, 0], runs, against, **options)
            ends = "; ".join(
                f"{run.label} ends at {run.loss:.3f} nats/image" for run in runs if run.loss is not None
            )
            name = f"image-{what}-{against}"
            drawn.append(inline_svg(figure, name, f"Validation {what} against {x_axis}. {ends}."))
    return drawn


def _bandwidths(run: ImageRunData, place: int) -> tuple[ImageRunData, Markup, list[str]]:
    assert run.sigma is not None
    figure = bandwidth_lines(run.sigma, run.sigma_start, legend=False)
    description = f"Bandwidths of {run.label} over the layers, one line per head."
    heads = [head_style(head).colour for head in range(len(run.sigma))]
    return run, inline_svg(figure, f"sigma-{place}", description), heads


def _grids(run: ImageRunData) -> list[tuple[str, Markup]]:
    layers = []
    for shape in run.grids:
        for when, factors in (("before training", shape.initial), ("trained", shape.trained)):
            if factors is not None:
                caption = f"layer {shape.layer}, {when}, least factor {number(float(factors.min()))}"
                layers.append((caption, pixels(side_by_side(list(factors)), Normalize(0, 1))))
    return layers


def _examples(run: ImageRunData) -> tuple[ImageRunData, float, list[tuple[Any, ...]]]:
    """The run, the weight that has the full colour, and each image with its maps."""
    ends = limits([weights for example in run.examples for _, weights in example.maps], low=0)
    rows = []
    for example in run.examples:
        picture = photograph(example.picture)
        layers = [
            (layer, over(weights, ends), number(float(weights.min())), number(float(weights.max())))
            for layer, weights in example.maps
        ]
        rows.append((example, picture, layers))
    return run, float(ends.vmax or 0), rows
