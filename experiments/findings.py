"""The figure of docs/findings.md, drawn from the committed results.

    python experiments/findings.py

Left: the loss of banks less that of RoPE, at the end of runs of each length. Right: what sequences cost that
are longer than those of the training, after 3,000 updates. Bars are intervals of 95 % over seeds.
"""

from pathlib import Path

from matplotlib.axes import Axes

from nadaraya.report.palette import COLOURS, Style, variant_styles
from nadaraya.report.style import charts
from nadaraya.study import Findings
from nadaraya.study.statistics import Estimate, mean_with_interval

ROOT = Path(__file__).parents[1]
LABELS = {
    "rope": "RoPE",
    "gpa-mul": "bank, multiplied in",
    "gpa-rope-paper": "bank beside RoPE, the paper's start",
    "gpa-rope": "bank beside RoPE, from G(0) = 1",
    "gpa": "bank alone, from G(0) = 1",
}


def main() -> None:
    """Write docs/figures/findings.png."""
    found = Findings.read(ROOT / "experiments" / "results" / "papers")
    variants = found.study.variants
    styles = dict(zip(variants, variant_styles(variants), strict=True))
    with charts(440, 320, columns=2) as (figure, (axes,)):
        _draw_gaps(axes[0], found, styles)
        _draw_lengths(axes[1], found, styles)
    figure.savefig(ROOT / "docs" / "figures" / "findings.png", dpi=150)


def _draw_gaps(axes: Axes, found: Findings, styles: dict[str, Style]) -> None:
    gaps = {name: each for name in LABELS if name != "rope" and (each := found.gaps(name))}
    for place, (variant, each) in enumerate(gaps.items()):
        points = [(size.updates, size.gap) for size in each.sizes]
        _draw_line(axes, points, styles[variant], LABELS[variant], beside=0.96 + 0.03 * place)
    axes.axhline(0.0, color=COLOURS["muted"][0], linewidth=0.8)
    axes.set(xscale="log", xlabel="updates", ylim=(-0.07, 0.07), title="loss − loss of RoPE, nats/token")
    _mark(axes, [size["training.steps"] for size in found.study.sizes.values()])
    axes.legend(fontsize=9)


def _draw_lengths(axes: Axes, found: Findings, styles: dict[str, Style]) -> None:
    for variant, label in LABELS.items():
        rows = found.sizes(variant, "lengths")["u3000"]
        runs = [row["probes"]["lengths"]["lengths"] for row in rows]
        points = [
            (same[0]["length"], mean_with_interval([entry["change"] for entry in same]))
            for same in zip(*runs, strict=True)
        ]
        _draw_line(axes, points, styles[variant], label)
    axes.set(xscale="log", xlabel="characters of context, 256 in training")
    axes.set_title("loss − loss at 256, nats/token")
    _mark(axes, [length for length, _ in points])
    axes.legend(fontsize=9)


def _draw_line(
    axes: Axes, points: list[tuple[int, Estimate]], style: Style, label: str, beside: float = 1.0
) -> None:
    """A line with points and bars, all moved by a factor, so that bars do not cover those of others."""
    where = [x * beside for x, _ in points]
    axes.plot(where, [estimate.value for _, estimate in points], label=label, **style.line)
    for x, (_, estimate) in zip(where, points, strict=True):
        axes.plot(x, estimate.value, "o", color=style.hex, markersize=4)
        if estimate.low is not None and estimate.high is not None:
            axes.plot([x, x], [estimate.low, estimate.high], color=style.hex, alpha=0.5)


def _mark(axes: Axes, where: list[int]) -> None:
    axes.set_xticks(where, [f"{x:,}" for x in where])
    axes.minorticks_off()


if __name__ == "__main__":
    main()
