"""Likeness of a query and a key: the content of a layer's logits, with its parameters."""

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from nadaraya.attention.arguments import Content
from nadaraya.attention.projections import LayerShape
from nadaraya.errors import check_name, must_be
from nadaraya.kernels import ComposedKernel, Gaussian, Kernel
from nadaraya.kernels.expressions import KernelExpression
from nadaraya.kernels.heads import PartByHead
from nadaraya.kernels.parameters import natural


class DotProduct(PartByHead):
    """q·k times a scale.

    Args:
        shape: sizes of the layer.
        scale: default 1/√d.
        learned: whether each head learns its scale, stored as a log. Default False.
        by_length: whether logits are times log n as well, for the n-th token of its text: attention that does
            not fade over long texts (scalable softmax, Nakanishi 2025). Default False.

    Raises:
        InputError: a scale that is not finite, or not positive where it is learned.
    """

    per_head = ("log_scale",)

    def __init__(
        self,
        shape: LayerShape,
        scale: float | None = None,
        learned: bool = False,
        by_length: bool = False,
    ) -> None:
        super().__init__(shape.num_heads)
        self.scales_by_length = by_length
        self.scale = shape.head_dim**-0.5 if scale is None else float(scale)
        if not math.isfinite(self.scale) or (learned and self.scale <= 0.0):
            raise must_be("scale", "finite, and positive where it is learned", scale)
        self.log_scale: nn.Parameter | None = None
        if learned:
            self.log_scale = nn.Parameter(torch.full((shape.num_heads,), math.log(self.scale)))

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Content]:
        """Queries and keys as they are, and the operator's `content`."""
        return query, key, self.scale if self.log_scale is None else natural(self.log_scale)


class KernelContent(PartByHead):
    """log κ_h(‖q + δ_h − k‖), a kernel of the distance between query and key.

    Args:
        shape: sizes of the layer.
        kernel: its expression, such as "rq", "2*gaussian" or "matern32 + exponential", with parameters for
            every head (see `nadaraya.kernels.ComposedKernel`); or a kernel, which starts as it is. Default
            "gaussian".
        bandwidth: the middle of the lengths at which an expression starts, in the units of the features;
            default d^(1/4), which makes the Gaussian of normalised features as sharp as a dot product over
            √d, and 2 √d where a kernel of compact support would see no other token then.
        shift: whether each head's kernel is centred at a learned displacement δ_h of its token, at first 0,
            so that κ(i,j) and κ(j,i) differ. Default False.

    Raises:
        InputError: no expression, or a bandwidth that is not positive and finite.
    """

    kernel: Kernel | None
    per_head: tuple[str, ...] = ("kernel", "shift")

    def __init__(
        self,
        shape: LayerShape,
        kernel: str | KernelExpression | Kernel = "gaussian",
        bandwidth: float | None = None,
        shift: bool = False,
    ) -> None:
        super().__init__(shape.num_heads)
        if not isinstance(kernel, Kernel):
            compact = any(name in str(kernel) for name in ("epanechnikov", "tricube"))
            default = 2.0 * shape.head_dim**0.5 if compact else shape.head_dim**0.25
            kernel = ComposedKernel(kernel, shape.num_heads, length=_bandwidth(bandwidth, default))
        self.kernel = kernel
        self.shift = nn.Parameter(torch.zeros(shape.num_heads, 1, shape.head_dim)) if shift else None

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Content]:
        """Queries and keys as distances take them, and the operator's `content`."""
        return query if self.shift is None else query + self.shift.to(query.dtype), key, self.kernel


class GaussianContent(KernelContent):
    """−‖q − k‖² / (2σ²), Gaussian kernel attention (Kundu et al. (2026), eq. 3), as fast as a dot product.

    Args:
        shape: sizes of the layer.
        bandwidth: initial σ of every head, in the units of the features; default d^(1/4). Learned, stored as
            log σ.
        per: "head", one σ per head (the paper; default), or "channel", one per channel,
            −Σ_c (q_c − k_c)² / (2σ_hc²): channels are scaled before any rotation.
        shift: as in `KernelContent`: −‖q + δ_h − k‖² / (2σ_h²). Default False.

    Raises:
        InputError: a bandwidth that is not positive and finite, an unknown `per`, or "channel" where heads
            share keys.
    """

    per_head = ("kernel", "shift", "log_bandwidth")

    def __init__(
        self,
        shape: LayerShape,
        bandwidth: float | None = None,
        per: Literal["head", "channel"] = "head",
        shift: bool = False,
    ) -> None:
        check_name("per", per, ("head", "channel"))
        if per == "channel" and shape.num_key_value_heads != shape.num_heads:
            raise must_be("per", "'head' where heads share keys, which have one scale then", per)
        initial = _bandwidth(bandwidth, shape.head_dim**0.25)
        super().__init__(shape, Gaussian(torch.full((shape.num_heads,), initial)), shift=shift)
        self.per = per
        if per == "channel":
            self.kernel = None  # the Gaussian of bandwidth 1
            size = (shape.num_heads, shape.head_dim)
            self.log_bandwidth = nn.Parameter(torch.full(size, math.log(initial)))

    @property
    def bandwidth(self) -> Tensor:
        """σ in the units of the features, (H,), or (H, d) by channel."""
        return natural(self.log_bandwidth) if self.kernel is None else cast("Gaussian", self.kernel).bandwidth

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Content]:
        """Queries and keys as distances take them, and the operator's `content`."""
        if self.per == "head":
            return super().forward(query, key)
        one = query is key and self.shift is None
        precision = torch.exp(-self.log_bandwidth)[:, None].to(query.dtype)
        scaled = query * precision
        if self.shift is not None:
            scaled = torch.addcmul(self.shift.to(query.dtype) * precision, query, precision)
        return scaled, scaled if one else key * precision, _UNIT

    def extra_repr(self) -> str:
        return f"per={self.per!r}, shift={self.shift is not None}"


_UNIT = Gaussian(1.0).requires_grad_(False)


def _bandwidth(bandwidth: float | None, default: float) -> float:
    initial = default if bandwidth is None else float(bandwidth)
    if not 0.0 < initial < math.inf:
        raise must_be("bandwidth", "a positive finite number", bandwidth)
    return initial


def why_not_causal(content: Any) -> str | None:
    """Reason why a layer's content, or what makes it, sees later tokens; None where it does not."""
    if getattr(getattr(content, "func", content), "causal", True):
        return None
    if not isinstance(content, nn.Module):
        with torch.device("meta"):
            content = content(LayerShape(64, 4, 4))
    if content.causal:
        return None
    return str(getattr(content, "why_not_causal", "its features depend on all tokens"))
