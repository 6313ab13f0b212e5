"""The contenders of the attention benchmarks: PyTorch's fused attention, others' kernels, N × N forms, ours.

A contender is a forward call and the tensors that it is differentiated by. What cannot run on this machine
raises when called; the benchmark records the reason.

Shapes: q_BHNd, k_BHNd, v_BHNd (one query in decoding), x_BHNd is all three at once; table_HN, entry r is the
logit of lag r, float32; bandwidth_H, float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nadaraya import kernel_attention
from nadaraya.attention import MixedKernels, MixedLogits
from nadaraya.attention.functional import _checked
from nadaraya.attention.positions import GridLogits
from nadaraya.checking import ways
from nadaraya.kernels import Gaussian

OURS = "nadaraya"
OURS_ON_SDPA = "nadaraya, backend sdpa"
STOCK = {
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
}
SDPA_BIAS = "SDPA, N×N bias with gradient"
FLEX = "FlexAttention, table"
FLEX_GRADIENT = "FlexAttention, table with gradient"
BY_HAND = "N×N by hand"


@dataclass(frozen=True)
class Contender:
    """One way to compute a case.

    Args:
        name: as the results call it.
        forward: computes the output once.
        inputs: what the output is differentiated by; empty for forward only.
        cuda_only: whether it is left out elsewhere.
    """

    name: str
    forward: Callable[[], Tensor]
    inputs: tuple[Tensor, ...]
    cuda_only: bool = False


def stock(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> list[Contender]:
    """Attention without any bias, by each backend of PyTorch and by the flash-attn packages."""

    def by_backend(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def flash_attn_2() -> Tensor:
        from flash_attn import flash_attn_func

        return flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=causal).transpose(1, 2)

    def flash_attn_3() -> Tensor:
        from flash_attn_interface import flash_attn_func

        out = flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=causal)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    inputs = _differentiable(q, k, v)
    return [
        *(Contender(name, lambda b=backend: by_backend(b), inputs) for name, backend in STOCK.items()),
        Contender("flash-attn 2", flash_attn_2, inputs, cuda_only=True),
        Contender("flash-attn 3", flash_attn_3, inputs, cuda_only=True),
    ]


def ours(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    bandwidth: Tensor | None = None,
    table: Tensor | None = None,
    mixed: MixedLogits | MixedKernels | GridLogits | None = None,
    exclude_self: bool = False,
    prune_tol: float = 0.0,
) -> list[Contender]:
    """`kernel_attention` by the GPU kernels and by the rewrites onto SDPA; off the GPU only by these.

    The content is Gaussian where there is a bandwidth. The position is the table, or `mixed`.
    """

    def call(backend: str) -> Tensor:
        content = None if bandwidth is None else Gaussian(bandwidth)
        return kernel_attention(
            q, k, v, content=content, position=position, causal=causal, exclude_self=exclude_self,
            prune_tol=prune_tol, backend=backend,
        )  # fmt: skip

    position = table if mixed is None else mixed
    parts = [] if mixed is None else [part for part in vars(mixed).values() if isinstance(part, Tensor)]
    inputs = _differentiable(q, k, v, bandwidth, table, *parts)
    if q.device.type != "cuda":
        return [Contender(OURS, lambda: call("sdpa"), inputs)]
    return [
        Contender(OURS, lambda: call("triton"), inputs),
        Contender(OURS_ON_SDPA, lambda: call("sdpa"), inputs),
    ]


def biased_by_others(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> list[Contender]:
    """Causal attention with a bias by lag, as one computes it without this library."""
    known = ways.others(_checked(q, k, v, position=table, causal=True))
    inputs = _differentiable(q, k, v, table)
    return [
        Contender(SDPA_BIAS, known[ways.WITH_BIAS], inputs),
        _flex(FLEX, q, k, v, table.detach()),
        _flex(FLEX_GRADIENT, q, k, v, table),
        Contender(BY_HAND, known[ways.PLAIN], inputs),
    ]


def _flex(name: str, q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Contender:
    args = _checked(q, k, v, position=table, causal=True)
    made = cache(lambda: ways.flex(args)[ways.FLEX])  # when it is called, if it is
    return Contender(name, lambda: made()(), _differentiable(q, k, v, table), cuda_only=True)


def gaussian_by_hand(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bandwidth: Tensor,
    *,
    causal: bool,
    table: Tensor | None = None,
    exclude_self: bool = False,
) -> Contender:
    """Gaussian kernel attention, every pair written out (‖q‖² + ‖k‖² − 2qk) in the dtype of the inputs."""
    args = _checked(q, k, v, position=table, causal=causal, exclude_self=exclude_self)
    args = replace(args, bandwidth=bandwidth)  # itself: every call has a graph of its own
    return Contender(BY_HAND, ways.others(args)[ways.PLAIN], _differentiable(q, k, v, bandwidth, table))


def _differentiable(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Those that require grad, each once."""
    return tuple({id(t): t for t in tensors if t is not None and t.requires_grad}.values())
