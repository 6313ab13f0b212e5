"""Images a second and peak memory of image models side by side: the grid of document D's table 4."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from nadaraya.errors import InputError, unknown_name
from nadaraya.evaluation.timing import alternate, environment, one_line, why_it_fails
from nadaraya.evaluation.vision_steps import (
    MEMORY_ON_CPU,
    MEMORY_ON_CUDA,
    MODES,
    PRECISIONS,
    Case,
    make_step,
    process_peak,
)

BATCH_SIZES = (32, 64, 128, 256, 512)
TRAIN_BATCH_SIZES = (64, 128)
SIZES = ("tiny", "small", "base")
_MIB = 2**20
Results = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """What is measured.

    Args:
        models: names of timm; the others are compared with the first.
        batch_sizes: images a forward pass; default those of document D, 32 to 512.
        train_batch_sizes: images an update; default 64 and 128.
        device: "cpu" or "cuda"; default "cpu".
        precision: "float32" (default) or "bfloat16", see `Case`.
        compiled: whether every model goes through `torch.compile`; default False.
        rounds: counted calls of each case; default 10.
        warmup: calls before those, beyond a first one that compiles; default 2.
        image_size: pixels a side; default the models' own.
        options: keywords of `timm.create_model`, for every model.
        memory: whether peak memory is measured; on the CPU a process of its own a case; default True.

    Raises:
        InputError: a value that is not accepted.
    """

    models: Sequence[str]
    batch_sizes: Sequence[int] = BATCH_SIZES
    train_batch_sizes: Sequence[int] = TRAIN_BATCH_SIZES
    device: str = "cpu"
    precision: str = "float32"
    compiled: bool = False
    rounds: int = 10
    warmup: int = 2
    image_size: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    memory: bool = True

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError("at least one model is needed")
        if len(set(self.models)) < len(self.models):
            raise InputError(f"a model is named twice: {', '.join(self.models)}")
        if self.device not in ("cpu", "cuda"):
            raise unknown_name("device", self.device, ("cpu", "cuda"))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("no CUDA device here; accepted is device cpu")
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        for batch in (*self.batch_sizes, *self.train_batch_sizes):
            if batch < 1:
                raise InputError(f"a batch size must be at least 1, got {batch}")
        if self.rounds < 1 or self.warmup < 0:
            raise InputError(f"rounds must be at least 1, got {self.rounds}; warmup {self.warmup} at least 0")

    def cells(self) -> list[tuple[str, int]]:
        """Mode and batch size of every cell, training first: it is what costs."""
        training = [(MODES[1], batch) for batch in self.train_batch_sizes]
        return training + [(MODES[0], batch) for batch in self.batch_sizes]

    def case(self, model: str, mode: str, batch: int) -> Case:
        """The case of one model in a cell."""
        return Case(
            model,
            mode,
            batch,
            self.device,
            self.precision,
            self.compiled,
            self.image_size,
            self.options,
        )


def deit_and_gka(size: str) -> tuple[str, str]:
    """The pair of models that document D compares.

    Args:
        size: "tiny", "small" or "base".

    Returns:
        timm's DeiT and ours with Gaussian kernel attention.

    Raises:
        InputError: another size.
    """
    if size not in SIZES:
        raise unknown_name("size", size, SIZES)
    return f"deit_{size}_patch16_224", f"gka_{size}_patch16_224"


def measure(
    grid: Grid,
    progress: Callable[[str], None] = lambda line: None,
    save: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Measure every cell of a grid: in a cell the models take turns, call by call, in this process.

    A case that cannot run, for want of memory or for another reason, is an entry with its reason.

    Args:
        grid: what is measured.
        progress: gets a line before every cell.
        save: gets the results so far after every cell.

    Returns:
        "environment"; "settings", the grid and how memory was measured; "inference" and "training", by batch
        size and model {images_per_second, its quartiles low and high, median_ms, host_ms, runs, memory_mib},
        or {failed: reason}; "peak", by model the batch size of its greatest inference throughput and that
        cell's figures; "ratios", see `ratios`.
    """
    cuda = grid.device == "cuda"
    how = (MEMORY_ON_CUDA if cuda else MEMORY_ON_CPU) if grid.memory else "not measured"
    results: Results = {
        "environment": environment(),
        "settings": {**asdict(grid), "memory": how},
        **{mode: {} for mode in MODES},
    }
    for mode, batch in grid.cells():
        progress(f"{mode}, batch {batch}: {', '.join(grid.models)}")
        results[mode][str(batch)] = _cell(grid, mode, batch)
        _release(grid.device)
        results["peak"] = {name: best for name in grid.models if (best := _peak(results["inference"], name))}
        results["ratios"] = ratios(results)
        save(results)
    return results


def ratios(results: Results) -> Results:
    """Every model against the first of the grid.

    Args:
        results: what `measure` gathers.

    Returns:
        By mode, batch size ("peak" beside them, of inference: each model at its own best) and model, "speed",
        its images a second over the first model's, and "memory", its peak over the first model's at the same
        batch size. What was not measured of both is absent.
    """
    first, *others = results["settings"]["models"]
    found: Results = {}
    for mode in MODES:
        rows = dict(results[mode])
        if mode == "inference":
            rows["peak"] = results["peak"]
        found[mode] = {
            batch: {name: _ratio(cell.get(name, {}), cell.get(first, {})) for name in others if name in cell}
            for batch, cell in rows.items()
        }
    return found


def _ratio(row: Results, base: Results) -> Results:
    keys = {"speed": "images_per_second"}
    if row.get("batch") == base.get("batch"):
        keys["memory"] = "memory_mib"
    return {
        name: row[key] / base[key] for name, key in keys.items() if row.get(key) is not None and base.get(key)
    }


def _peak(cells: Results, name: str) -> Results | None:
    rows = [
        {"batch": int(batch), **cell[name]}
        for batch, cell in cells.items()
        if "images_per_second" in cell.get(name, {})
    ]
    return max(rows, key=lambda row: row["images_per_second"], default=None)


def _cell(grid: Grid, mode: str, batch: int) -> Results:
    """All models at one mode and batch size."""
    steps: dict[str, Callable[[], None]] = {}
    rows: Results = {}
    resident = _Resident(grid.device)
    if (
        grid.compiled
    ):  # code of other cells would be tried, and counted against the compiler's limit, in this one
        torch._dynamo.reset()
    for name in grid.models:
        case = grid.case(name, mode, batch)
        resident.before()
        step, reason = _prepared(case)
        if step is None:
            rows[name] = {"failed": reason}
        else:
            steps[name] = step
        resident.after(name)
    if grid.memory:
        for name, step in steps.items():
            if grid.device == "cuda":
                rows[name] = {"memory_mib": resident.peak(name, step)}
            else:
                rows[name] = process_peak(grid.case(name, mode, batch))
    try:
        timings = alternate(steps, grid.rounds, grid.warmup, grid.device)
    except RuntimeError as error:  # each ran alone: together they may not have the memory
        timings = {}
        rows |= {name: {"failed": one_line(error)} for name in steps}
    for name, timing in timings.items():
        rows[name] = {
            "images_per_second": 1e3 * batch / timing.median,
            "low": 1e3 * batch / timing.high,
            "high": 1e3 * batch / timing.low,
            "median_ms": timing.median,
            "host_ms": timing.host,
            "runs": timing.runs,
            **rows.get(name, {}),
        }
    return {name: rows[name] for name in grid.models}


def _prepared(case: Case) -> tuple[Callable[[], None] | None, str | None]:
    """A step that has run once, or None and why it cannot run."""
    try:
        step = make_step(case)
    except RuntimeError as error:
        reason: str | None = one_line(error)
    else:
        reason = why_it_fails(step, case.device)
        if reason is None:
            return step, None
        del step
    _release(case.device)
    return None, reason


def _release(device: str) -> None:
    gc.collect()  # compiled models are in cycles
    if device == "cuda":
        torch.cuda.empty_cache()


class _Resident:
    """What each model keeps on the device between calls: no part of another model's peak."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._kept: dict[str, int] = {}
        self._before = 0
        if self._cuda:  # the library's workspace is no model's
            for dtype in PRECISIONS.values():
                square = torch.ones((64, 64), dtype=dtype, device="cuda")
                square @ square
            del square

    def before(self) -> None:
        """A model is about to be made."""
        self._before = self._allocated()

    def after(self, name: str) -> None:
        """It is there, and has run once."""
        self._kept[name] = self._allocated() - self._before

    def peak(self, name: str, step: Callable[[], None]) -> float:
        """MiB at the peak of one call, without what the other models keep."""
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        others = sum(kept for other, kept in self._kept.items() if other != name)
        return (torch.cuda.max_memory_allocated() - others) / _MIB

    def _allocated(self) -> int:
        if not self._cuda:
            return 0
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
