"""One self-contained HTML file that shows what runs did: nothing in it is loaded from anywhere else."""

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from nadaraya.errors import InputError
from nadaraya.files import write_file
from nadaraya.interpret.banks import BankShape, Bump, bank_shapes
from nadaraya.interpret.lags import LagPeak, lag_histogram
from nadaraya.report import figures
from nadaraya.report.palette import COLOURS, head_style
from nadaraya.report.summary import RunSummary, summarise
from nadaraya.report.svg import inline_svg

#: fewer newline separations than this say nothing about a histogram
LEAST_SEPARATIONS = 30
_SAMPLE_CHARACTERS = 1500
_NAMED_PEAKS = 2
_LEAST_PEAK = 10


@dataclass(frozen=True)
class Lags:
    """The newline lags of one text, ready for the page; `svg` is None where there was too little text."""

    label: str
    colour: str
    characters: int
    separations: int
    peaks: list[LagPeak]
    svg: Markup | None


@dataclass(frozen=True)
class Banks:
    """The lag kernels of one run, ready for the page; layers and heads are counted from 1 there."""

    run: RunSummary
    layers: list[tuple[BankShape, Markup]]
    heads: list[str]

    def near(self, lag: int, reach: int = 5) -> list[tuple[int, Bump]]:
        """(layer, bump) of every shared bump within `reach` tokens of a lag."""
        bumps = [(shape.layer + 1, bump) for shape, _ in self.layers for bump in shape.shared_bumps()]
        return [(layer, bump) for layer, bump in bumps if abs(bump.lag - lag) <= reach]


def write_report(runs: Sequence[Any], out: str | Path, force: bool = False) -> Path:
    """Write the report on some runs as one HTML file.

    Args:
        runs: `training.Run` objects, at least one.
        out: the file to write.
        force: whether a file that is already there may be replaced (default False).

    Returns:
        The path of the file.

    Raises:
        InputError: no runs were given, the file exists and force is False, or its folder does not exist.
    """
    path = Path(out)
    if path.is_dir():
        raise InputError(f"{path} is a folder: --out takes a file")
    if path.exists() and not force:
        raise InputError(f"{path} exists already: give another --out, or --force to replace it")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder: --out takes a file in a folder that exists")
    write_file(path, render(runs))
    return path


def render(runs: Sequence[Any]) -> str:
    """The report on some runs as an HTML page.

    Args:
        runs: `training.Run` objects, at least one.

    Returns:
        The page; every text that comes from a run is escaped.

    Raises:
        InputError: no runs were given.
    """
    if not runs:
        raise InputError("a report needs at least one run folder: none was given")
    summaries = summarise(runs)
    ranked = sorted(summaries, key=lambda run: (not run.finished, math.inf if run.loss is None else run.loss))
    baseline = next((run for run in ranked if run.variant == "rope" and run.finished), None)
    comparable = len({_text_of(run) for run in runs}) == 1
    corpora, unreadable = _readable_corpora(runs)
    texts = [(corpus.name, "slate", corpus.text) for corpus in corpora]
    texts += [(run.label, run.style.colour, run.run.sample or "") for run in summaries]
    lags = _lags(texts, len(corpora), max(figures.context_of(run) for run in runs))
    marks = _line_lengths(lags[: len(corpora)])
    banks = {run.label: _banks(run, number, marks) for number, run in enumerate(summaries)}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_resource("report.html.jinja")).render(
        style=Markup(_colour_variables() + _resource("report.css")),
        runs=summaries,
        setups=_setups(summaries),
        marks=marks,
        least=_least(summaries),
        ranked=ranked,
        best=ranked[0] if comparable and ranked[0].finished else None,
        baseline=baseline if comparable else None,
        comparable=comparable,
        loss_panels=_loss_panels(summaries),
        banks=[found for found in banks.values() if found is not None],
        without_banks=[run.label for run in summaries if run.finished and banks[run.label] is None],
        unfinished=[run.label for run in summaries if not run.finished],
        corpora=lags[: len(corpora)],
        generated=lags[len(corpora) :],
        unreadable=unreadable,
        least_separations=LEAST_SEPARATIONS,
        sample_characters=_SAMPLE_CHARACTERS,
        named_bumps=figures.named_bumps,
        versions=_versions(),
    )


def _text_of(run: Any) -> tuple[Any, ...]:
    """What decides the validation text: losses of runs that differ in it do not compare."""
    data = run.recipe.data
    return data.corpus, data.limit, data.validation_fraction


def _setups(runs: Sequence[RunSummary]) -> list[tuple[str, list[str]]]:
    """What was trained, on what and for how long, with the labels of the runs that share it."""
    found: dict[str, list[str]] = {}
    for run in runs:
        model, data, training = run.run.recipe.model, run.run.recipe.data, run.run.recipe.training
        limit = f", first {data.limit:,} characters" if data.limit else ""
        setup = (
            f"{model.num_hidden_layers} layers, {model.num_attention_heads} heads, "
            f"width {model.hidden_size}, context {data.context}; "
            f"{training.steps:,} steps of {training.batch_size} windows; "
            f"corpus: {Path(data.corpus).name}{limit}."
        )
        found.setdefault(setup, []).append(run.label)
    return list(found.items())


def _least(runs: Sequence[RunSummary]) -> Callable[[RunSummary, str], Markup]:
    """Marks a table cell that holds the least of its column, where finished runs differ in it."""
    columns = ("loss", "bits_per_byte", "parameters", "kernel_parameters", "step_seconds")
    finished = {column: {getattr(run, column) for run in runs if run.finished} for column in columns}

    def mark(run: RunSummary, column: str) -> Markup:
        values = finished[column]
        least = run.finished and len(values) > 1 and getattr(run, column) == min(values)
        return Markup(' class="least"' if least else "")

    return mark


def _loss_panels(runs: Sequence[RunSummary]) -> list[Markup]:
    drawn = []
    for against, x_axis in (("step", "training steps"), ("seconds", "training time")):
        with figures.panels(460, 300) as (figure, axes):
            figures.draw_losses(axes[0, 0], runs, against)
        what = "; ".join(f"{run.label} ends at {run.loss:.3f}" for run in runs if run.loss is not None)
        drawn.append(_svg(figure, f"loss-{against}", f"Validation loss against {x_axis}. {what}."))
    return drawn


def _banks(run: RunSummary, number: int, marks: Sequence[int]) -> Banks | None:
    """The panels of one run, on one scale; None when it has no lag kernel, or no trained model yet."""
    if not run.finished:
        return None
    shapes = bank_shapes(run.run, figures.context_of(run.run))
    if not shapes:
        return None
    limits = figures.bank_limits(shapes)
    layers = []
    for shape in shapes:
        title = f"layer {shape.layer + 1}: {figures.quantity(shape.compose)}"
        with figures.panels(270, 205) as (figure, axes):
            figures.draw_bank(axes[0, 0], shape, marks)
            axes[0, 0].set_ylim(limits[shape.compose])
            axes[0, 0].set_title(title)
        svg = _svg(
            figure, f"bank-{number}-{shape.layer}", f"{run.label}, {title}, over lags; one line a head."
        )
        layers.append((shape, svg))
    return Banks(
        run, layers, [head_style(head).colour for head in range(max(len(s.trained) for s in shapes))]
    )


def _readable_corpora(runs: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Every corpus that the runs learned from, once each, and why the others could not be read."""
    found, unreadable = [], []
    for run in {(run.recipe.data.corpus, run.recipe.data.limit): run for run in runs}.values():
        try:
            found.append(run.corpus())
        except InputError as error:
            unreadable.append(str(error))
    return found, unreadable


def _line_lengths(corpora: Sequence[Lags]) -> list[int]:
    """The lags at which lines of the corpora end, as the histograms' peaks show them."""
    return sorted({peak.lag for corpus in corpora for peak in corpus.peaks if peak.lag > 1})


def _lags(texts: Sequence[tuple[str, str, str]], num_corpora: int, max_lag: int) -> list[Lags]:
    """Histograms of (label, colour, text), corpora first, on one axis; a lone corpus outlines the rest."""
    histograms = [lag_histogram(text, max_lag) for _, _, text in texts]
    longest = figures.longest_shown(histograms[:num_corpora] or histograms)
    found = []
    for number, ((label, colour, text), histogram) in enumerate(zip(texts, histograms, strict=True)):
        peaks, svg = [], None
        if histogram.total >= LEAST_SEPARATIONS:
            peaks = [peak for peak in histogram.peaks(_NAMED_PEAKS) if peak.count >= _LEAST_PEAK]
            behind = histograms[0] if number >= num_corpora == 1 else None
            with figures.panels(460, 250) as (figure, axes):
                marked = [peak.lag for peak in peaks]
                figures.draw_histogram(axes[0, 0], histogram, colour, marked, longest, behind)
            named = ", ".join(peak.name for peak in peaks) or "none"
            svg = _svg(figure, f"lags-{number}", f"Distances between newlines in {label}; peaks: {named}.")
        found.append(Lags(label, colour, len(text), histogram.total, peaks, svg))
    return found


def _svg(figure: Figure, name: str, description: str) -> Markup:
    return Markup(inline_svg(figure, name, description))


def _colour_variables() -> str:
    """CSS variables of the palette: light, and dark where the reader prefers it."""
    light, dark = (
        "".join(f"--{name}: {shades[mode]}; " for name, shades in COLOURS.items()) for mode in (0, 1)
    )
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"


def _resource(name: str) -> str:
    return (files("nadaraya.report") / name).read_text(encoding="utf-8")


def _versions() -> list[tuple[str, str]]:
    """What this page was made with: Python and the packages whose versions matter to the figures."""
    found = [("Python", platform.python_version())]
    for package in ("nadaraya", "torch", "transformers", "accelerate", "tokenizers", "matplotlib"):
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return found
