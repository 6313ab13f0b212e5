"""Gaussian kernel attention where queries, keys and values are one tensor, as a PyTorch operator."""

import torch
from torch import Tensor

from nadaraya.attention.triton.kernels.one_tensor import one_tensor_gradient_kernel
from nadaraya.attention.triton.launch import (
    gaussian_mode,
    half_squared_norms,
    on_device,
    precision_of,
    strides,
    with_dense_rows,
)
from nadaraya.attention.triton.operator import (
    Masks,
    bandwidth_gradient,
    configured,
    empty_gradients,
    empty_results,
    launch_forward,
    row_sums,
    width_options,
)


@torch.library.custom_op("nadaraya::triton_one_tensor_attention", mutates_args=())
def triton_one_tensor_attention(
    features: Tensor, bandwidth: Tensor, causal: bool, window: int, exclude_self: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gaussian kernel smoothing of the tokens on themselves, log κ = −‖x_i − x_j‖²/(2σ²).

    Args:
        features: (B, H, N, d), float16, bfloat16 or float32, the last dimension adjacent in memory.
        bandwidth: σ, (H or 1,) float32.
        causal, window, exclude_self: as in `triton_attention`.

    Returns:
        Output, log-sum-exp and flags, as `triton_attention` gives them.
    """
    masks = Masks(None, causal, window, exclude_self)
    return launch_forward(
        features, features, features, 1.0, bandwidth, None, masks, fixed_peak=not exclude_self
    )


@triton_one_tensor_attention.register_fake
def _(features, bandwidth, causal, window, exclude_self):  # type: ignore[no-untyped-def]
    return empty_results(features, features, exclude_self)


@torch.library.custom_op("nadaraya::triton_one_tensor_backward", mutates_args=())
def triton_one_tensor_backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    features: Tensor,
    out: Tensor,
    lse: Tensor,
    alone: Tensor,
    bandwidth: Tensor,
    causal: bool,
    window: int,
    exclude_self: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of `triton_one_tensor_attention` for the features and the bandwidth (H,), in one pass."""
    batch, num_heads, num_tokens, width = features.shape
    masks = Masks(None, causal, window, exclude_self)
    grad_out = with_dense_rows(grad_out)
    delta = row_sums(out, grad_out, grad_lse)
    (gradient,) = empty_gradients(features)
    distance_sums = torch.empty_like(lse)
    config = configured("one_tensor_gradient", features)
    options = width_options(features, features, gaussian=True)
    with on_device(features):
        one_tensor_gradient_kernel[(-(-num_tokens // config.block_m) * batch * num_heads,)](
            features, grad_out, gradient, distance_sums, lse, delta, alone, half_squared_norms(features),
            precision_of(bandwidth, num_heads), strides(features), strides(grad_out), strides(gradient),
            num_heads, num_tokens, window, width,
            GAUSSIAN=gaussian_mode(features, features, bandwidth), FIXED_PEAK=not exclude_self,
            PRECISION=options["PRECISION"], WIDTH=options["WIDTH"], EVEN_WIDTH=options["EVEN_WIDTH"],
            **masks.options, **config.launch_options,
        )  # fmt: skip
    return gradient, bandwidth_gradient(distance_sums, bandwidth)


@triton_one_tensor_backward.register_fake
def _(grad_out, grad_lse, features, out, lse, alone, bandwidth, causal, window, exclude_self):  # type: ignore[no-untyped-def]
    return *empty_gradients(features), lse.new_empty((features.shape[1],))


def _save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    features, bandwidth, causal, window, exclude_self = inputs
    ctx.save_for_backward(features, *output, bandwidth)
    ctx.mark_non_differentiable(output[2])
    ctx.options = (causal, window, exclude_self)


def _backward(ctx, grad_out, grad_lse, _):  # type: ignore[no-untyped-def]
    features, out, lse, alone, bandwidth = ctx.saved_tensors
    gradient, grad_bandwidth = triton_one_tensor_backward(
        grad_out, grad_lse, features, out, lse, alone, bandwidth, *ctx.options
    )
    return gradient, grad_bandwidth.sum_to_size(bandwidth.shape), None, None, None


triton_one_tensor_attention.register_autograd(_backward, setup_context=_save_for_backward)
