"""The figure of docs/results/related.md, drawn from the committed results.

    python experiments/related.py

Left: forward + backward of one causal layer against the number of tokens. Right: the loss of the study of
experiments/studies/related.yaml, 3,000 updates, against that time at 4,096 tokens, the mean over seeds.
"""

from statistics import mean

from matplotlib.axes import Axes
from pages_format import ROOT
from pages_related import cell, text_losses

from nadaraya.report.palette import variant_styles
from nadaraya.report.style import charts

LINES = ("rope", "gka", "gpa-mul", "linear", "linear-bank", "performer", "gka-nystrom", "parallax")
TOKENS = (1024, 4096, 16_384, 65_536)


def main() -> None:
    """Write docs/figures/related.png."""
    with charts(440, 320, columns=2) as (figure, (axes,)):
        _draw_times(axes[0])
        _draw_losses(axes[1])
    figure.savefig(ROOT / "docs" / "figures" / "related.png", dpi=150)


def _draw_times(axes: Axes) -> None:
    for name, style in zip(LINES, variant_styles(LINES), strict=True):
        found = {tokens: cell("text-training", tokens, name).get("median") for tokens in TOKENS}
        points = [(tokens, time / 1e3) for tokens, time in found.items() if time is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name, **style.line)
    axes.set(xscale="log", yscale="log", xlabel="tokens", title="forward + backward of a layer, s")
    axes.set_xticks(TOKENS, [f"{tokens:,}" for tokens in TOKENS])
    axes.minorticks_off()
    axes.legend(fontsize=8)


def _draw_losses(axes: Axes) -> None:
    found = text_losses("related-3000")
    for name, style in zip(found, variant_styles(found), strict=True):
        time = cell("text-training", 4096, name).get("median")
        if time is not None and found[name]:
            axes.plot(time, mean(found[name]), "o", color=style.hex, markersize=5)
            below = name == "bam"  # which is where gpa-mul is
            offset = (-4, -8) if below else (4, 2)
            side = "right" if below else "left"
            axes.annotate(
                name, (time, mean(found[name])), offset, textcoords="offset points", ha=side, fontsize=7
            )
    axes.set(xscale="log", xlabel="ms per layer at 4,096 tokens", title="validation loss, nats/token")


if __name__ == "__main__":
    main()
