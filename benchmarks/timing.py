"""Side-by-side timing: all cases take turns, so that drift of the machine affects all of them equally."""

import json
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nadaraya.device import device_name
from nadaraya.files import write_file

# Larger than the L2 cache of any GPU so far: after writing it nothing of a case's inputs is left there.
_FLUSH_BYTES = 256 * 2**20
# About a millisecond of writing: the host is done issuing a short case before the device starts on it.
_FLUSHES = 16


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, and the quartiles as spread; `host` is the median until it returned.

    On a GPU the first three are the device's own time, and `host` far above them means that calls are bound
    by what Python and PyTorch do to issue them.
    """

    median: float
    low: float
    high: float
    runs: int
    host: float


def alternate(
    cases: dict[str, Callable[[], Any]], runs: int, warmup: int = 2, device: str = "cpu"
) -> dict[str, Timing]:
    """Time cases in turn, all in one process.

    Args:
        cases: name → a call that does the work once.
        runs: counted rounds; every case runs once a round.
        warmup: rounds before counting; default 2.
        device: "cpu", by the clock; "processor", by the time that its threads ran, which other programs on a
            busy machine do not lengthen as much; "cuda", by CUDA events, from a flushed L2 cache and with the
            call issued while the device is still busy flushing, so that gaps before its first kernel do not
            count.

    Returns:
        name → its timing.
    """
    clock = time.process_time if device == "processor" else time.perf_counter
    measure = _Events() if device == "cuda" else partial(_clock, clock)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for turn in range(warmup + runs):
        for name, case in cases.items():
            taken = measure(case)
            if turn >= warmup:
                seconds[name].append(taken)
    return {name: _summary(times) for name, times in seconds.items()}


def one_line(error: BaseException) -> str:
    """What went wrong, in one line of at most 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:200]


def why_it_fails(case: Callable[[], Any], device: str = "cpu") -> str | None:
    """Run a case once, to see whether it can.

    Args:
        case: a call that does the work once.
        device: "cpu" or "cuda"; what fails on the device is waited for, and its memory is given back.

    Returns:
        The reason in one line when it cannot run here, None when it can.
    """
    try:
        case()
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # a rival may fail in any way: that is its result
        reason = one_line(error)
    else:
        return None
    if device == "cuda":
        torch.cuda.empty_cache()
    return reason


def _clock(clock: Callable[[], float], case: Callable[[], Any]) -> tuple[float, float]:
    start = clock()
    case()
    seconds = clock() - start
    return seconds, seconds


class _Events:
    """Seconds on the device and until the call returned on the host."""

    def __init__(self) -> None:
        self._cache = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self, case: Callable[[], Any]) -> tuple[float, float]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        for _ in range(_FLUSHES):
            self._cache.zero_()
        start = time.perf_counter()
        begin.record()
        case()
        end.record()
        host = time.perf_counter() - start
        end.synchronize()
        return begin.elapsed_time(end) / 1e3, host


def _summary(times: list[tuple[float, float]]) -> Timing:
    taken = [seconds for seconds, _ in times]
    # A single time is its own quartiles.
    low, median, high = statistics.quantiles(taken * 2 if len(taken) == 1 else taken, n=4, method="inclusive")
    host = statistics.median(seconds for _, seconds in times)
    return Timing(median * 1e3, low * 1e3, high * 1e3, len(times), host * 1e3)


def as_table(timings: dict[str, Timing], base: str) -> str:
    """Timings as text, each with its ratio to the case named `base`, where that ran.

    Args:
        timings: what `alternate` returned; at least one.
        base: name of a case.

    Returns:
        A heading and one line per case.
    """
    width = max(map(len, timings))
    lines = [f"{'':{width}}  median ms   quartiles        ratio"]
    for name, timing in timings.items():
        ratio = f"{timing.median / timings[base].median:5.2f}×" if base in timings else ""
        lines.append(f"{name:{width}}  {timing.median:9.2f}   {timing.low:7.2f}–{timing.high:<8.2f} {ratio}")
    return "\n".join(lines)


def as_json(timings: dict[str, Timing]) -> dict[str, Any]:
    """Timings as plain numbers for a results file."""
    return {name: asdict(timing) for name, timing in timings.items()}


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write a results file as a whole: a run that is killed leaves the last complete one.

    Args:
        path: the file; folders on the way are made.
        results: what JSON can hold.
    """
    write_file(path, json.dumps(results, indent=1) + "\n")


def environment(*packages: str) -> dict[str, Any]:
    """What the numbers depend on: processor, threads, versions (also of packages), and the GPU if any."""
    facts: dict[str, Any] = {
        "processor": device_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "timm": _version("timm"),
        "nadaraya": _version("nadaraya"),
        "commit": _commit(),
        "device": device_name("cuda") if torch.cuda.is_available() else "cpu",
        **{package: _version(package) for package in packages},
    }
    if torch.cuda.is_available():
        facts |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
    return facts


def _commit() -> str | None:
    """The checkout that this file lies in, or None where there is no git."""
    return _output("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(program: str, *arguments: str) -> str | None:
    """The first line that a program prints, or None where it is absent or fails."""
    if shutil.which(program) is None:
        return None
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return result.stdout.splitlines()[0] if result.returncode == 0 and result.stdout else None
