"""A call as one computes it without this library: with N × N matrices, or by FlexAttention."""

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments

STOCK, WITH_BIAS = "PyTorch, no bias", "PyTorch, N × N bias"
PLAIN, FLEX = "plain formula", "FlexAttention"

Way = Callable[[], Tensor]


def others(args: AttentionArguments) -> dict[str, Way]:
    """Every way that has an N × N matrix, and PyTorch's own where there is no bias.

    Args:
        args: a call with as many key heads as query heads, a dot product or a Gaussian, and positions by lag.
    """
    rows = torch.arange(args.query.shape[2], device=args.query.device)[:, None] + args.offset
    columns = torch.arange(args.key.shape[2], device=args.query.device)
    lags, hidden = rows - columns, _hidden(rows, columns, args)

    def bias() -> Tensor:
        """Logits of all pairs beside their content, −∞ where a pair takes no part."""
        pairs = args.query.new_zeros((1, 1, 1, 1))
        if args.lag_logits is not None:
            pairs = args.lag_logits.to(pairs.dtype)[:, lags + args.lag_logits.shape[1] // 2][None]
        if args.mixture is not None:
            mixed, extent = args.mixture.by_lag().to(pairs.dtype), args.mixture.extent
            entries = (lags.clamp(-extent, extent) + extent).expand(*mixed.shape[:2], -1, -1)
            pairs = pairs + mixed.gather(3, entries)
        if args.key_bias is not None:
            pairs = pairs + args.key_bias.to(pairs.dtype)[:, :, None]
        return pairs.masked_fill(hidden, -torch.inf)

    def with_bias() -> Tensor:
        query, by_key = _scaled_query(args)
        pairs = bias() if by_key is None else bias() + by_key[:, :, None]
        return F.scaled_dot_product_attention(query, args.key, args.value, attn_mask=pairs, scale=1.0)

    def plain() -> Tensor:
        scores = args.query @ args.key.mT
        if args.bandwidth is None:
            scores = scores * args.scale
        else:
            squares = [t.square().sum(-1) for t in (args.query, args.key)]
            precision = args.bandwidth.to(scores.dtype).square().reciprocal().view(-1, 1, 1)
            scores = -0.5 * precision * (squares[0][..., None] + squares[1][:, :, None] - 2 * scores)
        return (scores + bias()).softmax(-1) @ args.value

    def stock() -> Tensor:
        return F.scaled_dot_product_attention(args.query, args.key, args.value, is_causal=args.causal)

    parts = (args.bandwidth, args.lag_logits, args.mixture, args.key_bias, args.window)
    biased = args.exclude_self or any(part is not None for part in parts)
    ways = {WITH_BIAS: with_bias, PLAIN: plain}
    return ways if biased else {STOCK: stock, **ways}


def flex(args: AttentionArguments) -> dict[str, Way]:
    """FlexAttention, compiled, where it needs no more than a table by lag; its mask by blocks is made now."""
    if any(part is not None for part in (args.bandwidth, args.mixture, args.key_bias)):
        return {}
    from torch.nn.attention.flex_attention import create_block_mask  # seconds to import

    offset, table = args.offset, args.lag_logits

    def seen(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return ~_hidden(row + offset, column, args)

    def logit(score: Tensor, _batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score if table is None else score + table[head, row + offset - column + table.shape[1] // 2]

    sizes = args.query.shape[2], args.key.shape[2]
    mask = create_block_mask(seen, None, None, *sizes, device=args.query.device.type)
    call = partial(_compiled_flex(), args.query, args.key, args.value, logit, mask, args.scale)
    return {FLEX: call}


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _hidden(rows: Tensor, columns: Tensor, args: AttentionArguments) -> Tensor:
    """Pairs that take no part, by positions; the first row sees itself where it would see nothing."""
    lags = rows - columns
    hidden = lags < 0 if args.causal else lags != lags
    if args.window is not None:
        hidden = hidden | (lags.abs() >= args.window)
    return hidden | ((lags == 0) & (rows > 0)) if args.exclude_self else hidden


def _scaled_query(args: AttentionArguments) -> tuple[Tensor, Tensor | None]:
    """Queries whose products with keys are the content, with the Gaussian's bias by key (B, H, Nk)."""
    if args.bandwidth is None:
        return args.query * args.scale, None
    precision = args.bandwidth.to(args.query.dtype).square().reciprocal().view(-1, 1, 1)
    return args.query * precision, -0.5 * args.key.square().sum(-1) * precision[..., 0]
