"""The local line of kernel regression as attention: weights that see the slope of the values at the query."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.projections import LayerShape, by_head
from nadaraya.errors import must_be
from nadaraya.kernels.heads import keep_rows


def along_line(args: AttentionArguments, weights: Tensor) -> Tensor:
    """Weights of a line through the weighted mean, in place of the mean: p_ij (1 + s_i·(k_j − k̄_i)).

    The local line at the query has s_i = (Σ_i + λ tr(Σ_i) / d I)^{-1} (q_i − k̄_i), Σ_i the weighted
    covariance of the keys (Zuo et al. 2025); a probe r_i has s_i = −r_i (Parallax 2026).

    Args:
        args: with one key-value head for each query head.
        weights: p, (B, H, Nq, Nk), which sum to 1 or, in rows that see nothing, 0.
    """
    centre = args.key_centre().to(weights.dtype)
    key = args.key.to(weights.dtype) - centre
    mean = weights @ key
    if args.probe is not None:
        slope = -args.probe
    else:
        width = key.shape[-1]
        if weights.shape[2] <= width:  # few rows, as in decoding: less memory than all products of channels
            apart = key[:, :, None] - mean[..., None, :]
            spread = (apart * weights[..., None]).mT @ apart
        else:
            squares = (key[..., None] * key[..., None, :]).flatten(-2)
            spread = (weights @ squares).unflatten(-1, (width, width)) - mean[..., None] * mean[..., None, :]
        variance = spread.diagonal(dim1=-2, dim2=-1).mean(-1)
        ridge = args.ridge * variance.detach() if args.ridge else torch.zeros_like(variance)
        ridge = torch.where(variance > 0, ridge, 1.0)[..., None, None]  # no line through one point
        spread = spread + ridge * torch.eye(width, dtype=spread.dtype, device=spread.device)
        at = args.query if args.line_at is None else args.line_at
        slope, singular = torch.linalg.solve_ex(spread, at.to(weights.dtype) - centre - mean)
        if not args.ridge and singular.any():
            accepted = "above 0 where a query sees no more keys than they have dimensions"
            raise must_be("ridge", accepted, args.ridge)
    along = slope @ key.mT - (slope * mean).sum(-1, keepdim=True)
    return weights * (1 + along)


class Probe(nn.Module):
    """r = W_R x, a learned slope in place of the local line's, whose solve it saves (Parallax 2026).

    W_R starts at 0: the layer is attention at first.

    Args:
        shape: sizes of the layer.
    """

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.slope = nn.Linear(shape.dim, shape.dim, bias=False)
        nn.init.zeros_(self.slope.weight)
        self.slope.keeps_start = True  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """The operator's `probe` of the tokens x (B, N, D), (B, H, N, d)."""
        return by_head(self.slope(x), self.num_heads)

    def keep_heads(self, heads: Sequence[int]) -> None:
        """Keep the slopes of some heads, in place."""
        keep_rows(self.slope, heads, self.num_heads)
        self.num_heads = len(heads)
