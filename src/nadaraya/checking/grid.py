"""Errors of every backend over kinds of calls, and times of every way to do them."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nadaraya.attention import self_check
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.dispatch import by_backend, why_not
from nadaraya.attention.kinds import Kind, arguments, drawn
from nadaraya.attention.linear import FORMS
from nadaraya.attention.measured import BACKENDS, ON_CPU, ON_GPU
from nadaraya.checking import ways
from nadaraya.stored import Stored

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_PAIRS = 2**28  # of queries and keys: of more no N × N matrix is written
_TURN, _TURNS = 0.02, 3  # seconds of calls in one turn, at least one call; turns, of which the median counts
# Fields of `Kind` by feature. All are checked at width 64, the first three at others too.
FEATURES: dict[str, dict[str, Any]] = {
    "bank": {"position": "table"},
    "Gaussian": {"content": "gaussian", "shared": ("key", "value")},
    "excluded self": {"position": "table", "flags": ("causal", "exclude_self")},
    "dot product": {},
    "both directions": {"flags": ()},
    "Gaussian, q k v": {"content": "gaussian"},
    "key bias": {"flags": ("causal", "key_bias")},
    "window": {"flags": ("causal", "window")},
    "mixed logits": {"position": "mixed logits"},
    "mixed kernels": {"position": "mixed kernels"},
    "grid": {"position": "grid", "flags": ()},
    "padding": {"flags": ("causal", "padding")},
    "documents": {"position": "table", "flags": ("causal", "documents")},
    "grouped heads": {"group": 2},
    "pruned": {"position": "table", "flags": ("causal", "pruned")},
    "decoding": {"position": "table", "queries": 1},
    "factored": {"content": "factored", "flags": ()},
    "factored, causal": {"content": "factored"},
}
_OTHER_WIDTHS, _OF_OTHER_WIDTHS = (16, 128, 256), 3
_TIMED = (
    "dot product",
    "bank",
    "Gaussian",
    "excluded self",
    "key bias",
    "window",
    "mixed logits",
    "decoding",
)
Shape = tuple[int, int, int, int]  # batch, heads, tokens and width
SHAPES: dict[str, tuple[Shape, ...]] = {
    "cpu": (
        (1, 4, 64, 32), (16, 4, 64, 32), (16, 12, 128, 64), (1, 4, 256, 32), (16, 4, 256, 128),
        (1, 12, 1024, 64), (1, 4, 2048, 64),
    ),
    "cuda": ((16, 4, 256, 128), (8, 16, 1024, 64), (4, 16, 4096, 64), (4, 16, 4096, 128), (1, 16, 16384, 64)),
}  # fmt: skip
_QUICK_SHAPES = ((1, 4, 256, 32),)
_FLEX = (4, 16, 4096, 64)  # the shape at which FlexAttention is compiled


class Call(Stored):
    """Error of a backend in one call; None where it is not finite or the call failed."""

    backend: str
    feature: str
    kind: str
    dtype: str
    width: int
    error: float | None
    tolerance: float
    failed: str

    @property
    def right(self) -> bool:
        """Return whether output and gradients are those of the definition."""
        return self.error is not None and self.error <= self.tolerance


class Time(Stored):
    """Median of the milliseconds of one call; with gradients, forward and backward."""

    kind: str
    gradients: bool
    dtype: str
    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    way: str
    ms: float


class Check(Stored):
    """The findings on one device; as a file, the dispatch table that `auto` reads."""

    identity: dict[str, str]
    calls: tuple[Call, ...]
    rows: tuple[Time, ...]
    failed: dict[str, str]
    """Ways that do not run here, with the reason."""


def kind_of(feature: str, dtype: torch.dtype, width: int, gradients: bool = True) -> Kind:
    """The kind of a feature, differentiated by all that it has."""
    made = Kind(dtype, width, width, **FEATURES[feature])
    if made.queries or not gradients:
        return made
    return made._replace(gradients=tuple(drawn(made, 1, made.group, 4)))


def kinds(quick: bool) -> Iterator[tuple[str, Kind]]:
    """The kinds to be checked, each with its feature."""
    features = list(FEATURES)
    for width in (16,) if quick else (64, *_OTHER_WIDTHS):
        for feature in features[:_OF_OTHER_WIDTHS] if width in _OTHER_WIDTHS and not quick else features:
            for dtype in _DTYPES[: 2 if quick else 3]:
                yield feature, kind_of(feature, dtype, width)


def check(feature: str, kind: Kind, device: torch.device) -> Iterator[Call]:
    """Errors of every backend that could serve a kind of call."""
    small = {name: tensor.to(device) for name, tensor in drawn(kind, 1, kind.group, 64).items()}
    for backend in (*BACKENDS, *FORMS):
        if why_not(backend, arguments(kind, small), False) is None:
            error, failed = math.nan, ""
            try:
                error = self_check.largest_error_in_time(kind, partial(_attend, backend), device)
            except Exception as failure:  # whatever a compiler or a driver raises is what was found
                failed = self_check.said(failure)
            yield Call(
                backend=backend, feature=feature, kind=_plain_name(kind), dtype=kind.precision,
                width=kind.width, error=error if math.isfinite(error) else None,
                tolerance=self_check.tolerance(kind), failed=failed,
            )  # fmt: skip


def cells(
    device: torch.device, quick: bool, more: Sequence[Shape] = ()
) -> Iterator[tuple[Kind, tuple[int, int, int]]]:
    """Kinds of calls to be timed, with batch, heads and tokens; `more` shapes in bfloat16 on a CPU, too."""
    usual = _QUICK_SHAPES if quick else SHAPES[device.type]
    for dtype in (torch.bfloat16, torch.float32):
        wanted = (device.type == "cuda") or dtype == torch.float32
        for batch, heads, tokens, width in dict.fromkeys((*(usual if wanted else ()), *more)):
            for feature in _TIMED:
                for gradients in (False,) if feature == "decoding" else (False, True):
                    yield kind_of(feature, dtype, width, gradients), (batch, heads, tokens)


def time_ways(
    kind: Kind,
    sizes: tuple[int, int, int],
    device: torch.device,
    wrong: set[tuple[str, str]],
    compiled: bool = False,
) -> tuple[list[Time], dict[str, str]]:
    """Times of all ways of one call, which take turns, and why others do not run.

    Args:
        kind, sizes: of `cells`.
        device: that computes.
        wrong: backends and kinds of calls that are not right: `auto` shall not take them.
        compiled: whether what torch.compile makes of the backends and of the plain formula, and
            FlexAttention, take part, too, in some seconds a call.
    """
    (batch, heads, tokens), drawn_here = sizes, drawn(kind, *sizes)
    leaves = {name: t.to(device).requires_grad_(name in kind.gradients) for name, t in drawn_here.items()}
    args = arguments(kind, leaves)
    backends = ON_GPU if args.on_gpu else ON_CPU
    calls: dict[str, ways.Way] = {
        name: partial(_attend, name, args)
        for name in backends
        if (name, _plain_name(kind)) not in wrong and why_not(name, args, False) is None
    }
    if batch * heads * args.query.shape[2] * tokens <= _MOST_PAIRS:
        calls |= ways.others(args)
    if compiled:
        torch.compiler.reset()  # it gives up on a function after some compilations
        for name in (*backends, ways.PLAIN):
            if name in calls:
                calls[f"{name}, compiled"] = torch.compile(calls[name], dynamic=False)
    if compiled or (args.on_gpu and (*sizes, kind.width) == _FLEX):
        calls |= ways.flex(args)
    steps, failed, seconds = dict[str, Callable[[], None]](), dict[str, str](), dict[str, list[float]]()
    for name, call in calls.items():
        step: Callable[[], None] = partial(_step, call, [leaves[each] for each in kind.gradients])
        try:
            step()
            steps[name], seconds[name] = step, [_seconds(step, 1, device)]
        except Exception as failure:  # a way may fail in any manner: that is its result
            failed[name] = self_check.said(failure)
    counts = {name: max(1, int(_TURN / times[0])) for name, times in seconds.items()}
    for _ in range(_TURNS):
        for name, step in steps.items():
            seconds[name].append(_seconds(step, counts[name], device))
    rows = [
        Time(
            kind=kind.name, gradients=bool(kind.gradients), dtype=kind.precision, batch=batch, heads=heads,
            queries=args.query.shape[2], keys=tokens, width=kind.width, way=name,
            ms=1e3 * statistics.median(times[1:]),
        )
        for name, times in seconds.items()
    ]  # fmt: skip
    return rows, failed


def _plain_name(kind: Kind) -> str:
    """Of the kind without gradients: what is wrong with them is not taken without them either."""
    return kind._replace(gradients=()).name


def _attend(backend: str, args: AttentionArguments) -> Tensor:
    return by_backend(backend, args, False)[0]


def _step(call: Callable[[], Tensor], inputs: list[Tensor]) -> None:
    """The call once, with its gradients where there are inputs."""
    with torch.set_grad_enabled(bool(inputs)):
        out = call()
        if inputs:
            torch.autograd.grad(out, inputs, torch.ones_like(out))


def _seconds(step: Callable[[], None], count: int, device: torch.device) -> float:
    """Of one step, the mean of some without a pause, as in a model."""
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - begun) / count
