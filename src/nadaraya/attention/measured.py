"""The measured dispatch table: how long each way of a kind of call took on this device, and which are wrong.

`nadaraya check` writes it into the cache folder, under a name made of the device and of all versions that
times depend on. It is read once; NADARAYA_DISPATCH=off ignores it.
"""

import hashlib
import json
import math
import os
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from nadaraya import __version__
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.kinds import kind_of, power_of
from nadaraya.device import device_name
from nadaraya.files import cache_folder

_VARIABLE = "NADARAYA_DISPATCH"
_LARGEST = 2**24  # bytes
_SIZES = ("batch", "heads", "queries", "keys", "width")
# What a row must have.
_TYPES = {"kind": str, "gradients": bool, "dtype": str, "way": str, "ms": float, **dict.fromkeys(_SIZES, int)}
ON_GPU, ON_CPU = ("triton", "sdpa"), ("dense", "sdpa")  # backends that are chosen from
BACKENDS = ("triton", "dense", "sdpa")
_NEAR = 0.6  # log₂ of sizes: within the same powers of two

OfKind = tuple[str, bool, str]  # a name of `Kind`, whether there are gradients, "float32" or "half"


class _Table(NamedTuple):
    """Times of backends by kind and sizes, and the backends that are wrong, each with a name of `Kind`."""

    times: dict[OfKind, dict[tuple[int, ...], dict[str, float]]]
    wrong: frozenset[tuple[str, str]]


def identity(device: torch.device) -> dict[str, str]:
    """All that times depend on: device, driver and versions."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    facts = {"torch": torch.__version__, "triton": triton, "nadaraya": __version__}
    if device.type != "cuda":
        return {"device": f"{device_name()}, {torch.get_num_threads()} threads", **facts}
    driver = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]
    name = torch.cuda.get_device_name(device)
    return {"device": name, "driver": str(driver), "cuda": str(torch.version.cuda), **facts}


def table_path(device: torch.device) -> Path:
    """The file of a device's table, which need not exist."""
    digest = hashlib.sha256(json.dumps(identity(device)).encode()).hexdigest()
    return cache_folder() / f"dispatch-{digest[:16]}.json"


def slower(args: AttentionArguments, rivals: tuple[str, ...]) -> dict[str, str] | None:
    """Why each of some backends but the fastest is not taken, by what was measured; None if nothing was."""
    if args.dropout_p > 0.0 or not _exists(args.query.device):
        return None
    kind = kind_of(args)
    of_kind = (kind.name, bool(kind.gradients), "float32" if kind.dtype == torch.float32 else "half")
    sizes = (args.query.shape[0] * args.query.shape[1], args.key.shape[2], args.query.shape[3])
    return _slower(args.query.device, of_kind, rivals, *map(power_of, sizes))


def why_wrong(backend: str, args: AttentionArguments) -> str | None:
    """Why a backend is not right for a kind of call, with gradients or without, or None."""
    found = _wrong(args.query.device)
    if found and (backend, kind_of(args)._replace(gradients=()).name) in found:
        return "nadaraya check found it wrong"
    return None


def _wrong(device: torch.device) -> frozenset[tuple[str, str]]:
    return _table(device).wrong


def _exists(device: torch.device) -> bool:
    return bool(_table(device).times)


def _slower(
    device: torch.device, kind: OfKind, rivals: tuple[str, ...], *sizes: int
) -> dict[str, str] | None:
    times = _nearest(device, kind, rivals, *sizes)
    if times is None:
        return None
    best = min(rivals, key=times.__getitem__)
    said = f"ms where {best!r} takes {times[best]:.3g} ms"
    return {name: f"measured: {times[name]:.3g} {said}" for name in rivals if name != best}


# As torch.compiler.assume_constant_result does, which would import the compiler.
_exists._dynamo_marked_constant = True  # type: ignore[attr-defined]
_slower._dynamo_marked_constant = True  # type: ignore[attr-defined]
_wrong._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _nearest(
    device: torch.device, kind: OfKind, rivals: tuple[str, ...], *sizes: int
) -> dict[str, float] | None:
    """Times at the sizes nearest in log₂ of (batch · heads, keys, width) where all were measured.

    On a CPU the rule of `dense` is better than sizes that are not the same.
    """
    cells = {
        shape: times
        for shape, times in _table(device).times.get(kind, {}).items()
        if times.keys() >= set(rivals)
    }
    if not cells:
        return None
    away = {shape: math.dist(map(math.log2, shape), sizes) for shape in cells}
    nearest = min(away, key=away.__getitem__)
    return None if rivals == ON_CPU and away[nearest] > _NEAR else cells[nearest]


@cache
def _table(device: torch.device) -> _Table:
    """The content of the device's file; of a damaged or foreign one nothing, with one warning."""
    nothing = _Table({}, frozenset())
    path: Path | None = None
    if os.environ.get(_VARIABLE) == "off":
        return nothing
    try:
        path = table_path(device)
        return _read(path, identity(device)) if path.is_file() else nothing
    except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:  # no home, no rights
        warnings.warn(
            f"{path or 'the cache folder'} is ignored, no dispatch table of this device: {error}",
            stacklevel=2,
        )
        return nothing


def _read(path: Path, expected: dict[str, str]) -> _Table:
    """A file of exactly this form and identity; ValueError and the like for others."""
    if path.stat().st_size > _LARGEST:
        raise ValueError("it is too large")
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["identity"] != expected:
        raise ValueError("it is of another device or of other versions")
    table = _Table({}, frozenset(
        (call["backend"], call["kind"]) for call in document["calls"]
        if call["error"] is None or not call["error"] <= call["tolerance"]
    ))  # fmt: skip
    for row in document["rows"]:
        if any(type(row[name]) is not kind for name, kind in _TYPES.items()):
            raise ValueError(f"a row must have {', '.join(_TYPES)}")
        if not 0.0 < row["ms"] < math.inf or min(row[name] for name in _SIZES) < 1:
            raise ValueError("its numbers must be positive and finite")
        of_kind = (row["kind"], row["gradients"], "float32" if row["dtype"] == "float32" else "half")
        sizes = (row["batch"] * row["heads"], row["keys"], row["width"])
        if row["way"] in BACKENDS:
            table.times.setdefault(of_kind, {}).setdefault(sizes, {})[row["way"]] = row["ms"]
    return table
