"""A few queries against many cached keys, as a PyTorch operator without gradients."""

import torch
from torch import Tensor

from nadaraya.attention.triton.configs import Config
from nadaraya.attention.triton.kernels.decoding import decoding_kernel, merging_kernel
from nadaraya.attention.triton.launch import (
    empty_output,
    is_same,
    key_options,
    key_range,
    mask_options,
    merged_key_bias,
    num_multiprocessors,
    on_device,
    padded_width,
    precision_of,
    strides,
    width_options,
)

_FEWEST_ROWS = 16  # of a matrix product
# Of the keys in one tile; all tiles in flight must fit 99 KiB of shared memory.
_BLOCK_BYTES = 16_384
_BLOCK_BYTES_WIDE = 8_192
_PROGRAMS_PER_MULTIPROCESSOR = 8
_FEWEST_TILES = 4  # of a split: fewer would not pay for merging
_MOST_SPLITS = 128
_FEW_SPLITS = 16


def decoding_config(rows: int, width: int, dtype: torch.dtype) -> Config:
    """The tiles for a number of rows (16 to 64), padded head width and dtype."""
    wide = dtype == torch.float32 or rows > _FEWEST_ROWS
    block_bytes = _BLOCK_BYTES_WIDE if wide else _BLOCK_BYTES
    block = max(16, min(128, block_bytes // (width * dtype.itemsize)))
    return Config(rows, block, 8 if dtype == torch.float32 and width > 128 else 4, 2 if wide else 3)


@torch.library.custom_op("nadaraya::triton_decoding", mutates_args=())
def triton_decoding(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    bandwidth: Tensor | None,
    table: Tensor | None,
    key_bias: Tensor | None,
    padding: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
) -> tuple[Tensor, Tensor]:
    """`triton_attention` for at most 64 rows (queries × query heads of a key-value head), without gradients.

    The keys are split among programs, whose parts are merged by a second kernel. Keys and values that are the
    same numbers in memory, as in the cache of Gaussian kernel attention, are read once.

    Returns:
        The output (B, H, Nq, e) and the log-sum-exp (B, H, Nq) in units of log 2.
    """
    batch, num_heads, num_queries, width = query.shape
    num_groups, num_keys, value_width = value.shape[1:]
    group_size = num_heads // num_groups
    rows = max(_FEWEST_ROWS, 1 << (group_size * num_queries - 1).bit_length())
    config = decoding_config(rows, padded_width(max(width, value_width)), query.dtype)
    block = config.block_n
    tiles = -(-num_keys // block)
    wanted = -(-_PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors(query.device) // (batch * num_groups))
    tiles_per_split = max(_FEWEST_TILES, -(-tiles // min(wanted, _MOST_SPLITS)))
    num_splits = -(-tiles // tiles_per_split)
    num_lines = batch * num_heads * num_queries
    num_parts = num_splits + exclude_self
    out = empty_output(query, value_width)
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    partial_out = lse.new_empty((num_parts, num_lines, value_width))
    partial_lse = lse.new_empty((num_parts, num_lines))
    # Every pair is a real one here: the table is read as it is, without the padding of whole tiles.
    entries = lse if table is None else table.contiguous()
    zero = 0 if table is None else table.shape[1] // 2
    step = table.shape[1] if table is not None and table.shape[0] > 1 else 0
    bias, bias_strides = merged_key_bias(key_bias, padding, lse)
    precision = lse if bandwidth is None else precision_of(bandwidth, num_heads)
    options = width_options(query, value, bandwidth is not None)
    with on_device(query):
        decoding_kernel[(num_splits * batch * num_groups,)](
            query, key, value, partial_out, partial_lse, entries, bias, key_range(padding, lse),
            lse if documents is None else documents, precision, scale, strides(query), strides(key),
            strides(value), *bias_strides, num_heads, group_size, num_queries, num_keys, num_splits,
            tiles_per_split * block, num_lines, zero, step, window, width, value_width,
            GAUSSIAN=bandwidth is not None,
            CENTRED=bandwidth is not None and query.dtype == torch.float32,
            ONE_TENSOR=is_same(key, value), TABLE=table is not None,
            KEY_BIAS_BY_HEAD=bias_strides[1] > 0 and group_size > 1,
            **key_options(key_bias, padding, documents), **mask_options(causal, window, exclude_self),
            **options, **config.launch_options,
        )  # fmt: skip
        merging_kernel[(num_lines,)](
            partial_out, partial_lse, out, lse, strides(out), num_heads, num_queries, num_splits, num_lines,
            value_width, EXCLUDE_SELF=exclude_self,
            SPLITS=_MOST_SPLITS if num_splits > _FEW_SPLITS else _FEW_SPLITS,
            VALUE_WIDTH=options["VALUE_WIDTH"], num_warps=4,
        )  # fmt: skip
    return out, lse


@triton_decoding.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return empty_output(query, value.shape[3]), query.new_empty(query.shape[:3], dtype=torch.float32)
