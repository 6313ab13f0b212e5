"""The first picture of README: a kernel by lag, and the attention weights that it gives.

    python experiments/kernel_and_weights.py

writes docs/figures/kernel-and-weights.png.
"""

from pathlib import Path

import torch

from nadaraya import kernel_attention
from nadaraya.kernels import ExponentialDecay, Gaussian, Kernel, Periodic
from nadaraya.report.palette import COLOURS
from nadaraya.report.style import charts, label_axes

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "kernel-and-weights.png"
TOKENS = 60


def smoothed() -> tuple[Kernel, torch.Tensor]:
    """The kernel, and the weights (N, N) that it gives with a Gaussian of random tokens."""
    kernel = ExponentialDecay(20.0) * Periodic(0.8, period=10)  # decays over 20 tokens, period 10
    x = torch.randn(1, 1, TOKENS, 4, generator=torch.Generator().manual_seed(0)) / 2
    options = {"content": Gaussian(0.8), "position": kernel, "exclude_self": True, "causal": True}
    _, weights = kernel_attention(x, x, x, return_weights=True, **options)
    return kernel, weights[0, 0]


def main() -> None:
    """Draw both panels."""
    kernel, weights = smoothed()
    with charts(310, 205, columns=2) as (figure, ((left, right),)):
        left.plot(kernel(torch.arange(TOKENS)).detach(), color=COLOURS["blue"][0], linewidth=1.8)
        left.set(ylim=(0, 1.03), ylabel="κ(lag)")
        label_axes(left, "a kernel: decay × period 10", "lag (tokens)")
        image = right.imshow(weights.detach(), cmap="Blues", vmin=0, vmax=0.15)
        right.set_ylabel("query (token)")
        right.grid(visible=False)
        label_axes(right, "weights: times a Gaussian of the tokens", "key (token)")
        figure.colorbar(image, ax=right, label="weight", extend="max")
    figure.savefig(FIGURE, dpi=150)


if __name__ == "__main__":
    main()
