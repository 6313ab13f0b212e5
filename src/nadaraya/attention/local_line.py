"""The local line of kernel regression as attention: weights that see the slope of the values at the query."""

from typing import Any

import torch
from torch import Tensor, nn

from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.projections import LayerShape, by_head
from nadaraya.errors import must_be
from nadaraya.kernels.heads import PartByHead


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
        at = args.query if args.line_at is None else args.line_at
        apart = at.to(weights.dtype) - centre - mean
        slope = _Solve.apply(weights, key, mean, apart, *_factors(weights, key, mean, args.ridge))
    along = slope @ key.mT - (slope * mean).sum(-1, keepdim=True)
    return weights * (1 + along)


@torch.no_grad()
def _factors(weights: Tensor, key: Tensor, mean: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """LU factors (B, H, Nq, d, d) and pivots of A_i = Σ_j p_ij k_j k_jᵀ − m_i m_iᵀ + λ_i I."""
    width = key.shape[-1]
    if weights.shape[2] <= width:  # few rows, as in decoding: less memory than all products of channels
        apart = key[:, :, None] - mean[..., None, :]
        spread = (apart * weights[..., None]).mT @ apart
    else:
        squares = (key[..., None] * key[..., None, :]).flatten(-2)
        spread = (weights @ squares).unflatten(-1, (width, width)).sub_(mean[..., None] * mean[..., None, :])
    diagonal = spread.diagonal(dim1=-2, dim2=-1)
    variance = diagonal.mean(-1, keepdim=True)
    diagonal.add_(torch.where(variance > 0, share * variance, 1.0))  # no line through one point
    factors, pivots, singular = torch.linalg.lu_factor_ex(spread)
    if not share and singular.any():
        accepted = "above 0 where a query sees no more keys than they have dimensions"
        raise must_be("ridge", accepted, share)
    return factors, pivots


class _Solve(torch.autograd.Function):
    """A_i^{-1} b_i from the factors of A_i; the gradients are sums over keys, and need no A_i."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        weights: Tensor, key: Tensor, mean: Tensor, right: Tensor, factors: Tensor, pivots: Tensor
    ) -> Tensor:
        return torch.linalg.lu_solve(factors, pivots, right[..., None])[..., 0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        saved = *inputs[:3], *inputs[4:6], output
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With u = A^{-1} ∂b, −u sᵀ is the gradient of A."""
        weights, key, mean, factors, pivots, slope = ctx.saved_tensors
        back = _Solve.apply(weights, key, mean, grad, factors, pivots)
        first, second = back @ key.mT, slope @ key.mT
        by_key = -(weights * second).mT @ back - (weights * first).mT @ slope
        by_mean = _scaled(back, slope, mean) + _scaled(slope, back, mean)
        return -first * second, by_key, by_mean, back, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """A^{-1} (ḃ − Ȧ s)."""
        weights, key, mean, factors, pivots, slope = ctx.saved_tensors
        of_weights, of_key, of_mean, of_right = tangents[:4]
        along, across = slope @ key.mT, slope @ of_key.mT
        product = (of_weights * along + weights * across) @ key + (weights * along) @ of_key
        of_means = _scaled(of_mean, slope, mean) + _scaled(mean, slope, of_mean)
        return _Solve.apply(weights, key, mean, of_right - product + of_means, factors, pivots)


def _scaled(vector: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """v (a·b), row by row."""
    return vector * (first * second).sum(-1, keepdim=True)


class Probe(PartByHead):
    """r = W_R x, a learned slope in place of the local line's, whose solve it saves (Parallax 2026).

    W_R starts at 0: the layer is attention at first.

    Args:
        shape: sizes of the layer.
    """

    per_head = ("slope",)

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape.num_heads)
        self.slope = nn.Linear(shape.dim, shape.heads_dim, bias=False)
        nn.init.zeros_(self.slope.weight)
        self.slope.keeps_start = True  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """The operator's `probe` of the tokens x (B, N, D), (B, H, N, d)."""
        return by_head(self.slope(x), self.num_heads)
