"""Throughput and peak memory of image models side by side: the grid of Kundu et al. (2026), table 4."""

import gc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import accumulate, chain
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from nadaraya.device import device_name
from nadaraya.errors import check_name, must_be
from nadaraya.files import first_line

# Images per call: those of the paper.
BATCH_SIZES = {"inference": (32, 64, 128, 256, 512), "training": (64, 128)}
SIZES = ("tiny", "small", "base")
PRECISIONS = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_MIB = 2**20

Case = TypeVar("Case")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement.

    Args:
        device: "cpu" or "cuda"; default "cpu".
        precision: "float32" (default); or "bfloat16": in inference weights and images, kernels excepted, in
            training float32 weights under autocast.
        compiled: whether `torch.compile` compiles every model, for each batch size anew; default False.
        image_size: pixels per side; default the models' own.
        options: keywords of `timm.create_model`, for every model.
        rounds: turns of each model; default 5.
        seconds: least time of a turn, which repeats short calls; default 0.2.
        memory: whether peak memory is measured; default True.

    Raises:
        InputError: a value that is not accepted.
    """

    device: str = "cpu"
    precision: str = "float32"
    compiled: bool = False
    image_size: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 5
    seconds: float = 0.2
    memory: bool = True

    def __post_init__(self) -> None:
        check_name("device", self.device, ("cpu", "cuda"))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise must_be("device", "'cpu' where there is no CUDA device", self.device)
        check_name("precision", self.precision, PRECISIONS)
        if self.rounds < 1:
            raise must_be("rounds", "a positive integer", self.rounds)


@dataclass(frozen=True)
class Throughput:
    """One model at one batch size; what could not be measured is None.

    Args:
        model: its name in timm.
        mode: "inference", a forward pass without gradients; "training", forward, cross-entropy against soft
            labels, backward and AdamW; or "peak", the best inference throughput.
        batch: images per call.
        images_per_second: the median.
        low: its lower quartile.
        high: its upper quartile.
        memory_mib: peak of the tensors on the device during one call: weights, gradients, optimiser state and
            activations of this model alone, in MiB.
        speed_ratio: images/s over those of the first model.
        memory_ratio: memory over that of the first model.
        failed: why it could not run here, in one line.
    """

    model: str
    mode: str
    batch: int
    images_per_second: float | None = None
    low: float | None = None
    high: float | None = None
    memory_mib: float | None = None
    speed_ratio: float | None = None
    memory_ratio: float | None = None
    failed: str | None = None


def deit_and_gka(size: str) -> tuple[str, str]:
    """The pair of models that Kundu et al. (2026) compare, timm's DeiT and ours, at a size of `SIZES`."""
    check_name("size", size, SIZES)
    return f"deit_{size}_patch16_224", f"gka_{size}_patch16_224"


def measure(models: Sequence[str], mode: str, batch: int, settings: Settings) -> list[Throughput]:
    """Measure models in one process, taking turns: drift of the machine affects all of them equally.

    Args:
        models: different names of timm; the others are compared with the first.
        mode: "inference" or "training".
        batch: images per call.
        settings: how.

    Returns:
        One row per model. A model that cannot run, for want of memory or for another reason, has the reason.

    Raises:
        InputError: a name, a batch size or an option that is not accepted.
    """
    if not models or len(set(models)) < len(models):
        raise must_be("models", "at least one name, each given once", list(models))
    check_name("mode", mode, BATCH_SIZES)
    if batch < 1:
        raise must_be("batch size", "a positive integer", batch)
    if settings.compiled:  # code of other batch sizes would be tried here, and count towards the limit
        torch._dynamo.reset()
    rows = {name: Throughput(name, mode, batch) for name in models}
    steps: dict[str, Callable[[], None]] = {}
    for name in models:
        try:
            steps[name], memory = _prepared(rows[name], settings)
            rows[name] = replace(rows[name], memory_mib=memory)
        except RuntimeError as error:
            rows[name] = replace(rows[name], failed=_reason(error))
    timed = {name: partial(_seconds, step, settings) for name, step in steps.items()}
    try:
        for name, turns in alternate(timed, settings.rounds).items():
            low, median, high = rates(batch, list(chain(*turns)))
            rows[name] = replace(rows[name], images_per_second=median, low=low, high=high)
    except RuntimeError as error:  # each ran alone: together they may not have the memory
        rows |= {name: replace(rows[name], failed=_reason(error)) for name in steps}
    del steps, timed
    gc.collect()  # compiled models are in cycles
    if settings.device == "cuda":
        torch.cuda.empty_cache()
    return _compared(rows.values())


def peaks(rows: Iterable[Throughput]) -> list[Throughput]:
    """The best inference throughput of each model, at whatever batch size.

    Args:
        rows: what `measure` gave at some batch sizes.

    Returns:
        One row per model, mode "peak"; memory is compared only where batch sizes are equal.
    """
    measured = [row for row in rows if row.mode == "inference" and row.images_per_second is not None]
    best: dict[str, Throughput] = {}
    for row in measured:
        best[row.model] = max(best.get(row.model, row), row, key=lambda row: row.images_per_second or 0)
    return _compared(replace(row, mode="peak") for row in best.values())


def environment(*packages: str) -> dict[str, Any]:
    """Facts that throughput depends on: the device, threads, versions of PyTorch, nadaraya and packages."""
    return {
        "device": device_name("cuda" if torch.cuda.is_available() else "cpu"),
        "threads": torch.get_num_threads(),
        **{package: version(package) for package in ("torch", *packages, "nadaraya")},
    }


def make_step(row: Throughput, settings: Settings) -> Callable[[], None]:
    """A call that does the work of a row once, on a fresh model and a fixed random batch.

    The first calls also compile. An InputError where the model cannot be built.
    """
    from nadaraya.models.vit import create_image_model
    from nadaraya.models.vit.factory import image_shape

    torch.manual_seed(0)
    device, dtype = settings.device, PRECISIONS[settings.precision]
    model = create_image_model(row.model, image_size=settings.image_size, options=settings.options)
    images = torch.randn(row.batch, *image_shape(model, settings.image_size)).to(device)
    model.to(device).train(row.mode == "training")
    network: Any = torch.compile(model, dynamic=False) if settings.compiled else model
    if row.mode == "inference":
        in_precision(model, settings.precision)
        images = images.to(dtype)

        def infer() -> None:
            with torch.inference_mode():
                network(images)

        return infer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")
    labels = torch.rand(row.batch, int(model.num_classes), device=device).softmax(-1)  # type: ignore[arg-type]

    def update() -> None:
        with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
            logits = network(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def in_precision(model: nn.Module, precision: str) -> nn.Module:
    """The model with weights in a precision, the parameters of its kernels in float32."""
    model.to(PRECISIONS[precision])
    for _, parameter in getattr(model, "kernel_parameters", tuple)():
        parameter.data = parameter.data.float()
    return model


def rates(count: int, seconds: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of a count per second."""
    high, median, low = (count / second for second in np.quantile(seconds, (0.25, 0.5, 0.75)))
    return low, median, high


def _prepared(row: Throughput, settings: Settings) -> tuple[Callable[[], None], float | None]:
    """A step that has run, and the peak in MiB of what it had on the device while it ran again.

    What the first call makes stays: compiled code, the optimiser's state.
    """

    def first() -> Callable[[], None]:
        step = make_step(row, settings)
        step()
        return step

    if settings.device == "cuda":
        torch.ones((64, 64), device="cuda") @ torch.ones((64, 64), device="cuda")  # the library's workspace
        before = torch.cuda.memory_allocated()
        step = first()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return step, (torch.cuda.max_memory_allocated() - before) / _MIB if settings.memory else None
    if not settings.memory:
        return first(), None
    step, kept, _ = allocated(first)
    _, _, peak = allocated(step)
    return step, (kept + peak) / _MIB


def allocated(call: Callable[[], Any]) -> tuple[Any, int, int]:
    """The result of a call, the bytes on the CPU that it kept, and the most that it had at a time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own log would go to standard error
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = call()
    events = recorded.profiler.kineto_results.events()  # in order of time
    bytes_held = list(accumulate((e.nbytes() for e in events if e.name() == "[memory]"), initial=0))
    return result, bytes_held[-1], max(bytes_held)


def _seconds(step: Callable[[], None], settings: Settings) -> list[float]:
    """Seconds per call of a step, after calls that do not count."""
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    return list(timer.blocked_autorange(min_run_time=settings.seconds).times)


def alternate(cases: Mapping[Case, Callable[[], Found]], rounds: int) -> dict[Case, list[Found]]:
    """Results of cases that take turns, so that drift of the machine affects all of them equally."""
    found: dict[Case, list[Found]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            found[name].append(case())
    return found


def _compared(rows: Iterable[Throughput]) -> list[Throughput]:
    """The rows with their ratios to the first one."""
    rows = list(rows)

    def ratio(row: Throughput, name: str) -> float | None:
        value, base = getattr(row, name), getattr(rows[0], name)
        return None if value is None or base is None else value / base

    return [
        replace(
            row,
            speed_ratio=ratio(row, "images_per_second"),
            memory_ratio=ratio(row, "memory_mib") if row.batch == rows[0].batch else None,
        )
        for row in rows
    ]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"[:200]
