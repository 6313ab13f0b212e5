"""Σ_j G(i − j) φ_i·ψ_j v_j for any kernel of the lag, or on a grid of patches, by Fourier transforms.

For every feature a and channel b the sum over j is a convolution of G with ψ_a v_b: O(N log N) each, in
slabs of features and channels that are computed again in the backward pass. In float64: the error of a
transform is one of its largest entry.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from nadaraya.attention.arguments import AttentionArguments

_SLAB = 2**18  # numbers that are transformed at once: they stay near a core


def sums(query: Tensor, key: Tensor, value: Tensor, args: AttentionArguments) -> Tensor:
    """Sums over all keys that G reaches, (B, H, N, e); query and key (B, H, N, m), value (B, H, N, e)."""
    if args.grid is None:
        return _convolved(query, key, value, _by_lag(args, query), (query.shape[2],))
    first = args.grid.num_prefix
    table = args.grid.logits.to(query.dtype).exp()
    height, width = ((size + 1) // 2 for size in table.shape[1:])
    if args.exclude_self:
        middle = torch.zeros_like(table, dtype=torch.bool)
        middle[:, height - 1, width - 1] = True
        table = table.masked_fill(middle, 0.0)
    queries, keys, values = (t[:, :, first:] for t in (query, key, value))
    out = _convolved(queries, keys, values, table, (height, width))
    if first:  # whose pairs have G = 1
        prefix = key[:, :, :first].mT @ value[:, :, :first]
        of_prefix = query[:, :, :first] @ (prefix + keys.mT @ values)
        if args.exclude_self:
            own = (query[:, :, :first] * key[:, :, :first]).sum(-1, keepdim=True)
            of_prefix = of_prefix - own * value[:, :, :first]
        out = torch.cat([of_prefix, out + queries @ prefix], 2)
    return out


def _by_lag(args: AttentionArguments, query: Tensor) -> Tensor:
    """G by i − j, (H or 1, 2N − 1), zero where a lag is hidden."""
    length = query.shape[2]
    lags = torch.arange(1 - length, length, device=query.device)
    table = query.new_ones((1, len(lags))) if args.lag_values is None else args.lag_values.to(query.dtype)
    table = table[:, table.shape[1] // 2 + 1 - length :][:, : len(lags)]  # of a document, of all tokens' lags
    if args.causal:
        table = table.masked_fill(lags < 0, 0.0)
    return table.masked_fill(lags == 0, 0.0) if args.exclude_self else table


def _convolved(query: Tensor, key: Tensor, value: Tensor, table: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The sums of tokens in row-major order of `sizes`; the table has 2 n − 1 entries for each size n."""
    axes = tuple(range(-len(sizes), 0))
    # Lag 0 first, negative ones from the end: what a circular convolution takes.
    placed = torch.nn.functional.pad(table.double(), (0, 1) * len(sizes))
    placed = placed.roll([1 - size for size in sizes], axes)
    query, key, value = (t.double().mT.unflatten(-1, sizes) for t in (query, key, value))
    pairs = max(1, _SLAB // max(1, query.shape[0] * query.shape[1] * placed[0].numel()))
    of_channels = min(value.shape[2], pairs)
    of_features = max(1, pairs // of_channels)

    def slab(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        found: Tensor = _Convolution.apply(key[:, :, :, None] * value[:, :, None], table)
        return (query[:, :, :, None] * found).sum(2)

    columns = []
    for some_value in value.split(of_channels, 2):
        total = torch.zeros((), dtype=query.dtype, device=query.device)
        for some_query, some_key in zip(query.split(of_features, 2), key.split(of_features, 2), strict=True):
            total = total + checkpoint(
                slab, some_query, some_key, some_value, placed, use_reentrant=False, preserve_rng_state=False
            )
        columns.append(total)
    return torch.cat(columns, 2).flatten(3).mT


class _Convolution(torch.autograd.Function):
    """Products (B, H, a, b, *sizes) convolved with a table (H or 1, *wide) that is twice as wide.

    The gradient of the table is the inverse transform of cross spectra.
    """

    @staticmethod
    def forward(ctx: Any, products: Tensor, table: Tensor) -> Tensor:
        wide, axes = table.shape[1:], tuple(range(1 - table.dim(), 0))
        spectrum = torch.fft.rfftn(table, dim=axes)[:, None, None]
        transformed = torch.fft.rfftn(products, s=wide, dim=axes)
        ctx.save_for_backward(transformed, spectrum)
        ctx.wide, ctx.axes, ctx.sizes = wide, axes, products.shape[4:]
        return _cropped(torch.fft.irfftn(transformed * spectrum, s=wide, dim=axes), ctx.sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        transformed, spectrum = ctx.saved_tensors
        of_sums = torch.fft.rfftn(grad, s=ctx.wide, dim=ctx.axes)
        products = torch.fft.irfftn(of_sums * spectrum.conj(), s=ctx.wide, dim=ctx.axes)
        crossed = (of_sums * transformed.conj()).sum((0, 2, 3)).sum_to_size(spectrum[:, 0, 0].shape)
        table = torch.fft.irfftn(crossed, s=ctx.wide, dim=ctx.axes)
        return _cropped(products, ctx.sizes), table


def _cropped(tensor: Tensor, sizes: torch.Size) -> Tensor:
    for axis, size in enumerate(sizes, start=4):
        tensor = tensor.narrow(axis, 0, size)
    return tensor
