"""The measured dispatch table: how long each way of a kind of call took on this device.

`nadaraya check` writes it into the cache folder, under a name made of the device and of all versions that
times depend on; what was measured with others is not looked at. NADARAYA_DISPATCH=off ignores it.
"""

import hashlib
import json
import math
import os
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nadaraya import __version__
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.kinds import Kind

_VARIABLE = "NADARAYA_DISPATCH"
_LARGEST = 2**24  # bytes
_SHAPE = ("batch", "heads", "queries", "keys", "width")
# What a row must have; it may say more.
_TYPES = {"kind": str, "gradients": bool, "dtype": str, "way": str, "ms": float, **dict.fromkeys(_SHAPE, int)}
_BACKENDS = ("triton", "sdpa")

Cell = tuple[tuple[float, ...], dict[str, float]]  # log₂ of (batch · heads, tokens, width), and ways → ms


def identity(device: torch.device) -> dict[str, str]:
    """All that times depend on: device, driver and versions."""
    on_gpu = device.type == "cuda"
    from nadaraya.device import device_name

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    return {
        "device": torch.cuda.get_device_name(device)
        if on_gpu
        else f"{device_name()}, {torch.get_num_threads()} threads",
        "driver": str(torch._C._cuda_getDriverVersion()) if on_gpu else "none",
        "cuda": str(torch.version.cuda) if on_gpu else "none",
        "torch": torch.__version__,
        "triton": triton,
        "nadaraya": __version__,
    }


def table_path(device: torch.device) -> Path:
    """Where the table of a device is, if it was measured."""
    from nadaraya.files import cache_folder

    digest = hashlib.sha256(json.dumps(identity(device)).encode()).hexdigest()
    return cache_folder() / f"dispatch-{digest[:16]}.json"


def slower(backend: str, kind: Kind, args: AttentionArguments) -> str | None:
    """Why a backend is not the fastest for a call, by what was measured; None if it is, or nothing was."""
    sizes = (args.query.shape[0] * args.query.shape[1], args.key.shape[2], args.query.shape[3])
    dtype = "float32" if kind.dtype == torch.float32 else "half"
    of_kind = (kind.name, bool(kind.gradients), dtype)
    return _slower(backend, args.query.device, of_kind, *map(_bucket, sizes))


def _slower(backend: str, device: torch.device, kind: tuple[str, bool, str], *sizes: int) -> str | None:
    times = _nearest(device, kind, *sizes)
    best = min(times, key=times.__getitem__, default=backend)
    if best == backend:
        return None
    return f"measured: {times[backend]:.3g} ms where {best!r} takes {times[best]:.3g} ms"


# As torch.compiler.assume_constant_result does, which would import the compiler.
_slower._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _nearest(device: torch.device, kind: tuple[str, bool, str], *sizes: int) -> dict[str, float]:
    """Times of a kind at the measured sizes that are nearest in log₂ of (batch · heads, keys, width)."""
    cells = _table(device).get(kind, [])
    return min(cells, key=lambda cell: math.dist(cell[0], sizes))[1] if cells else {}


def _bucket(size: int) -> int:
    """log₂ rounded up, by comparisons: a compiled call of another length keeps its code within one."""
    return next(power for power in range(40) if size <= 2**power)


@cache
def _table(device: torch.device) -> dict[tuple[str, bool, str], list[Cell]]:
    """Times of the backends by kind, read once; a damaged or foreign file has none, and one warning."""
    if os.environ.get(_VARIABLE) == "off" or not (path := table_path(device)).is_file():
        return {}
    try:
        rows = parse(path, identity(device))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        warnings.warn(f"{path} is ignored, no dispatch table of this device: {error}", stacklevel=2)
        return {}
    times: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        if row["way"] in _BACKENDS:
            sizes = (row["batch"] * row["heads"], row["keys"], row["width"])
            dtype = "float32" if row["dtype"] == "float32" else "half"
            of_call = times.setdefault((row["kind"], row["gradients"], dtype, *sizes), {})
            of_call[row["way"]] = row["ms"]
    table: dict[tuple[str, bool, str], list[Cell]] = {}
    for (kind, gradients, dtype, *sizes), ways in times.items():
        if len(ways) == len(_BACKENDS):
            table.setdefault((kind, gradients, dtype), []).append((tuple(map(math.log2, sizes)), ways))
    return table


def parse(path: Path, expected: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of a file that is exactly of this form and identity; ValueError and the like for others."""
    if path.stat().st_size > _LARGEST:
        raise ValueError("it is too large")
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["identity"] != expected:
        raise ValueError("it is of another device or of other versions")
    for row in document["rows"]:
        if any(type(row[name]) is not kind for name, kind in _TYPES.items()):
            raise ValueError(f"a row must have {', '.join(_TYPES)}")
        if not 0.0 < row["ms"] < math.inf or min(row[name] for name in _SHAPE) < 1:
            raise ValueError("its numbers must be positive and finite")
    return list(document["rows"])
