"""Attention over parts of the keys, put together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nadaraya.errors import must_be


def merge_attention(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over all keys from that over parts of them, exact: out = Σ_p exp(lse_p − lse) out_p.

    For keys on several devices, caches in pieces, or keys that are visited in rounds.

    Args:
        parts: output (B, H, Nq, dv) and log-sum-exp (B, H, Nq) of each part, as `kernel_attention` gives
            them with `return_lse=True`; ε must be 0 in them.

    Returns:
        Output and log-sum-exp over all parts. Differentiable; a row that saw nothing in any part has output 0
        and log-sum-exp −inf.

    Raises:
        InputError: no parts, or parts of different shapes.

    >>> import torch
    >>> from nadaraya import kernel_attention
    >>> from nadaraya.attention import merge_attention
    >>> q, k, v = torch.randn(3, 1, 2, 6, 4)
    >>> halves = [
    ...     kernel_attention(q, k[:, :, half], v[:, :, half], return_lse=True)
    ...     for half in (slice(0, 3), slice(3, 6))
    ... ]
    >>> torch.allclose(merge_attention(halves)[0], kernel_attention(q, k, v), atol=1e-6)
    True
    """
    shapes = [(tuple(out.shape), tuple(lse.shape)) for out, lse in parts]
    if not shapes or len(set(shapes)) > 1 or shapes[0][0][:3] != shapes[0][1]:
        raise must_be(
            "parts", "pairs of outputs (B, H, Nq, dv) and log-sum-exps (B, H, Nq) of one shape", shapes
        )
    stacked = torch.stack([lse for _, lse in parts])
    nothing = (stacked == -torch.inf).all(dim=0)
    # Rows without anything must not carry −inf − (−inf) into the backward pass.
    known = torch.where(nothing, 0.0, stacked)
    lse = torch.where(nothing, -torch.inf, known.logsumexp(dim=0))
    weights = torch.where(nothing, 0.0, known.softmax(dim=0))
    out = sum(weight[..., None].to(out.dtype) * out for weight, (out, _) in zip(weights, parts, strict=True))
    assert isinstance(out, Tensor)
    return out, lse
