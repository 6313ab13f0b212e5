"""Inputs of every launch: tiles, padded widths, the lag table and the norms in the form kernels read."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.documents import document_starts
from nadaraya.attention.triton.configs import Config, Kernel, choose, rounds_float32
from nadaraya.attention.triton.kernels.tiles import LOG2E, TABLE_PADDING

# 1/σ² beyond which a Gaussian's weights are 0 or 1 for all that float32 can tell.
_LARGEST_PRECISION = 1e25
_SMALLEST_WIDTH = 16  # of a matrix product
# Queries, and keys, of the blocks of which what is negligible is said: a multiple of all tiles.
ACTIVE_BLOCK = 256
_WIDEST_DIRECT = 8  # features: up to here differences cost less than the digits that products lose


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Kernels are launched on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    """Compute capability; the interpreter stands in for Hopper."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Of a GPU; the interpreter has one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def configured(kernel: Kernel, *tensors: Tensor) -> Config:
    """The tiles of a kernel for the widest of the tensors."""
    width = max(padded_width(t.shape[3]) for t in tensors)
    return choose(kernel, width, tensors[0].dtype, _capability(tensors[0].device))


def mask_options(causal: bool, window: int, exclude_self: bool) -> dict[str, bool]:
    """Compile-time arguments about which lags take part."""
    return {"CAUSAL": causal, "WINDOW": window > 0, "EXCLUDE_SELF": exclude_self}


def key_options(key_bias: Tensor | None, padding: Tensor | None, documents: Tensor | None) -> dict[str, bool]:
    """Compile-time arguments about what single keys have."""
    return {
        "KEY_BIAS": key_bias is not None or padding is not None,
        "HIDDEN": padding is not None,
        "DOCUMENTS": documents is not None,
    }


def width_options(query: Tensor, value: Tensor, gaussian: bool) -> dict[str, Any]:
    """Compile-time arguments about the head widths and the precision of products."""
    width, value_width = query.shape[3], value.shape[3]
    return {
        "PRECISION": _matmul_precision(query.dtype, gaussian),
        "WIDTH": padded_width(width),
        "VALUE_WIDTH": padded_width(value_width),
        "EVEN_WIDTH": padded_width(width) == width,
        "EVEN_VALUE_WIDTH": padded_width(value_width) == value_width,
    }


def padded_width(width: int) -> int:
    """The power of two that a tile's width is filled up to."""
    return max(_SMALLEST_WIDTH, 1 << (width - 1).bit_length())


def with_dense_rows(tensor: Tensor) -> Tensor:
    """The tensor itself if its last dimension is adjacent in memory, else a copy."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def empty_output(query: Tensor, width: int) -> Tensor:
    """(B, H, Nq, width); in the memory layout of the query where the widths agree."""
    if query.shape[3] == width:
        return empty_with_dense_rows(query)
    return query.new_empty((*query.shape[:3], width))


def empty_with_dense_rows(like: Tensor) -> Tensor:
    """A tensor of the same shape, and memory layout where that has its last dimension adjacent."""
    empty = torch.empty_like(like)
    return empty if empty.stride(-1) == 1 else torch.empty_like(like, memory_format=torch.contiguous_format)


def strides(tensor: Tensor) -> tuple[int, int, int]:
    """Steps of batch, head and token."""
    batch, head, token, _ = tensor.stride()
    return batch, head, token


def _matmul_precision(dtype: torch.dtype, gaussian: bool) -> str:
    """Precision of float32 products, by PyTorch's setting for CUDA; those of halves are exact.

    A Gaussian's are always taken in full: ‖x‖² − 2 x·y + ‖y‖² would lose the digits twice.
    """
    if dtype != torch.float32:
        return "tf32"
    return "tf32" if rounds_float32() and not gaussian else "tf32x3"


def gaussian_mode(query: Tensor, key: Tensor, bandwidth: Tensor | None) -> int:
    """Mode by which kernels take distances; `content_logits` explains the numbers.

    Half precision has no digits to lose: its products are exact in float32.
    """
    if bandwidth is None:
        return 0
    if query.dtype != torch.float32:
        return -1
    if query.shape[3] <= _WIDEST_DIRECT:
        return query.shape[3]
    return -2 if is_same(query, key) else -1


def is_same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same numbers in memory."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def half_squared_norms(tensor: Tensor) -> Tensor:
    """‖x‖²/2, (B, H, N), in float32."""
    return 0.5 * torch.linalg.vector_norm(tensor, dim=-1, dtype=torch.float32).square()


def precision_of(bandwidth: Tensor, num_heads: int) -> Tensor:
    """1/σ², (H,)."""
    return bandwidth.square().reciprocal().clamp(max=_LARGEST_PRECISION).expand(num_heads).contiguous()


@dataclass(frozen=True)
class Table:
    """Logits of pairs in units of log 2, that of lag 0 or of the first row and key 0 at `zero`.

    A table by lag has them by i − j. A table per query has, for the queries first … stop − 1, those of
    the pair (i, j) at (i − first) · row_stride − j. Steps are 0 where all items or heads share one.
    """

    entries: Tensor
    zero: int = 0
    head_stride: int = 0
    batch_stride: int = 0
    row_stride: int = 0
    first: int = 0
    stop: int = 0

    @classmethod
    def by_lag(cls, table: Tensor) -> "Table":
        """A table (H or 1, 2L − 1), entry r + L − 1 for lag r, padded so that tiles may extend beyond it."""
        padded = F.pad(table * LOG2E.value, (TABLE_PADDING, TABLE_PADDING))
        step = padded.shape[1] if table.shape[0] > 1 else 0
        return cls(padded, TABLE_PADDING + table.shape[1] // 2, step)

    def arguments(self) -> dict[str, Any]:
        """Arguments for kernels, by name."""
        return {
            "table_ptr": self.entries, "table_zero": self.zero, "table_stride": self.head_stride,
            "table_batch_stride": self.batch_stride, "table_row_stride": self.row_stride,
            "first_query": self.first, "stop_query": self.stop,
            "TABLE": True, "PER_QUERY": self.row_stride > 0,
        }  # fmt: skip


def kernel_arguments(
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
    active: Tensor | None = None,
) -> dict[str, Any]:
    """Arguments of the forward kernel and of both kernels for gradients alike, by name."""
    num_heads, num_groups = query.shape[1], key.shape[1]
    like = query.new_empty((1,), dtype=torch.float32)  # in place of what a call has not
    bias, bias_strides = merged_key_bias(key_bias, padding, like)
    norms = key_norms = precision = like
    if bandwidth is not None:
        norms, precision = half_squared_norms(query), precision_of(bandwidth, num_heads)
        key_norms = norms if is_same(query, key) else half_squared_norms(key)
    by_lag = Table(like) if table is None else Table.by_lag(table)
    return {
        "query_ptr": query, "key_ptr": key, "value_ptr": value,
        "query_strides": strides(query), "key_strides": strides(key), "value_strides": strides(value),
        "query_norm_ptr": norms, "key_norm_ptr": key_norms, "precision_ptr": precision, "scale": scale,
        "GAUSSIAN": gaussian_mode(query, key, bandwidth),
        **by_lag.arguments(), "TABLE": table is not None,
        "key_bias_ptr": bias,
        "key_bias_batch_stride": bias_strides[0], "key_bias_head_stride": bias_strides[1],
        "range_ptr": key_range(padding, like),
        "document_ptr": like if documents is None else documents,
        **key_options(key_bias, padding, documents),
        "active_ptr": like if active is None else active, "ACTIVE": 0 if active is None else ACTIVE_BLOCK,
        "num_heads": num_heads, "group_size": num_heads // num_groups,
        "num_queries": query.shape[2], "num_keys": key.shape[2], "window": window,
        "width": query.shape[3], "value_width": value.shape[3],
        **mask_options(causal, window, exclude_self),
        **width_options(query, value, bandwidth is not None),
    }  # fmt: skip


def operands(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of `kernel_arguments`."""
    return arguments["query_ptr"], arguments["key_ptr"], arguments["value_ptr"]


def num_blocks(arguments: dict[str, Any], config: Config) -> int:
    """Of queries: all of them, or those that a table per query has."""
    num_rows: int = arguments["num_queries"]
    if arguments["PER_QUERY"]:
        num_rows = arguments["stop_query"] - arguments["first_query"]
    return -(-num_rows // config.block_m)


def merged_key_bias(
    key_bias: Tensor | None, padding: Tensor | None, like: Tensor
) -> tuple[Tensor, tuple[int, int]]:
    """Bias of all logits of a key, in units of log 2: its logit, −∞ for padding.

    Args:
        key_bias: (B or 1, H or 1, Nk) float32.
        padding: (B, Nk) bool.
        like: a float32 tensor to pass in their place if there are none.

    Returns:
        (B or 1, H or 1, Nk), and the steps of batch and head (0 where all share one).
    """
    if key_bias is None:
        if padding is None:
            return like, (0, 0)
        bias = like.new_zeros(padding.shape).masked_fill(padding, -torch.inf)[:, None]
    else:
        bias = key_bias * LOG2E.value
        if padding is not None:
            bias = torch.where(padding[:, None], -torch.inf, bias)
    batch, head, num_keys = bias.shape
    return bias.contiguous(), (head * num_keys * (batch > 1), num_keys * (head > 1))


def key_range(padding: Tensor | None, like: Tensor) -> Tensor:
    """For each batch item the range of keys outside which all are padding, (B, 2) int32."""
    return like if padding is None else first_and_last(~padding).to(torch.int32)


def first_and_last(flags: Tensor) -> Tensor:
    """Of (…, N) flags, the first that is set and the one after the last, (…, 2); 0 and 0 without any."""
    first = flags.to(torch.uint8).argmax(-1)
    last = flags.shape[-1] - flags.flip(-1).to(torch.uint8).argmax(-1)
    return torch.stack((first, last * flags.any(-1)), -1)


def document_bounds(ids: Tensor) -> Tensor:
    """Start and end of the document of each token, (B, 2, N) int32, from numbers (B, N).

    As a document is in one piece, a block of tokens sees what lies between two of these.
    """
    first, ahead = document_starts(ids), document_starts(ids.flip(1)).flip(1)
    return torch.stack((first, ids.shape[1] - ahead), 1).to(torch.int32)
