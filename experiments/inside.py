"""What trained attention is inside: kernels of the lag that its layers imply, and what its heads are worth.

    python experiments/inside.py

Needs what `nadaraya reproduce gpa-losses` and `kernel-bank-losses` found in experiments/results/papers: the
runs of 3,000 updates at the rates that were chosen. Writes inside.md there and docs/figures/implied.png.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from pruning import spread

from nadaraya.data.corpus import embedded_corpus
from nadaraya.files import write_file
from nadaraya.interpret import implied_kernels
from nadaraya.interpret.heads import BANK_SCORES, HeadReport, HeadScore, pooled_correlations
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
from nadaraya.report.palette import variant_styles
from nadaraya.report.style import charts
from nadaraya.study import Findings

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "results" / "papers"
SIZE = "u3000"
LAYERS = {"0": [0], "1–3": [1, 2, 3]}
LAGS = (0, 8, 32, 128)
DRAWN = {
    "rope": "RoPE",
    "gpa-paper": "bank alone, the paper's start",
    "gpa": "bank alone, from G(0) = 1",
    "gpa-rope": "bank beside RoPE, from G(0) = 1",
}


def main() -> None:
    """Write inside.md and implied.png."""
    found = Findings.read(FOLDER)
    implied, heads = _rows(found, "implied"), _rows(found, "heads")
    lines = [*_implied_table(implied), "", _untrained(), "", *_head_table(heads)]
    write_file(FOLDER / "inside.md", "\n".join(lines) + "\n")
    print("\n".join(lines))
    _draw(implied)


def _draw(implied: dict[str, list[dict[str, Any]]]) -> None:
    with charts(330, 300, columns=4, sharey=True) as (figure, (axes,)):
        for layer, chart in enumerate(axes):
            for variant, style in zip(DRAWN, variant_styles(DRAWN), strict=True):
                curves = np.array([_curve(run, layer) for run in implied[variant]])
                chart.plot(range(1, curves.shape[1]), curves.mean(0)[1:], label=DRAWN[variant], **style.line)
                for curve in curves:
                    chart.plot(range(1, len(curve)), curve[1:], color=style.hex, linewidth=0.5, alpha=0.5)
            chart.set(xscale="log", xlabel="lag, characters", ylim=(-22, 2), title=f"layer {layer}")
            chart.set_xticks([1, 4, 16, 64, 255], ["1", "4", "16", "64", "255"])
            chart.minorticks_off()
        axes[0].set_ylabel("logit less that at lag 1, nats")
        axes[0].legend(fontsize=9, loc="lower right")
    figure.savefig(ROOT / "docs" / "figures" / "implied.png", dpi=120)


def _rows(found: Findings, probe: str) -> dict[str, list[dict[str, Any]]]:
    """What a probe found, run by run, of every variant that has the horizon."""
    at = {variant: found.sizes(variant, probe).get(SIZE, []) for variant in found.study.variants}
    return {variant: [row["probes"][probe] for row in rows] for variant, rows in at.items() if rows}


def _heads(run: dict[str, Any], layers: list[int]) -> Iterator[dict[str, Any]]:
    for layer in layers:
        yield from run["layers"][layer]["heads"]


def _curve(run: dict[str, Any], layer: int) -> np.ndarray:
    """The implied kernel of a layer, the mean of its heads, less its value at lag 1."""
    curves = np.array([head["curve"] for head in _heads(run, [layer])], float)
    return (curves - curves[:, 1:2]).mean(0)


def _implied_table(implied: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    lags = [f"at {lag}" for lag in LAGS]
    yield (
        "Kernels of the lag that attention implies: share of the variance of its logits that the lag "
        "explains; share of that curve which a bank of four terms and one of eight decays explain (median of "
        "heads); logits at lags of so many characters less those at 1, in nats. ± over seeds."
    )
    yield ""
    yield f"| variant | layers | runs | by lag | bank of 4 | 8 decays | {' | '.join(lags)} |"
    yield "|---|---|---:|---:|---:|---:|" + "---:|" * len(lags)
    for variant, runs in implied.items():
        for name, layers in LAYERS.items():
            shares = [mean(head["r2"] for head in _heads(run, layers)) for run in runs]
            fits = [head["fits"] for run in runs for head in _heads(run, layers)]
            explained = [f"{median(fit[form] for fit in fits):.2f}" for form in ("periodic", "decay")]
            curves = np.array([np.mean([_curve(run, layer) for layer in layers], 0) for run in runs])
            nats = [spread(curves[:, lag].tolist(), ".1f") for lag in LAGS]
            cells = [f"`{variant}`", name, str(len(runs)), spread(shares, ".2f"), *explained, *nats]
            yield f"| {' | '.join(cells)} |"


def _untrained() -> str:
    """The share of the lag where nothing was learnt, for which any text will do."""
    tokens = torch.tensor(list(embedded_corpus().text[: 16 * 256].encode("ascii", "replace"))).view(16, 256)
    config = KernelGPTConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, vocab_size=256)
    torch.manual_seed(0)
    shares = np.array([kernel.r2 for kernel in implied_kernels(KernelGPTForCausalLM(config), tokens)])
    return f"In `rope` before training the lag explains at most {shares.max():.2f} in any head."


def _head_table(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield (
        "Heads: rank correlation of scores of their banks with the loss without them, pooled over runs, and "
        "its interval of 95 %; the highest and the least loss without a head, in nats/token; highest scores "
        "of their patterns."
    )
    yield ""
    scores = [name.replace("bank_", "").replace("max", "max \\|G\\|") for name in BANK_SCORES]
    worth = ["loss +, layer 0", "loss +, layers 1–3"]
    columns = ["variant", "runs", *scores, *worth, "loss +, least", "previous", "induction"]
    yield f"| {' | '.join(columns)} |"
    yield "|---|" + "---:|" * (len(columns) - 1)
    for variant, runs in found.items():
        reports = [
            HeadReport(run["loss"], run["tokens"], tuple(HeadScore(**head) for head in run["heads"]))
            for run in runs
        ]
        pooled = pooled_correlations(reports)
        banks = [
            f"{each.value:+.2f} ({each.low:+.2f} to {each.high:+.2f})" if each else "–"
            for each in map(pooled.get, BANK_SCORES)
        ]
        losses = [
            spread(
                [max(h.loss_increase for h in report.heads if h.layer in layers) for report in reports], ".2f"
            )
            for layers in LAYERS.values()
        ]
        least = spread([report.ranked()[0].loss_increase for report in reports], ".3f")
        patterns = [
            spread([max(getattr(head, name) for head in report.heads) for report in reports], ".2f")
            for name in ("previous_token", "induction")
        ]
        yield f"| {' | '.join([f'`{variant}`', str(len(runs)), *banks, *losses, least, *patterns])} |"


if __name__ == "__main__":
    main()
