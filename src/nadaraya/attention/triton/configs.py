"""Tile sizes, warps and pipeline depth of every kernel, by GPU generation, precision and head width.

They are read from a table, so that no call waits for a search. `python benchmarks/tune.py` times a few
candidates on the GPU at hand and writes such a table; NADARAYA_TRITON_CONFIGS names one to be used in place
of the packaged `configs.json`.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

import torch

from nadaraya.errors import must_be

# "table_gradient" is the query's kernel when it also sums the table's gradient, with dot or Gaussian content.
Kernel = Literal[
    "forward",
    "key_value_gradient",
    "query_gradient",
    "table_gradient",
    "gaussian_table_gradient",
    "one_tensor_gradient",
]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
_VARIABLE = "NADARAYA_TRITON_CONFIGS"
# Half of what the lag table is padded by: tiles extend beyond it by one tile, their sums by lag by another.
_WIDEST_TILE = 128
_NARROW = 32


@dataclass(frozen=True)
class Config:
    """Tiling of a kernel: BLOCK_M queries × BLOCK_N keys per tile, warps per program, pipeline stages."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def __post_init__(self) -> None:
        widest = max(self.block_m, self.block_n)
        if widest > _WIDEST_TILE:
            raise ValueError(f"tiles are at most {_WIDEST_TILE} wide, got {widest}")

    @property
    def narrow(self) -> "Config":
        """With few keys, for what holds the addresses of all pairs of a tile in registers."""
        return replace(self, block_n=min(self.block_n, _NARROW))

    @property
    def launch_options(self) -> dict[str, int]:
        """The arguments of a launch."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


_chosen: dict[str, Config] = {}


@contextmanager
def use(**configs: Config) -> Iterator[None]:
    """Within the block, the named kernels are tiled as given: for tests and for tuning."""
    before = dict(_chosen)
    _chosen.update(configs)
    try:
        yield
    finally:
        _chosen.clear()
        _chosen.update(before)


def choose(kernel: Kernel, width: int, dtype: torch.dtype, capability: tuple[int, int]) -> Config:
    """The tiles of a kernel.

    Args:
        kernel: its name.
        width: the wider of the padded head widths of keys and values, 16 to 256.
        dtype: of the tensors.
        capability: compute capability of the GPU.

    Returns:
        Those of `use`, else of the table.
    """
    if kernel in _chosen:
        return _chosen[kernel]
    precision = "single" if dtype == torch.float32 else "half"
    by_width = _table()[_generation(capability), precision, kernel]
    return by_width[min(known for known in by_width if known >= width)]


def rounds_float32() -> bool:
    """Return whether PyTorch is told to round float32 products on CUDA to TF32."""
    # It refuses to read its older setting where the newer was used.
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return torch.get_float32_matmul_precision() != "highest" if newer is None else newer == "tf32"


def _generation(capability: tuple[int, int]) -> str:
    """Select the settings for a GPU; those of 8.0 fit the shared memory of all others too."""
    return {9: "9.0", 10: "10.0"}.get(capability[0], "8.0")


@cache
def _table() -> dict[tuple[str, str, str], dict[int, Config]]:
    path = os.environ.get(_VARIABLE)
    if path is None:
        return _parsed(resources.files(__package__).joinpath("configs.json").read_text(encoding="utf-8"))
    try:
        return _parsed(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        accepted = f"the path of a table as benchmarks/tune.py writes it ({error})"
        raise must_be(_VARIABLE, accepted, path) from error


def _parsed(text: str) -> dict[tuple[str, str, str], dict[int, Config]]:
    """Generation, "half" or "single", and kernel → head width up to → tiles, from JSON."""
    return {
        (generation, precision, kernel): {
            int(width): Config(*tiles) for width, tiles in kernels[kernel].items()
        }
        for generation, precisions in json.loads(text).items()
        for precision, kernels in precisions.items()
        for kernel in KERNELS
    }
