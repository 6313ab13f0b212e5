"""Tile sizes, warps and pipeline depth of every kernel, by GPU generation and head width."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

Kernel = Literal["forward", "key_value_gradient", "query_gradient", "table_gradient", "one_tensor_gradient"]


@dataclass(frozen=True)
class Config:
    """How a kernel is cut: BLOCK_M queries × BLOCK_N keys a tile, warps a program, tiles in flight."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    @property
    def launch_options(self) -> dict[str, int]:
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


# Widest head first that a line serves: (kernel, head width up to) → tiles, by generation. Compiled ahead of
# time, none of them spills registers (tests/attention/triton/test_compilation.py).
_HALF_PRECISION: dict[int, dict[tuple[str, int], Config]] = {}
_chosen: dict[str, Config] = {}


@contextmanager
def use(**configs: Config) -> Iterator[None]:
    """Within the block, the named kernels are cut as given: for tests and for tuning."""
    before = dict(_chosen)
    _chosen.update(configs)
    try:
        yield
    finally:
        _chosen.clear()
        _chosen.update(before)


def choose(kernel: Kernel, width: int, dtype: torch.dtype, capability: tuple[int, int]) -> Config:
    if kernel in _chosen:
        return _chosen[kernel]
    return Config(64, 64, 8 if width > 64 else 4, 2)
